"""What the lab costs: the whole suite for one seed, and what tracing and checking add to it."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

from labsim import Simulation
from labtest.checks import CheckedTrace
from labtest.loading import DEFAULT, load_peer_class
from labtest.running import run_test
from labtools.selecting import select
from labtools.timeline import print_timeline

_ROUNDS = 3
_SEED = 1


def _suite_s(tests: list[Any], peer_class: Any, kind: str) -> tuple[float, float]:
    """(CPU seconds, virtual seconds) of all tests for one seed."""
    began_s = time.process_time()
    virtual_s = 0.0
    for test in tests:
        simulation = Simulation(_SEED, trace=kind != "bare")
        if kind == "checked":
            simulation.trace = CheckedTrace(simulation)
        run = run_test(test.function, peer_class, _SEED, simulation=simulation)
        assert run.error is None, run.error
        virtual_s += run.virtual_s
    return time.process_time() - began_s, virtual_s


def facts() -> list[str]:
    tests = select([], [Path(f"tests/test_2{part}.py") for part in "abcd"])
    peer_class = load_peer_class(DEFAULT)
    best: dict[str, float] = {}
    for _ in range(_ROUNDS):
        for kind in ("bare", "traced", "checked"):
            cpu_s, virtual_s = _suite_s(tests, peer_class, kind)
            best[kind] = min(best.get(kind, cpu_s), cpu_s)
    long_run = next(test for test in tests if test.name == "test_figure8_unreliable_2c")
    trace = run_test(long_run.function, peer_class, _SEED).simulation.trace
    began_s = time.process_time()
    print_timeline(trace, file=io.StringIO(), width=120)
    return [
        f"the timeline of {len(trace):,} events: {time.process_time() - began_s:.2f} s of CPU",
        f"2A to 2D, one seed: {best['checked']:.2f} s of CPU for {virtual_s:.0f} virtual seconds, "
        f"{virtual_s / best['checked']:.0f} virtual seconds per CPU second",
        f"tracing and checking every event: {best['checked'] / best['bare']:.2f} times the bare suite "
        f"(tracing alone {best['traced'] / best['bare']:.2f})",
    ]
