"""`queue` in virtual time inside a simulation, and the standard module outside.

The built-in `_put` and `_get` never wait, so no other task can run in between, and put() and get() need no lock. The
`mutex` is made when that is no longer certain: for a subclass, whose hooks may wait, or when user code accesses it.
From then on put(), get() and qsize() hold it, like the standard classes.
"""

from __future__ import annotations

import queue as _queue
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from queue import Empty, Full
from typing import Any, Generic, TypeVar

from labsim.drop_in import Primitive
from labsim.task import Task
from labsim.threading import Lock, timeout_ns
from labsim.waits import WaitKind

__all__ = ["Empty", "Full", "LifoQueue", "PriorityQueue", "Queue", "SimpleQueue"]

T = TypeVar("T")


class _Waited(Primitive):
    """The base of Queue and SimpleQueue: tasks that wait for an item, or for space."""

    _mutex: Lock | None

    def _wait(
        self,
        waiters: deque[Task],
        blocked: Callable[[], bool],
        error: type[Exception],
        block: bool,
        timeout: float | None,
    ) -> None:
        """Caller holds the mutex, if there is one, and found itself blocked."""
        if not block:
            raise error
        simulation = self._simulation
        me = simulation.current
        end_ns = None if timeout is None else simulation.time_of(me.node) + timeout_ns(timeout)
        while True:
            left_ns = None
            if end_ns is not None:
                left_ns = end_ns - simulation.time_of(me.node)
                if left_ns <= 0:
                    raise error
            waiters.append(me)
            if self._mutex is not None:
                self._mutex.release()
            if not simulation.park(self, left_ns):
                waiters.remove(me)
            if self._mutex is not None:  # perhaps only now
                self._mutex.acquire()
            # Another task may have been faster than the woken one, which then continues to wait.
            if not blocked():
                return

    def _wake_one(self, waiters: deque[Task]) -> None:
        while waiters:
            task = waiters.popleft()
            if not task.dead:
                self._simulation.wake(task)
                return


class Queue(_Waited, Generic[T], standard=_queue.Queue):
    """First in, first out. Subclasses may override `_init`, `_qsize`, `_put` and `_get`, as in the standard class."""

    queue: Any  # made by _init; public because user code reads the standard queue's

    def __init__(self, maxsize: int = 0) -> None:
        self.maxsize = maxsize
        self.unfinished_tasks = 0
        self._getters: deque[Task] = deque()
        self._putters: deque[Task] = deque()
        self._joiners: list[Task] = []
        self._mutex = None if type(self) in _WITHOUT_MUTEX else Lock()
        self._init(maxsize)

    @property
    def mutex(self) -> Lock:
        if self._mutex is None:
            self._mutex = Lock()
        return self._mutex

    def _init(self, maxsize: int) -> None:
        self.queue = deque()

    def _qsize(self) -> int:
        return len(self.queue)

    def _put(self, item: T) -> None:
        self.queue.append(item)

    def _get(self) -> T:
        return self.queue.popleft()  # type: ignore[no-any-return]

    def qsize(self) -> int:
        if self._mutex is None:
            return self._qsize()
        with self._mutex:
            return self._qsize()

    def empty(self) -> bool:
        return not self.qsize()

    def full(self) -> bool:
        return 0 < self.maxsize <= self.qsize()

    # Caller holds the mutex, if there is one.
    def _is_empty(self) -> bool:
        return not self._qsize()

    def _is_full(self) -> bool:
        return 0 < self.maxsize <= self._qsize()

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        # Like the standard class, which checks the timeout only if there is a maxsize.
        if timeout is not None and block and self.maxsize > 0 and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        if self._mutex is not None:
            self._mutex.acquire()
        try:
            if 0 < self.maxsize <= self._qsize():
                self._wait(self._putters, self._is_full, Full, block, timeout)
            self._put(item)
            self.unfinished_tasks += 1
            if self._getters:
                self._wake_one(self._getters)
        finally:
            if self._mutex is not None:
                self._mutex.release()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        if timeout is not None and block and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        if self._mutex is not None:
            self._mutex.acquire()
        try:
            if not self._qsize():
                self._wait(self._getters, self._is_empty, Empty, block, timeout)
            item = self._get()
            if self._putters:
                self._wake_one(self._putters)
            return item
        finally:
            if self._mutex is not None:
                self._mutex.release()

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

    def waiter_died(self) -> None:
        """A woken task was killed before it ran, so wake another one in its place."""
        if not self._is_empty():
            self._wake_one(self._getters)
        if not self._is_full():
            self._wake_one(self._putters)

    def wait_kind(self, waiter: Task) -> WaitKind:
        if waiter in self._getters:
            return WaitKind.ITEM
        return WaitKind.SPACE if waiter in self._putters else WaitKind.TASK_DONE

    def describe_wait(self, waiter: Task) -> str:
        what = "an item" if waiter in self._getters else "space" if waiter in self._putters else "task_done()"
        return f"{what} in a {type(self).__name__} {self._where_made()}"


class LifoQueue(Queue[T], standard=_queue.LifoQueue):
    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _get(self) -> T:
        return self.queue.pop()  # type: ignore[no-any-return]


class PriorityQueue(Queue[T], standard=_queue.PriorityQueue):
    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _put(self, item: T) -> None:
        heappush(self.queue, item)

    def _get(self) -> T:
        return heappop(self.queue)  # type: ignore[no-any-return]


_WITHOUT_MUTEX = {Queue, LifoQueue, PriorityQueue}  # and their variants of ordered.py


class SimpleQueue(_Waited, Generic[T], standard=_queue.SimpleQueue):
    """Never full, without task_done(). put() accepts and ignores block and timeout, like the standard class."""

    def __init__(self) -> None:
        self._mutex = None
        self._items: deque[T] = deque()
        self._getters: deque[Task] = deque()

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        if self._getters:
            self._wake_one(self._getters)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        if timeout is not None and block and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        if not self._items:
            self._wait(self._getters, self.empty, Empty, block, timeout)
        return self._items.popleft()

    def put_nowait(self, item: T) -> None:
        self.put(item)

    def get_nowait(self) -> T:
        return self.get(block=False)

    def waiter_died(self) -> None:
        """A woken task was killed before it took its item, so wake another one to take it."""
        if self._items:
            self._wake_one(self._getters)

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.ITEM

    def describe_wait(self, waiter: Task) -> str:
        return f"an item in a {type(self).__name__} {self._where_made()}"
