"""Budgets: what no sensible peer needs."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from labtest.checks.facts import Facts, Seat
from labtest.checks.rule import Rule, Violated

RPCS_PER_LINK_PER_S = 2_000
_NS = 1_000_000_000


class Budgets(Rule):
    name = "rpc-budget"
    title = "A peer speaks when it has something to say"
    section = "§5.2: heartbeats are periodic"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._second = 0
        self._sent: dict[tuple[str, str], int] = {}

    def on_send(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        second = event.at_ns // _NS
        if second != self._second:
            self._second = second
            self._sent.clear()
        link = (message.source, message.target)
        count = self._sent[link] = self._sent.get(link, 0) + 1
        if count > RPCS_PER_LINK_PER_S:
            self.violated(
                f"peer {seat.name} sent {count} requests to peer {message.target} within one second (virtual)",
                (event.at_ns, message, "sent"),
            )
