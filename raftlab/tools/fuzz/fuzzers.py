"""The rounds of a fuzz run: each worker makes some runs of a sequence, then what they found is compared.

Promise: seed and number of workers decide what is found first, however fast each of them is. Start at
`Fuzzer.run()`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from raftlab.tools.common.interrupts import result_of
from raftlab.tools.fuzz.answers import Answer
from raftlab.tools.fuzz.minimizer import Find
from raftlab.tools.workers.pool import LocalPool
from raftlab.tools.workers.process import Lost

ROUND = 20  # runs of each worker, which is about a second
_ROUND_LIMIT_S = 600.0  # of real time; a run that hangs is ended by its own watchdog long before

_answer = msgspec.json.Decoder(Answer).decode


@dataclass
class WorkerDeath:
    """A worker's process went, or had to go, in one of these runs."""

    sequence: int
    runs: tuple[int, int]
    how: str
    output: str


@dataclass
class FuzzResult:
    """What the fuzzer has come to so far."""

    runs: int = 0
    steps: int = 0
    seconds: float = 0.0  # that the busiest worker has run, as Answer has them
    checks_off: list[str] = field(default_factory=list)
    found: Find | None = None
    died: WorkerDeath | None = None
    ours: str = ""  # the lab's own failure

    @property
    def over(self) -> bool:
        return self.found is not None or self.died is not None or bool(self.ours)


class Fuzzer:
    """Makes rounds of requests, one for each sequence, as long as nothing is found."""

    def __init__(self, pool: LocalPool) -> None:
        self._pool = pool
        self._made = 0  # runs of each sequence
        self._seconds = [0.0] * pool.slots

    def run(self, result: FuzzResult, *, for_s: float | None, runs: int | None, watch: Callable[[], None]) -> None:
        """Until something is found, each sequence has run for so long or so many runs are made in all."""
        while not result.over:
            left = None if runs is None else runs - result.runs
            if (for_s is not None and result.seconds >= for_s) or (left is not None and left <= 0):
                return
            self._round(result, left)
            watch()

    def _round(self, result: FuzzResult, left: int | None) -> None:
        sequences = range(self._pool.slots)
        size = ROUND if left is None else min(ROUND, max(1, -(-left // len(sequences))))
        before, self._made = self._made, self._made + size
        requests = [json.dumps({"sequence": n, "after": before, "up_to": self._made}).encode() for n in sequences]
        asked = [self._pool.ask([request], _ROUND_LIMIT_S) for request in requests]
        finds: list[Find] = []
        for sequence, future in enumerate(asked):
            (line,) = result_of(future)
            if isinstance(line, Lost) and not line.late:
                # Something else may have ended it. If one of its runs did, that comes again.
                (line,) = result_of(self._pool.ask([requests[sequence]], _ROUND_LIMIT_S))
            if isinstance(line, Lost):
                result.died = result.died or WorkerDeath(sequence, (before + 1, self._made), line.how, line.output)
                continue
            answer = _answer(line)
            result.runs += answer.runs
            result.steps += answer.steps
            self._seconds[sequence] += answer.seconds
            result.checks_off = result.checks_off or answer.checks_off
            result.ours = result.ours or answer.ours
            finds += [answer.found] if answer.found is not None else []
        result.seconds = max(self._seconds)
        result.found = first(finds)


def first(finds: Sequence[Find]) -> Find | None:
    """The one that took the fewest runs; of these, of the first sequence."""
    return min(finds, key=lambda find: (find.run, find.sequence), default=None)
