"""What the lab costs: the whole suite for one seed, and what tracing and checking add to it."""

from __future__ import annotations

import io
import math
import time
from pathlib import Path
from typing import Any

from labsim import Simulation
from labtest.checks import CheckedTrace
from labtest.loading import DEFAULT, load_peer_class
from labtest.running import run_test
from labtools.selecting import LabTest, select
from labtools.timeline import print_timeline

_ROUNDS = 8
_SEED = 1


_KINDS = ("bare", "traced", "checked")


def _run_s(test: LabTest, peer_class: Any, kind: str) -> tuple[float, float]:
    """(CPU seconds, virtual seconds) of one test for one seed."""
    simulation = Simulation(_SEED, trace=kind != "bare")
    if kind == "checked":
        simulation.trace = CheckedTrace(simulation)
    began_s = time.process_time()
    run = run_test(test.function, peer_class, _SEED, simulation=simulation)
    took_s = time.process_time() - began_s
    assert run.error is None, run.error
    return took_s, run.virtual_s


def facts() -> list[str]:
    tests = select([], [Path(f"tests/test_2{part}.py") for part in "abcd"])
    peer_class = load_peer_class(DEFAULT)
    best = dict.fromkeys(_KINDS, 0.0)
    virtual_s = 0.0
    # Test by test, the three kinds in turn, the best of each: what else this machine does then disturbs all alike.
    for test in tests:
        took_s = dict.fromkeys(_KINDS, math.inf)
        for _ in range(_ROUNDS):
            for kind in _KINDS:
                cpu_s, simulated_s = _run_s(test, peer_class, kind)
                took_s[kind] = min(took_s[kind], cpu_s)
        for kind in _KINDS:
            best[kind] += took_s[kind]
        virtual_s += simulated_s
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
