"""Why something happened: for each event the one before it that brought it about, as far as a trace can tell.

A delivery is brought about by its send, an answer by its delivery, a reply by its answer. For what a peer does by
itself it is what reached that peer last, if that was in the same instant: virtual time moves only when everybody
waits, so what a peer does without any time passing, it does because of that. Otherwise its own clock woke it, and
there is no cause.
"""

from __future__ import annotations

from labsim import Event
from raftlab.tools.timeline.calls import TimelineCall
from raftlab.trace.events import ANSWER, DELIVER, DROP, DUPLICATE, INVOKE, REPLY, SEND, SERVER_ACTS, START, STARTED

NONE = -1


class Causes:
    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # by the message's number: the place of its send
        self._places: dict[tuple[int, str], int] = {}  # by id() of the message object and kind
        self._came: dict[str, tuple[int, int]] = {}  # by node: what came in last, and when
        self._starts: dict[str, list[int]] = {}  # that have not returned

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
