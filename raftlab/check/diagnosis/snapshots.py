"""An index of the paper is not a place in the list any more: what goes wrong after the first snapshot (§7)."""

from __future__ import annotations

from collections.abc import Iterator

from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.trace_analysis import Rpc, TraceAnalysis, at
from raftlab.check.failure import Failure
from raftlab.trace.events import PERSIST, STARTED
from raftlab.trace.rpcs import APPEND, VOTE

OFFSET = (
    "the log no longer begins at index 1, so len(log) is not an index any more, and an index of the paper is not a "
    "place in the list: add or subtract the snapshot's last_included_index everywhere (§7)"
)


def stopped_after_snapshot(analysis: TraceAnalysis, peer: str, since_ns: int) -> str:
    """ "Until 1.204 s …": words about the snapshot, if that peer got on until it had one, and "" if not."""
    kept = analysis.snapshot_of(peer)
    if kept is None or kept.since_ns > since_ns:
        return ""
    return f"It has kept a snapshot instead of the beginning of its log since {at(kept.since_ns)} ({kept.how})."


@diagnosis(310, rules=("starts-in-order", "honest-candidate"))
def off_by_the_snapshot(analysis: TraceAnalysis) -> Finding | None:
    """start() or a candidate gives an index that is too low by just what the snapshot has replaced."""
    if not isinstance(analysis.error, Failure) or analysis.error.peer is None:
        return None
    peer = analysis.error.peer
    index, kept = analysis.snapshot_index(peer), analysis.snapshot_of(peer)
    if not index or kept is None:
        return None
    told = [event.detail for event in analysis.other.get(STARTED, ()) if event.node == peer and event.detail.is_leader]
    shifted = len(told) > 1 and told[-1].term == told[-2].term and told[-1].index + index == told[-2].index + 1
    if shifted:
        facts = f"start() of peer {peer} gave index {told[-1].index} where {told[-2].index + 1} was due"
    else:
        claims = [
            rpc for rpc in analysis.all_rpcs if rpc.method == VOTE and rpc.source == peer and rpc.args is not None
        ]
        last = max((last for last in _last_indexes(analysis, peer)), default=0)
        if not claims or claims[-1].args.last_log_index + index != last:
            return None
        facts = (
            f"Peer {peer} claims a last entry {claims[-1].args.last_log_index} where {last} is the last it has shown"
        )
    return Finding(
        f"{facts}: {index} less, and {index} is where its snapshot ends, which it has had since {at(kept.since_ns)} "
        f"({kept.how}).",
        f"{OFFSET}.",
    )


@diagnosis(320, rules=("saved-before-reply",))
def taken_for_known_since_the_snapshot(analysis: TraceAnalysis) -> Finding | None:
    """Every new entry was saved until it had a snapshot, and the first one behind it is acknowledged without a save."""
    if not isinstance(analysis.error, Failure) or analysis.error.rule != "saved-before-reply":
        return None
    peer = analysis.error.peer
    saves = [event for event in analysis.other.get(PERSIST, ()) if event.node == peer]
    if len(saves) < 2 or not saves[-1].detail.snapshot or saves[-1].detail.snapshot == saves[-2].detail.snapshot:
        return None
    with_entries = [
        rpc
        for rpc in analysis.all_rpcs
        if rpc.method == APPEND and rpc.target == peer and rpc.args and rpc.args.entries
    ]
    said_yes = [rpc for rpc in with_entries if _said_yes(rpc) and rpc.answered_ns is not None]
    unsaved = [rpc for rpc in said_yes if rpc.answered_ns == analysis.end_ns and _delivered(rpc) >= saves[-1].at_ns]
    saved = any(any(_delivered(rpc) <= save.at_ns <= (rpc.answered_ns or 0) for save in saves[:-1]) for rpc in said_yes)
    if not unsaved or not saved:
        return None
    request = unsaved[-1].request
    assert request is not None
    return Finding(
        f"Until {at(saves[-1].at_ns)} peer {peer} saved what it was sent. Then it saved its snapshot, which ends with "
        f"entry {analysis.snapshot_index(peer or '')}. The AppendEntries that ends with entry "
        f"{request.last_index} came "
        "after that, and it has acknowledged and not saved it.",
        "it believes to have these entries already. What it has kept of its log behind the snapshot is too long: "
        "shifted by one, or cut by an index from which last_included_index had been subtracted already, or not yet "
        "(§7).",
    )


def _delivered(rpc: Rpc) -> int:
    return -1 if rpc.delivered_ns is None else rpc.delivered_ns


def _last_indexes(analysis: TraceAnalysis, peer: str) -> Iterator[int]:
    """The ends of that peer's log, as it has shown them: started, acknowledged, or sent as a leader."""
    for event in analysis.other.get(STARTED, ()):
        if event.node == peer and event.detail.is_leader:
            yield event.detail.index
    for rpc in analysis.all_rpcs:
        request = rpc.request if rpc.method == APPEND else None
        if request is not None and (rpc.source == peer or (rpc.target == peer and _said_yes(rpc))):
            yield request.last_index


def _said_yes(rpc: Rpc) -> bool:
    return rpc.answered is not None and bool(rpc.answered.success)
