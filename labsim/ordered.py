"""Drop-ins of threading and queue that also track happens-before, for runs that detect races.

Promise: each behaves exactly like the class that it replaces, and has its name in reports. Runs that do not track
happens-before make none of these, and pay nothing for them.

| class | happens-before |
|---|---|
| Lock, RLock, and a Condition through its lock | release before the next acquire |
| Event | set() before a wait() or an is_set() that returns True |
| Semaphore | release() before the acquire() after it |
| Queue and its variants | every operation before the next, like the standard queue's mutex |
| Thread | start() before its first line; its last line before join() returns, or is_alive() returns False |
| Barrier | through the Condition that it is built on |

A call from outside a node (a request, a call of the tester) comes after everything published as the node's base, when
its constructor had returned, and after nothing else.

Start at `Ordering`.
"""

from __future__ import annotations

from typing import Any

from labsim import queue, threading
from labsim.clocks import NodeClocks, Stamp, TaskClock
from labsim.drop_in import NoInitSubclass, Primitive
from labsim.simulation import Simulation
from labsim.task import Node, Task


class Ordering:
    """Tracks happens-before in one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._variants = dict(_variants)  # plus those of the student's own subclasses, which end with the run

    def new(self, cls: type) -> Any:
        """A new object for `cls`: of its ordered variant, if it has one."""
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
        """The current task has checked whether this task has ended."""
        order = self._simulation.current.order
        if order is not None and task.order is not None and task.order.ended is not None:
            order.learn(task.order.ended)

    def made(self, node: Node, *, one_at_a_time: bool = False) -> None:
        """Everything the current task has done happens before all later calls from outside the node.

        `one_at_a_time`: each of these calls also happens before the next, because the caller waits for it.
        """
        order = self._simulation.current.order
        if order is not None:
            if node.lineage.base is not None:
                order.learn(node.lineage.base)
            node.lineage.base = order.publish()
            node.lineage.one_at_a_time = one_at_a_time


class _Ordered(Primitive):
    """The base of the ordered classes: an object with the latest published stamp."""

    __slots__ = ()

    _stamp: Stamp | None

    def _order_both(self) -> None:
        """Order the current task after all earlier operations, and before all later ones."""
        order: TaskClock | None = self._simulation.current.order
        if order is not None:
            if self._stamp is not None:
                order.learn(self._stamp)
            self._stamp = order.publish()  # type: ignore[misc]  # its place is in the variant's slots

    def _order_after(self) -> None:
        """Order the current task after all earlier operations."""
        order: TaskClock | None = self._simulation.current.order
        if order is not None and self._stamp is not None:
            order.learn(self._stamp)


class _OrderedLock(_Ordered):
    __slots__ = ()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken: bool = super().acquire(blocking, timeout)  # type: ignore[misc]  # the variant's other base has it
        if taken:
            self._acquire_order()
        return taken

    def __enter__(self) -> bool:
        return self.acquire()

    def release(self) -> None:
        self._release_order()
        super().release()  # type: ignore[misc]  # as above

    def __exit__(self, *_: object) -> None:
        self.release()

    def _release_save(self) -> int:
        self._release_order(fully=True)
        return super()._release_save()  # type: ignore[misc,no-any-return]  # as above

    def _acquire_restore(self, count: int) -> None:
        super()._acquire_restore(count)  # type: ignore[misc]  # as above
        self._acquire_order()

    def _acquire_order(self) -> None:
        order: TaskClock | None = self._simulation.current.order
        if order is not None:
            if self._stamp is not None:
                order.learn(self._stamp)
            if self not in order.locks:
                order.locks = (*order.locks, self)

    def _release_order(self, *, fully: bool = False) -> None:
        if not fully and getattr(self, "_count", 1) != 1:
            return  # only the last release frees a reentrant lock
        owner: Task | None = self.holder  # type: ignore[attr-defined]  # as above
        holder: TaskClock | None = None if owner is None else owner.order
        order: TaskClock | None = self._simulation.current.order
        if holder is not None:
            holder.locks = tuple(lock for lock in holder.locks if lock is not self)
        if order is not None:
            if holder is not order and self._stamp is not None:
                order.learn(self._stamp)  # a task may release a lock that another one has acquired
            self._stamp = order.publish()  # type: ignore[misc]  # its place is in the variant's slots


class _OrderedEvent(_Ordered):
    __slots__ = ()

    def set(self) -> None:
        self._order_both()
        super().set()  # type: ignore[misc]  # as above

    def is_set(self) -> bool:
        if seen := super().is_set():  # type: ignore[misc]  # as above
            self._order_after()
        return bool(seen)

    def wait(self, timeout: float | None = None) -> bool:
        if seen := super().wait(timeout):  # type: ignore[misc]  # as above
            self._order_after()
        return bool(seen)


class _OrderedSemaphore(_Ordered):
    __slots__ = ()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if taken := super().acquire(blocking, timeout):  # type: ignore[misc]  # as above
            self._order_after()
        return bool(taken)

    def __enter__(self) -> bool:
        return self.acquire()

    def release(self, n: int = 1) -> None:
        self._order_both()
        super().release(n)  # type: ignore[misc]  # as above


class _OrderedSimpleQueue(_Ordered):
    __slots__ = ()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._order_both()  # also before, for a subclass whose hooks may wait
        super().put(item, block, timeout)  # type: ignore[misc]  # as above
        self._order_both()  # no other task has run since the item was put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)  # type: ignore[misc]  # as above
        self._order_both()
        return item

    def qsize(self) -> int:
        self._order_both()
        return super().qsize()  # type: ignore[misc,no-any-return]  # as above

    def empty(self) -> bool:
        self._order_both()
        return super().empty()  # type: ignore[misc,no-any-return]  # as above


class _OrderedQueue(_OrderedSimpleQueue):
    __slots__ = ()

    def task_done(self) -> None:
        self._order_both()
        super().task_done()  # type: ignore[misc]  # as above

    def join(self) -> None:
        super().join()  # type: ignore[misc]  # as above
        self._order_after()


_KINDS: tuple[tuple[type, type], ...] = (
    (threading.Lock, _OrderedLock),
    (threading.RLock, _OrderedLock),
    (threading.Event, _OrderedEvent),
    (threading.Semaphore, _OrderedSemaphore),
    (queue.Queue, _OrderedQueue),
    (queue.SimpleQueue, _OrderedSimpleQueue),
)


def _ordered_variant(cls: type) -> Any:
    """The variant of a drop-in or of a student's subclass; `cls` itself, if it does not order anything."""
    ordered = next((ordered for plain, ordered in _KINDS if plain in cls.__mro__), None)
    if ordered is None:
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (NoInitSubclass, ordered, cls), {**names, "__slots__": ("_stamp",)})


_variants: dict[type, Any] = {
    cls: _ordered_variant(cls)
    for cls in (
        *(threading.Lock, threading.RLock, threading.Event, threading.Semaphore, threading.BoundedSemaphore),
        *(queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue),
    )
}
queue._WITHOUT_MUTEX |= {_variants[cls] for cls in tuple(queue._WITHOUT_MUTEX)}
