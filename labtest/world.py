"""Where a Config's peers live: in a simulation, where a crash is a power cut, or on real threads.

On real threads nothing can end a thread from outside, so a crash there is what the MIT lab does: the peer is told
to stop, is cut off, and its disk is copied before anybody can write to it again.
"""

from __future__ import annotations

import random as _random
import sys as _sys
import threading as _threading
import time as _time
from collections.abc import Callable, Container, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

from labsim import Event, Node, NodeKilled, Simulation, Task, TaskFailed, Wait, WaitKind, current_simulation, work_for
from labsim.deciding import Chance, Place
from labsim.simulation import NS_PER_S
from labsim.stacks import describe_stack, is_readers, own_frames
from labsim.waits import kind_of, wait_of
from labtest.failure import Failure

T = TypeVar("T")

_STUCK_S = 1.0
_KEPT_NS = 50_000_000
# Whatever a thread is for, it should not wait long for these. A call from outside should not wait long at all.
_STUCK_KINDS = (WaitKind.OWN_LOCK, WaitKind.LOST_LOCK, WaitKind.LOCK, WaitKind.ROOM)


class Stuck(Exception):
    """A call on a peer did not return in time."""


class Exited(Exception):
    """A peer's method ended with SystemExit, which a thread would swallow without a word."""


def call_peer(fn: Callable[..., T], args: tuple[Any, ...]) -> T:
    """A method of a peer, in a task or a thread of its own."""
    try:
        return fn(*args)
    except SystemExit as error:
        raise Exited("it left by sys.exit(); a peer must never end the program").with_traceback(
            error.__traceback__
        ) from None


def stuck_tasks(simulation: Simulation, asked: Task | None = None) -> list[Wait]:
    """Tasks of peers that have not got on for over a second, whoever keeps the others back first.

    A peer's own thread is stuck if it waits for a lock or for room in a queue, or keeps a lock that somebody stuck
    waits for. A call from outside (a handler, start(), the service's snapshot()) is stuck whatever it waits for.
    Order: the call that was `asked` and did not return, and its peer; who waits for its own lock; who keeps a lock;
    who waits for room; threads of the peer's own; calls that merely queue up behind them, one for each place where
    they stand.
    """
    inside = _guests(simulation)
    if inside:
        return [wait for seen in _seen(inside, asked) for wait in seen.stuck]
    stuck = {task: None for task in simulation.tasks() if task is asked or _is_stuck(simulation, task)}
    keepers = {keeper: None for task in stuck if (keeper := _keeper(task)) is not None}
    told: dict[Any, Wait] = {}
    for task in sorted([*keepers, *(task for task in stuck if task not in keepers)], key=_place(asked, keepers)):
        if task is simulation.current:
            continue
        wait = wait_of(simulation, task)
        queues_up = task is not asked and task not in keepers and _is_call(simulation, task)
        told.setdefault((wait.node, wait.kind, wait.where) if queues_up else task, wait)
    return list(told.values())


def kept_locks(simulation: Simulation) -> dict[str, WaitKind]:
    """By peer, where some of its tasks have waited for a lock for a while: what its keeper waits for.

    LOST_LOCK, if there is no keeper any more.
    NOTHING, if the keeper has just got on, or the lock is on its way from one to the next.
    """
    kept: dict[str, WaitKind] = {}
    for node in (inside := _guests(simulation)):
        for seen in _seen([node], None):
            if seen.kept_lock in WaitKind.__members__:
                kept[node.name] = WaitKind[seen.kept_lock]
    if inside:
        return kept
    for_ever = (WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)
    for task in simulation.tasks():
        kind = kind_of(task)
        if task.node is None or kind not in (WaitKind.LOCK, *for_ever):
            continue
        if task.since_ns <= simulation.now_ns - _KEPT_NS:
            keeper = _keeper(task)
            kept_for = WaitKind.NOTHING if keeper is None else kind_of(keeper)
            if kind in for_ever:
                kept[task.node.name] = kind
            elif kept.get(task.node.name, WaitKind.NOTHING) is WaitKind.NOTHING:
                kept[task.node.name] = kept_for
    return kept


def own_threads(simulation: Simulation) -> list[Wait]:
    """What the threads that peers have made are at, oldest first; not the calls from outside."""
    inside = _guests(simulation)
    if inside:
        return [wait for seen in _seen(inside, None) for wait in seen.threads]
    threads = (task for task in simulation.tasks() if task.node is not None and task.thread is not None)
    return [wait_of(simulation, task) for task in threads]


