"""`threading` in virtual time inside a simulation, and the standard module outside.

Promise: the standard signatures, results and errors. An object made inside a simulation belongs to it; an object made
outside is the standard library's own (see drop_in.py).

Not promised: an order among waiters beyond the standard library's (which promises none for locks; here the seed
chooses). A released lock is handed to the chosen waiter directly, so no waiter starves.
"""

from __future__ import annotations

import threading as _threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import index
from threading import TIMEOUT_MAX as TIMEOUT_MAX
from threading import BrokenBarrierError, ThreadError
from typing import Any, Self, TypeVar

from labsim.current import run_context
from labsim.drop_in import DropIn, Primitive, make_standard, refuse_to_copy
from labsim.errors import SimulationError
from labsim.simulation import Simulation, seconds_to_ns
from labsim.task import Task
from labsim.waits import WaitKind

__all__ = [
    "TIMEOUT_MAX",
    "Barrier",
    "BoundedSemaphore",
    "BrokenBarrierError",
    "Condition",
    "Event",
    "Lock",
    "RLock",
    "Semaphore",
    "Thread",
    "ThreadError",
    "Timer",
    "active_count",
    "current_thread",
    "enumerate",
    "get_ident",
    "get_native_id",
    "local",
    "main_thread",
]

T = TypeVar("T")


def __getattr__(name: str) -> Any:
    if hasattr(_threading, name):
        raise AttributeError(f"labsim.threading has no {name}: it is deprecated or has no meaning in virtual time")
    raise AttributeError(f"module 'labsim.threading' has no attribute {name!r}")


def timeout_ns(timeout: float) -> int:
    """A timeout in ns, checked like the standard library's: negative means 0, too large is an error."""
    if not timeout > 0:
        return 0
    if timeout > TIMEOUT_MAX:
        raise OverflowError("timeout value is too large")
    if timeout.__class__ is not float and not isinstance(timeout, float):
        timeout = index(timeout)  # no Fraction, no Decimal
    return seconds_to_ns(timeout)


# ---- locks ---------------------------------------------------------------------------------------------


class _LockBase(Primitive):
    """The base of Lock and RLock: an owner, and waiters, one of which the seed chooses at release.

    A free lock has no waiters: release() hands the lock to one of them.
    """

    __slots__ = ("__weakref__", "_made_at", "_owner", "_simulation", "_waiters")

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._waiters: list[Task] = []

    def _wait_for_lock(self, blocking: bool, timeout: float) -> bool:
        """The lock is held by another task. True: the caller holds it now."""
        simulation = self._simulation
        if not blocking:
            return False
        me = simulation.current
        self._waiters.append(me)
        # release() makes the woken task the owner, so there is nothing to check again.
        if simulation.park(self, None if timeout == -1 else timeout_ns(timeout)):
            return True
        self._waiters.remove(me)
        return False

    def _hand_over(self) -> None:
        """Give the lock to a waiter, or leave it free."""
        waiters = self._waiters
        while waiters:
            i = self._simulation.pick(self._simulation.now_ns, waiters) if len(waiters) > 1 else 0
            task = waiters.pop(i)
            if not task.dead:
                self._owner = task
                self._simulation.wake(task)
                return
        self._owner = None

    def _refuse_release(self, error: str) -> None:
        # When a run is unwound, a task leaves `with cond: cond.wait()` without the lock. That is not a mistake.
        if self._simulation._state != "closing":
            raise RuntimeError(error)

    @property
    def holder(self) -> Task | None:
        """The current holder, for reports."""
        return self._owner

    def holder_died(self) -> None:
        if self._owner is not None and self._owner.killed:
            self._hand_over()

    def wait_kind(self, waiter: Task) -> WaitKind:
        # A waiter that has just been handed the lock is ready to run.
        if waiter not in self._waiters:
            return WaitKind.NOTHING
        if self._owner is waiter:
            return WaitKind.OWN_LOCK
        return WaitKind.LOST_LOCK if self._owner is not None and self._owner.dead else WaitKind.LOCK

    def describe_wait(self, waiter: Task) -> str:
        owner = self._owner
        held = "free" if owner is None else "held by itself" if owner is waiter else f"held by {owner}"
        if owner is not None and owner.dead:
            held += ", which has ended"
        return f"a {type(self).__name__} {self._where_made()}, {held}"

    @staticmethod
    def _check_timeout(blocking: bool, timeout: float) -> None:
        if timeout.__class__ is not float and not isinstance(timeout, float):
            timeout = index(timeout)
        if timeout != timeout:
            raise ValueError("Invalid value NaN (not a number)")
        if not blocking:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0:
            raise ValueError("timeout value must be a non-negative number")
        if timeout > TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")


