"""When garbage in reference cycles is collected: at places that the run itself fixes, and nowhere else.

Collecting has effects: a `__del__` runs, a weak reference dies. Left to itself Python collects when the whole process
has allocated enough, so one seed would be another run after other runs. While a simulation runs, the collector is
therefore ours: it looks at what is new, when the run calls collect(). What has outlived one such look is left alone
until the run is over.

Not promised: the same while several simulations run in threads of one process, which have one collector between them
(then Python decides, as ever), or in a run that keeps half a million new objects from one look to the next: before
memory runs away Python steps in.

Start at `controlled_gc()`.
"""

from __future__ import annotations

import _thread
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Between two collect()s a run keeps a few thousand new objects.
_RUNAWAY = 500_000
# After so many, the runs that made them have left enough behind to be worth looking through everything.
_LOOKS_UNTIL_FULL = 8

_changing = _thread.allocate_lock()
_users = 0
_looks = 0
_python_s = gc.get_threshold()


@contextmanager
def controlled_gc() -> Iterator[None]:
    """Before the run everything there is grows old, so that none of it can be found in the run."""
    global _users, _looks, _python_s
    if _users == 0:
        if _looks >= _LOOKS_UNTIL_FULL:
            _looks = 0
            gc.collect()
        else:
            gc.collect(1)
    with _changing:
        _users += 1
        if _users == 1:
            _python_s = gc.get_threshold()
            gc.set_threshold(_RUNAWAY, *_python_s[1:])
        elif _users == 2:
            gc.set_threshold(*_python_s)
    try:
        yield
    finally:
        with _changing:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_python_s)


def collect() -> None:
    """Look at the young generations; all that they keep is old from now on."""
    global _looks
    if _users == 1:
        _looks += 1
        gc.collect(1)
