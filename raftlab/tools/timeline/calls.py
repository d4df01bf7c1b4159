"""A first pass over a trace: the outcome of each call, and which events share another event's row.

The second pass can then show a call at its request, with the reply beside it. Start at `FirstPass`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labsim import Event
from raftlab.tools.timeline import labels
from raftlab.tools.timeline.labels import LabelTexts
from raftlab.tools.timeline.rows import Label, Row, RowFilter
from raftlab.trace.calls import CallJoin, JoinedCall
from raftlab.trace.events import (
    ANSWER,
    BOOT,
    CONNECT,
    CRASH,
    DISCONNECT,
    MESSAGE_KINDS,
    PERSIST,
    RESTART,
    SEND,
    SERVER_ACTS,
    START,
    STARTED,
    DropReason,
)
from raftlab.trace.rpcs import APPEND, RPCS, VOTE

# On a reliable network a call returns in 2 to 6 ms. Its request and reply share a row.
QUICK_NS = 10_000_000


class TimelineCall(JoinedCall):
    """One request and its reply. A duplicate of the request is another call."""

    __slots__ = (
        "answer",
        "args",
        "collapsed",
        "id",
        "kind",
        "reply",
        "row",
        "saved",
        "texts",
    )

    def __init__(self, message: Any, original: TimelineCall | None, sent_ns: int) -> None:
        super().__init__(message, original, sent_ns)
        self.id: int = message.id
        self.kind = RPCS[self.method].short_name if self.method in RPCS else message.method_name
        self.args: Any = message.decode_args()
        self.texts: LabelTexts = labels.request(self.kind, self.args)
        self.saved = False
        self.reply: Any = None
        self.answer: Label | None = None
        self.collapsed = False  # repeats the last call, so it is only counted
        self.row: Row | None = None  # the row of the request and, if it came quickly, of the reply

    @property
    def is_duplicate(self) -> bool:
        return self.original is not None

    @property
    def lost(self) -> str:
        """Why request or reply did not arrive, in a word or two; "" if both arrived."""
        return labels.drop_reason(self.dropped)

    @property
    def answered_quickly(self) -> bool:
        """Whether the request was answered or lost within QUICK_NS."""
        end_ns = self.dropped_ns if self.answered_ns is None else self.answered_ns
        return end_ns is not None and end_ns - self.sent_ns <= QUICK_NS

    @property
    def returned_quickly(self) -> bool:
        return self.answered_quickly and self.replied_ns is not None and self.replied_ns - self.sent_ns <= QUICK_NS

    @property
    def request_lost(self) -> bool:
        return bool(self.dropped) and self.answered_ns is None

    @property
    def outcome(self) -> tuple[Any, ...]:
        return (self.dropped, None if self.answer is None else self.answer.texts)

    @property
    def heartbeat(self) -> bool:
        return self.method == APPEND and not labels.field(self.args, "entries")

    @property
    def topics(self) -> tuple[str, ...]:
        own = {VOTE: "election", APPEND: "log"}.get(self.method, self.kind)
        return (own, "network") if self.dropped or self.is_duplicate else (own,)


class FirstPass:
    """What the model builder must know before it makes the first row."""

    def __init__(self, events: Sequence[Event], row_filter: RowFilter) -> None:
        self._events = events
        self._row_filter = row_filter
        self._join = CallJoin(TimelineCall)
        self.calls = self._join.calls
        self.nodes: set[str] = set()  # servers and clients
        self.skip: set[int] = set()  # indexes of events that are shown in another event's row
        self.saved: set[int] = set()  # indexes of `start` events after which the peer saved
        self.results: dict[int, int] = {}  # index of `started` by index of `start`
        self.begun: dict[int, int] = {}  # the reverse
        self._read = 0  # how many events have been read
        self._starting: dict[str, int] = {}
        self._saves: dict[str, list[int]] = {}  # by node: indexes of saves since the node's last other event
        self._accepted_ns: set[int] = set()
        self._last: dict[tuple[str, str], tuple[LabelTexts, tuple[Any, ...] | None]] = {}  # by sender and receiver
        self._latest: dict[tuple[str, str], tuple[int, int]] = {}  # faults, by kind and node: time and index
        self.extend()

    def extend(self) -> None:
        """Read the events that have been added. A call that was in flight then is not collapsed any more."""
        begin = self._read
        starting, saves = self._starting, self._saves
        absorb = not self._row_filter.everything and "persist" not in self._row_filter.topics
        calls: list[TimelineCall] = []
        for place in range(begin, len(self._events)):
            event = self._events[place]
            kind = event.kind
            if event.node:
                self.nodes.add(event.node)
            if kind in MESSAGE_KINDS:
                call = self._join.take(event)
                if kind == SEND:
                    calls.append(call)
                    self.nodes |= {call.source, call.target} - {""}
                    saves.pop(event.node, None)
                elif kind == ANSWER:
                    call.reply = event.detail.decode_reply()
                    call.answer = Label(*labels.answer(call.kind, call.args, call.reply))
                    call.saved = self._absorb(saves, event)
            elif kind == PERSIST and absorb:
                begun = starting.get(event.node)
                if begun is not None and self._events[begun].at_ns == event.at_ns and begun not in self.saved:
                    self.saved.add(begun)
                    self.skip.add(place)
                else:
                    saves.setdefault(event.node, []).append(place)
            elif kind == START:
                starting[event.node] = place
                saves.pop(event.node, None)
            elif kind == STARTED:
                begun = starting.pop(event.node, None)
                if begun is not None:
                    self.results[begun] = place
                    self.begun[place] = begun
                if event.detail.is_leader:
                    self._accepted_ns.add(event.at_ns)
        self._read = len(self._events)
        if not self._row_filter.everything:
            self._find_repetitions(calls)
            self._join_faults(begin)

    def _absorb(self, saves: dict[str, list[int]], event: Event) -> bool:
        """A handler or start() usually saves just before it answers: then its row says so in one word."""
        places = [place for place in saves.pop(event.node, ()) if self._events[place].at_ns == event.at_ns]
        self.skip.update(places)
        return bool(places)

    def _find_repetitions(self, calls: list[TimelineCall]) -> None:
        last = self._last
        groups: dict[tuple[str, int, LabelTexts], list[TimelineCall]] = {}
        for call in calls:
            way = (call.source, call.target)
            texts, outcome = last.get(way, ((), None))
            same = texts == call.texts
            # A random loss on an unreliable network does not change the outcome that later calls repeat.
            by_chance = call.dropped in (DropReason.LOST_REQUEST, DropReason.LOST_REPLY)
            call.collapsed = same and not call.saved and (by_chance or call.outcome == outcome)
            last[way] = (call.texts, (outcome if same else None) if by_chance else call.outcome)
            groups.setdefault((call.source, call.sent_ns, call.texts), []).append(call)
        for group in groups.values():
            # If one call of a broadcast is shown, all of them are.
            if not all(call.collapsed for call in group):
                for call in group:
                    call.collapsed = False

    def _join_faults(self, begin: int) -> None:
        """A crash disconnects first and a restart reconnects: show one fault each. A refused start() beside an accepted
        one is the tester looking for the leader."""
        latest, accepted_ns = self._latest, self._accepted_ns
        for place in range(begin, self._read):
            event = self._events[place]
            if event.kind in SERVER_ACTS:
                latest[(event.kind, event.node)] = (event.at_ns, place)
                if event.kind == CRASH:
                    at_ns, plug = latest.get((DISCONNECT, event.node), (-1, -1))
                    if at_ns == event.at_ns:
                        self.skip.add(plug)
                elif event.kind == CONNECT:
                    began = max(latest.get((kind, event.node), (-1, -1)) for kind in (BOOT, RESTART))
                    if began[0] == event.at_ns:
                        self.skip.add(place)
            elif event.kind == STARTED and not event.detail.is_leader and event.at_ns in accepted_ns:
                self.skip.add(place)