class Lock(_LockBase, standard=type(_threading.Lock()), maker=_threading.Lock):
    __slots__ = ()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout != -1:
            self._check_timeout(blocking, timeout)
        if self._owner is None or self._owner.killed:
            self._owner = self._simulation.current
            return True
        return self._wait_for_lock(blocking, timeout)

    def release(self) -> None:
        if self._waiters:
            self._hand_over()
        elif self._owner is None:
            self._refuse_release("release unlocked lock")
        else:
            self._owner = None

    def locked(self) -> bool:
        return self._owner is not None and not self._owner.killed

    def __enter__(self) -> bool:
        if self._owner is None:
            self._owner = self._simulation.current
            return True
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        # release(), inlined: this is the most frequent call of all.
        if self._waiters:
            self._hand_over()
        elif self._owner is None:
            self._refuse_release("release unlocked lock")
        else:
            self._owner = None

    def __repr__(self) -> str:
        return f"<{'locked' if self.locked() else 'unlocked'} Lock {self._where_made()}>"

    # For Condition. As in the standard library, a plain lock counts as owned whichever task holds it.
    def _is_owned(self) -> bool:
        return self._owner is not None

    def _release_save(self) -> int:
        self.release()
        return 1

    def _acquire_restore(self, count: int) -> None:
        self.acquire()


class RLock(_LockBase, standard=type(_threading.RLock()), maker=_threading.RLock):
    __slots__ = ("_count",)

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout != -1:
            self._check_timeout(blocking, timeout)
        me = self._simulation.current
        owner = self._owner
        if owner is me:
            self._count += 1
            return True
        if owner is None or owner.killed:
            self._owner = me
        elif not self._wait_for_lock(blocking, timeout):
            return False
        self._count = 1
        return True

    __enter__ = acquire

    def release(self) -> None:
        if self._owner is not self._simulation.current:
            self._refuse_release("cannot release un-acquired lock")
            return
        self._count -= 1
        if not self._count:
            if self._waiters:
                self._hand_over()
            else:
                self._owner = None

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        held = self._owner is not None and not self._owner.killed
        state = f"locked RLock owner={self._owner} count={self._count}" if held else "unlocked RLock"
        return f"<{state} {self._where_made()}>"

    def _is_owned(self) -> bool:
        return self._owner is self._simulation.current

    def _release_save(self) -> int:
        count, self._count = self._count, 0
        if self._waiters:
            self._hand_over()
        else:
            self._owner = None
        return count

    def _acquire_restore(self, count: int) -> None:
        if self._owner is None:
            self._owner = self._simulation.current
        else:
            self.acquire()
        self._count = count


# ---- conditions and what is built like them ------------------------------------------------------------


