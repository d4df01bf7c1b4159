"""Records which threads put messages on an apply_ch, and which puts timed out: explains a wrong apply order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labsim import Simulation, queue
from labsim.queue import Full

if TYPE_CHECKING:
    from raftapi import ApplyMsg


class ApplyProducers:
    """The producers of one incarnation. Empty for sandboxed peers."""

    def __init__(self) -> None:
        # By task: the last index that it has put, or is putting. The last task comes last.
        self.latest: dict[str, int] = {}
        # By index: the task whose put timed out because the queue was full, and when. Removed by a retry.
        self.given_up: dict[int, tuple[str, float]] = {}

    def watch(self, apply_ch: queue.Queue[ApplyMsg], simulation: Simulation) -> None:
        latest, given_up, put = self.latest, self.given_up, apply_ch.put

        def recorded_put(item: ApplyMsg, block: bool = True, timeout: float | None = None) -> None:
            name = simulation.current.name
            latest.pop(name, None)
            latest[name] = index = getattr(item, "command_index", 0) or getattr(item, "snapshot_index", 0)
            if given_up:
                given_up.pop(index, None)
            try:
                put(item, block, timeout)
            except Full:
                given_up[index] = (name, simulation.now)
                raise

        recorded_put.__name__ = put.__name__  # a thread with this target gets its name
        apply_ch.put = recorded_put  # type: ignore[method-assign]  # a subclass would have a mutex, and another schedule
