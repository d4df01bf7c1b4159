"""Why an entry is not committed, or too early, and why a committed entry is not applied (§5.3, §5.4.2)."""

from __future__ import annotations

from typing import NamedTuple

from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.snapshots import OFFSET, stopped_after_snapshot
from raftlab.check.diagnosis.threads import describe_threads, own_threads
from raftlab.check.diagnosis.trace_analysis import Rpc, S, TraceAnalysis, at, duration, peers
from raftlab.check.failure import Failure
from raftlab.trace.events import APPLY, STARTED
from raftlab.trace.rpcs import APPEND

# A peer acts within this time if nothing delays it.
_SOON_NS = S // 2


class _LeaderProgress(NamedTuple):
    """The latest leader, and what followers acknowledged to it."""

    leader: str
    term: int
    calls: list[Rpc]
    entry_terms: dict[int, int]
    match: dict[str, tuple[int, int]]  # follower -> (index, when the leader heard of it first)


def _last_leader_progress(analysis: TraceAnalysis) -> _LeaderProgress | None:
    decodable = [rpc for rpc in analysis.led if rpc.args is not None]
    if not decodable:
        return None
    term, leader = max((rpc.args.term, rpc.source) for rpc in decodable)
    calls = [rpc for rpc in decodable if rpc.args.term == term and rpc.source == leader]
    # It must still lead: a leader that learned of a higher term correctly commits nothing.
    if analysis.term_at(leader, analysis.end_ns) > term:
        return None
    entry_terms: dict[int, int] = {}
    match: dict[str, tuple[int, int]] = {}
    for event in analysis.other.get(STARTED, ()):
        if event.detail.is_leader and event.detail.term == term:
            entry_terms[event.detail.index] = term
    for rpc in sorted((r for r in calls if r.method == APPEND), key=lambda r: r.replied_ns or analysis.end_ns):
        request = rpc.request
        assert request is not None
        if request.last_index:
            entry_terms[request.last_index] = request.last_term
        for index, entry in enumerate(request.args.entries, request.args.prev_log_index + 1):
            entry_terms[index] = entry.term
        reply = rpc.reply
        if rpc.target == leader:
            continue  # it always counts
        if reply is not None and reply.success and request.last_index > match.get(rpc.target, (0, 0))[0]:
            match[rpc.target] = (request.last_index, rpc.replied_ns or 0)
    return _LeaderProgress(leader, term, calls, entry_terms, match)


def _stored_by_majority(analysis: TraceAnalysis, progress: _LeaderProgress) -> tuple[int, int]:
    """The highest index that, as the leader knows, a majority stores, and since when; (0, 0) if none."""
    needed = analysis.quorum - 1
    if not 0 < needed <= len(progress.match):
        return 0, 0
    index = sorted((index for index, _ in progress.match.values()), reverse=True)[needed - 1]
    return index, sorted(when for i, when in progress.match.values() if i >= index)[needed - 1]


def _frozen_commit(analysis: TraceAnalysis, progress: _LeaderProgress, index: int, since_ns: int) -> int | None:
    """The leader_commit that the leader still sends, if it stays below that index long after."""
    appends = [rpc for rpc in progress.calls if rpc.method == APPEND]
    late = [rpc.args.leader_commit for rpc in appends if rpc.sent_ns > since_ns + _SOON_NS]
    return late[-1] if len(late) >= 2 and late[-1] < index else None


@diagnosis(360)
def commit_frozen(analysis: TraceAnalysis) -> Finding | None:
    progress = _last_leader_progress(analysis)
    if progress is None:
        return None
    index, since_ns = _stored_by_majority(analysis, progress)
    commit = _frozen_commit(analysis, progress, index, since_ns) if index else None
    if commit is None or progress.entry_terms.get(index) != progress.term:
        return None
    holders = [peer for peer, (match, _) in progress.match.items() if match >= index]
    facts = (
        f"Peer {progress.leader} leads term {progress.term}. By {at(since_ns)} {peers(holders)} had acknowledged "
        f"entry {index} of that term. Including the leader, {len(holders) + 1} of {analysis.servers} peers have that "
        f"entry. {duration(analysis.end_ns - since_ns)} later the leader still sends leader_commit {commit}."
    )
    likely = (
        "successful replies do not update match_index; or the majority is computed wrongly, perhaps without counting "
        "the leader itself (Figure 2, last rule for leaders); or the result is stored under a name other than "
        "commit_index (a typo creates a new attribute)"
    )
    snapshot = stopped_after_snapshot(analysis, progress.leader, since_ns)
    if snapshot:
        return Finding(f"{facts} {snapshot}", f"{OFFSET}; or {likely}.")
    return Finding(facts, f"{likely}.")