def _guests(simulation: Simulation) -> list[Node]:
    """The nodes whose tasks are in processes of their own."""
    nodes = dict.fromkeys(task.node for task in simulation.tasks())
    return [node for node in nodes if node is not None and hasattr(node.program, "look")]


def _seen(nodes: Sequence[Node], asked: Task | None) -> list[Any]:
    """What they tell of their threads, if they do; whoever was asked and did not answer first."""
    first = sorted(nodes, key=lambda node: asked is None or asked.node is not node)
    told = [node.program.look(asked) for node in first if not node.paused]
    return [seen for seen in told if seen is not None]


def _is_stuck(simulation: Simulation, task: Task) -> bool:
    node = task.node
    if node is None or node.paused:
        return False
    if simulation.now_ns - task.since_ns - simulation.taken_ns(node, task.since_ns) < int(_STUCK_S * 1e9):
        return False
    kind = kind_of(task)
    return kind in _STUCK_KINDS or (kind is not WaitKind.NOTHING and _is_call(simulation, task))


def _is_call(simulation: Simulation, task: Task) -> bool:
    """Whether somebody outside waits for it: the network or the tester (an entry), or the service, in snapshot()."""
    if task.entry:
        return True
    # The service's own thread is the tester's and no Thread. While it waits for messages, no line is the peer's.
    return task.thread is None and any(
        is_readers(frame.f_code.co_filename) for frame in own_frames(simulation.frames_of(task))
    )


def _keeper(task: Task) -> Task | None:
    """Who keeps the lock that this task waits for, while it waits itself for something that is no lock."""
    keeper = task.waiting_for.holder if kind_of(task) is WaitKind.LOCK else None
    kinds = (WaitKind.NOTHING, WaitKind.LOCK, WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)
    return None if keeper is None or keeper.dead or kind_of(keeper) in kinds else keeper


def _place(asked: Task | None, keepers: Container[Task]) -> Callable[[Task], tuple[bool, ...]]:
    def place(task: Task) -> tuple[bool, ...]:
        kind = kind_of(task)
        return (
            task is not asked,
            asked is not None and task.node is not asked.node,
            kind is not WaitKind.OWN_LOCK,
            task not in keepers,
            kind is not WaitKind.ROOM,
            task.thread is None,
        )

    return place


