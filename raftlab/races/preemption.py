"""Preempts threads between statements. Each preemption is a choice.

The statements of an incarnation are counted in blocks. For each block the choice source is asked once:
choose(("preempt", node, incarnation), number of the block, distribution). The answer is a `Preemption`: a statement
of the block, and a delay. The default is none. Preemptions are more frequent right after a lock is released ("preempt
unlocked"), and most frequent and longest if the thread takes a lock again at once ("preempt relock"): what it read in
the first critical section may have changed before the second.

A preemption without a delay costs no time: another ready thread runs first. A delay models a busy machine, so it does
not count as time of the peer (Simulation.preempt). Delays are rare: each is followed by a time without delays.

Start at `Preempter`.
"""

from __future__ import annotations

import sys

import msgspec

from labsim import Node, Simulation
from labsim.choices import ChoiceKind, ChoicePoint, next_bits
from raftlab.trace.events import CAUGHT_UP, PREEMPT, Preempted

STATEMENTS_PER_BLOCK = 64
UNLOCKS_PER_BLOCK = 4
# After a delay, no further delay for this many times its length: less after an unlock, where it blocks no other thread.
UNDELAYED_FACTOR: dict[str, int] = {
    ChoiceKind.PREEMPT: 20,
    ChoiceKind.PREEMPT_UNLOCKED: 4,
    ChoiceKind.PREEMPT_RELOCK: 1,
}
_MS = 1_000_000


class Preemption(msgspec.Struct, frozen=True):
    """`at`: the position in its block, from 1; 0: no preemption."""

    at: int = 0
    late_ns: int = 0


_NONE = Preemption()


class PreemptionDistribution(msgspec.Struct, frozen=True):
    """`preempted_of_64` blocks of 64 have a preemption; of these, `delayed_of_64` of 64 have a delay."""

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
        # At least 1 ms, log-uniform: as many between 1 and 2 ms as between 30 and 60.
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
    """The choice point of these choices."""
    return (kind, node.name, str(node.incarnation))


class ResumeDelays:
    """Decides how long preempted threads of one incarnation are delayed."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._next_ns = dict.fromkeys(UNDELAYED_FACTOR, 0)

    def delay_ns(self, kind: str, preemption: Preemption) -> int:
        """The delay; 0 if delays are not allowed now."""
        now_ns = self._simulation.now_ns
        if not preemption.late_ns or now_ns < self._next_ns[kind] or self._simulation.no_delays:
            return 0
        self._next_ns[kind] = now_ns + (UNDELAYED_FACTOR[kind] + 1) * preemption.late_ns
        return preemption.late_ns


class Preempter:
    """Preempts the threads of one incarnation. Rewritten code calls `statement`, `unlocked` and `relock`."""

    def __init__(self, simulation: Simulation, node: Node) -> None:
        self._simulation = simulation
        self._node = node
        self._delays = ResumeDelays(simulation)
        self.statement = self._counter(ChoiceKind.PREEMPT)
        self.unlocked = self._counter(ChoiceKind.PREEMPT_UNLOCKED)
        self.relock = self._counter(ChoiceKind.PREEMPT_RELOCK)

    def _counter(self, kind: str):  # type: ignore[no-untyped-def]  # a function without arguments
        """A closure, for speed: it is called before every statement."""
        point, distribution = choice_point(kind, self._node), DISTRIBUTIONS[kind]
        choose = self._simulation.choice_source.choose
        remaining = 1  # until the next preemption or the next block
        after = 0  # of the block, after the preemption
        preemption = _NONE
        ordinal = 0
        preempt = self._preempt

        def begin_block() -> None:
            nonlocal remaining, after, preemption, ordinal
            ordinal += 1
            preemption = choose(point, ordinal, distribution)
            # A choice file may have any number.
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
            return  # the tester reads something of the peer
        frame = sys._getframe(3)
        self.preempt_at(kind, block, preemption, Preempted(task.name, frame.f_code.co_filename, frame.f_lineno))

    def preempt_at(self, kind: str, block: int, preemption: Preemption, where: Preempted) -> None:
        simulation, node = self._simulation, self._node
        late_ns = self._delays.delay_ns(kind, preemption)
        simulation.emit(PREEMPT, node, msgspec.structs.replace(where, late_ns=late_ns), 0)
        simulation.preempt(late_ns)
        if late_ns and not node.delayed:
            simulation.emit(CAUGHT_UP, node, None, 0)