@diagnosis(400, rules=("earned-commit",))
def wrong_acknowledgements_counted(analysis: TraceAnalysis) -> Finding | None:
    """Why a leader counts acknowledgements that it must not count."""
    leader = analysis.error.peer if isinstance(analysis.error, Failure) else None
    sent = [rpc for rpc in analysis.all_rpcs if rpc.source == leader and rpc.method == APPEND and rpc.args is not None]
    if leader is None or not sent:
        return None
    term = max(rpc.args.term for rpc in sent)
    applied = [e.detail.command_index for e in analysis.other.get(APPLY, ()) if e.node == leader][-1:]
    index = max([rpc.args.leader_commit for rpc in sent if rpc.args.term == term] + applied)
    yes = [rpc for rpc in sent if rpc.reply is not None and rpc.reply.success and rpc.request is not None]
    yes = [rpc for rpc in yes if rpc.target != leader]
    holders = {rpc.target for rpc in yes if rpc.args.term == term and rpc.request.last_index >= index}  # type: ignore[union-attr]
    missing = analysis.quorum - 1 - len(holders)
    began_ns = min(rpc.sent_ns for rpc in sent if rpc.args.term == term)
    old = {
        rpc.target: rpc
        for rpc in yes
        if rpc.args.term < term and rpc.replied_ns is not None and rpc.replied_ns >= began_ns
        if rpc.target not in holders and rpc.request is not None and rpc.request.last_index >= index
    }
    if old and len(old) >= missing > 0:
        rpc = old[min(old)]
        return Finding(
            f"At {at(rpc.replied_ns or 0)} peer {leader}, leader of term {term}, received success from peer "
            f"{rpc.target} for an AppendEntries that it had sent in term {rpc.args.term}, at {at(rpc.sent_ns)}, with "
            f"entries up to {rpc.request.last_index if rpc.request else 0}.",
            "the leader counts a reply to a request of an earlier term. When a reply arrives, compare the term of "
            "its request with current_term, and ignore the reply if they differ (§5.1, §5.3).",
        )
    started_ns = _started_ns(analysis, leader, term, index)
    grown = {
        rpc.target: rpc
        for rpc in yes
        if rpc.args.term == term and rpc.request is not None and rpc.request.last_index < index
        if rpc.target not in holders and rpc.replied_ns is not None and rpc.sent_ns <= started_ns <= rpc.replied_ns
    }
    if grown and len(grown) >= missing > 0:
        rpc = grown[min(grown)]
        return Finding(
            f"At {at(rpc.replied_ns or 0)} peer {leader}, leader of term {term}, received success from peer "
            f"{rpc.target} for an AppendEntries that ended with entry {rpc.request.last_index if rpc.request else 0}. "
            f"The leader sent it at {at(rpc.sent_ns)} and appended entry {index} to its log later, at "
            f"{at(started_ns)}.",
            "match_index is computed from the current length of the log (or of a list that is not a copy), but the "
            "log has grown since the request was sent. Set match_index to prev_log_index + the number of entries in "
            "the request, and copy these entries with self.log[i:] (Figure 2, last rules for leaders).",
        )
    return None


def _started_ns(analysis: TraceAnalysis, leader: str, term: int, index: int) -> int:
    """When that leader's start() returned that index; -1 if it did not."""
    for event in analysis.other.get(STARTED, ()):
        if event.node == leader and event.detail.is_leader and (event.detail.index, event.detail.term) == (index, term):
            return event.at_ns
    return -1


@diagnosis(390, last_resort=True)
def only_older_terms_stored(analysis: TraceAnalysis) -> Finding | None:
    """Only if the test waited for that very entry. Otherwise it is not the cause."""
    awaited = analysis.error.awaited if isinstance(analysis.error, Failure) else None
    progress = _last_leader_progress(analysis)
    if progress is None or awaited is None:
        return None
    index, since_ns = _stored_by_majority(analysis, progress)
    commit = _frozen_commit(analysis, progress, index, since_ns) if index else None
    its_term = progress.entry_terms.get(index)
    if commit is None or its_term is None or its_term >= progress.term or not commit < awaited <= index:
        return None
    if progress.term in progress.entry_terms.values():
        return None
    return Finding(
        f"Peer {progress.leader} leads term {progress.term}. A majority has stored the leader's log up to entry "
        f"{index}, which is of term {its_term}. The leader has no entry of its own term, and its leader_commit stays "
        f"{commit}.",
        "the peer is correct here. A leader must not commit an entry of an older term by counting replicas (§5.4.2, "
        "Figure 8). Once it commits an entry of its own term, the older entries are committed too. Do not remove the "
        "check of the entry's term.",
    )


