"""Limits on the number of messages and on the time until an answer, far above what a correct peer needs."""

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
    title = "A peer sends at most 2000 RPCs per second to another peer"
    section = "§5.2: heartbeats are periodic"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._second_ends_ns = 0
        self._unchecked_until = 0  # a message id: up to this one no link can have exceeded the limit in this second
        self._sent: Counter[tuple[str, str]] = Counter()  # in this second, by link; empty up to that message

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
                f"Peer {peer.name} sent {count} requests to peer {message.target} within one second of virtual time",
                (event.at_ns, message, "sent"),
            )

    def _links_of_this_second(self, latest: Message) -> Iterator[tuple[str, str]]:
        for event in reversed(self.facts.trace):
            if event.at_ns < self._second_ends_ns - _NS or event.kind == CLUSTER:
                return
            if event.kind == SEND and event.message <= latest.id:
                yield event.detail.source, event.detail.target


class AnswersRequests(Rule):
    """A handler waits for its own disk at most. One that never returns blocks a thread of the caller."""

    name = "answers-requests"
    title = "A running peer answers every request"
    section = "§5.5: RPCs are answered or lost"
    is_omission = True

    _LIMIT_NS = 2_000_000_000

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._waiting: dict[int, tuple[int, str, Message]] = {}  # by id() of the message, oldest first

    def on_deliver(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        waiting = self._waiting
        waiting[id(message)] = (event.at_ns, peer.name, message)
        for at_ns, name, oldest in waiting.values():
            if event.at_ns - at_ns <= self._LIMIT_NS:
                return  # the later ones have not waited longer
            receiver = self.facts.peers[name]
            if not receiver.unavailable:
                if self.facts.available_ns(receiver, at_ns, event.at_ns) > self._LIMIT_NS + self.facts.grace_ns:
                    self.report(
                        f"Peer {name} received {oldest.method_name} from peer {oldest.source} at {at_ns / 1e9:.6f} s "
                        f"and has not answered it {(event.at_ns - at_ns) / 1e9:.1f} s later",
                        (at_ns, oldest, "delivered"),
                        peer=name,
                    )
                return

    def on_any_answer(self, event: Event, peer: PeerFacts, message: Message) -> None:
        self._waiting.pop(id(message), None)

    def on_crash(self, peer: PeerFacts) -> None:
        self._waiting = {key: waits for key, waits in self._waiting.items() if waits[1] != peer.name}