class Condition(Primitive, standard=_threading.Condition):
    def __init__(self, lock: Lock | RLock | None = None) -> None:
        if lock is None:
            lock = RLock()
        elif not isinstance(lock, _LockBase) or lock._simulation is not self._simulation:
            raise TypeError(f"Condition(): lock must be a Lock or RLock of this simulation, got {lock!r}")
        self._lock = lock
        self._waiters: deque[Task] = deque()
        self.acquire = lock.acquire
        self.release = lock.release

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        lock = self._lock
        if not lock._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        # Before the lock is released: an invalid timeout must not change anything.
        left_ns = None if timeout is None else timeout_ns(timeout)
        simulation = self._simulation
        me = simulation.current
        self._waiters.append(me)
        count = lock._release_save()
        woken = simulation.park(self, left_ns)
        if not woken:
            self._waiters.remove(me)
        lock._acquire_restore(count)
        return woken

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        result = predicate()
        if timeout is None:
            while not result:
                self.wait()
                result = predicate()
        elif not result:
            simulation = self._simulation
            node = simulation.current.node
            end_ns = simulation.time_of(node) + timeout_ns(timeout)
            while not result and simulation.time_of(node) < end_ns:
                self.wait((end_ns - simulation.time_of(node)) / 1e9)
                result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        if not self._lock._is_owned():
            raise RuntimeError("cannot notify on un-acquired lock")
        waiters = self._waiters
        while waiters and n > 0:
            task = waiters.popleft()
            if not task.dead:
                self._simulation.wake(task)
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    def waiter_died(self) -> None:
        """A notified task was killed before it ran, so another is notified in its place."""
        while self._waiters:
            task = self._waiters.popleft()
            if not task.dead:
                self._simulation.wake(task)
                return

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.CONDITION

    def describe_wait(self, waiter: Task) -> str:
        return f"a Condition {self._where_made()} to be notified"

    def __repr__(self) -> str:
        return f"<Condition({self._lock!r}, {len(self._waiters)})>"


class Event(Primitive, standard=_threading.Event):
    def __init__(self) -> None:
        self._flag = False
        self._waiters: list[Task] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for task in waiters:
                self._simulation.wake(task)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._flag:
            return True
        left_ns = None if timeout is None else timeout_ns(timeout)
        simulation = self._simulation
        me = simulation.current
        self._waiters.append(me)
        woken = simulation.park(self, left_ns)
        if not woken:
            self._waiters.remove(me)
        return woken

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.EVENT

    def describe_wait(self, waiter: Task) -> str:
        return f"an Event {self._where_made()} to be set"

    def __repr__(self) -> str:
        return f"<Event {self._where_made()}: {'set' if self._flag else 'unset'}>"


class Semaphore(Primitive, standard=_threading.Semaphore):
    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self._value = value
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not blocking and timeout is not None:
            raise ValueError("can't specify timeout for non-blocking acquire")
        if self._value > 0:
            self._value -= 1
            return True
        if not blocking:
            return False
        left_ns = None if timeout is None else timeout_ns(timeout)
        simulation = self._simulation
        me = simulation.current
        self._waiters.append(me)
        # release() hands its unit to the woken task, so the value does not change here.
        if simulation.park(self, left_ns):
            return True
        self._waiters.remove(me)
        return False

    __enter__ = acquire

    def release(self, n: int = 1) -> None:
        if n < 1:
            raise ValueError("n must be one or more")
        waiters = self._waiters
        while n and waiters:
            task = waiters.pop(0)
            if not task.dead:
                self._simulation.wake(task)
                n -= 1
        self._value += n

    def waiter_died(self) -> None:
        """A task was killed before it took the unit that it was handed, so the unit is released again."""
        Semaphore.release(self)

    def __exit__(self, *_: object) -> None:
        self.release()

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.SEMAPHORE

    def describe_wait(self, waiter: Task) -> str:
        return f"a {type(self).__name__} {self._where_made()} to be released"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._where_made()}: value={self._value}>"


class BoundedSemaphore(Semaphore, standard=_threading.BoundedSemaphore):
    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self._initial_value = value

    def release(self, n: int = 1) -> None:
        if n >= 1 and self._value + n > self._initial_value:
            raise ValueError("Semaphore released too many times")
        super().release(n)


class Barrier(_threading.Barrier, metaclass=DropIn, standard=_threading.Barrier):
    """The standard Barrier, which is written on a Condition, on ours."""

    def __init__(self, parties: int, action: Callable[[], None] | None = None, timeout: float | None = None) -> None:
        super().__init__(parties, action, timeout)
        self._cond = Condition(Lock())


# ---- threads -------------------------------------------------------------------------------------------


