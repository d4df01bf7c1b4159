"""What a simulation can end with, besides its own result. Every text names what, where and the fix."""

from __future__ import annotations

__all__ = [
    "Deadlock",
    "Livelock",
    "NodeKilled",
    "RealWorldError",
    "SimulationError",
    "TaskFailed",
    "Unresponsive",
]


class SimulationError(RuntimeError):
    """Something is wrong with the program under simulation, or with how the simulation is used."""


class Deadlock(SimulationError):
    """Every task waits and no timer is set: nothing can ever happen again."""


class Livelock(SimulationError):
    """Tasks go on taking turns, but virtual time stands still."""


class Unresponsive(SimulationError):
    """One task has kept the processor for seconds of real time without ever waiting."""


class RealWorldError(SimulationError):
    """A task used the real clock, a real thread or unseeded chance, which would break the run."""


class NodeKilled(SimulationError):
    """The node died before the call on it returned."""


class TaskFailed(SimulationError):
    """A task ended with an exception. `__cause__` is that exception, with the task's own traceback."""

    def __init__(self, text: str, *, task: str, node: str | None) -> None:
        super().__init__(text)
        self.task = task
        self.node = node
