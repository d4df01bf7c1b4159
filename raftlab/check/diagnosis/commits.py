"""Why an entry is not committed, or is too early, and why what is committed is not applied (§5.3, §5.4.2)."""

from __future__ import annotations

from typing import NamedTuple

from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.snapshots import OFFSET, stopped_after_snapshot
from raftlab.check.diagnosis.threads import in_words, own_threads
from raftlab.check.diagnosis.trace_analysis import Rpc, S, Story, at, lasting, peers
from raftlab.check.failure import Failure
from raftlab.trace.events import APPLY, STARTED
from raftlab.trace.rpcs import APPEND

# Within this time of virtual milliseconds anything that a peer does of itself has been done.
_SOON_NS = S // 2


class _Office(NamedTuple):
    """The latest leader, and what was acknowledged to it."""

    leader: str
    term: int
    calls: list[Rpc]
    entry_terms: dict[int, int]
    match: dict[str, tuple[int, int]]  # follower -> (index, when the leader heard of it first)


def _last_office(story: Story) -> _Office | None:
    readable = [rpc for rpc in story.led if rpc.args is not None]
    if not readable:
        return None
    term, leader = max((rpc.args.term, rpc.source) for rpc in readable)
    calls = [rpc for rpc in readable if rpc.args.term == term and rpc.source == leader]
    # It must lead still; a leader that has been told of a higher term commits nothing, and rightly.
    if story.term_at(leader, story.end_ns) > term:
        return None
    entry_terms: dict[int, int] = {}
    match: dict[str, tuple[int, int]] = {}
    for event in story.other.get(STARTED, ()):
        if event.detail.is_leader and event.detail.term == term:
            entry_terms[event.detail.index] = term
    for rpc in sorted((r for r in calls if r.method == APPEND), key=lambda r: r.replied_ns or story.end_ns):
        reading = rpc.reading
        assert reading is not None
        if reading.last_index:
            entry_terms[reading.last_index] = reading.last_term
        for index, entry in enumerate(reading.args.entries, reading.args.prev_log_index + 1):
            entry_terms[index] = entry.term
        reply = rpc.reply
        if rpc.target == leader:
            continue  # it has what it sends, and counts anyway
        if reply is not None and reply.success and reading.last_index > match.get(rpc.target, (0, 0))[0]:
            match[rpc.target] = (reading.last_index, rpc.replied_ns or 0)
    return _Office(leader, term, calls, entry_terms, match)


def _stored_by_majority(story: Story, office: _Office) -> tuple[int, int]:
    """The highest index that the leader knows a majority to store, and since when; (0, 0) if none."""
    needed = story.quorum - 1
    if not 0 < needed <= len(office.match):
        return 0, 0
    index = sorted((index for index, _ in office.match.values()), reverse=True)[needed - 1]
    return index, sorted(when for i, when in office.match.values() if i >= index)[needed - 1]


def _frozen_commit(story: Story, office: _Office, index: int, since_ns: int) -> int | None:
    """The leader_commit that the leader still tells, if it stays below that index long after."""
    appends = [rpc for rpc in office.calls if rpc.method == APPEND]
    late = [rpc.args.leader_commit for rpc in appends if rpc.sent_ns > since_ns + _SOON_NS]
    return late[-1] if len(late) >= 2 and late[-1] < index else None


@diagnosis(360)
def commit_frozen(story: Story) -> Finding | None:
    office = _last_office(story)
    if office is None:
        return None
    index, since_ns = _stored_by_majority(story, office)
    told = _frozen_commit(story, office, index, since_ns) if index else None
    if told is None or office.entry_terms.get(index) != office.term:
        return None
    holders = [peer for peer, (match, _) in office.match.items() if match >= index]
    facts = (
        f"Peer {office.leader} leads term {office.term}, and since {at(since_ns)} it has had the acknowledgement of "
        f"{peers(holders)} for entry {index}, which is of its own term: with itself {len(holders) + 1} of "
        f"{story.servers}. {lasting(story.end_ns - since_ns)} later the leader_commit it sends is still {told}."
    )
    likely = (
        "match_index is not updated by successful replies, or the majority is computed wrongly, the leader itself "
        "left out perhaps (Figure 2, last rule for leaders); or it is right, and stored under another name than the "
        "commit_index that is read (a typo makes a new attribute)"
    )
    snapshot = stopped_after_snapshot(story, office.leader, since_ns)
    if snapshot:
        return Finding(f"{facts} {snapshot}", f"{OFFSET}; or {likely}.")
    return Finding(facts, f"{likely}.")