class VirtualWorld:
    virtual = True
    clock = " (virtual)"  # what follows a time in a report

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.emit = simulation.emit
        self._asked: Task | None = None  # the call that has not returned in time
        self._held_up: dict[Task, list[Wait]] = {}  # by call that is under way

    @property
    def trace(self) -> Sequence[Event]:
        """Without a trace the run is the same, only nobody looks."""
        return self.simulation.trace or ()

    @property
    def now(self) -> float:
        return self.simulation.now_ns / NS_PER_S

    def node(self, name: str) -> Node:
        return self.simulation.node(name)

    def call(self, node: Node | None, fn: Callable[..., T], *args: Any, entry: str, limit_s: float) -> T:
        """Run fn as a task of the node, so that its threads and its random numbers are the node's.

        NodeKilled if the node goes down under the call.
        """
        simulation = self.simulation
        name = f"{getattr(fn, '__name__', 'call')}()"
        task = simulation.spawn(call_peer, fn, args, node=node, name=name, entry=entry)
        began_ns = simulation.now_ns
        # The clock moves when all wait: whoever kept a lock only for its turn has let go of it by then.
        if not simulation.join(task, 1):
            self._wait_longer(task, began_ns, int(limit_s * 1e9))
        if task.killed:
            raise NodeKilled(f"{name}: node {node} went down")
        return task.value  # type: ignore[no-any-return]

    def _wait_longer(self, task: Task, began_ns: int, limit_ns: int) -> None:
        simulation = self.simulation
        first = [task, keeper] if (keeper := _keeper(task)) is not None else [task]
        self._held_up[task] = [wait_of(simulation, one) for one in first]
        left_ns = limit_ns
        while not simulation.join(task, left_ns):
            # Of its own time: while it is paused it cannot return.
            left_ns = limit_ns - (simulation.now_ns - began_ns - simulation.taken_ns(task.node, began_ns))
            if left_ns <= 0:
                self._asked = task
                raise Stuck
        del self._held_up[task]

    def wait_for(self, node: Node | None, fn: Callable[..., T], *args: Any, entry: str, limit_s: float) -> T:
        """As call(), of something that may well wait: what it waits for is not noted."""
        simulation = self.simulation
        task = simulation.spawn(call_peer, fn, args, node=node, name=f"{entry}()", entry=entry)
        if not simulation.join(task, int(limit_s * 1e9)):
            self._asked = task
            raise Stuck
        if task.killed:
            raise NodeKilled(f"{entry}(): node {node} went down")
        return task.value  # type: ignore[no-any-return]

    def spawn(self, node: Node | None, fn: Callable[[], None], *, name: str) -> None:
        self.simulation.spawn(fn, node=node, name=name)

    def kill(self, node: Node | None, *stops: Callable[[], None]) -> None:
        """Cut the power. On real threads, where that cannot be had, `stops` are called instead."""
        assert node is not None
        self.simulation.kill(node)

    def pause(self, node: Node | None) -> None:
        assert node is not None
        self.simulation.pause(node)

    def resume(self, node: Node | None) -> None:
        assert node is not None
        self.simulation.resume(node)

    def freeze_clock(self, node: Node | None) -> None:
        assert node is not None
        self.simulation.freeze_clock(node)

    def unfreeze_clock(self, node: Node | None) -> None:
        assert node is not None
        self.simulation.unfreeze_clock(node)

    def punctual(self) -> None:
        self.simulation.punctual = True

    def own_s(self, node: Node | None, since_s: float) -> float:
        """How much of the time since then the node could use: without what the lab has taken from it."""
        # In whole nanoseconds: nothing left must be nothing.
        since_ns = int(since_s * 1e9 + 0.5)
        return (self.simulation.now_ns - since_ns - self.simulation.taken_ns(node, since_ns)) / 1e9

    def wait_for_disk(self, duration_ns: int) -> None:
        """The calling peer waits. A disk goes by the world's clock, whatever the peer's does."""
        simulation = self.simulation
        simulation.call_later(duration_ns, simulation.wake, simulation.current)
        simulation.park("a save on a slow disk")

    def choose(self, place: Place, ordinal: int, chance: Chance[T]) -> T:
        return self.simulation.decider.choose(place, ordinal, chance)

    def after(self, delay_s: float, fn: Callable[[], None]) -> None:
        self.simulation.call_later(int(delay_s * 1e9), fn)

    def fail(self, failure: BaseException) -> NoReturn:
        if isinstance(failure, Failure):
            # The step of the test that was under way, whoever noticed.
            main = next(self.simulation.tasks())
            frame = _sys._getframe(1) if self.simulation.current is main else self.simulation.frames_of(main)
            failure.evidence[:0] = _lines(frame)
        self.simulation.fail(failure)

    def raise_if_failed(self) -> None:
        """fail() ends the run at once; there is never anything left to raise."""

    def stuck_tasks(self) -> list[Wait]:
        return stuck_tasks(self.simulation, self._asked)

    def kept_locks(self) -> dict[str, WaitKind]:
        return kept_locks(self.simulation)

    def own_threads(self) -> list[Wait]:
        return own_threads(self.simulation)

    def held_up(self) -> list[Wait]:
        """What the call that is running now first waited for, and what whoever kept it back waited for then."""
        return self._held_up.get(self.simulation.current, [])

    def alive(self) -> None:
        """The tester itself is at work, for long perhaps: no task is stuck, whatever the watchdog sees."""
        self.simulation.switches += 1

    def close(self) -> None:
        """Everything ends with the simulation."""


