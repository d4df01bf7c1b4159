"""The state of a cluster when a failure is detected: a trace does not contain what threads wait for.

Start at `take_snapshot()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from labsim import Simulation, Task, Wait, WaitKind
from labsim.blocked import blocked, held_locks, node_threads


class ReportedState(NamedTuple):
    """The result of get_state(), and when it was called."""

    term: int
    is_leader: bool
    asked_ns: int


@dataclass(frozen=True)
class ClusterSnapshot:
    """`blocked`: tasks that wait where they should not; a task that blocks others comes first (labsim.blocked).

    - `held_locks`: by peer, what the holder of a lock waits for while others wait for that lock
    - `threads`: what the peers' own threads wait for
    - `states`: the latest result of get_state() on each peer
    - `call_waits`: what the current call first waited for, and what the task that blocked it waited for then
    """

    blocked: tuple[Wait, ...] = ()
    held_locks: Mapping[str, WaitKind] = field(default_factory=dict)
    threads: tuple[Wait, ...] = ()
    states: Mapping[str, ReportedState] = field(default_factory=dict)
    call_waits: tuple[Wait, ...] = ()


def take_snapshot(simulation: Simulation, asked: Task | None = None) -> ClusterSnapshot:
    """What its tasks wait for now. `asked`: the call that did not return in time, if any."""
    nodes = dict.fromkeys(task.node for task in simulation.tasks())
    remote = [node for node in nodes if node is not None and node.remote is not None]
    if not remote:
        return ClusterSnapshot(
            tuple(blocked(simulation, asked)), held_locks(simulation), tuple(node_threads(simulation))
        )
    # Sandboxed peers report their own tasks; a paused one cannot.
    answers = {node: node.remote.observe(asked) for node in remote if node.remote is not None and not node.paused}
    reports = {node: answer for node, answer in answers.items() if answer is not None}
    first = sorted(reports, key=lambda node: asked is None or asked.node is not node)
    return ClusterSnapshot(
        tuple(wait for node in first for wait in reports[node].blocked),
        {node.name: WaitKind[one.held_lock] for node, one in reports.items() if one.held_lock in WaitKind.__members__},
        tuple(wait for one in reports.values() for wait in one.threads),
    )