@diagnosis(400, rules=("earned-commit",))
def counted_too_much(story: Story) -> Finding | None:
    """Why a leader takes for stored what no majority has acknowledged to it."""
    leader = story.error.peer if isinstance(story.error, Failure) else None
    sent = [rpc for rpc in story.all_rpcs if rpc.source == leader and rpc.method == APPEND and rpc.args is not None]
    if leader is None or not sent:
        return None
    term = max(rpc.args.term for rpc in sent)
    applied = [e.detail.command_index for e in story.other.get(APPLY, ()) if e.node == leader][-1:]
    index = max([rpc.args.leader_commit for rpc in sent if rpc.args.term == term] + applied)
    yes = [rpc for rpc in sent if rpc.reply is not None and rpc.reply.success and rpc.reading is not None]
    yes = [rpc for rpc in yes if rpc.target != leader]
    holders = {rpc.target for rpc in yes if rpc.args.term == term and rpc.reading.last_index >= index}  # type: ignore[union-attr]
    missing = story.quorum - 1 - len(holders)
    began_ns = min(rpc.sent_ns for rpc in sent if rpc.args.term == term)
    old = {
        rpc.target: rpc
        for rpc in yes
        if rpc.args.term < term and rpc.replied_ns is not None and rpc.replied_ns >= began_ns
        if rpc.target not in holders and rpc.reading is not None and rpc.reading.last_index >= index
    }
    if old and len(old) >= missing > 0:
        rpc = old[min(old)]
        return Finding(
            f"At {at(rpc.replied_ns or 0)} peer {leader}, leader of term {term}, got peer {rpc.target}'s yes to an "
            f"AppendEntries of term {rpc.args.term}, sent at {at(rpc.sent_ns)}, for entries up to "
            f"{rpc.reading.last_index if rpc.reading else 0}.",
            "an answer to a request of an earlier term is counted. Compare the term of the request with current_term "
            "when its reply comes in, and drop it if they differ (§5.1, §5.3).",
        )
    shown_ns = _shown_ns(story, leader, term, index)
    grown = {
        rpc.target: rpc
        for rpc in yes
        if rpc.args.term == term and rpc.reading is not None and rpc.reading.last_index < index
        if rpc.target not in holders and rpc.replied_ns is not None and rpc.sent_ns <= shown_ns <= rpc.replied_ns
    }
    if grown and len(grown) >= missing > 0:
        rpc = grown[min(grown)]
        return Finding(
            f"At {at(rpc.replied_ns or 0)} peer {leader}, leader of term {term}, got peer {rpc.target}'s yes to an "
            f"AppendEntries that ended with entry {rpc.reading.last_index if rpc.reading else 0}; entry {index} was "
            f"added to its log at {at(shown_ns)}, after that had been sent (at {at(rpc.sent_ns)}).",
            "match_index is taken from the log, or from a list of entries that is shared with it and has grown since. "
            "It is prev_log_index + the number of entries in the request as it was sent: copy them, self.log[i:] "
            "(Figure 2, last rules for leaders).",
        )
    return None


def _shown_ns(story: Story, leader: str, term: int, index: int) -> int:
    """When that entry came into that leader's log; -1 if nobody has seen it."""
    for event in story.other.get(STARTED, ()):
        if event.node == leader and event.detail.is_leader and (event.detail.index, event.detail.term) == (index, term):
            return event.at_ns
    return -1


