"""Whether these tests are to take their time: `make soak` sets it."""

import os

SOAK = os.environ.get("RAFTLAB_SOAK") == "1"
