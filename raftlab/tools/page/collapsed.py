"""Events that the page does not show at first: calls that only repeat the last one, and events merged into another.

The timeline's `FirstPass` decides which calls repeat the last one. Start at `CollapsedEvents.take()`.
"""

from __future__ import annotations

from collections.abc import Sequence

from labsim import Event
from raftlab.tools.timeline.calls import FirstPass, TimelineCall
from raftlab.tools.timeline.repetitions import Repetitions
from raftlab.trace.events import (
    CLUSTER,
    CONNECT,
    DISCONNECT,
    FREEZE_CLOCK,
    MESSAGE_KINDS,
    PERSIST,
    RESTORE,
    SEND,
    SERVICE,
    START,
    STARTED,
    STEP,
    STOP,
    UNFREEZE_CLOCK,
)

SHOWN, MERGED, COLLAPSED = 0, 1, 2


class CollapsedGroup(Repetitions):
    def __init__(self, place: int, at_ns: int) -> None:
        super().__init__(at_ns)
        self.first = self.last = place


class CollapsedEvents:
    def __init__(self, events: Sequence[Event], first_pass: FirstPass, *, has_steps: bool = False) -> None:
        self._events = events
        self._known = first_pass
        self._has_steps = has_steps or any(event.kind == STEP for event in events)
        self._begun = first_pass.begun
        self._of_call: dict[int, int] = {}  # by id() of the message
        self._open = False
        self.groups: list[CollapsedGroup] = []
        self._save: dict[str, tuple[int, int]] = {}  # by peer: index and time of a save since its last other event
        self._fault: tuple[str, int, int] | None = None  # the latest of SERVER_ACTS that is shown: kind, time, place
        self._affected: list[str] = []

    def take(self, place: int, event: Event, call: TimelineCall | None, *, is_change: bool) -> tuple[int, int]:
        """How the event is shown, and the number of its group or -1. `is_change`: the event changes a connection."""
        if call is not None and call.collapsed and event.kind in MESSAGE_KINDS:
            return COLLAPSED, self._add_call(place, event, call)
        if event.kind in (START, STARTED) and self._is_refused(place, event):
            return COLLAPSED, self._add_refused_start(place, event)
        if self._is_merged(place, event, is_change=is_change):
            return MERGED, -1
        self._open = False
        return SHOWN, -1

    def absorbed_save(self, place: int, event: Event) -> int:
        """The save that this request's label mentions: the peer saved at this instant and did nothing since. Or -1."""
        saved, at_ns = self._save.pop(event.node, (-1, -1))
        if event.kind == PERSIST and event.detail is not None:
            self._save[event.node] = (place, event.at_ns)
        return saved if event.kind == SEND and at_ns == event.at_ns else -1

    def merged_fault(self, place: int, event: Event) -> tuple[int, list[str]]:
        """An earlier fault of the same kind and instant that is shown with this one, or -1; and all affected peers."""
        kind, at_ns, before = self._fault or ("", -1, -1)
        together = kind == event.kind and at_ns == event.at_ns
        self._affected = [*self._affected, event.node] if together else [event.node]
        self._fault = (event.kind, event.at_ns, place)
        return (before if together else -1), self._affected

    def _add_call(self, place: int, event: Event, call: TimelineCall) -> int:
        if event.kind != SEND:
            return self._of_call.get(id(event.detail), -1)
        self._open_group(place, event).add_call(call)
        number = self._of_call[id(event.detail)] = len(self.groups) - 1
        return number

    def _open_group(self, place: int, event: Event) -> CollapsedGroup:
        if not self._open:
            self.groups.append(CollapsedGroup(place, event.at_ns))
            self._open = True
        group = self.groups[-1]
        group.last, group.last_ns = place, event.at_ns
        return group

    def _is_refused(self, place: int, event: Event) -> bool:
        """Whether a peer that does not lead refused this start() at once."""
        end = self._known.results.get(place) if event.kind == START else place
        begin = place if event.kind == START else self._begun.get(place)
        if end is None or begin is None:
            return False
        result = self._events[end]
        return not result.detail.is_leader and self._events[begin].at_ns == result.at_ns

    def _add_refused_start(self, place: int, event: Event) -> int:
        end = self._known.results[place] if event.kind == START else place
        if end in self._known.skip and not self._open:
            return -1  # the tester was looking for the leader and found it
        group = self._open_group(place, event)
        if event.kind == START:
            group.add_refused_start(event.node)
        return len(self.groups) - 1

    def _is_merged(self, place: int, event: Event, *, is_change: bool) -> bool:
        kind = event.kind
        if place in self._known.skip or kind in (RESTORE, CLUSTER, SERVICE, STOP):
            return True
        if kind in (FREEZE_CLOCK, UNFREEZE_CLOCK):
            return self._has_steps
        if kind in (CONNECT, DISCONNECT):
            return not is_change
        begun = self._begun.get(place) if kind == STARTED else None
        return begun is not None and self._events[begun].at_ns == event.at_ns
