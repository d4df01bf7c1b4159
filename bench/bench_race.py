"""The cost of --race: the whole suite for some seeds, without it, with preemption only, and with race detection.

A run with preemption differs from the run of the same seed without it, in virtual time too. The figures are
CPU seconds of the whole suite over a few seeds, and beside them CPU seconds for each virtual second.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.options import DEFAULT, DEFAULT_KV
from raftlab.harness.program import execute_program
from raftlab.harness.run import run_test
from raftlab.layout import PEER_FILES
from raftlab.races import RaceInstrumentation
from raftlab.tools.selection import select

_SEEDS = range(1, 4)
_KINDS = {"plain": None, "preempt": {"detect": False}, "race": {}}


def _run_s(test: LabTest, launcher: PeerLauncher, seed: int) -> tuple[float, float]:
    """(CPU seconds, virtual seconds) of one run, including garbage collection."""
    began_s = time.process_time()
    run = run_test(test, launcher, seed)
    assert run.error is None, run.error
    virtual_s = run.virtual_s
    del run
    gc.collect()
    return time.process_time() - began_s, virtual_s


def facts() -> Iterator[str]:
    tests = select([])
    cpu_s = dict.fromkeys(_KINDS, 0.0)
    virtual_s = dict.fromkeys(_KINDS, 0.0)
    labels = {"preempt": "preemption only", "race": "--race: preemption and race detection"}
    # A process has only one program loaded at a time, because modules have fixed names.
    for kind, how in _KINDS.items():
        race = None if how is None else RaceInstrumentation(PEER_FILES, **how)
        program = execute_program(DEFAULT.resolve(), DEFAULT_KV.resolve(), race)
        launcher = InProcessLauncher.of_program(program)
        gc.collect()
        gc.freeze()  # so that _run_s() collects only the garbage of its run
        for test in tests:
            for seed in _SEEDS:
                took_s, simulated_s = _run_s(test, launcher, seed)
                cpu_s[kind] += took_s
                virtual_s[kind] += simulated_s
        if kind == "plain":
            yield f"2A to 3B, seeds {_SEEDS[0]} to {_SEEDS[-1]}: {cpu_s['plain']:.1f} s of CPU without --race"
            continue
        times = cpu_s[kind] / cpu_s["plain"]
        each = times * virtual_s["plain"] / virtual_s[kind]
        yield f"{labels[kind]}: {times:.2f} times the CPU of plain runs ({each:.2f} times per virtual second)"
