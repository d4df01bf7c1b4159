"""What goes wrong after the first snapshot: an index in the log is no longer a position in the list (§7)."""

from __future__ import annotations

from collections.abc import Iterator

from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.trace_analysis import Rpc, TraceAnalysis, at
from raftlab.check.failure import Failure
from raftlab.trace.events import PERSIST, STARTED
from raftlab.trace.rpcs import APPEND, VOTE

OFFSET = (
    "the log no longer begins at index 1, so len(log) is not an index, and an index is not a position in the list: add "
    "or subtract the snapshot's last_included_index everywhere (§7)"
)


def stopped_after_snapshot(analysis: TraceAnalysis, peer: str, since_ns: int) -> str:
    """A sentence about its snapshot, if that peer had one by then, or ""."""
    origin = analysis.snapshot_of(peer)
    if origin is None or origin.since_ns > since_ns:
        return ""
    return f"Since {at(origin.since_ns)} a snapshot has replaced the beginning of the peer's log ({origin.how})."


@diagnosis(310, rules=("starts-in-order", "honest-candidate"))
def off_by_the_snapshot(analysis: TraceAnalysis) -> Finding | None:
    """start() or a candidate reports an index that is too low by the length of the snapshot."""
    if not isinstance(analysis.error, Failure) or analysis.error.peer is None:
        return None
    peer = analysis.error.peer
    index, origin = analysis.snapshot_index(peer), analysis.snapshot_of(peer)
    if not index or origin is None:
        return None
    started = [e.detail for e in analysis.other.get(STARTED, ()) if e.node == peer and e.detail.is_leader]
    shifted = (
        len(started) > 1 and started[-1].term == started[-2].term and started[-1].index + index == started[-2].index + 1
    )
    if shifted:
        facts = f"start() on peer {peer} returned index {started[-1].index} instead of {started[-2].index + 1}"
    else:
        claims = [
            rpc for rpc in analysis.all_rpcs if rpc.method == VOTE and rpc.source == peer and rpc.args is not None
        ]
        last = max((last for last in _last_indexes(analysis, peer)), default=0)
        if not claims or claims[-1].args.last_log_index + index != last:
            return None
        facts = (
            f"Peer {peer} claims last_log_index {claims[-1].args.last_log_index}, but its log goes up to entry {last}"
        )
    return Finding(
        f"{facts}. The difference is {index}, the last index in its snapshot of {at(origin.since_ns)} ({origin.how}).",
        f"{OFFSET}.",
    )


@diagnosis(320, rules=("saved-before-reply",))
def unsaved_after_the_snapshot(analysis: TraceAnalysis) -> Finding | None:
    """It saved every new entry until it had a snapshot, and acknowledges the first one after it without a save."""
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
        f"Until {at(saves[-1].at_ns)} peer {peer} saved the entries that it received. Then it saved its snapshot, "
        f"which ends with entry {analysis.snapshot_index(peer or '')}. After that, without a save, it acknowledged an "
        f"AppendEntries that ends with entry {request.last_index}.",
        "the peer assumes that it has these entries already. After the snapshot its log is too long: the log is "
        "shifted by one, or was truncated at an index from which last_included_index was subtracted twice or not at "
        "all (§7).",
    )


def _delivered(rpc: Rpc) -> int:
    return -1 if rpc.delivered_ns is None else rpc.delivered_ns


def _last_indexes(analysis: TraceAnalysis, peer: str) -> Iterator[int]:
    """The ends of that peer's log according to its messages: started, acknowledged, or sent as leader."""
    for event in analysis.other.get(STARTED, ()):
        if event.node == peer and event.detail.is_leader:
            yield event.detail.index
    for rpc in analysis.all_rpcs:
        request = rpc.request if rpc.method == APPEND else None
        if request is not None and (rpc.source == peer or (rpc.target == peer and _said_yes(rpc))):
            yield request.last_index


def _said_yes(rpc: Rpc) -> bool:
    return rpc.answered is not None and bool(rpc.answered.success)
