"""The cost of the lab: the whole suite for one seed, the share of tracing and checking, and the latency of make."""

from __future__ import annotations

import gc
import io
import math
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from labsim import Simulation
from labsim.choices import SeededSource, TesterStream
from raftlab.harness.lab_test import LabTest
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT
from raftlab.harness.run import run_test
from raftlab.sandbox import confinement
from raftlab.sandbox.launcher import load_sandboxed
from raftlab.tools.selection import select
from raftlab.tools.timeline.command import print_timeline

# Memory layout makes one process faster than another, so several are measured.
_PROCESSES = 3
_ROUNDS = 3
_SEED = 1
_KINDS = ("bare", "traced", "checked")


def _tests() -> list[LabTest]:
    return select([], [Path(f"tests/test_2{part}.py") for part in "abcd"])


def _run_s(test: LabTest, launcher: Any, kind: str) -> tuple[float, float]:
    """(CPU seconds, virtual seconds) of one test for one seed, including garbage collection."""
    simulation = Simulation(_SEED, trace=kind != "bare")
    began_s = time.process_time()
    run = run_test(test, launcher, _SEED, simulation=simulation, checked=kind == "checked")
    assert run.error is None, run.error
    virtual_s = run.virtual_s
    del run, simulation
    gc.collect()
    return time.process_time() - began_s, virtual_s


def _suite_s() -> tuple[dict[str, float], float]:
    """CPU seconds of the whole suite by kind, and its virtual seconds. Called in a separate process."""
    launcher = load_peer(DEFAULT)
    tests = _tests()
    gc.collect()
    gc.freeze()  # so that _run_s() collects only the garbage of its run
    suite_s = dict.fromkeys(_KINDS, 0.0)
    virtual_s = 0.0
    # Test by test, the three kinds in turn, the best of each, so that other load affects all kinds alike.
    for test in tests:
        took_s = dict.fromkeys(_KINDS, math.inf)
        for _ in range(_ROUNDS):
            for kind in _KINDS:
                cpu_s, simulated_s = _run_s(test, launcher, kind)
                took_s[kind] = min(took_s[kind], cpu_s)
        for kind in _KINDS:
            suite_s[kind] += took_s[kind]
        virtual_s += simulated_s
    return suite_s, virtual_s


def _make_s(*arguments: str) -> float:
    """Real seconds that a make command takes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "JOBS"))}
    began_s = time.perf_counter()
    subprocess.run(["make", *arguments, f"SEED={_SEED}"], env=environment, check=True, capture_output=True)
    return time.perf_counter() - began_s


def _make_latency(*arguments: str) -> str:
    """Whether make uses worker processes only where they pay: the default, compared with one process."""
    as_typed_s = one_process_s = math.inf
    for _ in range(_ROUNDS):
        as_typed_s = min(as_typed_s, _make_s(*arguments))
        one_process_s = min(one_process_s, _make_s(*arguments, "JOBS=1"))
    return (
        f"make {' '.join(arguments)}: {as_typed_s:.1f} s, {as_typed_s / one_process_s:.2f} times one process (JOBS=1)"
    )


class _RecordingSource(SeededSource):
    """Records all its choices."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.distributions: list[tuple[Any, int, Any]] = []
        self.picks: list[tuple[int, range]] = []

    def pick(self, now_ns: int, tasks: Any) -> int:
        self.picks.append((now_ns, range(len(tasks))))
        return super().pick(now_ns, tasks)

    def choose(self, point: Any, ordinal: int, distribution: Any) -> Any:
        self.distributions.append((point, ordinal, distribution))
        return super().choose(point, ordinal, distribution)