@diagnosis(390, last_resort=True)
def only_older_terms_stored(story: Story) -> Finding | None:
    """Only where the test waited for just that entry: to be told that all is well helps nobody else."""
    awaited = story.error.awaited if isinstance(story.error, Failure) else None
    office = _last_office(story)
    if office is None or awaited is None:
        return None
    index, since_ns = _stored_by_majority(story, office)
    told = _frozen_commit(story, office, index, since_ns) if index else None
    its_term = office.entry_terms.get(index)
    if told is None or its_term is None or its_term >= office.term or not told < awaited <= index:
        return None
    if office.term in office.entry_terms.values():
        return None
    return Finding(
        f"Peer {office.leader} leads term {office.term}. A majority stores its log through index {index}, but that "
        f"entry is of term {its_term}, none of its own term has been started, and its leader_commit stays {told}.",
        "nothing is wrong with that. A leader must not commit an older term's entry by counting (§5.4.2, Figure 8); "
        "the next command of its own term commits both. Do not remove the check.",
    )


@diagnosis(370)
def commit_never_applied(story: Story) -> Finding | None:
    # The one that the headline tells of first.
    to_blame = story.error.peer if isinstance(story.error, Failure) else None
    for peer in sorted(story.connected, key=lambda peer: (peer != to_blame, peer)):
        applied = story.applied.get(peer, 0)
        told = [
            (rpc.answered_ns or 0, min(reading.args.leader_commit, reading.last_index), rpc)
            for rpc in story.led
            if rpc.target == peer
            and rpc.method == APPEND
            and (reading := rpc.reading) is not None
            and (answer := rpc.answered) is not None
            and answer.success
        ]
        due = [item for item in told if item[1] > applied]
        if due and due[0][0] <= story.end_ns - _SOON_NS and not _applies_lately(story, peer):
            when_ns, index, rpc = due[0]
            facts = (
                f"Peer {peer} said yes at {at(when_ns)} to an AppendEntries of peer {rpc.source} with leader_commit "
                f"{rpc.args.leader_commit}, so entry {index} was committed, but {lasting(story.end_ns - when_ns)} "
                f"later its service is still at {applied}."
            )
            snapshot = stopped_after_snapshot(story, peer, when_ns)
            if snapshot:
                return Finding(
                    f"{facts} {snapshot}",
                    f"{OFFSET}; or the thread that applies is not woken when commit_index rises, or it has ended.",
                )
            empty = sum(not item[2].args.entries for item in due)
            if empty == len(due) and story.calm_ns == story.changed_ns and story.applied.get(rpc.source, 0) >= index:
                return Finding(
                    f"{facts} All {empty} AppendEntries that said so came without entries.",
                    "heartbeats do not raise commit_index, but every AppendEntries counts (Figure 2); or the thread "
                    "that applies has ended.",
                )
            if not story.other.get(APPLY):
                # Its leader's commit_index has been raised, and did not help.
                return Finding(
                    f"{facts} No peer has ever put anything on apply_ch, not even peer {rpc.source}, which leads."
                    f"{_threads(story, peer)}",
                    "the thread that applies was never started, or is not woken when commit_index rises, or has ended.",
                )
            return Finding(
                facts,
                "commit_index is not raised, or the thread that applies is not woken when it is, or it has ended.",
            )
        own = [rpc for rpc in story.led if rpc.source == peer and rpc.method == APPEND and rpc.args is not None]
        ahead = [rpc for rpc in own if rpc.args.leader_commit > applied]
        if ahead and ahead[0].sent_ns <= story.end_ns - _SOON_NS and not _applies_lately(story, peer):
            facts = (
                f"Peer {peer} has told others since {at(ahead[0].sent_ns)} that {ahead[0].args.leader_commit} is "
                f"committed (leader_commit), but {lasting(story.end_ns - ahead[0].sent_ns)} later its own service is "
                f"still at {applied}."
            )
            likely = "the thread that applies is not woken when commit_index rises, or it has ended."
            snapshot = stopped_after_snapshot(story, peer, ahead[0].sent_ns)
            if snapshot:
                return Finding(f"{facts} {snapshot}", f"{OFFSET}; or {likely}")
            return Finding(facts, likely)
    return None


def _threads(story: Story, peer: str) -> str:
    threads = own_threads(story, [peer])
    whose = f"Peer {peer}'s"
    return f" {in_words(threads, whose)}" if threads else ""


def _applies_lately(story: Story, peer: str) -> bool:
    """Somebody who applies entry after entry is late, not stuck."""
    applies = story.other.get(APPLY, ())
    return any(event.node == peer and event.at_ns > story.end_ns - _SOON_NS for event in reversed(applies[-50:]))
