"""What the rules share: what is known of each server over all its incarnations, and of each office."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any

import msgspec

import labgob
from labrpc import Message
from labsim import Event
from raftlab.trace.decoding import Reader, Reading
from raftlab.trace.rpcs import APPEND, INSTALL, VOTE

# §6: how long a voter may take for "lately".
LATELY_NS = 1_000_000_000
_LONG_AGO_NS = 1 << 62
_SLACK_NS = 150_000_000
_SAVES_IN_A_ROW = 10


class Unverified(StrEnum):
    """What a run rests on that messages must prove, and those that would prove it cannot be decoded."""

    LEADERSHIP = "leadership"
    COMMITS = "commits"


class Seat:
    """One server, through all its incarnations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = False  # its service is, and handles nothing
        # The highest term it has shown in an answer or a send of its own, when it first did, and in which incarnation.
        self.term = 0
        self.term_since_ns = 0
        self.term_life = 0
        # The highest term it has been told, by a request or a reply, and when.
        self.told_term = 0
        self.told_since_ns = 0
        # A lower bound for its log: in the term of the latest AppendEntries that reached it (or in which it led),
        # its last entry is at least (term, index).
        self.floor_term = 0
        self.floor = (0, 0)
        # The floors that it had in earlier terms, by term.
        self.floors: dict[int, tuple[int, int]] = {}
        # The floor without what start() has returned since the last save: after a crash only this is sure.
        self.saved_floor = (0, 0)
        self.starts: list[int] = []  # when each start() began that has not returned: sequence numbers
        self.unsaved: list[tuple[int, int]] = []  # (index, when start() began) of what was started and not yet saved
        self.saving: dict[int, int] = {}  # by number, the saves under way on a slow disk: when each began
        self.last_persist = 0  # sequence number of its latest save
        # When the latest of the saves began that have ended: what it has learnt since is in none of them.
        self.persist_began = 0
        self.last_persist_ns = 0
        self.last_spoke = 0  # sequence number of its latest send or answer
        # By term: of the requests that it has answered in it, when the latest came in (a sequence number), and when it
        # was answered. A later term came after that, though it may have come before the answer left.
        self.last_answers: dict[int, tuple[int, int]] = {}
        # When it last heard the leader of its term say something, or became one itself: §6, disregard.
        self.heard_leader_ns = -_LONG_AGO_NS
        self.heard_from: dict[str, int] = {}  # who has last answered it in its own term, and when
        # What reached it that cannot be read: by the peer it came from, the sequence number of the latest. Votes are
        # whatever may be one, and may tell of a term; the others may have brought entries and commits, too.
        self.unread: dict[str, int] = {}
        self.last_unread = 0
        self.unread_votes: dict[str, int] = {}
        self.asked_unread = False  # it has itself sent such a request for a vote: it may have begun a term
        # The most it can know to be committed, told or earned, in any incarnation.
        self.known_committed = 0
        self.hinted = 0  # the highest number in an added field of what has reached it: a commit index, perhaps
        # What has reached it of each leader's log, by the leader's term: first and last index.
        self.received: dict[int, tuple[int, int]] = {}
        self.arrivals: list[tuple[int, int, int]] = []  # (leader's term, last index, sequence number), not acknowledged
        self.acked: dict[int, int] = {}  # how far it has acknowledged each leader's log, by term
        self.followed: dict[int, tuple[int, Message]] = {}  # by term: when it first said yes to the leader, and to what
        self.follows = 0  # the term of its latest yes
        # The highest leader_commit, and the end of the log verified, in each term; and up to where it may apply, for
        # having been told or, as a leader, for having earned it.
        self.told_commits: dict[int, tuple[int, int]] = {}
        self.may_apply = 0
        self.applied = 0  # in this incarnation
        self.led: set[int] = set()  # terms
        self.leads = 0  # the term of its latest AppendEntries
        self.office = 0  # the latest term that it is known to have come to lead, in this incarnation
        self.said: Any = None  # that AppendEntries, as Reader.read_head() gives it
        # The stretches of time that it could not use, paused or with its clock held, and when the latest began.
        self.taken: list[tuple[int, int]] = []
        self.away: set[str] = set()  # what the tester has done to it
        self.away_since_ns = 0
        self.snapshot = b""  # on its disk
        self.snapshot_saved = 0  # the index it was taken at: entries up to here may be gone from the log


