"""What comes after what, among the tasks of one node: vector clocks (Mattern 1989; Fidge 1988).

A task publishes where it is when it lets go of a lock, sets an event, starts a thread; it learns of others when it
takes the lock, sees the event, joins the thread. What one did before it published comes before what another does after
it has learnt of that. What neither learns of the other is unordered.

Promise: two things that are told to be unordered are so. Not promised: that all that is unordered is told so. A node
has SLOTS clocks; a new task takes the one that has been free for longest, and counts as that one's continuation.

Start at `TaskClock`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SLOTS = 128  # tasks of one node at a time. With more of them, its order is not kept any longer

Vector = tuple[int, ...]  # by slot: how far its clock was


class Stamp(NamedTuple):
    """Where a task was when it published."""

    seen: Vector
    slot: int
    clock: int
    lineage: NodeClocks


class NodeClocks:
    """The clocks of one node."""

    __slots__ = ("base", "free", "lost", "one_at_a_time", "past")

    def __init__(self) -> None:
        self.free: deque[int] = deque(range(SLOTS))
        self.past: list[Stamp | None] = [None] * SLOTS  # the last of each slot's task before the present one
        self.base: Stamp | None = None  # what every task comes after that somebody outside has the node begin
        self.one_at_a_time = False  # whoever is outside waits for the end of a task before it has the next begin
        self.lost = False  # there were too many tasks

    def begin(self, after: Stamp | None) -> TaskClock | None:
        if not self.free:
            self.lost = True
        if self.lost:
            return None
        slot = self.free.popleft()
        order = TaskClock(self, slot)
        past = self.past[slot]
        if past is not None:
            # Whoever learns of this task takes it to know what the one before it knew.
            order.clock = past.clock + 1
            order.learn(past)
        if after is not None:
            order.learn(after)
        return order


class TaskClock:
    """Of one task: how far it is, what it has learnt, and which locks it holds."""

    __slots__ = ("_source_clock", "_source_slot", "begins", "clock", "ended", "lineage", "locks", "seen", "slot")

    def __init__(self, lineage: NodeClocks, slot: int) -> None:
        self.lineage = lineage
        self.slot = slot
        self.clock = 1
        self.seen: Vector = _NOTHING
        self.locks: tuple[object, ...] = ()
        self.begins = ""  # the target of its thread, or what somebody outside has called, where it is known
        self.ended: Stamp | None = None
        # Whose publication `seen` is exactly: who has learnt of that one knows all that is in it.
        self._source_slot = slot
        self._source_clock = 0

    def publish(self) -> Stamp:
        slot, clock, seen = self.slot, self.clock, self.seen
        self.seen = seen = (*seen[:slot], clock, *seen[slot + 1 :])
        self._source_slot, self._source_clock = slot, clock
        self.clock = clock + 1
        return Stamp(seen, slot, clock, self.lineage)

    def learn(self, stamp: Stamp) -> None:
        seen, slot, clock, lineage = stamp
        mine = self.seen
        if mine[slot] >= clock or lineage is not self.lineage:
            return
        if seen[self._source_slot] >= self._source_clock:
            self.seen = seen
            self._source_slot, self._source_clock = slot, clock
        else:
            self.seen = tuple(map(max, mine, seen))
            self._source_slot, self._source_clock = self.slot, self.clock

    def end(self) -> None:
        lineage = self.lineage
        if lineage.one_at_a_time and lineage.base is not None:
            self.learn(lineage.base)
        self.ended = lineage.past[self.slot] = self.publish()
        if lineage.one_at_a_time:
            lineage.base = self.ended
        lineage.free.append(self.slot)


_NOTHING: Vector = (0,) * SLOTS
