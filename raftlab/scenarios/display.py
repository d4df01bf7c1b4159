"""The output of `show`: the state of all peers and the messages in flight, the same for every seed.

Terms and leaders come from get_state(), votes and campaigns from the wire, applied commands from the service. Log and
commit_index are the peer's own fields if it has them; otherwise the log is derived from the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labrpc.network import QueuedMessage
from raftlab.harness.config import Config
from raftlab.scenarios import fields
from raftlab.scenarios.in_flight import describe, direction
from raftlab.scenarios.observations import WireObservations

_HEADER = ("peer", "role", "term", "voted", "log", "commit", "applied")


def show(
    config: Config,
    observations: WireObservations,
    states: Mapping[int, tuple[int, bool]],
    in_flight: Sequence[QueuedMessage],
) -> str:
    rows = [_HEADER, *(_row(config, observations, i, states.get(i)) for i in range(config.n))]
    widths = [max(len(row[column]) for row in rows if len(row) > column) for column in range(len(_HEADER))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([*lines, *_in_flight_lines(in_flight)])


def _row(config: Config, observations: WireObservations, i: int, state: tuple[int, bool] | None) -> tuple[str, ...]:
    if not config.is_up(i):
        return (str(i), "down")
    if state is None:
        return (str(i), "paused")
    term, leads = state
    campaigns = (
        i in observations.campaigning and observations.campaigns[i] == term and not observations.follows(i, term)
    )
    role = "leader" if leads else "candidate" if campaigns else "follower"
    peer = config.peer(i)
    voted = observations.voted_for(i, term)
    log, before = fields.read(peer, "log"), 0
    if log is fields.UNREADABLE:
        log = observations.logs[i]
    else:
        before = fields.read_snapshot_index(peer)
    terms = fields.format_value(log) if log else "-"
    return (
        str(i),
        role,
        str(term),
        "-" if voted is None else str(voted),
        f"[..{before}] {terms}" if before else terms,
        fields.format_value(fields.read(peer, "commit_index")),
        str(max(config.applied(i), default=0)),
    )


def _in_flight_lines(in_flight: Sequence[QueuedMessage]) -> list[str]:
    """Sorted by sender and receiver, then by time of sending, so that the order does not depend on the seed."""
    if not in_flight:
        return ["in flight: nothing"]
    ordered = sorted(in_flight, key=lambda queued: direction(queued.message, is_reply=queued.is_reply))
    return ["in flight:", *(f"  {describe(queued)}" for queued in ordered)]
