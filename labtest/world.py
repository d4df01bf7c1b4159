"""Where a Config's peers live: in a simulation, where a crash is a power cut, or on real threads.

On real threads nothing can end a thread from outside, so a crash there is what the MIT lab does: the peer is told
to stop, is cut off, and its disk is copied before anybody can write to it again.
"""

from __future__ import annotations

import random as _random
import sys as _sys
import threading as _threading
import time as _time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn, TypeVar

from labsim import Event, Node, NodeKilled, Simulation, Task, TaskFailed, Wait, WaitKind, current_simulation, work_for
from labsim.blocked import waiting_holder
from labsim.deciding import Chance, Place
from labsim.simulation import NS_PER_S
from labsim.stacks import describe_stack, is_readers, own_frames
from labsim.waits import wait_of
from labtest.failure import Failure
from labtest.peer_contract import call_peer
from labtest.snapshot import ClusterSnapshot, State, take_snapshot

T = TypeVar("T")


class Stuck(Exception):
    """A call on a peer did not return in time."""


class VirtualWorld:
    virtual = True
    clock = " (virtual)"  # what follows a time in a report

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.emit = simulation.emit
        self._asked: Task | None = None  # the call that has not returned in time
        self._call_waits: dict[Task, list[Wait]] = {}  # by call that is under way

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
        first = [task, holder] if (holder := waiting_holder(task)) is not None else [task]
        self._call_waits[task] = [wait_of(simulation, one) for one in first]
        left_ns = limit_ns
        while not simulation.join(task, left_ns):
            # Of its own time: while it is paused it cannot return.
            left_ns = limit_ns - (simulation.now_ns - began_ns - simulation.taken_ns(task.node, began_ns))
            if left_ns <= 0:
                self._asked = task
                raise Stuck
        del self._call_waits[task]

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
        self.simulation.fail(failure)

    def test_step(self) -> list[str]:
        """The step of the test that is under way, whichever task asks: a line for each frame."""
        main = next(self.simulation.tasks())
        return _lines(_sys._getframe(1) if self.simulation.current is main else self.simulation.frames_of(main))

    def raise_if_failed(self) -> None:
        """fail() ends the run at once; there is never anything left to raise."""

    def snapshot(self, states: Mapping[str, State]) -> ClusterSnapshot:
        """As of now. `states`: what the tester has last got from get_state()."""
        # What the call that is running now waited for first, and what whoever kept it back waited for then.
        call_waits = self._call_waits.get(self.simulation.current, ())
        return replace(take_snapshot(self.simulation, self._asked), states=states, call_waits=tuple(call_waits))

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
        raise failure

    def test_step(self) -> list[str]:
        return _lines(_sys._current_frames().get(_threading.main_thread().ident or 0))

    def raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def snapshot(self, states: Mapping[str, State]) -> ClusterSnapshot:
        """All threads that are in a peer's code; which of them are blocked, only the reader can tell.

        A real lock does not say who holds it, nor a real thread whose it is.
        """
        frames = _sys._current_frames()
        found = []
        for thread in _threading.enumerate():
            frame = frames.get(thread.ident or 0)
            in_peer = any(is_readers(f.f_code.co_filename) for f in own_frames(frame))
            if in_peer and thread is not _threading.main_thread():
                words = f"  {thread.name} is here\n{describe_stack(frame)}"
                found.append((thread not in self._asked, words, Wait(thread.name, None, WaitKind.NOTHING, 0, words)))
        # The call that did not return first.
        blocked = tuple(wait for _, _, wait in sorted(found, key=lambda one: one[:2]))
        return ClusterSnapshot(blocked, states=states)

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
