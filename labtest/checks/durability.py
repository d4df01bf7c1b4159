"""Durability: Figure 2 says "updated on stable storage before responding to RPCs"."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from labtest.checks.facts import Delivery, Facts, Seat
from labtest.checks.rule import Rule, Violated


class SavedBeforeReply(Rule):
    """A reply that promises something new must come after a save that came after the news.

    What the save holds is the peer's own business, so this is the least that can be asked: a save in between.
    """

    name = "saved-before-reply"
    title = "What a reply promises was saved before it left"
    section = "Figure 2: persistent state"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        # When each piece of news first reached each server: (server, what) -> sequence number.
        self._news: dict[tuple[str, tuple[Any, ...]], int] = {}
        # What it has promised with a save behind it.
        self._terms: dict[str, int] = {}
        self._kept: set[tuple[str, tuple[Any, ...]]] = set()

    def on_deliver_vote(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._news.setdefault((seat.name, ("term", args.term)), self.facts.sequence)
        self._news.setdefault((seat.name, ("vote", args.term, message.source)), self.facts.sequence)

    def on_deliver_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._news.setdefault((seat.name, ("term", args.term)), self.facts.sequence)
        for index, entry in enumerate(args.entries, args.prev_log_index + 1):
            self._news.setdefault((seat.name, (index, entry.term)), self.facts.sequence)

    def on_deliver_install(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._news.setdefault((seat.name, ("term", args.term)), self.facts.sequence)

    def on_reply_vote(self, event: Event, seat: Seat, message: Message, args: Any, reply: Any) -> None:
        self._news.setdefault((seat.name, ("term", reply.term)), self.facts.sequence)

    on_reply_append = on_reply_install = on_reply_vote

    def on_send(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        # Its own campaign: SavedBeforeCampaign looks at that.
        if args.term > self._terms.get(seat.name, 0):
            self._terms[seat.name] = args.term

    def on_started(self, event: Event, seat: Seat, index: int, term: int) -> None:
        # A leader's own entry, should it come back to it from a later leader.
        self._kept.add((seat.name, (index, term)))

    def on_answer(self, event: Event, seat: Seat, message: Message, args: Any, reply: Any, delivery: Delivery) -> None:
        if reply.term > self._terms.get(seat.name, 0):
            news = self._news.get((seat.name, ("term", reply.term)))
            if news is not None and seat.last_persist < news:
                self._not_saved(event, seat, message, f"its new term {reply.term}")
            self._terms[seat.name] = reply.term

    def on_answer_vote(
        self, event: Event, seat: Seat, message: Message, args: Any, reply: Any, delivery: Delivery
    ) -> None:
        if reply.vote_granted:
            self._promise(event, seat, message, ("vote", args.term, message.source), f"its vote for {message.source}")

    def on_answer_append(
        self, event: Event, seat: Seat, message: Message, args: Any, reply: Any, delivery: Delivery
    ) -> None:
        if reply.success:
            for index, entry in enumerate(args.entries, args.prev_log_index + 1):
                self._promise(event, seat, message, (index, entry.term), f"entry {index} of term {entry.term}")

    def _promise(self, event: Event, seat: Seat, message: Message, what: tuple[Any, ...], words: str) -> None:
        key = (seat.name, what)
        if key in self._kept:
            return
        if seat.last_persist < self._news.get(key, 0):
            self._not_saved(event, seat, message, words)
        self._kept.add(key)

    def _not_saved(self, event: Event, seat: Seat, message: Message, words: str) -> None:
        self.violated(
            f"peer {seat.name} answers without having saved {words}: a crash now would make it forget a promise",
            (event.at_ns, message, "answered"),
        )


class SavedBeforeCampaign(Rule):
    name = "saved-before-campaign"
    title = "A candidate saves its new term and its own vote before it asks for others"
    section = "Figure 2: persistent state"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._campaigns: dict[str, int] = {}
        # The latest sign of a lower term: (sequence number, time), and the one before that instant.
        self._lower: dict[str, list[tuple[int, int]]] = {}

    def on_answer(self, event: Event, seat: Seat, message: Message, args: Any, reply: Any, delivery: Delivery) -> None:
        self._lower[seat.name] = [(self.facts.sequence, event.at_ns)]

    def on_send_vote(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        if args.term <= self._campaigns.get(seat.name, 0):
            return
        self._campaigns[seat.name] = args.term
        since = max((s for s, at_ns in self._lower.get(seat.name, ()) if at_ns < event.at_ns), default=0)
        if seat.last_persist <= since:
            self.violated(
                f"peer {seat.name} campaigns in term {args.term} without having saved it: "
                "after a crash it could vote again in this term",
                (event.at_ns, message, "sent"),
            )
        self._lower.pop(seat.name, None)