# gc=False: every request that is delivered gets one, and nothing it refers to can refer back to it.
class Delivery(msgspec.Struct, gc=False, eq=False):
    """A request on its server's desk: what was known when it came in, because handlers may overtake each other."""

    reading: Reading
    sequence: int
    term: int
    told_term: int
    floor_term: int
    floor: tuple[int, int]
    acked: int
    at_ns: int
    reply: Any = None  # once it has been answered
    hint: int = 0  # the highest number in fields that the peer has added to the reply


class Office:
    """The leadership of one term: what has been shown of the leader's log, and who has acknowledged how much."""

    __slots__ = ("earned", "entry_terms", "hints", "match", "shown", "shown_at")

    def __init__(self) -> None:
        self.entry_terms: dict[int, int] = {}
        self.shown_at: dict[
            int, int
        ] = {}  # index -> sequence number, for entries that start() has told or it has shown
        self.hints: dict[
            str, int
        ] = {}  # by follower: the highest number in a field that the peer has added to its reply
        self.shown = (0, 0)  # a stretch of indexes, all of which are in entry_terms
        self.match: dict[str, int] = {}
        self.earned = 0  # how far its majorities of acknowledgements reach, by §5.4.2


class _Seats(dict[str, Seat]):
    """By name; whoever is new has done nothing yet. A dict and no method, because every event asks."""

    def __missing__(self, name: str) -> Seat:
        seat = self[name] = Seat(name)
        return seat


class _Offices(dict[int, Office]):
    """By term."""

    def __missing__(self, term: int) -> Office:
        office = self[term] = Office()
        return office


