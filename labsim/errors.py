"""What a simulation can end with, besides its own result. Every text names what, where and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labsim.stacks import CodeLocation
    from labsim.waits import Wait

__all__ = [
    "Deadlock",
    "Livelock",
    "NoProgress",
    "NodeKilled",
    "RealWorldError",
    "SimulationError",
    "TaskFailed",
    "Unresponsive",
]


class SimulationError(RuntimeError):
    """Something is wrong with the program under simulation, or with how the simulation is used."""


class NoProgress(SimulationError):
    """Virtual time does not move any more; `waits` has the tasks that matter."""

    def __init__(self, text: str, *, waits: Sequence[Wait] = ()) -> None:
        super().__init__(text)
        self.waits = waits


class Deadlock(NoProgress):
    """Every task waits and no timer is set: nothing can ever happen again."""


class Livelock(NoProgress):
    """Tasks go on taking turns, but virtual time stands still."""


class Unresponsive(SimulationError):
    """One task has kept the processor for seconds of real time without ever waiting."""

    def __init__(self, text: str, *, where: CodeLocation | None = None) -> None:
        super().__init__(text)
        self.where = where


class RealWorldError(SimulationError):
    """A task used the real clock, a real thread or unseeded chance, which would break the run."""

    def __init__(self, text: str, *, where: CodeLocation | None = None) -> None:
        super().__init__(text)
        self.where = where


class NodeKilled(SimulationError):
    """The node died before the call on it returned."""


class TaskFailed(SimulationError):
    """A task ended with an exception. `__cause__` is that exception, with the task's own traceback.

    `entry_point`: the method of the node's program that the task was called for, "" for a thread of its own.
    """

    def __init__(self, text: str, *, task: str, node: str | None, entry_point: str = "") -> None:
        super().__init__(text)
        self.task = task
        self.node = node
        self.entry_point = entry_point
