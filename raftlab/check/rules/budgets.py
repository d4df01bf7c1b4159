"""Budgets: more messages, or more time for an answer, than any sensible peer needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from labrpc import Message
from labsim import Event
from raftlab.check.rules.facts import Facts, PeerFacts
from raftlab.check.rules.rule import Reporter, Rule
from raftlab.trace.decoding import DecodedRequest
from raftlab.trace.events import CLUSTER, SEND

RPCS_PER_LINK_PER_S = 2_000
_NS = 1_000_000_000


class Budgets(Rule):
    name = "rpc-budget"
    title = "A peer speaks when it has something to say"
    section = "§5.2: heartbeats are periodic"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._second_ends_ns = 0
        self._unchecked_until = 0  # a message's id: up to this one no link can have carried too many in this second
        self._sent: Counter[tuple[str, str]] = Counter()  # in this second, once it is not calm

    def on_any_send(self, event: Event, peer: PeerFacts, message: Message) -> None:
        if event.at_ns >= self._second_ends_ns:
            self._second_ends_ns = (event.at_ns // _NS + 1) * _NS
            self._unchecked_until = message.id + RPCS_PER_LINK_PER_S - 1
            self._sent.clear()
        elif message.id > self._unchecked_until:
            self._count(event, peer, message)

    def _count(self, event: Event, peer: PeerFacts, message: Message) -> None:
        if self._sent:
            self._sent[message.source, message.target] += 1
        else:
            self._sent.update(self._links_of_this_second(message))
        count = self._sent[message.source, message.target]
        if count > RPCS_PER_LINK_PER_S:
            self.report(
                f"peer {peer.name} sent {count} requests to peer {message.target} within one second (virtual)",
                (event.at_ns, message, "sent"),
            )

    def _links_of_this_second(self, latest: Message) -> Iterator[tuple[str, str]]:
        for event in reversed(self.facts.trace):
            if event.at_ns < self._second_ends_ns - _NS or event.kind == CLUSTER:
                return
            if event.kind == SEND and event.message <= latest.id:
                yield event.detail.source, event.detail.target


class AnswersRequests(Rule):
    """A handler waits for nobody but its own disk. One that never returns costs its caller a thread, and silence."""

    name = "answers-requests"
    title = "A peer that is up answers every request"
    section = "§5.5: RPCs are answered or lost"
    is_omission = True

    _LIMIT_NS = 2_000_000_000

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._waiting: dict[int, tuple[int, str, Message]] = {}  # by identity of the message, the oldest first

    def on_deliver(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        waiting = self._waiting
        waiting[id(message)] = (event.at_ns, peer.name, message)
        for at_ns, name, oldest in waiting.values():
            if event.at_ns - at_ns <= self._LIMIT_NS:
                return  # nor has any of those after it waited for longer
            owing = self.facts.peers[name]
            if not owing.unavailable:
                if self.facts.available_ns(owing, at_ns, event.at_ns) > self._LIMIT_NS + self.facts.grace_ns:
                    self.report(
                        f"peer {name} got the {oldest.method_name} of peer {oldest.source} at {at_ns / 1e9:.6f} s and "
                        f"has not answered it {(event.at_ns - at_ns) / 1e9:.1f} s later",
                        (at_ns, oldest, "delivered"),
                        peer=name,
                    )
                return

    def on_any_answer(self, event: Event, peer: PeerFacts, message: Message) -> None:
        self._waiting.pop(id(message), None)

    def on_crash(self, peer: PeerFacts) -> None:
        self._waiting = {key: waits for key, waits in self._waiting.items() if waits[1] != peer.name}
