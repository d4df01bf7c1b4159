"""Runs of the reference in each mode, on all cores, and one run event by event."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

from labsim import Event, Simulation
from raftlab.harness.determinism import describe
from raftlab.harness.lab_test import LabTest
from raftlab.harness.options import DEFAULT, DEFAULT_KV
from raftlab.harness.run import run_test
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.selection import default_files, load_tests, scenario_files

DIGEST_CHARS = 16


@cache
def all_tests() -> dict[str, LabTest]:
    files = [*default_files(), *scenario_files()]
    return {test.name: test for file in files for test in load_tests(file)}


@cache
def _peer(mode: str) -> Any:
    return launcher_for(DEFAULT, isolated=mode == "isolated", race=mode == "race", kv=DEFAULT_KV)


def digest_of(run: tuple[str, int, str]) -> str:
    """Of (test, seed, mode). RuntimeError if the reference fails."""
    test, seed, mode = run
    run_result = run_test(all_tests()[test], _peer(mode), seed)
    if run_result.error is not None:
        raise RuntimeError(f"{test} with seed {seed}, {mode}: the reference fails") from run_result.error
    return run_result.digest[:DIGEST_CHARS]


def digests_of(runs: Sequence[tuple[str, int, str]], jobs: int) -> Iterator[str]:
    """In the given order, in `jobs` processes."""
    if jobs == 1:
        yield from map(digest_of, runs)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            yield from pool.map(digest_of, runs, chunksize=4)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _DigestRecorder(Simulation):
    """Records the digest up to each event."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, unresponsive_s=None)
        self.noted: list[list[Any]] = []

    def emit(self, kind: str, node: Any, detail: Any, fingerprint: int, message: int = 0, note: str = "") -> None:
        super().emit(kind, node, detail, fingerprint, message, note)
        event = Event(self.now_ns, kind, "" if node is None else node.name, 0, message, detail, note)
        self.noted.append([self.digest(), self.now_ns, kind, event.node, fingerprint, describe(event)])


def events_of(test: str, seed: int, mode: str) -> list[list[Any]]:
    """For each event: the digest up to it, time, kind, node, fingerprint and text."""
    # Only here, so that ordinary runs have no cost.
    simulation = _DigestRecorder(seed)
    run = run_test(all_tests()[test], _peer(mode), seed, simulation=simulation)
    if run.error is not None:
        print(f"{test} with seed {seed}, {mode}: {run.error}", file=sys.stderr)
    return simulation.noted
