"""Elections: §5.1 and §5.2."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from labtest.checks.facts import Delivery, Facts, Reading, Seat
from labtest.checks.rule import Rule, Violated

# How long a peer may take to act on a higher term that it has only been told: some read replies in a loop.
_DIGEST_NS = 150_000_000


class OneLeaderPerTerm(Rule):
    name = "one-leader"
    title = "Election safety"
    section = "§5.2, Figure 3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._leaders: dict[int, tuple[str, int, Message]] = {}

    def on_send_append(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        args = reading.args
        leader = self._leaders.get(args.term)
        if leader is None:
            self._leaders[args.term] = (seat.name, event.at_ns, message)
        elif leader[0] != seat.name:
            self.violated(
                f"term {args.term} has two leaders, peers {leader[0]} and {seat.name}",
                (leader[1], leader[2], "sent"),
                (event.at_ns, message, "sent"),
            )

    on_send_install = on_send_append


class OneVotePerTerm(Rule):
    name = "one-vote"
    title = "One vote per term"
    section = "§5.2"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._votes: dict[tuple[str, int], tuple[str, int, Message, str]] = {}

    def on_send_vote(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        args = reading.args
        # To campaign is to vote for oneself.
        self._vote(event, seat, args.term, seat.name, message, "sent")

    def on_answer_vote(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        if reply.vote_granted:
            self._vote(event, seat, args.term, message.source, message, "answered")

    def _vote(self, event: Event, seat: Seat, term: int, candidate: str, message: Message, what: str) -> None:
        before = self._votes.get((seat.name, term))
        if before is None:
            self._votes[seat.name, term] = (candidate, event.at_ns, message, what)
        elif before[0] != candidate:
            self.violated(
                f"peer {seat.name} voted twice in term {term}, for {before[0]} and for {candidate}",
                (before[1], before[2], before[3]),
                (event.at_ns, message, what),
            )


class EarnedLeadership(Rule):
    name = "earned-leadership"
    title = "A leader needs votes from a majority"
    section = "§5.2"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._grants: dict[tuple[str, int], set[str]] = {}
        self._proven: set[tuple[str, int]] = set()

    def on_reply_vote(self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any) -> None:
        args = reading.args
        if reply.vote_granted:
            self._grants.setdefault((seat.name, args.term), {seat.name}).add(message.target)

    def on_send_append(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        args = reading.args
        key = (seat.name, args.term)
        if key in self._proven:
            return
        votes = self._grants.get(key, {seat.name})
        if 2 * len(votes) <= self.facts.servers:
            self.violated(
                f"peer {seat.name} leads term {args.term} with {len(votes)} of {self.facts.servers} votes, "
                f"from {', '.join(sorted(votes))}",
                (event.at_ns, message, "sent"),
            )
        self._proven.add(key)

    on_send_install = on_send_append


class TermsNeverFall(Rule):
    name = "terms-never-fall"
    title = "A peer's term never falls, not even over a restart"
    section = "§5.1, Figure 2: persistent state"

    def on_answer(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        if reply.term < delivery.term:
            self.violated(
                f"peer {seat.name} was in term {delivery.term} at {seat.term_since_ns / 1e9:.6f} s "
                f"and answers in term {reply.term}",
                (event.at_ns, message, "answered"),
            )

    def on_send(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        args = reading.args
        # Arguments built a moment ago may leave just after the term has moved on.
        if args.term < seat.term and event.at_ns > seat.term_since_ns:
            self.violated(
                f"peer {seat.name} was in term {seat.term} at {seat.term_since_ns / 1e9:.6f} s "
                f"and speaks in term {args.term}",
                (event.at_ns, message, "sent"),
            )


class HigherTermWins(Rule):
    name = "higher-term-wins"
    title = "Whoever sees a higher term adopts it, and a lower one is refused"
    section = "§5.1, Figure 2: All Servers"

    def on_answer(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        if reply.term < args.term:
            self.violated(
                f"peer {seat.name} was asked in term {args.term} and answers in term {reply.term}",
                (event.at_ns, message, "answered"),
            )

    def on_answer_vote(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        if reply.vote_granted and args.term < delivery.term:
            self._accepted_stale(event, seat, message, reading, delivery)

    def on_answer_append(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        if reply.success and args.term < delivery.term:
            self._accepted_stale(event, seat, message, reading, delivery)

    def _accepted_stale(self, event: Event, seat: Seat, message: Message, reading: Reading, delivery: Delivery) -> None:
        args = reading.args
        self.violated(
            f"peer {seat.name} was in term {delivery.term} and said yes to a request of term {args.term}",
            (event.at_ns, message, "answered"),
        )

    def on_send(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        args = reading.args
        if args.term < seat.told_term and event.at_ns > seat.told_since_ns + _DIGEST_NS:
            self.violated(
                f"peer {seat.name} was told of term {seat.told_term} at {seat.told_since_ns / 1e9:.6f} s "
                f"and still speaks in term {args.term}",
                (event.at_ns, message, "sent"),
            )
