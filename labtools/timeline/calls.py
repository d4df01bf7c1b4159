"""A first pass over a trace: what became of each call, and which events are told together with another.

Only then can a call be told where it was made, with its answer beside it. Start at `FirstPass`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labsim import Event
from labtools.timeline import words
from labtools.timeline.rows import FAULTS, MESSAGE_KINDS, Row, Said, Show
from labtools.timeline.words import Wordings


@dataclass(slots=True)
class Call:
    """One request and its answer; a duplicate is another."""

    id: int
    source: str
    target: str
    kind: str
    args: Any
    wordings: Wordings
    sent_ns: int
    again: bool = False
    delivered_ns: int = -1
    answered_ns: int = -1
    replied_ns: int = -1
    lost_ns: int = -1
    lost: str = ""
    late: bool = False  # answered when nobody waited any more
    saved: bool = False
    reply: Any = None
    answer: Said | None = None
    counted: bool = False  # a repetition: only counted
    row: Row | None = None  # where the request and, if it came at once, the answer stand

    @property
    def at_once(self) -> bool:
        """Asked, answered (or lost on the way there) in one instant."""
        return self.sent_ns in (self.answered_ns, self.lost_ns if self.answered_ns < 0 else -1)

    @property
    def lost_on_the_way(self) -> bool:
        return bool(self.lost) and self.answered_ns < 0

    @property
    def outcome(self) -> tuple[Any, ...]:
        return (self.lost, None if self.answer is None else self.answer.wordings)

    @property
    def heartbeat(self) -> bool:
        return self.kind == "append" and not words.field(self.args, "entries")

    @property
    def topics(self) -> tuple[str, ...]:
        own = {"vote": "election", "append": "log"}.get(self.kind, self.kind)
        return (own, "network") if self.lost or self.again else (own,)


class FirstPass:
    """What is known of a run before its first row is told."""

    def __init__(self, events: Sequence[Event], show: Show) -> None:
        self._events = events
        self._show = show
        self.calls: dict[int, Call] = {}  # by the id() of the message object, which the events keep alive
        self.skip: set[int] = set()  # events, by place, that stand in another event's row
        self.saved: set[int] = set()  # `start` events, by place, after which the peer saved
        self.results: dict[int, int] = {}  # from `start` to `started`, by place
        self._index()

    def _index(self) -> None:
        starting: dict[str, int] = {}
        saves: dict[str, list[int]] = {}  # by node: events, by place, that nothing of that node has followed yet
        accepted_ns: set[int] = set()
        originals: dict[int, Call] = {}
        absorb = not self._show.everything and "persist" not in self._show.topics
        calls: list[Call] = []
        for place, event in enumerate(self._events):
            kind = event.kind
            if kind in MESSAGE_KINDS:
                call = self._call_of(event, originals)
                if kind == "send":
                    calls.append(call)
                elif kind == "deliver":
                    call.delivered_ns = event.at_ns
                elif kind == "answer":
                    call.answered_ns = event.at_ns
                    call.reply = event.detail.decode_reply()
                    call.answer = Said(*words.answer(call.kind, call.args, call.reply))
                    call.saved = self._absorb(saves, event)
                elif kind == "reply":
                    call.replied_ns = event.at_ns
                elif kind == "drop":
                    if call.lost or call.again:
                        call.late = True
                    else:
                        call.lost, call.lost_ns = words.short_note(event.note) or "lost", event.at_ns
                if kind == "send":
                    saves.pop(event.node, None)
            elif kind == "persist" and absorb:
                begun = starting.get(event.node)
                if begun is not None and self._events[begun].at_ns == event.at_ns and begun not in self.saved:
                    self.saved.add(begun)
                    self.skip.add(place)
                else:
                    saves.setdefault(event.node, []).append(place)
            elif kind == "start":
                starting[event.node] = place
                saves.pop(event.node, None)
            elif kind == "started":
                begun = starting.pop(event.node, None)
                if begun is not None:
                    self.results[begun] = place
                if event.detail[3]:
                    accepted_ns.add(event.at_ns)
        if not self._show.everything:
            self._find_repetitions(calls)
            self._join_faults(accepted_ns)

    def _absorb(self, saves: dict[str, list[int]], event: Event) -> bool:
        """A handler, or start(), saves just before it answers: then one word in its row says so."""
        places = [place for place in saves.pop(event.node, ()) if self._events[place].at_ns == event.at_ns]
        self.skip.update(places)
        return bool(places)

    def _call_of(self, event: Event, originals: dict[int, Call]) -> Call:
        detail = event.detail
        call = self.calls.get(id(detail))
        if call is None:
            kind = words.kind_of(detail.service_method)
            args = detail.decode_args()
            original = originals.get(event.message) if event.kind != "send" else None
            call = Call(
                event.message,
                detail.source,
                detail.target,
                kind,
                args,
                words.request(kind, args),
                event.at_ns if original is None else original.sent_ns,
                again=original is not None,
            )
            self.calls[id(detail)] = call
            if event.kind == "send":
                originals[event.message] = call
        return call

    def _find_repetitions(self, calls: list[Call]) -> None:
        last: dict[tuple[str, str], tuple[Wordings, tuple[Any, ...] | None]] = {}
        groups: dict[tuple[str, int, Wordings], list[Call]] = {}
        for call in calls:
            way = (call.source, call.target)
            wordings, outcome = last.get(way, ((), None))
            same = wordings == call.wordings
            # A loss now and then is what an unreliable network is; it changes nothing about what is known.
            by_chance = call.lost in ("lost request", "lost reply")
            call.counted = same and not call.saved and (by_chance or call.outcome == outcome)
            last[way] = (call.wordings, (outcome if same else None) if by_chance else call.outcome)
            groups.setdefault((call.source, call.sent_ns, call.wordings), []).append(call)
        for group in groups.values():
            # Where one peer's answer is news, the others' stand beside it.
            if not all(call.counted for call in group):
                for call in group:
                    call.counted = False

    def _join_faults(self, accepted_ns: set[int]) -> None:
        """A crash pulls the plug first, a restart puts it back: one fault each. A refused start() beside an accepted
        one is the tester looking for the leader."""
        latest: dict[tuple[str, str], tuple[int, int]] = {}
        for place, event in enumerate(self._events):
            if event.kind in FAULTS:
                latest[(event.kind, event.node)] = (event.at_ns, place)
                if event.kind == "crash":
                    at_ns, plug = latest.get(("disconnect", event.node), (-1, -1))
                    if at_ns == event.at_ns:
                        self.skip.add(plug)
                elif event.kind == "connect":
                    began = max(latest.get((kind, event.node), (-1, -1)) for kind in ("boot", "restart"))
                    if began[0] == event.at_ns:
                        self.skip.add(place)
            elif event.kind == "started" and not event.detail[3] and event.at_ns in accepted_ns:
                self.skip.add(place)
