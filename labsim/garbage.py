"""Deterministic garbage collection: reference cycles are collected only at points that the run fixes.

Collection has effects: `__del__` runs, weak references die. By default Python collects when the whole process has
allocated enough, so a seed would give another run after other runs. While a simulation runs, only its own collect()
calls collect, and only new objects. What survives one collection is left alone until the run is over.

Not promised: determinism while several simulations run in threads of one process, which share one collector (then
Python decides as usual), or in a run that keeps half a million new objects between two collections: before memory runs
out, Python collects.

Start at `controlled_gc()`.
"""

from __future__ import annotations

import _thread
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Between two collect()s a run keeps a few thousand new objects.
_RUNAWAY = 500_000
# After this many collections a full one is worth its time.
_COLLECTIONS_UNTIL_FULL = 8

_changing = _thread.allocate_lock()
_users = 0
_collections = 0
_default_thresholds = gc.get_threshold()


@contextmanager
def controlled_gc() -> Iterator[None]:
    """Age all existing objects before the run, so that no collection during the run can find them."""
    global _users, _collections, _default_thresholds
    if _users == 0:
        if _collections >= _COLLECTIONS_UNTIL_FULL:
            _collections = 0
            gc.collect()
        else:
            gc.collect(1)
    with _changing:
        _users += 1
        if _users == 1:
            _default_thresholds = gc.get_threshold()
            gc.set_threshold(_RUNAWAY, *_default_thresholds[1:])
        elif _users == 2:
            gc.set_threshold(*_default_thresholds)
    try:
        yield
    finally:
        with _changing:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_default_thresholds)


def collect() -> None:
    """Collect the young generations. What survives is old from now on."""
    global _collections
    if _users == 1:
        _collections += 1
        gc.collect(1)
