"""Ends a peer's process with the process that started it, however that one ends.

On Linux the kernel does this, even for a stopped process; elsewhere a thread checks the parent regularly.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_INTERVAL_S = 0.5


def exit_with_parent(parent: int | None) -> None:
    """End this process with its parent from now on. None: do not."""
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended already
        os._exit(0)
    if sys.platform != "linux":
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_INTERVAL_S)
    os._exit(0)
