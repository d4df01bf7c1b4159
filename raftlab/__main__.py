"""`python -m raftlab` is `lab`."""

import sys

from raftlab.tools.cli import main

sys.exit(main())
