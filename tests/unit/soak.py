"""SOAK: whether to run slow tests. `make soak` sets it."""

import os

SOAK = os.environ.get("RAFTLAB_SOAK") == "1"
