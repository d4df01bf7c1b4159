"""When garbage in reference cycles is collected: at places that the run itself fixes, and nowhere else.

Collecting has effects: a `__del__` runs, a weak reference dies. Left to itself Python collects when the whole process
has allocated enough, so one seed would be another run after other runs. While a simulation runs, the collector is
therefore ours: it looks at what is new, when the run calls collect(). What has outlived one such look is left alone
until the run is over. Python steps in only before memory runs away.

Start at `in_the_runs_hands()`.
"""

from __future__ import annotations

import _thread
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Between two collect()s a run keeps a few thousand new objects. One that keeps so many is about to fill the memory,
# and collecting at a time of Python's choosing is then the smaller evil.
_RUNAWAY = 500_000

_changing = _thread.allocate_lock()
_users = 0
_python_s = gc.get_threshold()


@contextmanager
def in_the_runs_hands() -> Iterator[None]:
    """Before the run everything there is grows old, so that none of it can be found in the run."""
    global _users, _python_s
    with _changing:
        _users += 1
        if _users == 1:
            collect()
            _python_s = gc.get_threshold()
            gc.set_threshold(_RUNAWAY, *_python_s[1:])
    try:
        yield
    finally:
        with _changing:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_python_s)


def collect() -> None:
    gc.collect(1)  # the young generations; all that they keep is old from now on
