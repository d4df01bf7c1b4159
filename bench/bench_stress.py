"""The cost of a run in `lab stress` compared with the bare simulation, and the gain from a second worker.

measure() returns the figures; run this file to print them. Rounds alternate and the best of each counts, because the
machine may be busy. The workers are warm: starting one takes about a third of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raftlab.harness.lab_test import LabTest
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT
from raftlab.tools.selection import select
from raftlab.tools.stress.batch import SeedBatch
from raftlab.tools.stress.stress_run import Plan, run_stress
from raftlab.tools.stress.tally import Tally
from raftlab.tools.workers.job_bundle import JobBundle
from raftlab.tools.workers.pool import LocalPool

# A short run, which shows all overhead, and a long one.
_TESTS = (("test_basic_agree_2b", 100), ("test_figure8_2c", 4))
_ROUNDS = 5


def _bare(test: LabTest, runs: int) -> Callable[[], None]:
    launcher = load_peer(DEFAULT)
    from raftlab.harness.run import run_test

    def loop() -> None:
        for seed in range(runs):
            assert run_test(test, launcher, seed).error is None

    return loop


def _stressed(test: LabTest, runs: int, setup: dict[str, Any], pool: LocalPool) -> Callable[[], None]:
    for future in [pool.ask(SeedBatch(test.name, [0]).requests, 60) for _ in range(4 * pool.slots)]:
        future.result()  # start and warm up every worker

    def campaign() -> None:
        tally = Tally([test.name], 0)
        run_stress(pool, setup, Plan(runs), tally, lambda: None)
        assert tally.total.passed == runs

    return campaign


def _best_us(runs: int, *works: Callable[[], None]) -> list[float]:
    best = [float("inf")] * len(works)
    for _ in range(_ROUNDS):
        for number, work in enumerate(works):
            began_s = time.perf_counter()
            work()
            best[number] = min(best[number], (time.perf_counter() - began_s) / runs * 1e6)
    return best


def measure() -> list[dict[str, Any]]:
    figures = []
    for name, runs in _TESTS:
        (test,) = select([name])
        bundle = JobBundle.of(Path(DEFAULT), [test], run_limit_s=60, memory_mb=2048)
        one, two = (LocalPool("raftlab.tools.stress.worker", bundle.setup, jobs, files=bundle.files) for jobs in (1, 2))
        try:
            bare_us, one_us, two_us = _best_us(
                runs,
                _bare(test, runs),
                _stressed(test, runs, bundle.setup, one),
                _stressed(test, runs, bundle.setup, two),
            )
        finally:
            one.shutdown()
            two.shutdown()
        figures += [
            {
                "name": f"a run of {name} in lab stress",
                "ours_us": one_us,
                "baseline_us": bare_us,
                "baseline": "run_test() in a loop",
            },
            {
                "name": f"a run of {name} with two workers",
                "ours_us": two_us,
                "baseline_us": one_us,
                "baseline": "with one worker",
            },
        ]
    return figures


if __name__ == "__main__":
    for figure in measure():
        ratio = figure["ours_us"] / figure["baseline_us"]
        print(f"{figure['name']:<52}{figure['ours_us']:>10.0f} us  {ratio:5.2f} x {figure['baseline']}")
