"""`python -m labtools` is `lab`."""

import sys

from labtools.cli import main

sys.exit(main())
