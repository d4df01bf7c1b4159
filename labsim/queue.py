"""`queue`, in virtual time inside a simulation and the standard one outside."""

from __future__ import annotations

import queue as _queue
from collections import deque
from heapq import heappop, heappush
from queue import Empty, Full
from typing import Any, Generic, TypeVar

from labsim.here import here
from labsim.simulation import Simulation, Task, seconds_to_ns
from labsim.threading import _made_at, describe_made_at, make_standard

__all__ = ["Empty", "Full", "LifoQueue", "PriorityQueue", "Queue", "SimpleQueue"]

T = TypeVar("T")


class Queue(Generic[T]):
    """First in, first out. Subclasses may change `_init`, `_qsize`, `_put` and `_get`, as in the standard one."""

    queue: Any  # what _init makes; readable, as people read the standard one's

    def __new__(cls, maxsize: int = 0) -> Queue[T]:
        if here.simulation is None:
            drop_in = cls if cls in _STANDARD else Queue
            return make_standard(cls, drop_in, _STANDARD.get(cls, _queue.Queue), maxsize)  # type: ignore[no-any-return]
        return object.__new__(cls)

    def __init__(self, maxsize: int = 0) -> None:
        simulation = here.simulation
        assert simulation is not None
        self._set_up(simulation, maxsize)

    def _set_up(self, simulation: Simulation, maxsize: int) -> None:
        self._simulation = simulation
        self._made_at = _made_at()
        self.maxsize = maxsize
        self.unfinished_tasks = 0
        self._getters: deque[Task] = deque()
        self._putters: deque[Task] = deque()
        self._joiners: list[Task] = []
        self._init(maxsize)

    def _init(self, maxsize: int) -> None:
        self.queue = deque()

    def _qsize(self) -> int:
        return len(self.queue)

    def _put(self, item: T) -> None:
        self.queue.append(item)

    def _get(self) -> T:
        return self.queue.popleft()  # type: ignore[no-any-return]

    def qsize(self) -> int:
        return self._qsize()

    def empty(self) -> bool:
        return not self._qsize()

    def full(self) -> bool:
        return 0 < self.maxsize <= self._qsize()

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        if 0 < self.maxsize <= self._qsize():
            self._wait(self._putters, self.full, Full, block, timeout)
        self._put(item)
        self.unfinished_tasks += 1
        self._wake_one(self._getters)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        if not self._qsize():
            self._wait(self._getters, self.empty, Empty, block, timeout)
        item = self._get()
        self._wake_one(self._putters)
        return item

    def put_nowait(self, item: T) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> T:
        return self.get(block=False)

    def task_done(self) -> None:
        if self.unfinished_tasks <= 0:
            raise ValueError("task_done() called too many times")
        self.unfinished_tasks -= 1
        if not self.unfinished_tasks:
            joiners, self._joiners = self._joiners, []
            for task in joiners:
                self._simulation.wake(task)

    def join(self) -> None:
        while self.unfinished_tasks:
            self._joiners.append(self._simulation.current)
            self._simulation.park(self)

    def _wait(
        self, waiters: deque[Task], blocked: Any, error: type[Exception], block: bool, timeout: float | None
    ) -> None:
        if not block:
            raise error
        simulation = self._simulation
        me = simulation.current
        end_ns = None
        if timeout is not None:
            if timeout < 0:
                raise ValueError("'timeout' must be a non-negative number")
            end_ns = simulation.now_ns + seconds_to_ns(timeout)
        # A woken task may find that another was quicker; it waits on.
        while blocked():
            left_ns = None
            if end_ns is not None:
                left_ns = end_ns - simulation.now_ns
                if left_ns <= 0:
                    raise error
            waiters.append(me)
            if not simulation.park(self, left_ns):
                waiters.remove(me)

    def _wake_one(self, waiters: deque[Task]) -> None:
        while waiters:
            task = waiters.popleft()
            if not task.dead:
                self._simulation.wake(task)
                return

    def waiter_died(self) -> None:
        """A task was killed before it could use what it was woken for, so another is woken to try."""
        if not self.empty():
            self._wake_one(self._getters)
        if not self.full():
            self._wake_one(self._putters)

    def describe_wait(self, waiter: Task) -> str:
        what = "an item" if waiter in self._getters else "room" if waiter in self._putters else "task_done()"
        return f"{what} in a {type(self).__name__} {describe_made_at(self._made_at)}"


class LifoQueue(Queue[T]):
    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _get(self) -> T:
        return self.queue.pop()  # type: ignore[no-any-return]


class PriorityQueue(Queue[T]):
    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _put(self, item: T) -> None:
        heappush(self.queue, item)

    def _get(self) -> T:
        return heappop(self.queue)  # type: ignore[no-any-return]


class SimpleQueue(Queue[T]):
    """Never full. put() takes and ignores block and timeout, as the standard one."""

    def __new__(cls) -> SimpleQueue[T]:
        if here.simulation is None:
            return make_standard(cls, SimpleQueue, _queue.SimpleQueue)  # type: ignore[no-any-return]
        return object.__new__(cls)

    def __init__(self) -> None:
        super().__init__()


_STANDARD: dict[type, type] = {Queue: _queue.Queue, LifoQueue: _queue.LifoQueue, PriorityQueue: _queue.PriorityQueue}
