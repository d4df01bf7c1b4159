"""Ends of a command that has processes of its own: whoever asks it to stop gets all of them stopped.

Start at `ended_politely()`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_politely() -> Iterator[None]:
    """`kill` and `timeout` get the summary, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