def _choice_cost(suite_s: float) -> str:
    """The cost of all choices of the suite, with keys and from one stream without keys."""
    launcher = load_peer(DEFAULT)
    keyed_s = plain_s = 0.0
    choices = 0
    for test in _tests():
        asked = _RecordingSource(_SEED)
        run_test(test, launcher, _SEED, choice_source=asked)
        choices += len(asked.distributions) + len(asked.picks)
        seeded, stream = SeededSource(_SEED), random.Random(_SEED)
        tester = TesterStream(SeededSource(_SEED))
        others = [ask for ask in asked.distributions if ask[0][0] != "tester"]
        draws = len(asked.distributions) - len(others)
        began_s = time.process_time()
        for now_ns, tasks in asked.picks:
            seeded.pick(now_ns, tasks)
        for point, ordinal, distribution in others:
            seeded.choose(point, ordinal, distribution)
        frame = sys._getframe()
        for _ in range(draws):
            tester.begin_draw(frame)
        keyed_s += time.process_time() - began_s
        began_s = time.process_time()
        for _, tasks in asked.picks:
            int(stream.random() * len(tasks))
        for _, _, distribution in others:
            distribution.sample(stream.getrandbits(64))
        for _ in range(draws):
            stream.getrandbits(64)
        plain_s += time.process_time() - began_s
    return (
        f"{choices:,} choices take {keyed_s * 1000:.0f} ms with keys and {plain_s * 1000:.0f} ms without keys: "
        f"keys take {100 * (keyed_s - plain_s) / suite_s:.1f} % of the suite's time"
    )


def _isolated_s() -> tuple[float, float]:
    """CPU seconds of the suite, sandboxed (with all peer processes) and in one process; test by test, in turn.

    Called in a separate process without other children. Without bubblewrap, which does not wait for its child, so the
    time of the peers would be unknown. It only wraps the fork server and costs a run nothing.
    """
    confinement.bubblewrap, confinement.sandbox_uid = lambda: None, lambda: 0  # type: ignore[assignment]  # for this process
    here, there = load_peer(DEFAULT), load_sandboxed(DEFAULT)
    one_process_s = isolated_s = 0.0
    for test in _tests():
        for launcher in (here, there):
            began_s = time.process_time()
            assert run_test(test, launcher, _SEED).error is None
            took_s = time.process_time() - began_s
            if launcher is here:
                one_process_s += took_s
            else:
                isolated_s += took_s
    there.close()  # which ends the peer processes, so their time is known
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return isolated_s + children.ru_utime + children.ru_stime, one_process_s


def facts() -> list[str]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        results = [process.result() for process in [processes.submit(_suite_s) for _ in range(_PROCESSES)]]
        isolated = [process.result() for process in [processes.submit(_isolated_s) for _ in range(_PROCESSES)]]
    times = sorted(isolated_s / one_process_s for isolated_s, one_process_s in isolated)
    virtual_s = results[0][1]
    checked_s = median(suite_s["checked"] for suite_s, _ in results)
    ratios = {kind: sorted(suite_s[kind] / suite_s["bare"] for suite_s, _ in results) for kind in _KINDS}
    launcher = load_peer(DEFAULT)
    long_run = next(test for test in _tests() if test.name == "test_figure8_unreliable_2c")
    trace = run_test(long_run, launcher, _SEED).simulation.trace
    began_s = time.process_time()
    print_timeline(trace, file=io.StringIO(), width=120)
    return [
        _choice_cost(checked_s),
        _make_latency("test-2a"),
        _make_latency("test-2a", "RUNS=20"),
        f"the timeline of {len(trace):,} events: {time.process_time() - began_s:.2f} s of CPU",
        f"2A to 2D, one seed: {checked_s:.2f} s of CPU for {virtual_s:.0f} virtual seconds, "
        f"{virtual_s / checked_s:.0f} virtual seconds per CPU second",
        f"tracing and checking every event: {median(ratios['checked']):.2f} times the bare suite "
        f"({ratios['checked'][0]:.2f} to {ratios['checked'][-1]:.2f} in {_PROCESSES} processes; "
        f"tracing alone {median(ratios['traced']):.2f})",
        f"sandboxed peers: {median(times):.2f} times the CPU of one process "
        f"({times[0]:.2f} to {times[-1]:.2f} in {_PROCESSES} processes)",
    ]
