"""Why a command does not get through: from start() over AppendEntries to apply_ch (§5.3, §5.4.2, §7)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from labrpc import RpcError
from labsim import Event, TaskFailed
from labtest.checks.reading import APPEND, INSTALL, VOTE
from labtest.diagnoses.diagnosis import Finding
from labtest.diagnoses.story import Rpc, S, Story, at, lasting, peers
from labtest.diagnoses.threads import in_words, own_threads
from labtest.events import APPLY, PERSIST, STARTED
from labtest.failure import Failure

# Within this time of virtual milliseconds anything that a peer does of itself has been done.
_SOON_NS = S // 2


def answers_mixed_up(story: Story) -> Finding | None:
    """A handler returned the answer to another request, which is still on the peer's desk."""
    error = story.error
    cause = error.__cause__
    if not isinstance(error, TaskFailed) or not isinstance(cause, RpcError) or cause.returned is None:
        return None
    methods = {
        rpc.method
        for rpc in story.all_rpcs
        if rpc.answer is not None and rpc.answer.reply_type is not None
        if rpc.answer.reply_type.__name__ == cause.returned.__name__
    }
    calls = [rpc for rpc in story.all_rpcs if rpc.target == error.node]
    waiting = [rpc for rpc in calls if rpc.delivered_ns is not None and rpc.answered_ns is None]
    asked = [rpc for rpc in waiting if rpc.method.endswith(f".{error.entry}")]
    other = [rpc for rpc in waiting if rpc.method in methods and not rpc.method.endswith(f".{error.entry}")]
    if not asked or not other:
        return None
    return Finding(
        f"Peer {error.node} had two requests on its desk, the {asked[-1].name} of peer {asked[-1].source} since "
        f"{at(asked[-1].delivered_ns or 0)} and the {other[-1].name} of peer {other[-1].source} since "
        f"{at(other[-1].delivered_ns or 0)}, and returned to the first what is an answer to the second.",
        "all who ask wait for their answers in one place, a queue or a field of the peer's, and whoever looks there "
        "first takes what is another's. Give each call a place of its own.",
    )


def _links(story: Story, method: str) -> Iterator[tuple[str, str, int, list[Rpc]]]:
    """What each leader sent to each connected follower in each term: (leader, follower, term, calls)."""
    found: dict[tuple[str, str, int], list[Rpc]] = {}
    for rpc in story.led:
        if rpc.method == method and rpc.target in story.connected and rpc.args is not None:
            found.setdefault((rpc.source, rpc.target, rpc.args.term), []).append(rpc)
    for (leader, follower, term), calls in found.items():
        yield leader, follower, term, calls


# ---- going back ----------------------------------------------------------------------------------------------


def _rejections(calls: list[Rpc], term: int) -> list[Rpc]:
    """Those refused for the log's sake, each sent after the refusal before it had arrived. Ends with a success."""
    found: list[Rpc] = []
    for rpc in calls:
        reply = rpc.reply
        if reply is None or rpc.replied_ns is None:
            continue
        if reply.success:
            found.clear()
        elif reply.term == term and (not found or rpc.sent_ns >= (found[-1].replied_ns or 0)):
            found.append(rpc)
    return found


def same_place_rejected(story: Story) -> Finding | None:
    for leader, follower, term, calls in _links(story, APPEND):
        refused = _rejections(calls, term)
        last = [rpc for rpc in refused if rpc.args.prev_log_index == refused[-1].args.prev_log_index]
        # Lately: at the end, and not in between.
        if len(last) >= 4 and refused[-4:] == last[-4:] and _is_late(story, refused[-1]):
            facts = (
                f"Since {at(last[0].sent_ns)} peer {leader}, leader of term {term}, has asked peer {follower} "
                f"{len(last)} times to append behind index {last[0].args.prev_log_index} (prev_log_index), and was "
                f"refused every time."
            )
            if story.snapshot_of(leader) and not any(rpc.method == INSTALL for rpc in story.led):
                return Finding(
                    f"{facts} Peer {leader} has a snapshot, and has sent no InstallSnapshot.",
                    "next_index does not move back after a rejection, or what the follower lacks is no longer in "
                    "the leader's log: then its snapshot must be sent (§7).",
                )
            return Finding(
                facts,
                "next_index does not move back after a rejection, or the hint in the reply points no lower; it must "
                "fall until the logs match (§5.3).",
            )
    return None