class Thread(_threading.Thread, metaclass=DropIn, standard=_threading.Thread):
    """A task of the simulation it was made in; made outside one, a standard thread."""

    _simulation: Simulation | None = None
    _task: Task | None = None

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        simulation = run_context.simulation
        if simulation is None:
            super().__init__(group, target, name, args, kwargs, daemon=daemon)
            return
        # The standard __init__ would make real locks, and number threads per process and not per run.
        assert group is None, "group argument must be None for now"
        self._simulation = simulation
        self._task = None
        if name:
            self._sim_name = str(name)
        else:
            number = simulation.next_thread_number()
            try:
                self._sim_name = f"Thread-{number} ({target.__name__})"  # type: ignore[union-attr]  # or no target
            except AttributeError:
                self._sim_name = f"Thread-{number}"
        if daemon is None:
            # A task without a Thread (main, a handler of the network) is not a daemon.
            creator = simulation.current.thread
            daemon = creator is not None and creator._sim_daemon
        self._sim_daemon = bool(daemon)
        self._target = target
        self._args = args
        self._kwargs = {} if kwargs is None else kwargs

    def start(self) -> None:
        simulation = self._simulation
        if simulation is None:
            if not getattr(self, "_initialized", False):
                raise RuntimeError("thread.__init__() not called")
            super().start()
            return
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        if run_context.simulation is not simulation:
            raise SimulationError(f"{self.name} belongs to a simulation that has ended")
        task = simulation.spawn(self.run, name=self._sim_name, node=simulation.current.node)
        task.thread = self
        self._task = task

    def run(self) -> None:
        try:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)
        finally:
            # Like the standard library: a finished thread does not keep its arguments alive.
            del self._target, self._args, self._kwargs

    def join(self, timeout: float | None = None) -> None:
        simulation = self._simulation
        if simulation is None:
            super().join(timeout)
            return
        if self._task is None:
            raise RuntimeError("cannot join thread before it is started")
        if self._task is simulation.current:
            raise RuntimeError("cannot join current thread")
        simulation.join(self._task, None if timeout is None else timeout_ns(timeout))
        if simulation.ordering is not None:
            simulation.ordering.joined(self._task)

    def is_alive(self) -> bool:
        if self._simulation is None:
            return super().is_alive()
        if self._task is not None and self._simulation.ordering is not None:
            self._simulation.ordering.joined(self._task)
        return self._task is not None and not self._task.dead

    @property
    def ident(self) -> int | None:
        if self._simulation is None:
            return super().ident
        return None if self._task is None else self._task.id

    @property
    def native_id(self) -> int | None:
        return super().native_id if self._simulation is None else self.ident

    @property
    def name(self) -> str:
        return super().name if self._simulation is None else self._sim_name

    @name.setter
    def name(self, name: str) -> None:
        if self._simulation is None:
            _threading.Thread.name.fset(self, name)  # type: ignore[attr-defined]
            return
        self._sim_name = str(name)
        if self._task is not None:
            self._task.name = self._sim_name

    @property
    def daemon(self) -> bool:
        return super().daemon if self._simulation is None else self._sim_daemon

    @daemon.setter
    def daemon(self, daemonic: bool) -> None:
        if self._simulation is None:
            _threading.Thread.daemon.fset(self, daemonic)  # type: ignore[attr-defined]
            return
        if self._task is not None:
            raise RuntimeError("cannot set daemon status of active thread")
        self._sim_daemon = bool(daemonic)

    __reduce__ = refuse_to_copy

    def __repr__(self) -> str:
        if self._simulation is None:
            return super().__repr__()
        status = "initial" if self._task is None else "stopped" if self._task.dead else "started"
        if self._sim_daemon:
            status += " daemon"
        if self._task is not None:
            status += f" {self._task.id}"
        return f"<{type(self).__name__}({self._sim_name}, {status})>"


