"""No process is left behind: a peer's ends with the one that started it, however that ends.

On Linux the kernel sees to it, even for a process that is stopped; elsewhere a thread looks now and then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.5


def end_with(parent: int | None) -> None:
    """From now on. `parent`: who started this process; None: nobody in particular."""
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(0)
    if sys.platform != "linux":
        threading.Thread(target=_look_for, args=(parent,), daemon=True).start()


def _look_for(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(0)