def back_up_one_by_one(story: Story) -> Finding | None:
    longest: tuple[list[Rpc], str, str, int] = ([], "", "", 0)
    for leader, follower, term, calls in _links(story, APPEND):
        run: list[Rpc] = []
        answered = (rpc for rpc in calls if rpc.reply is not None and not rpc.reply.success and rpc.reply.term == term)
        for rpc in answered:
            if run and rpc.args.prev_log_index != run[-1].args.prev_log_index - 1:
                run = []
            run.append(rpc)
            if len(run) > len(longest[0]):
                longest = (list(run), leader, follower, term)
    run, leader, follower, term = longest
    if len(run) < 10:
        return None
    first, last = run[0], run[-1]
    return Finding(
        f"Peer {leader}, leader of term {term}, backed up peer {follower} one entry at a time: "
        f"{len(run)} AppendEntries in a row were rejected, at prev_log_index {first.args.prev_log_index} down to "
        f"{last.args.prev_log_index}, from {at(first.sent_ns)} on, within "
        f"{lasting((last.replied_ns or last.sent_ns) - first.sent_ns)}.",
        "that is too slow for a long divergence. Let the follower say where the conflicting term begins, and skip "
        "a whole term per rejection (§5.3, the paragraph on reducing rejected AppendEntries).",
    )


def same_snapshot_again(story: Story) -> Finding | None:
    for leader, follower, term, calls in _links(story, INSTALL):
        repeated: list[Rpc] = []
        for rpc in calls:
            if rpc.reply is None or rpc.reply.term != term:
                continue
            if repeated and (
                _part_of_snapshot(rpc) != _part_of_snapshot(repeated[-1])
                or rpc.sent_ns < (repeated[-1].replied_ns or 0)
            ):
                repeated = []
            repeated.append(rpc)
        if len(repeated) >= 3 and _is_late(story, repeated[-1]):
            index, offset = _part_of_snapshot(repeated[0])
            what = f"the snapshot through index {index}"
            likely = (
                "after an InstallSnapshot was answered, next_index is not moved on to last_included_index + 1 (§7)."
            )
            if offset is not None:
                what = f"the part at offset {offset} of {what}"
                likely = (
                    "it does not go on as the answer asks for: to the next part or, where the follower has lost what "
                    "came before, back to the first one (Figure 13)."
                )
            return Finding(
                f"Peer {leader}, leader of term {term}, sent peer {follower} {what} {len(repeated)} times from "
                f"{at(repeated[0].sent_ns)} on, each time after peer {follower} had answered the one before.",
                likely,
            )
    return None


def _part_of_snapshot(rpc: Rpc) -> tuple[int, int | None]:
    """Its index and, where peers send it in parts, the offset."""
    return rpc.args.last_included_index, getattr(rpc.args, "offset", None)


def unanswered_taken_as_refusal(story: Story) -> Finding | None:
    """prev_log_index goes down and down, though nobody has refused anything."""
    links: dict[tuple[str, str, int], list[Rpc]] = {}
    for rpc in story.all_rpcs:  # acts of the tester do not matter here
        if rpc.method == APPEND and rpc.args is not None and rpc.sent_ns > story.end_ns - 20 * S:
            links.setdefault((rpc.source, rpc.target, rpc.args.term), []).append(rpc)
    for (leader, follower, term), calls in links.items():
        # Whoever sends ahead of the answers may go back once, to what is acknowledged; nobody sinks lower and lower.
        lower: list[Rpc] = []
        for rpc in calls:
            if rpc.replied_ns is not None or (lower and rpc.args.prev_log_index > lower[-1].args.prev_log_index):
                lower.clear()
            elif not lower or rpc.args.prev_log_index < lower[-1].args.prev_log_index:
                lower.append(rpc)
            if len(lower) > 3:
                break
        refused = any(rpc.answered is not None and not rpc.answered.success for rpc in calls)
        if len(lower) > 3 and not refused:
            first, last = lower[0], lower[-1]
            return Finding(
                f"Peer {leader}, leader of term {term}, got no answer from peer {follower} and went back: at "
                f"{at(first.sent_ns)} it sent what follows entry {first.args.prev_log_index} (prev_log_index), at "
                f"{at(last.sent_ns)} what follows {last.args.prev_log_index}. Peer {follower} has refused nothing in "
                "that term.",
                "a call that returns None is taken for a refusal. It says nothing about the follower's log: leave "
                "next_index as it is, and try again (§5.3).",
            )
    return None


_FEW_REPEATS = 10


