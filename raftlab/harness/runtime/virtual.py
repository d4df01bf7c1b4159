"""Peers in a simulation: time is virtual, a crash ends all tasks at once, and every event is in a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from labsim import Event, Node, NodeKilled, Simulation, Task, Wait
from labsim.blocked import waiting_holder
from labsim.choices import ChoicePoint, Distribution
from labsim.simulation import NS_PER_S
from labsim.waits import wait_of
from raftlab.check.cluster_snapshot import ClusterSnapshot, ReportedState, take_snapshot
from raftlab.guest.contract import call_peer
from raftlab.harness.runtime.runtime import CallTimeout, test_frames

T = TypeVar("T")


class VirtualRuntime:
    clock = " (virtual)"

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.emit = simulation.emit
        self._overdue_call: Task | None = None  # the call that timed out
        self._call_waits: dict[Task, list[Wait]] = {}  # by running call

    @property
    def trace(self) -> Sequence[Event]:
        """Empty if the simulation keeps no trace."""
        return self.simulation.trace or ()

    @property
    def now(self) -> float:
        return self.simulation.now_ns / NS_PER_S

    def node(self, name: str) -> Node:
        return self.simulation.node(name)

    def call(
        self, node: Node | None, fn: Callable[..., T], *args: Any, entry_point: str, limit_s: float, name: str = ""
    ) -> T:
        """Call in a task of the node, so that its threads and random numbers are the node's."""
        simulation = self.simulation
        name = name or f"{entry_point}()"
        task = simulation.spawn(call_peer, fn, args, node=node, name=name, entry_point=entry_point)
        began_ns = simulation.now_ns
        # The clock advances when all tasks wait: a lock that is held only while running is free by then.
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
            # Only time in which the node can run counts: while paused it cannot return.
            left_ns = limit_ns - (simulation.now_ns - began_ns - simulation.lost_time_ns(task.node, began_ns))
            if left_ns <= 0:
                self._overdue_call = task
                raise CallTimeout
        del self._call_waits[task]

    def wait_for(self, node: Node | None, fn: Callable[..., T], *args: Any, entry_point: str, limit_s: float) -> T:
        simulation = self.simulation
        task = simulation.spawn(call_peer, fn, args, node=node, name=f"{entry_point}()", entry_point=entry_point)
        if not simulation.join(task, int(limit_s * 1e9)):
            self._overdue_call = task
            raise CallTimeout
        if task.killed:
            raise NodeKilled(f"{entry_point}(): node {node} went down")
        return task.value  # type: ignore[no-any-return]

    def spawn(self, node: Node | None, fn: Callable[[], None], *, name: str) -> None:
        self.simulation.spawn(fn, node=node, name=name)

    def usable_s(self, node: Node | None, since_s: float) -> float:
        # In whole nanoseconds, so that no time is exactly 0.
        since_ns = int(since_s * 1e9 + 0.5)
        return (self.simulation.now_ns - since_ns - self.simulation.lost_time_ns(node, since_ns)) / 1e9

    def wait_for_disk(self, duration_ns: int) -> None:
        simulation = self.simulation
        simulation.call_later(duration_ns, simulation.wake, simulation.current)
        simulation.park("a save on a slow disk")

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        return self.simulation.choice_source.choose(point, ordinal, distribution)

    def after(self, delay_s: float, fn: Callable[[], None]) -> None:
        self.simulation.call_later(int(delay_s * 1e9), fn)

    def fail(self, failure: BaseException) -> NoReturn:
        self.simulation.fail(failure)

    def test_step(self) -> list[str]:
        main = next(self.simulation.tasks())
        return test_frames(sys._getframe(1) if self.simulation.current is main else self.simulation.frames_of(main))

    def snapshot(self, states: Mapping[str, ReportedState]) -> ClusterSnapshot:
        # What the running call first waited for, and what the holder of that lock waited for then.
        call_waits = self._call_waits.get(self.simulation.current, ())
        return replace(take_snapshot(self.simulation, self._overdue_call), states=states, call_waits=tuple(call_waits))

    def note_progress(self) -> None:
        """Reset the watchdog: the tester itself is computing, possibly for long."""
        self.simulation.switches += 1
