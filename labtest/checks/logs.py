"""Logs: §5.3 and §5.4.1."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from labtest.checks.facts import Delivery, Facts, Seat
from labtest.checks.rule import Rule, Violated


class LogMatching(Rule):
    name = "log-matching"
    title = "Log matching: an index and a term name one command, and one entry before it"
    section = "§5.3, Figure 3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        # (index, term) -> the command, the term before it, and the message that showed it first.
        self._entries: dict[tuple[int, int], tuple[Any, int, int, Message]] = {}

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        index, before = args.prev_log_index, args.prev_log_term
        entries = self._entries
        for entry in args.entries:
            index += 1
            term = entry.term
            known = entries.get((index, term))
            if known is None:
                entries[index, term] = (entry.command, before, event.at_ns, message)
            elif known[0] != entry.command or known[1] != before:
                what = "another command" if known[0] != entry.command else f"an entry of term {before}, not {known[1]},"
                self.violated(
                    f"peer {seat.name} sends entry {index} of term {term} with {what} "
                    f"{'than' if known[0] != entry.command else 'before it than'} it had before",
                    (known[2], known[3], "sent"),
                    (event.at_ns, message, "sent"),
                )
            before = term


class LeaderAppendOnly(Rule):
    name = "leader-append-only"
    title = "A leader never rewrites its log"
    section = "§5.3, Figure 3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._logs: dict[int, dict[int, int]] = {}  # leader's term -> index -> entry's term

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        log = self._logs.setdefault(args.term, {0: 0})
        index = args.prev_log_index
        if log.setdefault(index, args.prev_log_term) != args.prev_log_term:
            self._rewritten(event, seat, message, index, log[index], args.prev_log_term)
        for entry in args.entries:
            index += 1
            if log.setdefault(index, entry.term) != entry.term:
                self._rewritten(event, seat, message, index, log[index], entry.term)

    def _rewritten(self, event: Event, seat: Seat, message: Message, index: int, was: int, now: int) -> None:
        self.violated(
            f"peer {seat.name} showed entry {index} as of term {was}, and now as of term {now}, within one office",
            (event.at_ns, message, "sent"),
        )


class EntryTerms(Rule):
    name = "entry-terms"
    title = "Terms never fall along a log, nor exceed the leader's"
    section = "§5.3"

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        before, index = args.prev_log_term, args.prev_log_index
        for entry in args.entries:
            index += 1
            if entry.term < before or entry.term > args.term:
                self.violated(
                    f"peer {seat.name}, in term {args.term}, sends entry {index} of term {entry.term} "
                    f"after one of term {before}",
                    (event.at_ns, message, "sent"),
                )
            before = entry.term


class SuccessMeansMatch(Rule):
    name = "success-means-match"
    title = "AppendEntries succeeds only where the log matches at prev_log_index"
    section = "Figure 2: AppendEntries 2"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._had: dict[str, set[tuple[int, int]]] = {}  # every entry that ever was in the server's log
        self._snapshots: dict[str, int] = {}

    def on_deliver_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        if args.entries:
            had = self._had.setdefault(seat.name, set())
            had.update((index, e.term) for index, e in enumerate(args.entries, args.prev_log_index + 1))

    def on_deliver_install(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._snapshots[seat.name] = max(self._snapshots.get(seat.name, 0), args.last_included_index)

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        had = self._had.setdefault(seat.name, set())
        had.add((args.prev_log_index, args.prev_log_term))
        if args.entries:
            had.update((index, e.term) for index, e in enumerate(args.entries, args.prev_log_index + 1))

    def on_started(self, event: Event, seat: Seat, index: int, term: int) -> None:
        self._had.setdefault(seat.name, set()).add((index, term))

    def on_answer_append(
        self, event: Event, seat: Seat, message: Message, args: Any, reply: Any, delivery: Delivery
    ) -> None:
        prev = args.prev_log_index
        if (
            reply.success
            and prev > self._snapshots.get(seat.name, 0)
            and (prev, args.prev_log_term) not in self._had.get(seat.name, ())
        ):
            self.violated(
                f"peer {seat.name} accepted entries after entry {prev} of term {args.prev_log_term}, "
                "which it never had",
                (event.at_ns, message, "answered"),
            )


class AcknowledgedEntriesStay(Rule):
    name = "acknowledged-stay"
    title = "What a follower has acknowledged stays while that leader leads"
    section = "§5.3, Figure 2: AppendEntries 3"

    def on_answer_append(
        self, event: Event, seat: Seat, message: Message, args: Any, reply: Any, delivery: Delivery
    ) -> None:
        if not reply.success and reply.term == args.term and args.prev_log_index <= delivery.acked:
            self.violated(
                f"peer {seat.name} had acknowledged entries up to {delivery.acked} to the leader of term {args.term}, "
                f"and now finds no match at {args.prev_log_index}",
                (event.at_ns, message, "answered"),
            )


class HonestCandidate(Rule):
    name = "honest-candidate"
    title = "A candidate claims its real last entry"
    section = "§5.4.1"

    def on_send_vote(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        claimed = (args.last_log_term, args.last_log_index)
        if claimed < seat.floor:
            self.violated(
                f"peer {seat.name} claims that its log ends with entry {claimed[1]} of term {claimed[0]}, but it has "
                f"acknowledged or started entry {seat.floor[1]} of term {seat.floor[0]}",
                (event.at_ns, message, "sent"),
            )
        if args.last_log_term >= args.term:
            self.violated(
                f"peer {seat.name} campaigns in term {args.term} with a last entry of term {args.last_log_term}",
                (event.at_ns, message, "sent"),
            )


class UpToDateVote(Rule):
    name = "up-to-date-vote"
    title = "A vote goes only to a log at least as up to date as the voter's"
    section = "§5.4.1"

    def on_answer_vote(
        self, event: Event, seat: Seat, message: Message, args: Any, reply: Any, delivery: Delivery
    ) -> None:
        # The floor counts only if no new leader has spoken since: one may have made the voter cut its log.
        if (
            reply.vote_granted
            and seat.floor_term == delivery.floor_term
            and (args.last_log_term, args.last_log_index) < delivery.floor
        ):
            self.violated(
                f"peer {seat.name} has entry {delivery.floor[1]} of term {delivery.floor[0]}, and voted for a log that "
                f"ends with entry {args.last_log_index} of term {args.last_log_term}",
                (event.at_ns, message, "answered"),
            )


class LeaderCompleteness(Rule):
    name = "leader-completeness"
    title = "A leader has every committed entry"
    section = "§5.4.3, Figure 3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._shown: dict[int, dict[int, int]] = {}  # leader's term -> index -> entry's term
        self._committed: dict[int, tuple[int, int]] = {}  # index -> entry's term, and the term that committed it
        self._through: dict[int, int] = {}  # leader's term -> how far it has said to have committed

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        shown = self._shown.setdefault(args.term, {})
        index, term = args.prev_log_index, args.prev_log_term
        self._compare(event, seat, message, args.term, index, term)
        shown[index] = term
        for entry in args.entries:
            index += 1
            self._compare(event, seat, message, args.term, index, entry.term)
            shown[index] = entry.term
        # EarnedCommit has looked at leader_commit; here it is taken for true.
        for i in range(self._through.get(args.term, 0) + 1, args.leader_commit + 1):
            if i not in shown:
                break
            self._committed.setdefault(i, (shown[i], args.term))
            self._through[args.term] = i

    def _compare(self, event: Event, seat: Seat, message: Message, leader_term: int, index: int, term: int) -> None:
        committed = self._committed.get(index)
        if committed is not None and committed[0] != term and leader_term > committed[1]:
            self.violated(
                f"entry {index} of term {committed[0]} was committed in term {committed[1]}, but peer {seat.name}, "
                f"leading term {leader_term}, has one of term {term} there",
                (event.at_ns, message, "sent"),
            )
