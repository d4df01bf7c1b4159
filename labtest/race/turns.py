"""When a thread loses its turn: between which statements, and for how long. Each loss is a choice of the decider's.

The statements of a node's incarnation are counted. For each BLOCK of them the decider is asked once, so that a
statement costs next to nothing: choose(("turn", node, incarnation), number of the block, Chance). What it answers is a
`Loss`: at which statement of the block, and how late the thread gets its turn back. The plain answer is that nothing is
lost. The same, more densely, for the gaps behind a critical section, where a thread has let go of its lock and goes on:
("gap", node, incarnation).

A turn that is lost and not late costs no time: whoever is ready goes first. One that comes back late is a busy machine;
that time is the machine's and not the peer's (Simulation.lose_turn), and there is little of it: after each, the node is
left alone for some time.

Start at `Turns`.
"""

from __future__ import annotations

import sys

import msgspec

from labsim import Node, Simulation
from labsim.deciding import next_bits
from labtest.events import CAUGHT_UP, PREEMPT, Preempted

BLOCK = 64
GAPS = 4
# How many times as long as it was late nothing is late again. Who has let go of its lock holds up no other.
LEFT_ALONE = {"turn": 20, "gap": 4}
_LATE_NS = (1_000_000, 60_000_000)


class Loss(msgspec.Struct, frozen=True):
    """`at`: from 1, the how many-th of its block; 0: nothing is lost."""

    at: int = 0
    late_ns: int = 0


_NONE = Loss()


class Chance(msgspec.Struct, frozen=True):
    """One of `block` is hit, `loses` times of 64; of these losses, `late` of 64 are late."""

    block: int
    loses: int
    late: int

    @property
    def plain(self) -> Loss:
        return _NONE

    def draw(self, bits: int) -> Loss:
        if bits >> 58 >= self.loses:
            return _NONE
        bits = next_bits(bits)
        at = 1 + (self.block * (bits >> 32) >> 32)
        bits = next_bits(bits)
        if bits >> 58 >= self.late:
            return Loss(at)
        # As many between 1 and 2 ms as between 30 and 60.
        low, high = _LATE_NS
        return Loss(at, int(low * (high / low) ** ((next_bits(bits) >> 32) / 2**32)))


STATEMENTS = Chance(BLOCK, loses=48, late=8)
IN_GAPS = Chance(GAPS, loses=32, late=48)


class Turns:
    """Of one incarnation of a node: what its rewritten code calls between statements, and in gaps."""

    def __init__(self, simulation: Simulation, node: Node) -> None:
        self._simulation = simulation
        self._node = node
        self._next_late_ns = dict.fromkeys(LEFT_ALONE, 0)
        self.turn = self._counter("turn", STATEMENTS)
        self.gap = self._counter("gap", IN_GAPS)

    def _counter(self, kind: str, chance: Chance):  # type: ignore[no-untyped-def]  # a function of nothing
        """A closure: it is called before every statement, and an attribute would cost as much as all the rest."""
        place = (kind, self._node.name, str(self._node.incarnation))
        choose = self._simulation.decider.choose
        left = 1  # until the next loss, or the next block
        rest = 0  # of the block, after the loss
        loss = _NONE
        ordinal = 0
        lose = self._lose

        def begin_block() -> None:
            nonlocal left, rest, loss, ordinal
            ordinal += 1
            loss = choose(place, ordinal, chance)
            # Written by hand, it may be anything.
            at = loss.at if 0 < loss.at <= chance.block else 0
            left, rest = (at, chance.block - at) if at else (chance.block, 0)

        def come_due() -> None:
            nonlocal left, rest, loss
            lost, loss = loss, _NONE
            if rest:
                left, rest = rest, 0
            else:
                begin_block()
            if lost.at:
                lose(kind, lost)

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                come_due()

        begin_block()
        return count

    def _lose(self, kind: str, loss: Loss) -> None:
        simulation, node = self._simulation, self._node
        task = simulation.current
        if task.node is not node or not node.alive:
            return  # the tester looks at something of the peer's
        may_be_late = simulation.now_ns >= self._next_late_ns[kind] and not simulation.punctual
        late_ns = loss.late_ns if may_be_late else 0
        if late_ns:
            self._next_late_ns[kind] = simulation.now_ns + (LEFT_ALONE[kind] + 1) * late_ns
        frame = sys._getframe(3)
        place = Preempted(task.name, frame.f_code.co_filename, frame.f_lineno, late_ns)
        simulation.emit(PREEMPT, node, place, 0)
        simulation.lose_turn(late_ns)
        if late_ns and not node.late:
            simulation.emit(CAUGHT_UP, node, None, 0)
