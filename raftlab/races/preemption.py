"""When a thread loses its turn: between which statements, and for how long. Each loss is a choice.

The statements of a node's incarnation are counted. For each BLOCK of them the choice source is asked once, so that a
statement costs next to nothing: choose(("preempt", node, incarnation), number of the block, Chance). What it answers is
a `Loss`: at which statement of the block, and how late the thread gets its turn back. The plain answer is that nothing
is lost. The same, more densely, for the gaps behind a critical section, where a thread has let go of its lock and goes
on: ("preempt unlocked", ...). And most densely, and for longest, where it takes a lock again at once ("preempt relock",
...): what it has seen in the first section need not be so in the second, and nothing but time shows that.

A turn that is lost and not late costs no time: whoever is ready goes first. One that comes back late is a busy machine;
that time is the machine's and not the peer's (Simulation.preempt), and there is little of it: after each, the node is
left alone for some time.

Start at `Turns`.
"""

from __future__ import annotations

import sys

import msgspec

from labsim import Node, Simulation
from labsim.choices import ChoiceKind, ChoicePoint, next_bits
from raftlab.trace.events import CAUGHT_UP, PREEMPT, Preempted

STATEMENTS_PER_BLOCK = 64
UNLOCKS_PER_BLOCK = 4
# How many times as long as it was late nothing is late again. Who has let go of its lock holds up no other.
UNDELAYED_FACTOR: dict[str, int] = {
    ChoiceKind.PREEMPT: 20,
    ChoiceKind.PREEMPT_UNLOCKED: 4,
    ChoiceKind.PREEMPT_RELOCK: 1,
}
_MS = 1_000_000


class Preemption(msgspec.Struct, frozen=True):
    """`at`: from 1, the how many-th of its block; 0: nothing is lost."""

    at: int = 0
    late_ns: int = 0


_NONE = Preemption()


class PreemptionDistribution(msgspec.Struct, frozen=True):
    """One of `block` is hit, `loses` times of 64; of these losses, `late` of 64 are late, by `late_ms` at most."""

    block: int
    loses: int
    late: int
    late_ms: int = 60

    @property
    def default(self) -> Preemption:
        return _NONE

    def sample(self, bits: int) -> Preemption:
        if bits >> 58 >= self.loses:
            return _NONE
        bits = next_bits(bits)
        at = 1 + (self.block * (bits >> 32) >> 32)
        bits = next_bits(bits)
        if bits >> 58 >= self.late:
            return Preemption(at)
        # At least 1 ms, and as many between 1 and 2 ms as between 30 and 60.
        return Preemption(at, int(_MS * self.late_ms ** ((next_bits(bits) >> 32) / 2**32)))


STATEMENTS = PreemptionDistribution(STATEMENTS_PER_BLOCK, loses=48, late=8)
AFTER_UNLOCK = PreemptionDistribution(UNLOCKS_PER_BLOCK, loses=32, late=48)


BEFORE_RELOCK = PreemptionDistribution(2, loses=48, late=64, late_ms=1000)
DISTRIBUTIONS: dict[str, PreemptionDistribution] = {
    ChoiceKind.PREEMPT: STATEMENTS,
    ChoiceKind.PREEMPT_UNLOCKED: AFTER_UNLOCK,
    ChoiceKind.PREEMPT_RELOCK: BEFORE_RELOCK,
}


def choice_point(kind: str, node: Node) -> ChoicePoint:
    """Where these choices are made."""
    return (kind, node.name, str(node.incarnation))


class ResumeDelays:
    """How late the threads of one incarnation get their turns back."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._next_ns = dict.fromkeys(UNDELAYED_FACTOR, 0)

    def of(self, kind: str, loss: Preemption) -> int:
        """In ns; 0 where it may not be late now."""
        now_ns = self._simulation.now_ns
        if not loss.late_ns or now_ns < self._next_ns[kind] or self._simulation.no_delays:
            return 0
        self._next_ns[kind] = now_ns + (UNDELAYED_FACTOR[kind] + 1) * loss.late_ns
        return loss.late_ns


class Preempter:
    """Of one incarnation of a node: what its rewritten code calls between statements, and in gaps."""

    def __init__(self, simulation: Simulation, node: Node) -> None:
        self._simulation = simulation
        self._node = node
        self._lateness = ResumeDelays(simulation)
        self.turn = self._counter(ChoiceKind.PREEMPT)
        self.gap = self._counter(ChoiceKind.PREEMPT_UNLOCKED)
        self.split = self._counter(ChoiceKind.PREEMPT_RELOCK)

    def _counter(self, kind: str):  # type: ignore[no-untyped-def]  # a function of nothing
        """A closure: it is called before every statement, and an attribute would cost as much as all the rest."""
        place, chance = choice_point(kind, self._node), DISTRIBUTIONS[kind]
        choose = self._simulation.choice_source.choose
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
            block, lost, loss = ordinal, loss, _NONE
            if rest:
                left, rest = rest, 0
            else:
                begin_block()
            if lost.at:
                lose(kind, block, lost)

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                come_due()

        begin_block()
        return count

    def _lose(self, kind: str, block: int, loss: Preemption) -> None:
        task, node = self._simulation.current, self._node
        if task.node is not node or not node.alive:
            return  # the tester looks at something of the peer's
        frame = sys._getframe(3)
        self.lose_at(kind, block, loss, Preempted(task.name, frame.f_code.co_filename, frame.f_lineno))

    def lose_at(self, kind: str, block: int, loss: Preemption, where: Preempted) -> None:
        simulation, node = self._simulation, self._node
        late_ns = self._lateness.of(kind, loss)
        simulation.emit(PREEMPT, node, msgspec.structs.replace(where, late_ns=late_ns), 0)
        simulation.preempt(late_ns)
        if late_ns and not node.delayed:
            simulation.emit(CAUGHT_UP, node, None, 0)
