"""What causes an exception in a peer."""

from __future__ import annotations

from labrpc import RpcError
from labsim import TaskFailed
from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.trace_analysis import Rpc, SnapshotOrigin, TraceAnalysis, at
from raftlab.trace.events import STARTED
from raftlab.trace.rpcs import APPEND, INSTALL, RPCS, VOTE


@diagnosis(20, exceptions=True)
def prev_beyond_the_log(analysis: TraceAnalysis) -> Finding | None:
    """An IndexError in AppendEntries, whose prev_log_index is higher than the log has ever been."""
    error = analysis.error
    if not isinstance(error, TaskFailed) or not isinstance(error.__cause__, (IndexError, KeyError)):
        return None
    call = _request_under_way(analysis, error)
    if call is None or call.request is None:
        return None
    prev, last = call.args.prev_log_index, _longest_log(analysis, call)
    if prev <= last:
        return None
    return Finding(
        f"Peer {call.target} received AppendEntries from peer {call.source} with prev_log_index {prev}. According to "
        f"its messages, peer {call.target}'s log has never gone beyond entry {last}.",
        "the peer reads the term of an entry that it does not have. First check whether the log reaches "
        "prev_log_index, and reject the request if it does not (Figure 2: AppendEntries 2).",
    )


def _request_under_way(analysis: TraceAnalysis, error: TaskFailed) -> Rpc | None:
    """The AppendEntries whose handler has just failed."""
    if error.entry_point != RPCS[APPEND].method_name:
        return None
    arrived = [rpc for rpc in analysis.all_rpcs if rpc.method == APPEND and rpc.target == error.node]
    arrived = [rpc for rpc in arrived if rpc.delivered_ns is not None and rpc.answered_ns is None]
    # If exactly one arrived now, its handler is the one that failed.
    now = [rpc for rpc in arrived if rpc.delivered_ns == analysis.end_ns]
    return now[0] if len(now) == 1 else None


def _longest_log(analysis: TraceAnalysis, call: Rpc) -> int:
    """The highest index that its receiver can have had before that request arrived."""
    peer, longest = call.target, 0
    for event in analysis.other.get(STARTED, ()):
        if event.node == peer and event.detail.is_leader:
            longest = max(longest, event.detail.index)
    for rpc in analysis.all_rpcs:
        request = rpc.request
        if request is None or rpc is call:
            continue
        if rpc.method == VOTE:
            longest = max(longest, request.args.last_log_index if rpc.source == peer else 0)
        elif rpc.method == INSTALL:
            longest = max(longest, request.args.last_included_index if peer in (rpc.source, rpc.target) else 0)
        elif rpc.source == peer or (rpc.target == peer and rpc.delivered_ns is not None and not _refused(rpc)):
            longest = max(longest, request.last_index)
    return longest


def _refused(rpc: Rpc) -> bool:
    return rpc.answered is not None and not rpc.answered.success


@diagnosis(30, exceptions=True, any_fields=True)
def index_error_after_snapshot(analysis: TraceAnalysis) -> Finding | None:
    error = analysis.error
    if not isinstance(error, TaskFailed) or not isinstance(error.__cause__, (IndexError, KeyError)):
        return None
    peer = error.node
    if peer is None or prev_beyond_the_log(analysis) is not None:
        return None
    origin = analysis.snapshot_of(peer)
    if origin is None and _was_in_snapshot(error.__cause__):
        # snapshot() may have failed before it saved anything.
        origin = SnapshotOrigin(analysis.end_ns, "in snapshot()")
    if origin is None:
        return None
    return Finding(
        f"Since {at(origin.since_ns)} a snapshot has replaced the beginning of peer {peer}'s log ({origin.how}).",
        "the log no longer begins at index 1, so an index is not a position in the list: subtract the snapshot's "
        "last_included_index everywhere, and do not access entries that the snapshot has replaced (§7).",
    )


def _was_in_snapshot(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name == "snapshot":
            return True
        traceback = traceback.tb_next
    return False


@diagnosis(300, exceptions=True)
def answers_mixed_up(analysis: TraceAnalysis) -> Finding | None:
    """A handler returned the answer to another request, which is still waiting."""
    error = analysis.error
    cause = error.__cause__
    if not isinstance(error, TaskFailed) or not isinstance(cause, RpcError) or cause.returned is None:
        return None
    methods = {
        rpc.method
        for rpc in analysis.all_rpcs
        if rpc.answer is not None and rpc.answer.reply_type is not None
        if rpc.answer.reply_type.__name__ == cause.returned.__name__
    }
    calls = [rpc for rpc in analysis.all_rpcs if rpc.target == error.node]
    waiting = [rpc for rpc in calls if rpc.delivered_ns is not None and rpc.answered_ns is None]
    asked = [rpc for rpc in waiting if rpc.method.endswith(f".{error.entry_point}")]
    other = [rpc for rpc in waiting if rpc.method in methods and not rpc.method.endswith(f".{error.entry_point}")]
    if not asked or not other:
        return None
    return Finding(
        f"Two requests were waiting at peer {error.node}: {asked[-1].name} from peer {asked[-1].source} since "
        f"{at(asked[-1].delivered_ns or 0)} and {other[-1].name} from peer {other[-1].source} since "
        f"{at(other[-1].delivered_ns or 0)}. The peer returned the answer to the second request as the answer to the "
        "first.",
        "several handlers take their answers from one shared queue or field, and one handler takes an answer meant "
        "for another. Use a separate queue or variable for each call.",
    )
