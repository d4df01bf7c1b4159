"""Vector clocks (Mattern 1989; Fidge 1988): happens-before among the tasks of one node.

A task publishes its clock when it releases a lock, sets an event or starts a thread. It learns the published clock when
it acquires the lock, sees the event or joins the thread. What a task did before it published happens before what
another one does after it has learned of that. Otherwise two actions are unordered.

Promise: two actions that are reported as unordered are unordered. Not promised: that all unordered actions are found. A
node has SLOTS clocks. A new task takes the slot that has been free for longest, and counts as a continuation of the
slot's last task.

Start at `TaskClock`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SLOTS = 128  # concurrent tasks of one node. With more of them, its happens-before is no longer tracked

Vector = tuple[int, ...]  # by slot: how far its clock was


class Stamp(NamedTuple):
    """The clock that a task published."""

    seen: Vector
    slot: int
    clock: int
    lineage: NodeClocks


class NodeClocks:
    """The clocks of one node."""

    __slots__ = ("base", "free", "lost", "one_at_a_time", "past")

    def __init__(self) -> None:
        self.free: deque[int] = deque(range(SLOTS))
        self.past: list[Stamp | None] = [None] * SLOTS  # the final stamp of each slot's previous task
        self.base: Stamp | None = None  # happens before every call from outside the node
        self.one_at_a_time = False  # outside callers wait for the end of a call before they make the next
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
            # A task that learns of this one assumes that it knows what its predecessor in the slot knew.
            order.clock = past.clock + 1
            order.learn(past)
        if after is not None:
            order.learn(after)
        return order


class TaskClock:
    """The clock of one task: its own time, what it has learned of others, and the locks that it holds."""

    __slots__ = ("_source_clock", "_source_slot", "begins", "clock", "ended", "lineage", "locks", "seen", "slot")

    def __init__(self, lineage: NodeClocks, slot: int) -> None:
        self.lineage = lineage
        self.slot = slot
        self.clock = 1
        self.seen: Vector = _NOTHING
        self.locks: tuple[object, ...] = ()
        self.begins = ""  # the target of its thread, or the method called from outside, if known
        self.ended: Stamp | None = None
        # The task whose published vector equals `seen`: a task that has learned of it knows all of `seen`.
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