def acknowledged_sent_again(story: Story) -> Finding | None:
    """Much of what goes to followers are entries that they have acknowledged to this leader before."""
    again: list[tuple[Rpc, int]] = []
    carrying: list[Rpc] = []
    for _, _, _, calls in _links(story, APPEND):
        acknowledged = sorted(
            (rpc.replied_ns, rpc.reading.last_index)
            for rpc in calls
            if rpc.replied_ns is not None and rpc.reading is not None and rpc.reply is not None and rpc.reply.success
        )
        known, position = 0, 0
        for rpc in calls:
            while position < len(acknowledged) and acknowledged[position][0] < rpc.sent_ns:
                known, position = max(known, acknowledged[position][1]), position + 1
            if rpc.args.entries:
                carrying.append(rpc)
                if rpc.args.prev_log_index < known:
                    again.append((rpc, known))
    if not again or 4 * _size(rpc for rpc, _ in again) < _size(carrying):
        return None
    rpc, known = again[-1]
    return Finding(
        f"{len(again)} of {len(carrying)} AppendEntries with entries, and {_size(rpc for rpc, _ in again)} of their "
        f"{_size(carrying)} bytes, brought some again that their receiver had acknowledged before. At "
        f"{at(rpc.sent_ns)} peer {rpc.source}, leader of term {rpc.args.term}, sent peer {rpc.target} the entries from "
        f"{rpc.args.prev_log_index + 1} on, and had had its yes to all up to {known}.",
        "next_index is not moved on when a success comes in, or goes back when a late answer does (match_index only "
        "grows), or is not looked at when entries are chosen. Send each follower what follows its next_index (§5.3).",
    )


def _size(calls: Iterable[Rpc]) -> int:
    return sum(len(rpc.message.request) for rpc in calls)


def sent_before_the_answer(story: Story) -> Finding | None:
    """The same entries go to a follower again and again while the answer to the first is under way."""
    again: list[Rpc] = []
    carrying = 0
    for _, _, _, calls in _links(story, APPEND):
        latest: Rpc | None = None
        for rpc in (rpc for rpc in calls if rpc.args.entries):
            carrying += 1
            if (
                latest is not None
                and latest.replied_ns is not None
                and rpc.sent_ns < latest.replied_ns < rpc.sent_ns + _SOON_NS // 10
                and rpc.args.prev_log_index <= latest.args.prev_log_index
            ):
                again.append(rpc)
            latest = rpc
    if len(again) < _FEW_REPEATS or 2 * len(again) < carrying:
        return None
    rpc = again[-1]
    return Finding(
        f"{len(again)} of {carrying} AppendEntries with entries left while the answer to the same entries was still "
        f"under way; at {at(rpc.sent_ns)}, for instance, peer {rpc.source} sent peer {rpc.target} the entries from "
        f"{rpc.args.prev_log_index + 1} on once more.",
        "every start() sends all that is not acknowledged yet. Let one sender serve each follower: what comes in while "
        "it waits for an answer goes out with its next call.",
    )


_FASTEST_HEARTBEAT_NS = S // 20
_USUAL_HEARTBEAT_NS = S // 10  # in less than that, several may have had one reason


def heartbeats_too_often(story: Story) -> Finding | None:
    """Nothing is new, and yet a leader speaks more often than ever makes sense."""
    for leader, follower, term, calls in _links(story, APPEND):
        since_ns = max(story.end_ns - S, calls[0].sent_ns)
        late = [rpc for rpc in calls if rpc.sent_ns >= since_ns]
        if len(late) < _FEW_REPEATS or any(rpc.args.entries or rpc.args != late[0].args for rpc in late):
            continue
        gap_ns = (late[-1].sent_ns - late[0].sent_ns) / (len(late) - 1)
        if gap_ns < _FASTEST_HEARTBEAT_NS and late[-1].sent_ns - late[0].sent_ns >= _USUAL_HEARTBEAT_NS:
            return Finding(
                f"Peer {leader}, leader of term {term}, sent peer {follower} the same AppendEntries without entries "
                f"{len(late)} times from {at(late[0].sent_ns)} to {at(late[-1].sent_ns)}: one every {lasting(gap_ns)}.",
                "a heartbeat is sent without a pause, or after every answer. One every 100 ms is enough to keep "
                "followers from campaigning (§5.2).",
            )
    return None


def _is_late(story: Story, rpc: Rpc) -> bool:
    return rpc.sent_ns > story.end_ns - S


# ---- an index is not a place in the list any more --------------------------------------------------------------