class Facts:
    def __init__(self, trace: Sequence[Event], reader: Reader, unverified: set[Unverified]) -> None:
        self.trace = trace
        self.reader = reader
        self.unverified = unverified
        self.servers = 0
        # Of the event being looked at: whichever messages tell of terms and logs, and saves, are numbered.
        self.sequence = 0
        self.seats = _Seats()
        self.offices = _Offices()
        self.commands: set[Any] = set()  # all that were given to start(), as hashable() has them
        self.no_entries = True  # as far as messages tell: no log has any
        self.deliveries: dict[int, Delivery] = {}  # by identity of the Message; a duplicate is another
        # By candidate and term: who has granted it a vote that arrived, itself included.
        self.votes: dict[tuple[str, int], set[str]] = {}
        self.granted: dict[tuple[str, int], str] = {}  # by voter and term: whom it has first answered with a vote
        # By candidate and term: who has granted it a vote that it asked for with a flag set, and which flag.
        self.flagged_votes: dict[tuple[str, int], set[tuple[str, str]]] = {}
        # Peers whose replies have a field of their own that has told, beside success, how far their log goes.
        self.acknowledge_in_fields: set[str] = set()
        # Under a service that is not the tester's: every snapshot that it has made, and the latest index of it.
        self.own_snapshots: dict[bytes, int] | None = None
        self.snapshot_ns_max = 0  # how long a service may be busy with a snapshot
        self.save_ns_max = 0  # how long a save may take, on the slowest disks so far

    @property
    def slack_ns(self) -> int:
        """How late a right peer may act on what it knows, or send what it has prepared.

        Some read replies, or look for work, in a loop; and whoever waits for its disk waits for others' saves too.
        """
        return _SLACK_NS + _SAVES_IN_A_ROW * self.save_ns_max

    # ---- keeping up, after the rules have looked ------------------------------------------------------------

    def fresh(self, reading: Reading) -> list[tuple[int, Any]]:
        """Before the rules look: the entries that this leader had not shown before in its term, as (index, entry).

        A leader sends the same entries many times over; looking at each once is what makes checking cheap.
        """
        args = reading.args
        entries = args.entries
        office = self.offices[args.term]
        known = office.entry_terms
        first, last = args.prev_log_index + 1, reading.last_index
        low, high = office.shown
        if low <= first and last <= high and known.get(last) == reading.last_term:
            return []
        overlap = min(high, last)
        if (
            high
            and first - 1 <= high
            and last >= low - 1
            and (overlap < first or known.get(overlap) == entries[overlap - first].term)
        ):
            # The stretch known so far is extended at its ends; what lies in it was looked at before.
            before = list(enumerate(entries[: max(low - first, 0)], first)) if first < low else []
            after = list(enumerate(entries[high + 1 - first :], high + 1)) if last > high else []
            office.shown = (min(low, first), max(high, last))
            return before + after
        office.shown = (first, last)
        return list(enumerate(entries, first))

    def show(self, term: int, fresh: list[tuple[int, Any]]) -> None:
        office = self.offices[term]
        for index, entry in fresh:
            office.entry_terms[index] = entry.term
            office.shown_at.setdefault(index, self.sequence)
        self.reader.forget_head()

    def receive(self, seat: Seat, reading: Reading) -> None:
        """An AppendEntries with entries."""
        args = reading.args
        term, first, last = args.term, args.prev_log_index + 1, reading.last_index
        received = seat.received.get(term)
        seat.received[term] = (first, last) if received is None else (min(received[0], first), max(received[1], last))
        if last > seat.acked.get(term, 0):
            seat.arrivals.append((term, last, self.sequence))

    def sent(self, event: Event, seat: Seat, args: Any, method: str) -> None:
        term = args.term
        seat.last_spoke = self.sequence
        if term > seat.term:
            self.show_term(seat, term, event)
        if method == VOTE:
            if args.last_log_index:
                self.no_entries = False
            return
        if term > seat.floor_term:
            # It leads now; what it starts from here on stays in its log as long as it does.
            self._new_floor(seat, term)
        if method == APPEND:
            seat.said = args
            if term != seat.leads:
                seat.leads = seat.office = term
                seat.led.add(term)
            self.offices[term].entry_terms[args.prev_log_index] = args.prev_log_term

    def delivered(self, event: Event, seat: Seat, reading: Reading, method: str, message: Message) -> None:
        args = reading.args
        term = args.term
        acked = seat.acked.get(term, 0)
        self.deliveries[id(message)] = Delivery(
            reading, self.sequence, seat.term, seat.told_term, seat.floor_term, seat.floor, acked, event.at_ns
        )
        if method == VOTE:
            if term > seat.told_term and not self.may_disregard(seat, seat.term, event.at_ns):
                self.tell_term(seat, term, event.at_ns)
            return
        if term >= seat.term:
            seat.heard_leader_ns = event.at_ns
        if term > seat.told_term:
            self.tell_term(seat, term, event.at_ns)
        if term > seat.floor_term:
            # A new leader may make it cut its log, whatever it answers.
            self._new_floor(seat, term)
        if method == INSTALL:
            committed = args.last_included_index
            if committed > seat.may_apply:
                seat.may_apply = committed
        else:
            committed = args.leader_commit
            last_index = reading.last_index
            # Whichever of the two is the lower in the end, below this it is no news.
            if committed > seat.may_apply or last_index > seat.may_apply:
                self._tell_commit(seat, term, committed, last_index)
            if last_index:
                self.no_entries = False
        if committed > seat.known_committed:
            seat.known_committed = committed

    def _tell_commit(self, seat: Seat, term: int, commit: int, verified: int) -> None:
        told = seat.told_commits.get(term)
        if told is not None:
            commit, verified = max(commit, told[0]), max(verified, told[1])
        seat.told_commits[term] = (commit, verified)
        # What an earlier leader has committed, a later one has (§5.4.3): its word counts where a later one verified.
        for of_term in sorted(seat.told_commits):
            if of_term <= term:
                commit = max(commit, seat.told_commits[of_term][0])
            else:
                seat.may_apply = max(seat.may_apply, min(commit, seat.told_commits[of_term][1]))
        seat.may_apply = max(seat.may_apply, min(commit, verified))

    def answered(self, event: Event, seat: Seat, delivery: Delivery, reply: Any, method: str, message: Message) -> None:
        reading = delivery.reading
        seat.last_spoke = self.sequence
        latest = seat.last_answers.get(reply.term)
        if latest is None or delivery.sequence > latest[0]:
            seat.last_answers[reply.term] = (delivery.sequence, event.at_ns)
        if reply.term > seat.term:
            self.show_term(seat, reply.term, event)
        if method == VOTE and reply.vote_granted:
            self.granted.setdefault((seat.name, reading.args.term), message.source)
        if method == APPEND and reply.success:
            term = reading.args.term
            last_index = reading.last_index
            if term != seat.follows and message.source != seat.name:
                seat.follows = term
                seat.followed.setdefault(term, (event.at_ns, message))
            if last_index > seat.acked.get(term, 0):
                seat.acked[term] = last_index
                if delivery.hint >= last_index:
                    self.acknowledge_in_fields.add(seat.name)
            self._raise_floor(seat, term, (reading.last_term, last_index))
        if method == INSTALL and seat.snapshot_saved >= reading.args.last_included_index:
            args = reading.args
            self._raise_floor(seat, args.term, (args.last_included_term, args.last_included_index))

    def _raise_floor(self, seat: Seat, term: int, floor: tuple[int, int]) -> None:
        """It has that entry, which the leader of that term has told of."""
        if term == seat.floor_term and floor > seat.floor:
            seat.floor = seat.saved_floor = floor

    def replied(
        self, event: Event, seat: Seat, reading: Reading, reply: Any, method: str, follower: str, hint: int
    ) -> None:
        args = reading.args
        if reply.term > seat.told_term:
            self.tell_term(seat, reply.term, event.at_ns)
        if reply.term == args.term and follower != seat.name:
            seat.heard_from[follower] = event.at_ns
            if hint:
                seat.hinted = max(hint, seat.hinted)
                hints = self.offices[args.term].hints
                hints[follower] = max(hint, hints.get(follower, 0))
        if method == VOTE:
            if reply.vote_granted:
                self.votes.setdefault((seat.name, args.term), {seat.name}).add(follower)
                elected = 2 * len(self.votes_for(seat, args.term)) > self.servers and args.term == seat.term
                if elected and seat.office != args.term:
                    seat.office = args.term
                    seat.heard_leader_ns = event.at_ns  # itself, however long its first votes have waited for the last
            return
        if method == APPEND and reply.success:
            index = reading.last_index
        elif method == INSTALL and reply.term == args.term:
            index = args.last_included_index
        else:
            return
        if follower == seat.name:
            return  # it counts anyway, and once
        office = self.offices[args.term]
        if index > office.match.get(follower, 0):
            office.match[follower] = index
            self._count_matches(seat, office, args.term)

    def _count_matches(self, leader: Seat, office: Office, term: int) -> None:
        # With the leader itself, this many followers make a majority.
        needed = self.servers // 2
        if len(office.match) >= needed > 0:
            majority = sorted(office.match.values(), reverse=True)[needed - 1]
            # §5.4.2. Terms rise along a log: if any entry up to there is of this term, the last one is.
            if majority > office.earned and office.entry_terms.get(majority) == term:
                office.earned = majority
                if majority > leader.known_committed:
                    leader.known_committed = majority
                if majority > leader.may_apply:
                    leader.may_apply = majority

    def starts(self, seat: Seat) -> None:
        self.sequence += 1
        seat.starts.append(self.sequence)

    def returned(self, seat: Seat) -> int:
        """When the start() that returns now began, at the earliest."""
        if not seat.starts:
            return 0
        began = seat.starts[0]
        # Which of several it was nobody can tell. The earliest stays: so nothing is held against any of them.
        seat.starts.pop()
        return began

    def started(self, seat: Seat, index: int, term: int, began: int) -> None:
        if term > seat.floor_term:
            self._new_floor(seat, term)
        saved = seat.persist_began > began
        if not saved:
            seat.unsaved.append((index, began))
        if term == seat.floor_term:
            floor = (term, index)
            if floor > seat.floor:
                seat.floor = floor
            if saved and floor > seat.saved_floor:
                seat.saved_floor = floor
        office = self.offices[term]
        office.entry_terms[index] = term
        office.shown_at.setdefault(index, self.sequence)
        seat.led.add(term)
        seat.office = max(seat.office, term)
        self.reader.forget_head()

    def _new_floor(self, seat: Seat, term: int) -> None:
        # What start() has returned and no save has followed, a crash may still take away.
        seat.floors[seat.floor_term] = seat.saved_floor if seat.unsaved else seat.floor
        seat.unsaved.clear()
        seat.floor_term, seat.floor, seat.saved_floor = term, (0, 0), (0, 0)

    def floor_below(self, seat: Seat, term: int) -> tuple[int, int]:
        """The end of its log, at least, when it left the terms below this one, whatever it has learnt since."""
        if seat.floor_term < term:
            return seat.floor
        return seat.floors[max((known for known in seat.floors if known < term), default=0)] if seat.floors else (0, 0)

    def saving(self, seat: Seat, number: int) -> None:
        seat.saving[number] = self.sequence

    def saved(self, seat: Seat, number: int, snapshot: bytes, at_ns: int) -> None:
        seat.last_persist, seat.last_persist_ns = self.sequence, at_ns
        # What was started while the disk was at work is not in it.
        seat.persist_began = max(seat.persist_began, seat.saving.pop(number, self.sequence))
        if seat.unsaved:
            seat.unsaved = [(index, began) for index, began in seat.unsaved if began >= seat.persist_began]
            if not seat.unsaved:
                seat.saved_floor = seat.floor
        if snapshot is not seat.snapshot:
            seat.snapshot = snapshot
            if self.own_snapshots is not None:
                seat.snapshot_saved = self.own_snapshots.get(snapshot, seat.snapshot_saved)
                return
            # The service's own, which begins with its index; what else a peer may save there says nothing.
            with suppress(labgob.DecodeError):
                seat.snapshot_saved = labgob.Decoder(snapshot).decode(int)

    def restored(self, seat: Seat, index: int) -> None:
        seat.applied = index
        if index > seat.may_apply:
            seat.may_apply = index

    def crashed(self, seat: Seat) -> None:
        """What it was told and has not shown may never have been saved, nor what it was given to start."""
        seat.busy = False
        seat.told_term, seat.told_since_ns = seat.term, seat.term_since_ns
        seat.floor = seat.saved_floor
        seat.office = 0
        seat.starts.clear()
        seat.unsaved.clear()
        seat.saving.clear()
        seat.heard_leader_ns = -_LONG_AGO_NS
        seat.heard_from.clear()
        seat.away.clear()

    def leaves(self, seat: Seat, what: str, at_ns: int) -> None:
        """It is paused, or its clock is held."""
        if not seat.away:
            seat.away_since_ns = at_ns
        seat.away.add(what)

    def returns(self, seat: Seat, what: str, at_ns: int) -> None:
        if what in seat.away:
            seat.away.remove(what)
            if not seat.away:
                seat.taken.append((seat.away_since_ns, at_ns))

    def own_ns(self, seat: Seat, since_ns: int, at_ns: int) -> int:
        """How much of that time was the server's own: rules about time count no other."""
        if not seat.taken and not seat.away:
            return at_ns - since_ns
        taken = [*seat.taken, (seat.away_since_ns, at_ns)] if seat.away else seat.taken
        return at_ns - since_ns - sum(max(0, min(end, at_ns) - max(begin, since_ns)) for begin, end in taken)

    def show_term(self, seat: Seat, term: int, event: Event) -> None:
        seat.term, seat.term_since_ns, seat.term_life = term, event.at_ns, event.incarnation
        if term > seat.told_term:
            self.tell_term(seat, term, event.at_ns)

    def tell_term(self, seat: Seat, term: int, at_ns: int) -> None:
        seat.told_term, seat.told_since_ns = term, at_ns

    def commits(self, seat: Seat, index: int) -> None:
        """It knows this to be committed, by whatever way."""
        seat.known_committed = max(seat.known_committed, index)
        seat.may_apply = max(seat.may_apply, index)

    # ---- what cannot be read ----------------------------------------------------------------------------------

    def miss(self, seat: Seat, source: str, *, like_a_vote: bool = False) -> None:
        """Something from that peer has reached this one that nobody here can read. It may have said anything.

        `like_a_vote`: with the fields of RequestVote and no others (a pre-vote), it brings no entry, no commit and no
        acknowledgement.
        """
        self.sequence += 1
        seat.unread_votes[source] = self.sequence
        if not like_a_vote:
            seat.unread[source] = seat.last_unread = self.sequence

    def miss_reply(self, seat: Seat, message: Message) -> None:
        """The reply to it has reached this peer, and one of the two cannot be read."""
        self.miss(seat, message.target, like_a_vote=self.reader.is_like_a_vote(message))
        with suppress(labgob.DecodeError):
            vote = self.reader.read_flagged_vote(message)
            if vote is not None:
                term, flag = vote
                self.flagged_votes.setdefault((seat.name, term), set()).add((message.target, flag))

    def flagged_votes_for(self, candidate: Seat, term: int) -> set[str]:
        """Who has voted for it where it asked with a flag set, and has given that vote, or one with that flag, to no
        other."""
        given = self.flagged_votes.get((candidate.name, term), ())
        others = [votes for (name, of), votes in self.flagged_votes.items() if of == term and name != candidate.name]
        return {
            voter
            for voter, flag in given
            if self.granted.get((voter, term), candidate.name) == candidate.name
            and not any((voter, flag) in votes for votes in others)
        }

    def may_know_committed(self, seat: Seat, index: int) -> bool:
        """Whether an added field, or what nobody here can read, may have told it that this is committed, as another
        server knows. Of one with a busy service nobody can tell: it knows more than it has applied."""
        if index > seat.hinted and not seat.last_unread:
            return False
        others = (other for other in self.seats.values() if other is not seat)
        return any(max(other.known_committed, other.applied) >= index or other.busy for other in others)

    # ---- what has happened, asked for a report alone ---------------------------------------------------------

    def latest(self, before: Event, found: Callable[[Event], bool]) -> Event | None:
        """The latest event up to this one of which that is true."""
        looking = False
        for event in reversed(self.trace):
            looking = looking or event is before
            if looking and found(event):
                return event
        return None

    # ---- what a right peer may have known, asked before it is accused -----------------------------------------

    def may_disregard(self, seat: Seat, term: int, at_ns: int) -> bool:
        """§6: whoever has heard its leader lately may disregard a RequestVote; so may a leader that hears a majority.

        `term`: its own, when the request came in. When it answers, it may have heard of a later one.
        """
        if self.own_ns(seat, seat.heard_leader_ns, at_ns) <= LATELY_NS:
            return True
        heard = sum(self.own_ns(seat, when, at_ns) <= LATELY_NS for when in seat.heard_from.values())
        if 2 * (heard + 1) <= self.servers:
            return False
        # Whoever has just got the last vote that it needs leads, though it has yet to say so.
        return seat.leads == term or 2 * len(self.votes_for(seat, term)) > self.servers

    def votes_for(self, candidate: Seat, term: int) -> set[str]:
        """Who has voted for it, as far as it has heard: itself too, unless it is known to have voted for another."""
        votes = self.votes.get((candidate.name, term), {candidate.name})
        own = self.granted.get((candidate.name, term), candidate.name)
        return votes if own == candidate.name else votes - {candidate.name}

    def had_from(self, seat: Seat, leader_term: int, index: int, term: int) -> bool:
        """Whether the leader of that term has sent it that entry."""
        received = seat.received.get(leader_term)
        return (
            received is not None
            and received[0] <= index <= received[1]
            and self.offices[leader_term].entry_terms.get(index) == term
        )

    def ever_had(self, seat: Seat, index: int, term: int) -> bool:
        """Whether that entry was ever in its log: as a leader's own, or received from one."""
        return any(self.had_from(seat, of_term, index, term) for of_term in reversed(seat.received)) or any(
            self.offices[of_term].entry_terms.get(index) == term for of_term in seat.led
        )

    def holders(self, leader: Seat, term: int, index: int) -> list[str]:
        """The followers that may have acknowledged it to that leader: as in Figure 2, in an added field, or unread."""
        office = self.offices[term]
        since = office.shown_at.get(index, 0)
        followers = [name for name in self.seats if name != leader.name]
        hinted = self._hinted(leader, term, index)
        # Peers may pass entries on among themselves, and tell the leader of each other.
        relayed = leader.last_unread > since
        return sorted(
            name
            for name in followers
            if office.match.get(name, 0) >= index
            or name in hinted
            or leader.unread.get(name, 0) > since
            or ((relayed or hinted) and self.seats[name].last_unread > since)
            or (relayed and self.seats[name].received.get(term, (0, 0))[1] >= index)
        )

    def _hinted(self, leader: Seat, term: int, index: int) -> set[str]:
        """Of the followers, those that may have acknowledged it in an added field."""
        return {
            name
            for name, hint in self.offices[term].hints.items()
            if name != leader.name and hint >= index and self._may_have_got(name, leader, term, index)
        }

    def is_verified(self, leader: Seat, term: int, index: int) -> bool:
        """Whether acknowledgements that can be read, in added fields or not, make a majority."""
        match = self.offices[term].match.items()
        holders = {name for name, known in match if known >= index} | self._hinted(leader, term, index)
        return 2 * (len(holders) + 1) > self.servers

    def _may_have_got(self, name: str, leader: Seat, term: int, index: int) -> bool:
        """From that leader: by AppendEntries, or by something unread."""
        seat = self.seats[name]
        return seat.received.get(term, (0, 0))[1] >= index or leader.name in seat.unread


def hashable(command: Any) -> Any:
    return command if command.__class__ in (int, str) else labgob.encode([command])


def same_command(one: Any, other: Any) -> bool:
    if one.__class__ is other.__class__:
        return bool(one == other)
    try:
        # Two peers' own copies of one class: no object of one equals one of the other, but they travel alike.
        return labgob.encode([one]) == labgob.encode([other])
    except labgob.EncodeError:
        return False