class RealWorld:
    """One Config's real threads. While it is open, an exception in any thread fails the test."""

    virtual = False
    clock = ""
    trace: Sequence[Event] = ()

    def __init__(self) -> None:
        self._began_s = _time.monotonic()
        self._random = _random.Random()
        self._failure: BaseException | None = None
        self._timers: list[_threading.Timer] = []
        self._asked: list[_threading.Thread] = []  # the calls on peers that have not returned
        self._excepthook = _threading.excepthook
        _threading.excepthook = self._thread_failed

    def _thread_failed(self, args: _threading.ExceptHookArgs) -> None:
        error = args.exc_value
        # A TaskFailed says that another thread failed, which has told its own story.
        if self._failure is None and error is not None and not isinstance(error, (TaskFailed, SystemExit)):
            if isinstance(error, Failure):
                self._failure = error
                return
            name = args.thread.name if args.thread is not None else "a thread"
            self._failure = TaskFailed(f"{name} ended with an exception: {error!r}", task=name, node=None)
            self._failure.__cause__ = error

    @property
    def now(self) -> float:
        return _time.monotonic() - self._began_s

    def node(self, name: str) -> Node:
        """For its name and its program; nothing here is drawn from its stream."""
        return Node(name, 1, _random.Random())

    def call(self, node: Node | None, fn: Callable[..., T], *args: Any, entry: str, limit_s: float) -> T:
        """In a thread of its own: a peer that does not answer must not take the tester with it."""
        results: list[T] = []
        errors: list[BaseException] = []
        name = f"{getattr(fn, '__name__', 'call')}()"

        def run() -> None:
            work_for(node)
            try:
                results.append(call_peer(fn, args))
            except BaseException as error:
                errors.append(error)

        thread = _threading.Thread(target=run, name=name, daemon=True)
        self._asked.append(thread)
        thread.start()
        thread.join(limit_s)
        if not thread.is_alive():
            self._asked.remove(thread)
        if errors:
            error = errors[0]
            text = f"{name} ended with an exception: {error!r}"
            raise TaskFailed(text, task=name, node=None, entry=entry) from error
        if not results:
            raise Stuck
        return results[0]

    def wait_for(self, node: Node | None, fn: Callable[..., T], *args: Any, entry: str, limit_s: float) -> T:
        return self.call(node, fn, *args, entry=entry, limit_s=limit_s)

    def spawn(self, node: Node | None, fn: Callable[[], None], *, name: str) -> None:
        def run() -> None:
            work_for(node)
            fn()

        _threading.Thread(target=run, name=name, daemon=True).start()

    def kill(self, node: Node | None, *stops: Callable[[], None]) -> None:
        for stop in stops:
            stop()

    def pause(self, node: Node | None) -> NoReturn:
        raise NotImplementedError("Servers refuses it, in words")

    resume = freeze_clock = unfreeze_clock = pause

    def punctual(self) -> None:
        """How late a real machine is, nobody can say."""

    def own_s(self, node: Node | None, since_s: float) -> float:
        return self.now - since_s

    def wait_for_disk(self, duration_ns: int) -> None:
        _time.sleep(duration_ns / 1e9)

    def choose(self, place: Place, ordinal: int, chance: Chance[T]) -> T:
        return chance.draw(self._random.getrandbits(64))

    def after(self, delay_s: float, fn: Callable[[], None]) -> None:
        timer = _threading.Timer(delay_s, fn)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def emit(self, kind: str, node: Node | None, detail: Any, fingerprint: int) -> None:
        pass

    def fail(self, failure: BaseException) -> NoReturn:
        if self._failure is None:
            self._failure = failure
            if isinstance(failure, Failure):
                failure.evidence[:0] = _lines(_sys._current_frames().get(_threading.main_thread().ident or 0))
        raise failure

    def raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stuck_tasks(self) -> list[Wait]:
        """All threads that stand in a peer's code; which of them are stuck, only the reader can tell."""
        frames = _sys._current_frames()
        told = []
        for thread in _threading.enumerate():
            frame = frames.get(thread.ident or 0)
            in_peer = any(is_readers(f.f_code.co_filename) for f in own_frames(frame))
            if in_peer and thread is not _threading.main_thread():
                words = f"  {thread.name} is here\n{describe_stack(frame)}"
                told.append((thread not in self._asked, words, Wait(thread.name, None, WaitKind.NOTHING, 0, words)))
        return [wait for _, _, wait in sorted(told, key=lambda one: one[:2])]  # the call that did not return first

    def kept_locks(self) -> dict[str, WaitKind]:
        """A real lock does not say who keeps it."""
        return {}

    def own_threads(self) -> list[Wait]:
        """Which peer's a real thread is, nobody knows."""
        return []

    def held_up(self) -> list[Wait]:
        return []

    def alive(self) -> None:
        """Nobody watches real threads."""

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        _threading.excepthook = self._excepthook


def _lines(frame: FrameType | None) -> list[str]:
    """The test's own frames; none if it is over."""
    if not any(is_readers(one.f_code.co_filename) for one in own_frames(frame)):
        return []
    return describe_stack(frame, indent="    ").splitlines()[:3]


def current_world() -> VirtualWorld | RealWorld:
    simulation = current_simulation()
    return RealWorld() if simulation is None else VirtualWorld(simulation)
