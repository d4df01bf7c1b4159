"""The drop-ins of threading and queue that also keep what comes after what, for runs in which somebody asks.

Promise: each behaves exactly as its plain twin, and is called like it in reports. A run that keeps no order makes none
of these, and pays nothing for them.

| what | orders |
|---|---|
| Lock, RLock, and a Condition through its lock | who lets go of it before who takes it next |
| Event | set() before a wait() or an is_set() that sees it |
| Semaphore | release() before the acquire() after it |
| Queue and its kin | every operation on it before the next, as the standard one's mutex does |
| Thread | start() before its first line; its last line before join() returns, or is_alive() says no |
| Barrier | through the Condition it is written on |

A task that somebody outside has a node begin (a request, a call of the tester's) comes after all that was published as
the node's base, when its constructor had returned, and after nothing else.

Start at `Ordering`.
"""

from __future__ import annotations

from typing import Any

from labsim import queue, threading
from labsim.clocks import NodeClocks, Stamp, TaskClock
from labsim.drop_in import Primitive
from labsim.simulation import Simulation
from labsim.task import Node, Task


class Ordering:
    """What comes after what in one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._variants = dict(_variants)  # and those of the student's own subclasses, which live no longer than the run

    def new(self, cls: type) -> Any:
        """What is made where a `cls` is asked for: one that keeps order, where it has a part in it."""
        variant = self._variants.get(cls)
        if variant is None:
            variant = self._variants[cls] = _ordered_variant(cls)
        made = object.__new__(variant)
        if variant is not cls:
            made._stamp = None
        return made

    def began(self, task: Task, creator: Task | None) -> None:
        node = task.node
        assert node is not None
        if node.lineage is None:
            node.lineage = NodeClocks()
        order = creator.order if creator is not None and creator.node is node else None
        task.order = node.lineage.begin(node.lineage.base if order is None else order.publish())
        if task.order is not None:
            thread = getattr(task.fn, "__self__", None)
            target = getattr(thread, "_target", None) if isinstance(thread, threading.Thread) else None
            task.order.begins = task.entry_point or getattr(target, "__name__", "")

    def joined(self, task: Task) -> None:
        """The current task has seen that this one has ended, if it has."""
        order = self._simulation.current.order
        if order is not None and task.order is not None and task.order.ended is not None:
            order.learn(task.order.ended)

    def made(self, node: Node, *, one_at_a_time: bool = False) -> None:
        """What the current task has done comes before whatever somebody outside has the node do from now on.

        `one_at_a_time`: and so does each of these before the next, because it is waited for.
        """
        order = self._simulation.current.order
        if order is not None:
            if node.lineage.base is not None:
                order.learn(node.lineage.base)
            node.lineage.base = order.publish()
            node.lineage.one_at_a_time = one_at_a_time


class _Ordered(Primitive):
    """What all of them have: the latest stamp that was left at it."""

    __slots__ = ()

    _stamp: Stamp | None

    def _leave(self) -> None:
        """The current task is here: who comes next, comes after it."""
        order: TaskClock | None = self._simulation.current.order
        if order is not None:
            if self._stamp is not None:
                order.learn(self._stamp)
            self._stamp = order.publish()  # type: ignore[misc]  # its place is in the twin's slots

    def _find(self) -> None:
        """The current task comes after all who were here."""
        order: TaskClock | None = self._simulation.current.order
        if order is not None and self._stamp is not None:
            order.learn(self._stamp)


class _OrderedLock(_Ordered):
    __slots__ = ()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken: bool = super().acquire(blocking, timeout)  # type: ignore[misc]  # the twin's other base has it
        if taken:
            self._take()
        return taken

    def __enter__(self) -> bool:
        return self.acquire()

    def release(self) -> None:
        self._let_go()
        super().release()  # type: ignore[misc]  # as above

    def __exit__(self, *_: object) -> None:
        self.release()

    def _release_save(self) -> int:
        self._let_go(wholly=True)
        return super()._release_save()  # type: ignore[misc,no-any-return]  # as above

    def _acquire_restore(self, count: int) -> None:
        super()._acquire_restore(count)  # type: ignore[misc]  # as above
        self._take()

    def _take(self) -> None:
        order: TaskClock | None = self._simulation.current.order
        if order is not None:
            if self._stamp is not None:
                order.learn(self._stamp)
            if self not in order.locks:
                order.locks = (*order.locks, self)

    def _let_go(self, *, wholly: bool = False) -> None:
        if not wholly and getattr(self, "_count", 1) != 1:
            return  # a reentrant lock is let go of by the last release
        owner: Task | None = self.holder  # type: ignore[attr-defined]  # as above
        holder: TaskClock | None = None if owner is None else owner.order
        order: TaskClock | None = self._simulation.current.order
        if holder is not None:
            holder.locks = tuple(lock for lock in holder.locks if lock is not self)
        if order is not None:
            if holder is not order and self._stamp is not None:
                order.learn(self._stamp)  # a lock may be released by one who has not taken it
            self._stamp = order.publish()  # type: ignore[misc]  # its place is in the twin's slots


class _OrderedEvent(_Ordered):
    __slots__ = ()

    def set(self) -> None:
        self._leave()
        super().set()  # type: ignore[misc]  # as above

    def is_set(self) -> bool:
        if seen := super().is_set():  # type: ignore[misc]  # as above
            self._find()
        return bool(seen)

    def wait(self, timeout: float | None = None) -> bool:
        if seen := super().wait(timeout):  # type: ignore[misc]  # as above
            self._find()
        return bool(seen)


class _OrderedSemaphore(_Ordered):
    __slots__ = ()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if taken := super().acquire(blocking, timeout):  # type: ignore[misc]  # as above
            self._find()
        return bool(taken)

    def __enter__(self) -> bool:
        return self.acquire()

    def release(self, n: int = 1) -> None:
        self._leave()
        super().release(n)  # type: ignore[misc]  # as above


class _OrderedSimpleQueue(_Ordered):
    __slots__ = ()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._leave()  # also before, for a subclass whose hooks may wait
        super().put(item, block, timeout)  # type: ignore[misc]  # as above
        self._leave()  # nobody else has had a turn since it was put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)  # type: ignore[misc]  # as above
        self._leave()
        return item

    def qsize(self) -> int:
        self._leave()
        return super().qsize()  # type: ignore[misc,no-any-return]  # as above

    def empty(self) -> bool:
        self._leave()
        return super().empty()  # type: ignore[misc,no-any-return]  # as above


class _OrderedQueue(_OrderedSimpleQueue):
    __slots__ = ()

    def task_done(self) -> None:
        self._leave()
        super().task_done()  # type: ignore[misc]  # as above

    def join(self) -> None:
        super().join()  # type: ignore[misc]  # as above
        self._find()


_KINDS: tuple[tuple[type, type], ...] = (
    (threading.Lock, _OrderedLock),
    (threading.RLock, _OrderedLock),
    (threading.Event, _OrderedEvent),
    (threading.Semaphore, _OrderedSemaphore),
    (queue.Queue, _OrderedQueue),
    (queue.SimpleQueue, _OrderedSimpleQueue),
)


class _NoInitSubclass:
    """First of a twin's bases: a student's __init_subclass__, which may count its subclasses, is not told of it."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        pass


def _ordered_variant(cls: type) -> Any:
    """Of one of our classes, or of a student's subclass; `cls` itself, where it has no part in any order."""
    ordered = next((ordered for plain, ordered in _KINDS if plain in cls.__mro__), None)
    if ordered is None:
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (_NoInitSubclass, ordered, cls), {**names, "__slots__": ("_stamp",)})


_variants: dict[type, Any] = {
    cls: _ordered_variant(cls)
    for cls in (
        *(threading.Lock, threading.RLock, threading.Event, threading.Semaphore, threading.BoundedSemaphore),
        *(queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue),
    )
}
queue._WITHOUT_MUTEX |= {_variants[cls] for cls in tuple(queue._WITHOUT_MUTEX)}
