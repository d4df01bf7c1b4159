"""Committing and applying: §5.3 and §5.4.2."""

from __future__ import annotations

from typing import Any

import labgob
from labrpc import Message
from labsim import Event
from labtest.checks.facts import Delivery, Facts, Reading, Seat
from labtest.checks.rule import Rule, Violated


class EarnedCommit(Rule):
    name = "earned-commit"
    title = "A leader commits only what a majority has acknowledged, in its own term"
    section = "§5.3, §5.4.2"

    def on_send_append(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        if reading.args.leader_commit > seat.known_committed:
            self._unearned(event, seat, message, reading.args)

    def _unearned(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        commit = args.leader_commit
        office = self.facts.office(args.term)
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

    def on_deliver_append(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        args = reading.args
        commit, verified = self._told.get((seat.name, args.term), (0, 0))
        commit = max(commit, args.leader_commit)
        verified = max(verified, reading.last_index)
        self._told[seat.name, args.term] = (commit, verified)
        self._learn(seat, min(commit, verified))

    def on_deliver_install(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        self._learn(seat, reading.args.last_included_index)

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
        self._learn(seat, max((self.facts.offices[term].earned for term in seat.led), default=0))
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
        self._started: set[Any] = set()
        self._last: dict[str, tuple[int, int, int]] = {}

    def on_start(self, event: Event, seat: Seat) -> None:
        self._started.add(_hashable(event.detail))

    def on_apply(self, event: Event, seat: Seat) -> None:
        message = event.detail
        if getattr(message, "command_valid", False) and _hashable(message.command) not in self._started:
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


class AppliesWhatIsCommitted(Rule):
    name = "committed-gets-applied"
    title = "A peer applies what it was told is committed"
    section = "Figure 2: AppendEntries 5, All Servers"

    _PATIENCE_NS = 1_000_000_000

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._applied: dict[str, int] = {}
        # server -> incarnation, index it must apply, when it said yes to that, the message
        self._owed: dict[str, tuple[int, int, int, Message]] = {}

    def on_restore(self, event: Event, seat: Seat) -> None:
        self._applied[seat.name] = event.detail
        self._owed.pop(seat.name, None)

    def on_apply(self, event: Event, seat: Seat) -> None:
        message = event.detail
        index = message.snapshot_index if getattr(message, "snapshot_valid", False) else message.command_index
        self._applied[seat.name] = index
        owed = self._owed.get(seat.name)
        if owed is not None and index >= owed[1]:
            del self._owed[seat.name]

    def on_answer_append(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        owed = self._owed.get(seat.name)
        if owed is not None:
            if owed[0] == event.incarnation and event.at_ns > owed[2] + self._PATIENCE_NS:
                self.violated(
                    f"peer {seat.name} said yes to an AppendEntries that tells of entry {owed[1]} being committed, and "
                    f"{(event.at_ns - owed[2]) / 1e9:.1f} s later has applied up to "
                    f"{self._applied.get(seat.name, 0)} only",
                    (owed[2], owed[3], "answered"),
                )
        elif reply.success:
            index = min(reading.args.leader_commit, reading.last_index)
            if index > self._applied.get(seat.name, 0):
                self._owed[seat.name] = (event.incarnation, index, event.at_ns, message)


class StartTellsTheIndex(Rule):
    name = "start-tells-index"
    title = "start() returns the index at which the command will appear"
    section = "§5.3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._started: dict[tuple[int, int], tuple[Any, str]] = {}

    def on_started(self, event: Event, seat: Seat, index: int, term: int) -> None:
        self._started[term, index] = (event.detail[0], seat.name)

    def on_deliver_append(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        for index, entry in reading.fresh:
            started = self._started.get((entry.term, index))
            if started is not None and started[0] != entry.command:
                self.violated(
                    f"start({started[0]!r}) of peer {started[1]} gave index {index} in term {entry.term}, "
                    f"but the entry sent there is {entry.command!r}",
                    (event.at_ns, message, "delivered"),
                )


def _hashable(command: Any) -> Any:
    return command if command.__class__ in (int, str) else labgob.encode([command])
