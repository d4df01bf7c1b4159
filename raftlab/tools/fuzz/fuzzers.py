"""The processes of a fuzz run, in rounds: each makes some runs of its lane, then all have a look at what was found.

Promise: seed and number of workers decide what is found first, however fast each of them is. Start at
`FuzzWorkers.run()`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from raftlab.layout import ROOT
from raftlab.tools.common.interrupts import defer_interrupts, result_of
from raftlab.tools.fuzz.answers import Answer
from raftlab.tools.fuzz.minimizer import Find
from raftlab.tools.workers.process import Lost, WorkerProcess, python_worker

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


class FuzzWorkers:
    def __init__(self, setup: dict[str, Any], folder: Path, jobs: int) -> None:
        """Raises CannotStart if the peer cannot be loaded."""
        self._workers = [
            WorkerProcess(lambda: python_worker("raftlab.tools.fuzz.worker", setup, folder=folder, lab=ROOT))
            for _ in range(jobs)
        ]
        self._made = 0  # runs of each lane; a worker has one
        self._seconds = [0.0] * jobs
        try:
            # One alone: what cannot be loaded is said once.
            self._workers[0].start()
        except BaseException:
            self.close()
            raise

    def run(self, result: FuzzResult, *, for_s: float | None, runs: int | None, watch: Callable[[], None]) -> None:
        """Until something is found, each worker has run for so long or so many runs are made in all."""
        with ThreadPoolExecutor(len(self._workers)) as threads:
            try:
                while not result.over:
                    left = None if runs is None else runs - result.runs
                    if (for_s is not None and result.seconds >= for_s) or (left is not None and left <= 0):
                        return
                    self._round(result, threads, left)
                    watch()
            finally:
                self.close()  # or the threads would wait for their answers

    def _round(self, result: FuzzResult, threads: ThreadPoolExecutor, left: int | None) -> None:
        workers = self._workers
        size = ROUND if left is None else min(ROUND, max(1, -(-left // len(workers))))
        before, self._made = self._made, self._made + size
        requests = [
            json.dumps({"sequence": sequence, "after": before, "up_to": self._made}).encode()
            for sequence in range(len(workers))
        ]
        with defer_interrupts():
            asked = [threads.submit(w.ask, [r], _ROUND_LIMIT_S) for w, r in zip(workers, requests, strict=True)]
        finds: list[Find] = []
        for sequence, future in enumerate(asked):
            (line,) = result_of(future)
            if isinstance(line, Lost) and not line.late:
                # Somebody may have ended it. If it was one of its runs, that comes again.
                (line,) = workers[sequence].ask([requests[sequence]], _ROUND_LIMIT_S)
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

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.fresh()


def first(finds: Sequence[Find]) -> Find | None:
    """The one that took the fewest runs; of these, of the first lane."""
    return min(finds, key=lambda find: (find.run, find.sequence), default=None)
