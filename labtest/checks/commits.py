"""Committing and applying: §5.3 and §5.4.2."""

from __future__ import annotations

from typing import Any

import labgob
from labrpc import Message
from labsim import Event
from labtest.checks.facts import Facts, Seat
from labtest.checks.rule import Rule, Violated


class _Office:
    """One leader's term: who has acknowledged how much, and of which terms its entries are."""

    __slots__ = ("earned", "entry_terms", "match")

    def __init__(self) -> None:
        self.match: dict[str, int] = {}
        self.entry_terms: dict[int, int] = {}
        self.earned = 0


class EarnedCommit(Rule):
    name = "earned-commit"
    title = "A leader commits only what a majority has acknowledged, in its own term"
    section = "§5.3, §5.4.2"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._offices: dict[tuple[str, int], _Office] = {}
        # How far each server can know entries to be committed, told or earned, in any incarnation.
        self._known: dict[str, int] = {}

    def _office(self, seat: Seat, term: int) -> _Office:
        office = self._offices.get((seat.name, term))
        if office is None:
            office = self._offices[seat.name, term] = _Office()
        return office

    def on_deliver_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._learn(seat, args.leader_commit)

    def on_deliver_install(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._learn(seat, args.last_included_index)

    def _learn(self, seat: Seat, index: int) -> None:
        if index > self._known.get(seat.name, 0):
            self._known[seat.name] = index

    def on_started(self, event: Event, seat: Seat, index: int, term: int) -> None:
        self._office(seat, term).entry_terms[index] = term

    def on_reply_append(self, event: Event, seat: Seat, message: Message, args: Any, reply: Any) -> None:
        if reply.success:
            self._acknowledged(seat, args.term, message.target, args.prev_log_index + len(args.entries))

    def on_reply_install(self, event: Event, seat: Seat, message: Message, args: Any, reply: Any) -> None:
        if reply.term == args.term:
            self._acknowledged(seat, args.term, message.target, args.last_included_index)

    def _acknowledged(self, seat: Seat, term: int, follower: str, index: int) -> None:
        office = self._office(seat, term)
        if index <= office.match.get(follower, 0):
            return
        office.match[follower] = index
        # With the leader itself, this many followers make a majority.
        needed = self.facts.servers // 2
        if len(office.match) >= needed > 0:
            majority = sorted(office.match.values(), reverse=True)[needed - 1]
            # Terms rise along a log, so if any entry up to there is of this term, the last one is.
            if majority > office.earned and office.entry_terms.get(majority) == term:
                office.earned = majority
                self._learn(seat, majority)

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        office = self._office(seat, args.term)
        index = args.prev_log_index
        for entry in args.entries:
            index += 1
            office.entry_terms[index] = entry.term
        commit = args.leader_commit
        if commit > self._known.get(seat.name, 0):
            self._unearned(event, seat, message, args, office)

    def known_committed(self, seat: Seat) -> int:
        return self._known.get(seat.name, 0)

    def _unearned(self, event: Event, seat: Seat, message: Message, args: Any, office: _Office) -> None:
        commit = args.leader_commit
        holders = sorted(name for name, match in office.match.items() if match >= commit)
        term = office.entry_terms.get(commit)
        if term is not None and term != args.term and 2 * (len(holders) + 1) > self.facts.servers:
            self.violated(
                f"peer {seat.name}, leading term {args.term}, committed entry {commit} of term {term} by counting its "
                "replicas; only an entry of its own term commits that way, and takes older ones along (Figure 8)",
                (event.at_ns, message, "sent"),
            )
        self.violated(
            f"peer {seat.name}, leading term {args.term}, says that entry {commit} is committed, but only "
            f"{', '.join(holders) or 'nobody'} acknowledged it to it",
            (event.at_ns, message, "sent"),
        )


class AppliesOnlyTheCommitted(Rule):
    name = "applies-only-committed"
    title = "A peer applies only what it knows to be committed"
    section = "Figure 2: AppendEntries 5, All Servers"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        # (server, term) -> the highest leader_commit, and the end of the log verified, in that term.
        self._told: dict[tuple[str, int], tuple[int, int]] = {}
        self._known: dict[str, int] = {}
        self._leading = EarnedCommit(facts, violated)  # its own books, without its verdicts on the wire
        self.on_started = self._leading.on_started
        self.on_reply_append = self._leading.on_reply_append
        self.on_reply_install = self._leading.on_reply_install

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        office = self._leading._office(seat, args.term)
        index = args.prev_log_index
        for entry in args.entries:
            index += 1
            office.entry_terms[index] = entry.term

    def on_deliver_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        commit, verified = self._told.get((seat.name, args.term), (0, 0))
        commit = max(commit, args.leader_commit)
        verified = max(verified, args.prev_log_index + len(args.entries))
        self._told[seat.name, args.term] = (commit, verified)
        self._learn(seat, min(commit, verified))

    def on_deliver_install(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._learn(seat, args.last_included_index)

    def on_restore(self, event: Event, seat: Seat) -> None:
        self._learn(seat, event.detail)

    def _learn(self, seat: Seat, index: int) -> None:
        if index > self._known.get(seat.name, 0):
            self._known[seat.name] = index

    def on_apply(self, event: Event, seat: Seat) -> None:
        message = event.detail
        index = getattr(message, "command_index", 0) if getattr(message, "command_valid", False) else 0
        if index <= self._known.get(seat.name, 0) or self.facts.servers == 1:
            return
        self._learn(seat, self._leading.known_committed(seat))
        known = self._known.get(seat.name, 0)
        if index > known:
            self.violated(
                f"peer {seat.name} applied entry {index}, but entries are known to it to be committed "
                f"up to {known} only: leader_commit counts up to the last new entry, and a leader needs a "
                "majority's acknowledgements"
            )


class OnlyStartedCommands(Rule):
    name = "only-started"
    title = "Every applied command was given to start()"
    section = "§5.3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._started: set[bytes] = set()
        self._last: dict[str, tuple[int, int, int]] = {}

    def on_start(self, event: Event, seat: Seat) -> None:
        self._started.add(labgob.encode([event.detail]))

    def on_apply(self, event: Event, seat: Seat) -> None:
        message = event.detail
        if getattr(message, "command_valid", False) and labgob.encode([message.command]) not in self._started:
            self.violated(
                f"peer {seat.name} applied {message.command!r} at index {message.command_index}, "
                "which nobody ever started"
            )

    def on_started(self, event: Event, seat: Seat, index: int, term: int) -> None:
        incarnation, last_term, last_index = self._last.get(seat.name, (0, 0, 0))
        if (incarnation, last_term) == (event.incarnation, term) and index != last_index + 1:
            self.violated(
                f"start() of peer {seat.name} gave index {index} in term {term}, "
                f"right after {last_index}: a leader's commands get consecutive indexes"
            )
        self._last[seat.name] = (event.incarnation, term, index)
