"""What the rules share: each message decoded once, and what is known of each server over all its incarnations."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import labgob
from labrpc import Message
from labsim import Event

VOTE = "Raft.request_vote"
APPEND = "Raft.append_entries"
INSTALL = "Raft.install_snapshot"

# The fields of Figures 2 and 13 that the rules read.
_FIELDS = {
    VOTE: (("term", "candidate_id", "last_log_index", "last_log_term"), ("term", "vote_granted")),
    APPEND: (
        ("term", "leader_id", "prev_log_index", "prev_log_term", "entries", "leader_commit"),
        ("term", "success"),
    ),
    INSTALL: (("term", "leader_id", "last_included_index", "last_included_term"), ("term",)),
}


@dataclass
class AppendHead:
    """An AppendEntries without its entries: all that is read of one that may never arrive.

    A leader that is cut off goes on sending an ever longer log to nobody; decoding that would cost more than the test.
    """

    term: int
    prev_log_index: int
    prev_log_term: int
    leader_commit: int


class Seat:
    """One server, through all its incarnations."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The highest term it has shown in an answer or a send of its own, and when it first did.
        self.term = 0
        self.term_since_ns = 0
        # The highest term it has been told, by a request or a reply, and when.
        self.told_term = 0
        self.told_since_ns = 0
        # A lower bound for its log: in the term of the latest AppendEntries that reached it (or in which it led),
        # its last entry is at least (term, index).
        self.floor_term = 0
        self.floor = (0, 0)
        self.last_persist = 0  # sequence number of its latest save
        self.last_spoke = 0  # sequence number of its latest send or answer
        # The most it can know to be committed, told or earned, in any incarnation.
        self.known_committed = 0
        self.led: set[int] = set()  # terms
        self.snapshot = b""  # on its disk
        self.snapshot_saved = 0  # the index it was taken at: entries up to here may be gone from the log


class Reading:
    """One message decoded, once for all rules: to be read, not changed."""

    __slots__ = ("args", "fresh", "last_index", "last_term")

    def __init__(self, args: Any, method: str) -> None:
        self.args = args
        # The entries that this leader had not shown before in its term, as (index, entry). A leader sends the same
        # entries many times over; looking at each once is what makes checking cheap.
        self.fresh: list[tuple[int, Any]] = []
        if method == APPEND and args.__class__ is not AppendHead:
            # The end of the log that it vouches for: its last entry, or prev if it has none.
            self.last_index = args.prev_log_index + len(args.entries)
            self.last_term = args.entries[-1].term if args.entries else args.prev_log_term


class Delivery:
    """A request on its server's desk: what was known when it came in, because handlers may overtake each other."""

    __slots__ = ("acked", "floor", "floor_term", "sequence", "term")

    def __init__(self, sequence: int, seat: Seat, acked: int) -> None:
        self.sequence = sequence
        self.term = seat.term
        self.floor_term = seat.floor_term
        self.floor = seat.floor
        self.acked = acked


class Office:
    """The leadership of one term: what has been shown of the leader's log, and who has acknowledged how much."""

    __slots__ = ("earned", "entry_terms", "match", "shown")

    def __init__(self) -> None:
        self.entry_terms: dict[int, int] = {}
        self.shown = (0, 0)  # a stretch of indexes, all of which are in entry_terms
        self.match: dict[str, int] = {}
        self.earned = 0  # how far its majorities of acknowledgements reach, by §5.4.2