_OFFSET = (
    "the log no longer begins at index 1, so len(log) is not an index any more, and an index of the paper is not a "
    "place in the list: add or subtract the snapshot's last_included_index everywhere (§7)"
)


def _stopped_after_snapshot(story: Story, peer: str, since_ns: int) -> str:
    """ "Until 1.204 s …": words about the snapshot, if that peer got on until it had one, and "" if not."""
    kept = story.snapshot_of(peer)
    if kept is None or kept.since_ns > since_ns:
        return ""
    return f"It has kept a snapshot instead of the beginning of its log since {at(kept.since_ns)} ({kept.how})."


def off_by_the_snapshot(story: Story) -> Finding | None:
    """start() or a candidate gives an index that is too low by just what the snapshot has replaced."""
    if not isinstance(story.error, Failure) or story.error.peer is None:
        return None
    peer = story.error.peer
    index, kept = story.snapshot_index(peer), story.snapshot_of(peer)
    if not index or kept is None:
        return None
    told = [event.detail for event in story.other.get(STARTED, ()) if event.node == peer and event.detail.is_leader]
    shifted = len(told) > 1 and told[-1].term == told[-2].term and told[-1].index + index == told[-2].index + 1
    if shifted:
        facts = f"start() of peer {peer} gave index {told[-1].index} where {told[-2].index + 1} was due"
    else:
        claims = [rpc for rpc in story.all_rpcs if rpc.method == VOTE and rpc.source == peer and rpc.args is not None]
        last = max((last for last in _last_indexes(story, peer)), default=0)
        if not claims or claims[-1].args.last_log_index + index != last:
            return None
        facts = (
            f"Peer {peer} claims a last entry {claims[-1].args.last_log_index} where {last} is the last it has shown"
        )
    return Finding(
        f"{facts}: {index} less, and {index} is where its snapshot ends, which it has had since {at(kept.since_ns)} "
        f"({kept.how}).",
        f"{_OFFSET}.",
    )


def taken_for_known_since_the_snapshot(story: Story) -> Finding | None:
    """Every new entry was saved until it had a snapshot, and the first one behind it is acknowledged without a save."""
    if not isinstance(story.error, Failure) or story.error.rule != "saved-before-reply":
        return None
    peer = story.error.peer
    saves = [event for event in story.other.get(PERSIST, ()) if event.node == peer]
    if len(saves) < 2 or not saves[-1].detail.snapshot or saves[-1].detail.snapshot == saves[-2].detail.snapshot:
        return None
    with_entries = [
        rpc for rpc in story.all_rpcs if rpc.method == APPEND and rpc.target == peer and rpc.args and rpc.args.entries
    ]
    said_yes = [rpc for rpc in with_entries if _said_yes(rpc) and rpc.answered_ns is not None]
    unsaved = [rpc for rpc in said_yes if rpc.answered_ns == story.end_ns and _delivered(rpc) >= saves[-1].at_ns]
    saved = any(any(_delivered(rpc) <= save.at_ns <= (rpc.answered_ns or 0) for save in saves[:-1]) for rpc in said_yes)
    if not unsaved or not saved:
        return None
    reading = unsaved[-1].reading
    assert reading is not None
    return Finding(
        f"Until {at(saves[-1].at_ns)} peer {peer} saved what it was sent. Then it saved its snapshot, which ends with "
        f"entry {story.snapshot_index(peer or '')}. The AppendEntries that ends with entry {reading.last_index} came "
        "after that, and it has acknowledged and not saved it.",
        "it believes to have these entries already. What it has kept of its log behind the snapshot is too long: "
        "shifted by one, or cut by an index from which last_included_index had been subtracted already, or not yet "
        "(§7).",
    )


def _delivered(rpc: Rpc) -> int:
    return -1 if rpc.delivered_ns is None else rpc.delivered_ns


def _last_indexes(story: Story, peer: str) -> Iterator[int]:
    """The ends of that peer's log, as it has shown them: started, acknowledged, or sent as a leader."""
    for event in story.other.get(STARTED, ()):
        if event.node == peer and event.detail.is_leader:
            yield event.detail.index
    for rpc in story.all_rpcs:
        reading = rpc.reading if rpc.method == APPEND else None
        if reading is not None and (rpc.source == peer or (rpc.target == peer and _said_yes(rpc))):
            yield reading.last_index


def _said_yes(rpc: Rpc) -> bool:
    return rpc.answered is not None and bool(rpc.answered.success)