@diagnosis(370)
def commit_never_applied(analysis: TraceAnalysis) -> Finding | None:
    # First the peer in the headline.
    failed = analysis.error.peer if isinstance(analysis.error, Failure) else None
    for peer in sorted(analysis.connected, key=lambda peer: (peer != failed, peer)):
        applied = analysis.applied.get(peer, 0)
        accepted = [
            (rpc.answered_ns or 0, min(request.args.leader_commit, request.last_index), rpc)
            for rpc in analysis.led
            if rpc.target == peer
            and rpc.method == APPEND
            and (request := rpc.request) is not None
            and (answer := rpc.answered) is not None
            and answer.success
        ]
        due = [item for item in accepted if item[1] > applied]
        if due and due[0][0] <= analysis.end_ns - _SOON_NS and not _applies_lately(analysis, peer):
            when_ns, index, rpc = due[0]
            facts = (
                f"At {at(when_ns)} peer {peer} accepted an AppendEntries from peer {rpc.source} with leader_commit "
                f"{rpc.args.leader_commit}, so entry {index} is committed, but {duration(analysis.end_ns - when_ns)} "
                f"later the peer has applied entries only up to {applied}."
            )
            snapshot = stopped_after_snapshot(analysis, peer, when_ns)
            if snapshot:
                return Finding(
                    f"{facts} {snapshot}",
                    f"{OFFSET}; or the thread that applies entries is not notified when commit_index rises, or has "
                    "ended.",
                )
            empty = sum(not item[2].args.entries for item in due)
            if (
                empty == len(due)
                and analysis.since_fault_ns == analysis.last_fault_ns
                and analysis.applied.get(rpc.source, 0) >= index
            ):
                return Finding(
                    f"{facts} None of the {empty} AppendEntries with such a leader_commit contained entries.",
                    "heartbeats do not update commit_index, but every AppendEntries must update it (Figure 2); or "
                    "the thread that applies entries has ended.",
                )
            if not analysis.other.get(APPLY):
                # The leader's commit_index has risen, so that is not the cause.
                return Finding(
                    f"{facts} No peer has ever put anything on apply_ch, not even the leader, peer {rpc.source}."
                    f"{_threads(analysis, peer)}",
                    "the thread that applies entries was never started, is not notified when commit_index rises, or "
                    "has ended.",
                )
            return Finding(
                facts,
                "commit_index is not updated; or the thread that applies entries is not notified when it rises, or "
                "has ended.",
            )
        own = [rpc for rpc in analysis.led if rpc.source == peer and rpc.method == APPEND and rpc.args is not None]
        ahead = [rpc for rpc in own if rpc.args.leader_commit > applied]
        if ahead and ahead[0].sent_ns <= analysis.end_ns - _SOON_NS and not _applies_lately(analysis, peer):
            facts = (
                f"At {at(ahead[0].sent_ns)} peer {peer} sent leader_commit {ahead[0].args.leader_commit}, but "
                f"{duration(analysis.end_ns - ahead[0].sent_ns)} later that peer itself has applied entries only up "
                f"to {applied}."
            )
            likely = "the thread that applies entries is not notified when commit_index rises, or has ended."
            snapshot = stopped_after_snapshot(analysis, peer, ahead[0].sent_ns)
            if snapshot:
                return Finding(f"{facts} {snapshot}", f"{OFFSET}; or {likely}")
            return Finding(facts, likely)
    return None


def _threads(analysis: TraceAnalysis, peer: str) -> str:
    threads = own_threads(analysis, [peer])
    whose = f"Peer {peer}'s"
    return f" {describe_threads(threads, whose)}" if threads else ""


def _applies_lately(analysis: TraceAnalysis, peer: str) -> bool:
    """A peer that applies entry after entry is late, not blocked."""
    applies = analysis.other.get(APPLY, ())
    return any(event.node == peer and event.at_ns > analysis.end_ns - _SOON_NS for event in reversed(applies[-50:]))
