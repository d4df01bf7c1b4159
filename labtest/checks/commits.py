"""Committing and applying: §5.3 and §5.4.2."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from labtest.checks.facts import Delivery, Facts, Seat, hashable
from labtest.checks.reading import Reading
from labtest.checks.rule import Fresh, Rule, Violated


class EarnedCommit(Rule):
    name = "earned-commit"
    title = "A leader commits only what a majority has acknowledged, in its own term"
    section = "§5.3, §5.4.2"
    concludes_from_silence = True

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        if args.leader_commit > seat.known_committed:
            self._unearned(event, seat, message, args)

    def _unearned(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        commit = args.leader_commit
        office = self.facts.offices[args.term]
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
    concludes_from_silence = True

    def on_command(self, seat: Seat, index: int, command: Any) -> None:
        if index > seat.may_apply and self.facts.servers > 1:
            self.violated(
                f"peer {seat.name} applied entry {index}, but entries are known to it to be committed "
                f"up to {seat.may_apply} only: leader_commit counts up to the last new entry, and a leader needs a "
                "majority's acknowledgements"
            )


class OnlyStartedCommands(Rule):
    name = "only-started"
    title = "Every applied command was given to start()"
    section = "§5.3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._last: dict[str, tuple[int, int, int]] = {}

    def on_command(self, seat: Seat, index: int, command: Any) -> None:
        if hashable(command) not in self.facts.commands:
            self.violated(f"peer {seat.name} applied {command!r} at index {index}, which nobody ever started")

    def on_started(self, event: Event, seat: Seat, index: int, term: int, command: Any) -> None:
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
        # server -> incarnation, index it must apply, when it said yes to that, the message
        self._owed: dict[str, tuple[int, int, int, Message]] = {}

    def on_restore(self, seat: Seat) -> None:
        self._owed.pop(seat.name, None)

    def on_answer_append(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        owed = self._owed.get(seat.name)
        if owed is not None and seat.applied >= owed[1]:
            owed = None
            del self._owed[seat.name]
        if owed is not None:
            if owed[0] == event.incarnation and event.at_ns > owed[2] + self._PATIENCE_NS:
                self.violated(
                    f"peer {seat.name} said yes to an AppendEntries that tells of entry {owed[1]} being committed, and "
                    f"{(event.at_ns - owed[2]) / 1e9:.1f} s later has applied up to {seat.applied} only",
                    (owed[2], owed[3], "answered"),
                )
        elif reply.success:
            index = min(reading.args.leader_commit, reading.last_index)
            if index > seat.applied:
                self._owed[seat.name] = (event.incarnation, index, event.at_ns, message)


class StartTellsTheIndex(Rule):
    name = "start-tells-index"
    title = "start() returns the index at which the command will appear"
    section = "§5.3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._started: dict[tuple[int, int], tuple[Any, str]] = {}

    def on_started(self, event: Event, seat: Seat, index: int, term: int, command: Any) -> None:
        self._started[term, index] = (command, seat.name)

    def on_fresh(self, event: Event, message: Message, reading: Reading, fresh: Fresh) -> None:
        for index, entry in fresh:
            started = self._started.get((entry.term, index))
            if started is not None and started[0] != entry.command:
                self.violated(
                    f"start({started[0]!r}) of peer {started[1]} gave index {index} in term {entry.term}, "
                    f"but the entry sent there is {entry.command!r}",
                    (event.at_ns, message, "delivered"),
                )