# ---- committing ----------------------------------------------------------------------------------------------


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
    snapshot = _stopped_after_snapshot(story, office.leader, since_ns)
    if snapshot:
        return Finding(f"{facts} {snapshot}", f"{_OFFSET}; or {likely}.")
    return Finding(facts, f"{likely}.")


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
            snapshot = _stopped_after_snapshot(story, peer, when_ns)
            if snapshot:
                return Finding(
                    f"{facts} {snapshot}",
                    f"{_OFFSET}; or the thread that applies is not woken when commit_index rises, or it has ended.",
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
            snapshot = _stopped_after_snapshot(story, peer, ahead[0].sent_ns)
            if snapshot:
                return Finding(f"{facts} {snapshot}", f"{_OFFSET}; or {likely}")
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


def start_never_sent(story: Story) -> Finding | None:
    for event in story.other.get(STARTED, ()):
        command, index, term = event.detail.command, event.detail.index, event.detail.term
        leader, when_ns = event.node, event.at_ns
        if (
            not event.detail.is_leader
            or when_ns < story.calm_ns
            or leader not in story.connected
            or when_ns > story.end_ns - _SOON_NS
            or story.servers < 2
            or story.term_at(leader, when_ns + _SOON_NS) > term
        ):
            continue
        first = bisect_left(story.led, when_ns, key=lambda rpc: rpc.sent_ns)
        sent = [rpc for rpc in story.led[first:] if rpc.source == leader]
        if any(_reaches(rpc, index) for rpc in sent) or _applied_elsewhere(story, event):
            continue
        returned = (
            f"start({_short(command)}) of peer {leader} returned index {index}, term {term}, and that it leads, at "
            f"{at(when_ns)}"
        )
        other = _sent_as(sent, command)
        if other is not None:
            return Finding(
                f"{returned}; the command went out as entry {other}.",
                "start() returns the wrong index; it is that of the entry just appended.",
            )
        facts = (
            f"{returned}; in the {lasting(story.end_ns - when_ns)} since then no AppendEntries has carried entry "
            f"{index}."
        )
        if slow := _on_its_way(sent, story.end_ns):
            return Finding(
                f"{facts} {slow}",
                "so many entries go out too slowly: send more of them in one message, and the next ones sooner.",
            )
        if sent:
            return Finding(
                f"{facts} {len(sent)} have gone out without it.",
                "the command is not appended to the log, or heartbeats are sent without the entries that "
                "next_index asks for (§5.3).",
            )
        return Finding(facts, "the thread that sends is not woken by start(), or it has ended.")
    return None


def _applied_elsewhere(story: Story, started: Event) -> bool:
    """Others have that entry by now: it has gone out in some way of the peer's own."""
    return any(
        event.node != started.node
        and event.at_ns > started.at_ns
        and event.detail.command_index >= started.detail.index
        for event in story.other.get(APPLY, ())
    )


def _on_its_way(sent: list[Rpc], end_ns: int) -> str:
    """Whether older entries have gone out to somebody until the end, later ones and later ones; in words."""
    by_target: dict[str, list[Rpc]] = {}
    for rpc in sent:
        if rpc.method == APPEND and rpc.args is not None and rpc.args.entries:
            by_target.setdefault(rpc.target, []).append(rpc)
    for target, rpcs in by_target.items():
        first, last = rpcs[0].args.prev_log_index + 1, rpcs[-1].args.prev_log_index + len(rpcs[-1].args.entries)
        if rpcs[-1].args.prev_log_index >= first and rpcs[-1].sent_ns > end_ns - _SOON_NS:
            most = max(len(rpc.args.entries) for rpc in rpcs)
            many = "one entry" if most == 1 else f"at most {most} entries"
            return f"Peer {target} was sent entries {first} to {last} meanwhile, {many} in a message."
    return ""


def _sent_as(sent: list[Rpc], command: Any) -> int | None:
    """The index under which that command was sent."""
    for rpc in sent:
        if rpc.method == APPEND and (args := rpc.args) is not None:
            for index, entry in enumerate(args.entries, args.prev_log_index + 1):
                if entry.command == command and type(entry.command) is type(command):
                    return index
    return None


def _reaches(rpc: Rpc, index: int) -> bool:
    reading = rpc.reading
    if reading is None:
        return True  # who knows
    if rpc.method == INSTALL:
        return bool(reading.args.last_included_index >= index)
    return bool(reading.last_index >= index)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 20 else f"{text[:17]}..."
