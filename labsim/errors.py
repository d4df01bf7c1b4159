"""The errors that end a simulation. Every text says what happened, where, and how to fix it."""

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
    """An error in the simulated program, or in the use of the simulation."""


class NoProgress(SimulationError):
    """Virtual time does not advance any more. `waits`: the tasks involved."""

    def __init__(self, text: str, *, waits: Sequence[Wait] = ()) -> None:
        super().__init__(text)
        self.waits = waits


class Deadlock(NoProgress):
    """Every task waits and no timer is set, so nothing can ever happen again."""


class Livelock(NoProgress):
    """Tasks keep switching, but virtual time does not advance."""


class Unresponsive(SimulationError):
    """A task has run for seconds of real time without waiting."""

    def __init__(self, text: str, *, where: CodeLocation | None = None) -> None:
        super().__init__(text)
        self.where = where


class RealWorldError(SimulationError):
    """A task used the real clock, a real thread or unseeded randomness, so the run could not be replayed."""

    def __init__(self, text: str, *, where: CodeLocation | None = None) -> None:
        super().__init__(text)
        self.where = where


class NodeKilled(SimulationError):
    """The node died before the call on it returned."""


class TaskFailed(SimulationError):
    """A task ended with an exception. `__cause__` is that exception, with the task's own traceback.

    `entry_point`: for a call from outside the node, the called method of its program; "" for a thread of the node.
    """

    def __init__(self, text: str, *, task: str, node: str | None, entry_point: str = "") -> None:
        super().__init__(text)
        self.task = task
        self.node = node
        self.entry_point = entry_point
