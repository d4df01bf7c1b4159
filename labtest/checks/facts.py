"""What the rules share: each message decoded once, and what is known of each server over all its incarnations."""

from __future__ import annotations

from typing import Any

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


class Delivery:
    """A request on its server's desk: what was known when it came in, because handlers may overtake each other."""

    __slots__ = ("acked", "floor", "floor_term", "sequence", "term")

    def __init__(self, sequence: int, seat: Seat, acked: int) -> None:
        self.sequence = sequence
        self.term = seat.term
        self.floor_term = seat.floor_term
        self.floor = seat.floor
        self.acked = acked


class Facts:
    def __init__(self) -> None:
        self.servers = 0
        self.sequence = 0  # of the event being looked at
        self.seats: dict[str, Seat] = {}
        self.deliveries: dict[int, Delivery] = {}  # by identity of the Message; a duplicate is another
        # How far each server has acknowledged each leader's log: (server, term) -> index.
        self.acked: dict[tuple[str, int], int] = {}
        self._args: dict[int, Any] = {}
        self._unreadable: dict[str, str] = {}

    def seat(self, name: str) -> Seat:
        seat = self.seats.get(name)
        if seat is None:
            seat = self.seats[name] = Seat(name)
        return seat

    def args(self, message: Message) -> Any:
        """The decoded arguments, shared by all rules: to be read, not changed. None if they lack Figure 2's fields."""
        try:
            return self._args[message.id]
        except KeyError:
            args = self._readable(message.service_method, 0, message.decode_args())
            self._args[message.id] = args
            return args

    def reply(self, message: Message) -> Any:
        return self._readable(message.service_method, 1, message.decode_reply())

    def forget(self, message: Message) -> None:
        self._args.pop(message.id, None)

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

    def sent(self, event: Event, seat: Seat, args: Any, method: str) -> None:
        self.show_term(seat, args.term, event.at_ns)
        if method != VOTE and args.term > seat.floor_term:
            # It leads now; what it starts from here on stays in its log as long as it does.
            seat.floor_term, seat.floor = args.term, (0, 0)

    def delivered(self, event: Event, seat: Seat, args: Any, method: str, message: Message) -> None:
        self.deliveries[id(message)] = Delivery(self.sequence, seat, self.acked.get((seat.name, args.term), 0))
        self.tell_term(seat, args.term, event.at_ns)
        if method != VOTE and args.term > seat.floor_term:
            # A new leader may make it cut its log, whatever it answers.
            seat.floor_term, seat.floor = args.term, (0, 0)

    def answered(self, event: Event, seat: Seat, args: Any, reply: Any, method: str) -> None:
        self.show_term(seat, reply.term, event.at_ns)
        if method == APPEND and reply.success:
            entries = args.entries
            last = args.prev_log_index + len(entries)
            key = (seat.name, args.term)
            if last > self.acked.get(key, 0):
                self.acked[key] = last
            if args.term == seat.floor_term:
                last_term = entries[-1].term if entries else args.prev_log_term
                seat.floor = max(seat.floor, (last_term, last))

    def started(self, seat: Seat, index: int, term: int) -> None:
        if term > seat.floor_term:
            seat.floor_term, seat.floor = term, (0, 0)
        if term == seat.floor_term:
            seat.floor = max(seat.floor, (term, index))

    def show_term(self, seat: Seat, term: int, at_ns: int) -> None:
        if term > seat.term:
            seat.term, seat.term_since_ns = term, at_ns
        self.tell_term(seat, term, at_ns)

    def tell_term(self, seat: Seat, term: int, at_ns: int) -> None:
        if term > seat.told_term:
            seat.told_term, seat.told_since_ns = term, at_ns
