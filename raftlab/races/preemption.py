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
    preempted_of_64: int
    delayed_of_64: int
    delay_ms_max: int = 60

    @property
    def default(self) -> Preemption:
        return _NONE

    def sample(self, bits: int) -> Preemption:
        if bits >> 58 >= self.preempted_of_64:
            return _NONE
        bits = next_bits(bits)
        at = 1 + (self.block * (bits >> 32) >> 32)
        bits = next_bits(bits)
        if bits >> 58 >= self.delayed_of_64:
            return Preemption(at)
        # At least 1 ms, and as many between 1 and 2 ms as between 30 and 60.
        return Preemption(at, int(_MS * self.delay_ms_max ** ((next_bits(bits) >> 32) / 2**32)))


STATEMENTS = PreemptionDistribution(STATEMENTS_PER_BLOCK, preempted_of_64=48, delayed_of_64=8)
AFTER_UNLOCK = PreemptionDistribution(UNLOCKS_PER_BLOCK, preempted_of_64=32, delayed_of_64=48)


BEFORE_RELOCK = PreemptionDistribution(2, preempted_of_64=48, delayed_of_64=64, delay_ms_max=1000)
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

    def delay_ns(self, kind: str, preemption: Preemption) -> int:
        """In ns; 0 where it may not be late now."""
        now_ns = self._simulation.now_ns
        if not preemption.late_ns or now_ns < self._next_ns[kind] or self._simulation.no_delays:
            return 0
        self._next_ns[kind] = now_ns + (UNDELAYED_FACTOR[kind] + 1) * preemption.late_ns
        return preemption.late_ns


class Preempter:
    """Of one incarnation of a node: what its rewritten code calls between statements, and in gaps."""

    def __init__(self, simulation: Simulation, node: Node) -> None:
        self._simulation = simulation
        self._node = node
        self._delays = ResumeDelays(simulation)
        self.statement = self._counter(ChoiceKind.PREEMPT)
        self.unlocked = self._counter(ChoiceKind.PREEMPT_UNLOCKED)
        self.relock = self._counter(ChoiceKind.PREEMPT_RELOCK)

    def _counter(self, kind: str):  # type: ignore[no-untyped-def]  # a function of nothing
        """A closure: it is called before every statement, and an attribute would cost as much as all the rest."""
        point, distribution = choice_point(kind, self._node), DISTRIBUTIONS[kind]
        choose = self._simulation.choice_source.choose
        remaining = 1  # until the next loss, or the next block
        after = 0  # of the block, after the loss
        preemption = _NONE
        ordinal = 0
        preempt = self._preempt

        def begin_block() -> None:
            nonlocal remaining, after, preemption, ordinal
            ordinal += 1
            preemption = choose(point, ordinal, distribution)
            # Written by hand, it may be anything.
            at = preemption.at if 0 < preemption.at <= distribution.block else 0
            remaining, after = (at, distribution.block - at) if at else (distribution.block, 0)

        def on_due() -> None:
            nonlocal remaining, after, preemption
            block, due, preemption = ordinal, preemption, _NONE
            if after:
                remaining, after = after, 0
            else:
                begin_block()
            if due.at:
                preempt(kind, block, due)

        def count() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                on_due()

        begin_block()
        return count

    def _preempt(self, kind: str, block: int, preemption: Preemption) -> None:
        task, node = self._simulation.current, self._node
        if task.node is not node or not node.alive:
            return  # the tester looks at something of the peer's
        frame = sys._getframe(3)
        self.preempt_at(kind, block, preemption, Preempted(task.name, frame.f_code.co_filename, frame.f_lineno))

    def preempt_at(self, kind: str, block: int, preemption: Preemption, where: Preempted) -> None:
        simulation, node = self._simulation, self._node
        late_ns = self._delays.delay_ns(kind, preemption)
        simulation.emit(PREEMPT, node, msgspec.structs.replace(where, late_ns=late_ns), 0)
        simulation.preempt(late_ns)
        if late_ns and not node.delayed:
            simulation.emit(CAUGHT_UP, node, None, 0)
