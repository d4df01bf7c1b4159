"""Which runs are made, in what order, and when it is enough.

Tests advance together, whatever their length: the next batch is always of the test that is furthest behind.
Promise: every run counts once. A run that was under way when the campaign ended early does not count at all.

Start at `run_stress()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import count as count_from
from typing import Any

from raftlab.tools.common.interrupts import first_done
from raftlab.tools.stress.batch import SeedBatch
from raftlab.tools.stress.tally import Tally
from raftlab.tools.workers.pool import Pool, PoolLost
from raftlab.tools.workers.process import CannotStart, Lost

_BATCH_S = 0.25  # of work: long against the cost of a message, short for a person who watches
_BATCH_RUNS_MAX = 100


@dataclass(frozen=True)
class Plan:
    """When it is enough. With neither runs nor for_s it goes on until something fails or somebody stops it."""

    runs: int | None  # per test
    until_fail: bool = False
    for_s: float | None = None
    grow: bool = False

    def rounds(self) -> Iterator[int | None]:
        """How many runs of each test there shall have been at the end of each round."""
        if not self.grow:
            yield self.runs
            return
        for power in count_from(1):
            if self.runs is not None and 10**power >= self.runs:
                yield self.runs
                return
            yield 10**power


class _Issued:
    """Hands out each seed of each test once."""

    def __init__(self, tally: Tally, slots: int) -> None:
        self._tally = tally
        self._slots = slots
        self._next = dict.fromkeys(tally.tests, 0)

    def next_batch(self, wanted: int | None) -> SeedBatch | None:
        test = min(self._next, key=self._next.__getitem__)
        issued = self._next[test]
        left = _BATCH_RUNS_MAX if wanted is None else wanted - issued
        if left <= 0:
            return None
        size = min(left, self._size(test))
        if wanted is not None:
            # Towards the end smaller and smaller, so that all workers finish together.
            size = min(size, max(1, left * len(self._next) // (2 * self._slots)))
        self._next[test] += size
        first = self._tally.seed_start + issued
        return SeedBatch(test, list(range(first, first + size)))

    def _size(self, test: str) -> int:
        count = self._tally.counts[test]
        if not count.runs:
            return 1
        return max(1, min(_BATCH_RUNS_MAX, int(_BATCH_S * count.runs / max(count.real_s, 1e-6))))


def run_stress(pool: Pool, setup: Mapping[str, Any], plan: Plan, tally: Tally, watch: Callable[[], None]) -> None:
    """Fill in the tally until the plan is fulfilled, calling `watch` a few times a second and at the end.

    `setup`: what the workers were started with.
    KeyboardInterrupt comes through, CannotStart and PoolLost too; the tally is right in any case.
    """
    tally.for_s = plan.for_s
    issued = _Issued(tally, pool.slots)
    try:
        for wanted in plan.rounds():
            tally.wanted = wanted
            if not _round(pool, setup, plan, tally, issued, wanted, watch):
                return
            if plan.grow and tally.found:
                tally.ended = "after the round that found a failure"
                return
    finally:
        tally.ended_s = time.monotonic()
        watch()


def _round(
    pool: Pool,
    setup: Mapping[str, Any],
    plan: Plan,
    tally: Tally,
    issued: _Issued,
    wanted: int | None,
    watch: Callable[[], None],
) -> bool:
    """True when all its runs have been made, False when the plan says that it is enough before."""
    pending: dict[Future[list[bytes | Lost]], SeedBatch] = {}
    try:
        while True:
            while len(pending) < 2 * pool.slots and (batch := issued.next_batch(wanted)) is not None:
                pending[pool.ask(batch.requests, setup["run_limit_s"])] = batch
            if not pending:
                return True
            for future in first_done(pending):
                tally.add(pending.pop(future).outcomes(_answers(future), setup))
            watch()
            if plan.until_fail and tally.found:
                tally.ended = "at the first failure (--until-fail)"
                return False
            if plan.for_s is not None and tally.elapsed_s >= plan.for_s:
                tally.ended = "at the time limit (--for)"
                return False
    finally:
        for future in pending:
            future.cancel()


def _answers(future: Future[list[bytes | Lost]]) -> list[bytes | Lost]:
    try:
        return future.result()
    except (CannotStart, PoolLost):
        raise
    except (Exception, CancelledError) as error:
        raise PoolLost(f"the workers were lost: {type(error).__name__}: {error}") from error
