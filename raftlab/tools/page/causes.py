"""The cause of each event: the earlier event that led to it, as far as the trace shows.

A send causes its delivery, a delivery its answer, an answer its reply. The cause of a peer's own action is the last
event that reached the peer, if it happened at the same instant: virtual time advances only when all tasks wait.
Otherwise the peer's own timer woke it, and the event has no cause.
"""

from __future__ import annotations

from labsim import Event
from raftlab.tools.timeline.calls import TimelineCall
from raftlab.trace.events import ANSWER, DELIVER, DROP, DUPLICATE, INVOKE, REPLY, SEND, SERVER_ACTS, START, STARTED

NONE = -1


class Causes:
    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # by message number: the index of its send
        self._places: dict[tuple[int, str], int] = {}  # by id() of the message object and kind
        self._came: dict[str, tuple[int, int]] = {}  # by node: index and time of the last event that reached it
        self._starts: dict[str, list[int]] = {}  # by node: start() calls that have not returned

    def take(self, place: int, event: Event, call: TimelineCall | None) -> int:
        kind, node = event.kind, event.node
        cause = self._of_message(event) if call is not None and kind != SEND else self._of_node(event)
        if kind == STARTED and self._starts.get(node):
            cause = self._starts[node].pop()
        if call is not None:
            self._places[(id(event.detail), kind)] = place
            if kind == SEND:
                self._sent[event.message] = place
        if kind in (DELIVER, REPLY, START, INVOKE) or kind in SERVER_ACTS:
            self._came[node] = (place, event.at_ns)
            if kind == START:
                self._starts.setdefault(node, []).append(place)
        return cause

    def _of_message(self, event: Event) -> int:
        key = id(event.detail)
        if event.kind in (DELIVER, DUPLICATE):
            return self._sent.get(event.message, NONE)
        if event.kind == ANSWER:
            return self._places.get((key, DELIVER), NONE)
        if event.kind in (REPLY, DROP):
            answered = self._places.get((key, ANSWER), NONE)
            return answered if answered != NONE else self._sent.get(event.message, NONE)
        return NONE

    def _of_node(self, event: Event) -> int:
        place, at_ns = self._came.get(event.node, (NONE, -1)) if event.node else (NONE, -1)
        return place if at_ns == event.at_ns else NONE