class Timer(Thread):
    """Calls a function after an interval, unless canceled. The same code inside and outside a simulation."""

    def __init__(
        self,
        interval: float,
        function: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.interval = interval
        self.function = function
        self.args = args if args is not None else []
        self.kwargs = kwargs if kwargs is not None else {}
        self.finished = Event()

    def cancel(self) -> None:
        self.finished.set()

    def run(self) -> None:
        self.finished.wait(self.interval)
        if not self.finished.is_set():
            self.function(*self.args, **self.kwargs)
        self.finished.set()


class _TaskAsThread(Thread):
    """What current_thread() returns in a task that no Thread started: main, or a handler of the network."""

    def __init__(self, task: Task) -> None:
        # The first task has its standard name here; in reports it is called main.
        super().__init__(name="MainThread" if task.id == 1 else task.name, daemon=False)
        self._task = task


def _thread_of(task: Task) -> Thread:
    if task.thread is None:
        task.thread = _TaskAsThread(task)
    return task.thread  # type: ignore[no-any-return]


def current_thread() -> _threading.Thread:
    simulation = run_context.simulation
    return _threading.current_thread() if simulation is None else _thread_of(simulation.current)


def main_thread() -> _threading.Thread:
    simulation = run_context.simulation
    return _threading.main_thread() if simulation is None else _thread_of(next(simulation.tasks()))


def get_ident() -> int:
    simulation = run_context.simulation
    return _threading.get_ident() if simulation is None else simulation.current.id


def get_native_id() -> int:
    return _threading.get_native_id() if run_context.simulation is None else get_ident()


def enumerate() -> list[_threading.Thread]:  # noqa: A001  the standard name
    """The living threads; inside a simulation, those of the caller's node, as if it were a process."""
    simulation = run_context.simulation
    if simulation is None:
        return _threading.enumerate()
    return [_thread_of(task) for task in simulation.tasks() if task.node is simulation.current.node]


def active_count() -> int:
    return len(enumerate())


class _TaskAttributes(dict[str, Any]):
    """One task's attributes of a local; `state` leads to those of the other tasks."""

    __slots__ = ("state",)

    state: _LocalState


class _LocalState:
    __slots__ = ("args", "by_task", "kwargs", "simulation")

    def __init__(self, simulation: Simulation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.simulation = simulation
        self.args = args
        self.kwargs = kwargs
        self.by_task: dict[Task, _TaskAttributes] = {}

    def add(self, task: Task) -> _TaskAttributes:
        # Attributes of dead tasks are removed when a new task comes.
        for gone in [other for other in self.by_task if other.dead]:
            del self.by_task[gone]
        attributes = self.by_task[task] = _TaskAttributes()
        attributes.state = self
        return attributes


class local(metaclass=DropIn, standard=_threading.local):  # noqa: N801  the standard name
    """Attributes of which each thread, or each task, has its own.

    Every access first sets `__dict__` to that of the calling task. No other task runs between the two steps.
    """

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Self:
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError("Initialization arguments are not supported")
        simulation = run_context.simulation
        if simulation is None:
            return make_standard(cls, *args, **kwargs)  # type: ignore[no-any-return]
        self = object.__new__(cls)
        attributes = _LocalState(simulation, args, kwargs).add(simulation.current)
        object.__setattr__(self, "__dict__", attributes)
        return self

    def __getattribute__(self, name: str) -> Any:
        _make_own(self)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse_dict(self, name)
        _make_own(self)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _refuse_dict(self, name)
        _make_own(self)
        object.__delattr__(self, name)

    __reduce__ = refuse_to_copy


# Functions and not methods: a method's name could clash with a user's attribute.
def _make_own(self: local) -> None:
    state: _LocalState = object.__getattribute__(self, "__dict__").state
    task = state.simulation.current
    attributes = state.by_task.get(task)
    if attributes is None:
        attributes = state.add(task)
        object.__setattr__(self, "__dict__", attributes)
        # Like the standard library: a subclass's __init__ runs once in each thread. It may wait.
        type(self).__init__(self, *state.args, **state.kwargs)
    object.__setattr__(self, "__dict__", attributes)


def _refuse_dict(self: local, name: str) -> None:
    if name == "__dict__":
        raise AttributeError(f"{type(self).__name__!r} object attribute '__dict__' is read-only")