class Facts:
    def __init__(self) -> None:
        self.servers = 0
        self.sequence = 0  # of the event being looked at
        self.seats: dict[str, Seat] = {}
        # How far each server has acknowledged each leader's log: (server, term) -> index.
        self.acked: dict[tuple[str, int], int] = {}
        self.offices: dict[int, Office] = {}  # by term
        self._deliveries: dict[int, Delivery] = {}  # by identity of the Message; a duplicate is another
        self._readings: dict[int, Reading | None] = {}
        self._replies: dict[int, Any] = {}
        self._unreadable: dict[str, str] = {}

    def seat(self, name: str) -> Seat:
        seat = self.seats.get(name)
        if seat is None:
            seat = self.seats[name] = Seat(name)
        return seat

    def office(self, term: int) -> Office:
        office = self.offices.get(term)
        if office is None:
            office = self.offices[term] = Office()
        return office

    # ---- reading messages -------------------------------------------------------------------------------------

    def read(self, message: Message) -> Reading | None:
        """None if the arguments lack Figure 2's fields."""
        try:
            return self._readings[message.id]
        except KeyError:
            args = self._readable(message.service_method, 0, message.decode_args())
            reading = None if args is None else Reading(args, message.service_method)
            self._readings[message.id] = reading
            return reading

    def read_head(self, message: Message) -> Reading | None:
        """As read(), but of an AppendEntries only the AppendHead."""
        if message.service_method != APPEND:
            return self.read(message)
        try:
            return Reading(labgob.decode(message.request, AppendHead), APPEND)
        except labgob.DecodeError:
            return self.read(message)  # which knows what is missing

    def read_reply(self, message: Message) -> Any:
        """None if the reply lacks Figure 2's fields."""
        try:
            return self._replies[id(message)]
        except KeyError:
            reply = self._replies[id(message)] = self._readable(message.service_method, 1, message.decode_reply())
            return reply

    def forget(self, message: Message) -> None:
        self._readings.pop(message.id, None)
        self._replies.pop(id(message), None)

    def _readable(self, method: str, which: int, value: Any) -> Any:
        for field in _FIELDS[method][which]:
            if not hasattr(value, field):
                self._unreadable.setdefault(
                    method, f"checks of {method} are off: its {('arguments', 'reply')[which]} have no field {field!r}"
                )
                return None
        return value

    @property
    def off(self) -> list[str]:
        """Which checks are off, and why, a line each."""
        return list(self._unreadable.values())

    # ---- keeping up, after the rules have looked ------------------------------------------------------------

    def delivering(self, reading: Reading) -> None:
        """Before the rules look: which of the entries are new from this leader."""
        args = reading.args
        entries = args.entries
        if not entries:
            return
        office = self.office(args.term)
        known = office.entry_terms
        first, last = args.prev_log_index + 1, reading.last_index
        low, high = office.shown
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
            reading.fresh = before + after
            office.shown = (min(low, first), max(high, last))
        else:
            reading.fresh = [(i, e) for i, e in enumerate(entries, first) if known.get(i) != e.term]
            if not high:
                office.shown = (first, last)

    def sent(self, event: Event, seat: Seat, reading: Reading, method: str) -> None:
        args = reading.args
        self.show_term(seat, args.term, event.at_ns)
        if method == VOTE:
            return
        if args.term > seat.floor_term:
            # It leads now; what it starts from here on stays in its log as long as it does.
            seat.floor_term, seat.floor = args.term, (0, 0)
        if method == APPEND:
            seat.led.add(args.term)
            self.office(args.term).entry_terms[args.prev_log_index] = args.prev_log_term

    def delivered(self, event: Event, seat: Seat, reading: Reading, method: str, message: Message) -> None:
        args = reading.args
        self._deliveries[id(message)] = Delivery(self.sequence, seat, self.acked.get((seat.name, args.term), 0))
        self.tell_term(seat, args.term, event.at_ns)
        if method != VOTE and args.term > seat.floor_term:
            # A new leader may make it cut its log, whatever it answers.
            seat.floor_term, seat.floor = args.term, (0, 0)
        if method == APPEND:
            entry_terms = self.office(args.term).entry_terms
            for index, entry in reading.fresh:
                entry_terms[index] = entry.term
            self.know_committed(seat, args.leader_commit)
        elif method == INSTALL:
            self.know_committed(seat, args.last_included_index)

    def delivery(self, message: Message) -> Delivery | None:
        return self._deliveries.pop(id(message), None)

    def answered(self, event: Event, seat: Seat, reading: Reading, reply: Any, method: str) -> None:
        args = reading.args
        self.show_term(seat, reply.term, event.at_ns)
        if method == APPEND and reply.success:
            key = (seat.name, args.term)
            if reading.last_index > self.acked.get(key, 0):
                self.acked[key] = reading.last_index
            if args.term == seat.floor_term:
                seat.floor = max(seat.floor, (reading.last_term, reading.last_index))

    def replied(self, event: Event, seat: Seat, reading: Reading, reply: Any, method: str, follower: str) -> None:
        args = reading.args
        self.tell_term(seat, reply.term, event.at_ns)
        if method == APPEND and reply.success:
            self._acknowledge(seat, args.term, follower, reading.last_index)
        elif method == INSTALL and reply.term == args.term:
            self._acknowledge(seat, args.term, follower, args.last_included_index)

    def _acknowledge(self, leader: Seat, term: int, follower: str, index: int) -> None:
        office = self.office(term)
        if index <= office.match.get(follower, 0):
            return
        office.match[follower] = index
        # With the leader itself, this many followers make a majority.
        needed = self.servers // 2
        if len(office.match) >= needed > 0:
            majority = sorted(office.match.values(), reverse=True)[needed - 1]
            # §5.4.2. Terms rise along a log: if any entry up to there is of this term, the last one is.
            if majority > office.earned and office.entry_terms.get(majority) == term:
                office.earned = majority
                self.know_committed(leader, majority)

    def started(self, seat: Seat, index: int, term: int) -> None:
        if term > seat.floor_term:
            seat.floor_term, seat.floor = term, (0, 0)
        if term == seat.floor_term:
            seat.floor = max(seat.floor, (term, index))
        self.office(term).entry_terms[index] = term
        seat.led.add(term)

    def saved(self, seat: Seat, snapshot: bytes) -> None:
        seat.last_persist = self.sequence
        if snapshot is not seat.snapshot:
            seat.snapshot = snapshot
            # The service's own, which begins with its index; what else a peer may save there says nothing.
            with suppress(labgob.DecodeError):
                seat.snapshot_saved = labgob.Decoder(snapshot).decode(int)

    def crashed(self, seat: Seat) -> None:
        """What it was told and has not shown may never have been saved."""
        seat.told_term, seat.told_since_ns = seat.term, seat.term_since_ns

    def know_committed(self, seat: Seat, index: int) -> None:
        if index > seat.known_committed:
            seat.known_committed = index

    def show_term(self, seat: Seat, term: int, at_ns: int) -> None:
        seat.last_spoke = self.sequence
        if term > seat.term:
            seat.term, seat.term_since_ns = term, at_ns
        self.tell_term(seat, term, at_ns)

    def tell_term(self, seat: Seat, term: int, at_ns: int) -> None:
        if term > seat.told_term:
            seat.told_term, seat.told_since_ns = term, at_ns
