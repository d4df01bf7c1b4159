"""Judges one mutant by the lab's tests, seed after seed, until one fails or the runs are used up; or by random runs,
until the time is up.

Promise: seeds are fixed, so results are reproducible, unless a time budget ends a measurement. Start at
`judge_by_tests()`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.outcome import Ending, Outcome
from raftlab.harness.run import run_test
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.generator.sequence import RunSequence
from tests.mutants.tool.mutants import BUILD, REFERENCE, Mutant, StaleMutant

PARTS = ("2a", "2b", "2c", "2d", "3a", "3b")
RATE_SEEDS = 20


@dataclass
class MutantResult:
    """The result for one mutant. `verdict`: caught, missed; for a correct peer passed, reported; or broken, stale."""

    id: str
    verdict: str
    by: str = ""  # a rule's name, a class of SimulationError, or "test: " and its name
    test: str = ""
    seed: int = 0
    runs: int = 0  # of the suite, including unfinished ones
    tests: int = 0  # single tests run
    skipped: int = 0  # of these
    seconds: float = 0.0  # of processor time
    failed_of: tuple[int, int] | None = None  # for a liveness mutant: seeds that fail, of how many
    line: str = ""

    @property
    def bad(self) -> bool:
        return self.verdict not in ("caught", "passed")


def suite_for(mutant: Mutant, tests: list[LabTest]) -> list[LabTest]:
    """Its own part first, then the others in order. For a service only the tests of services, for a peer all others."""
    tests = [test for test in tests if test.wants_service is mutant.of_service]
    parts = [mutant.part, *(part for part in (*PARTS, "") if part != mutant.part)]
    return sorted(tests, key=lambda test: parts.index(test.part))


def load_mutant(mutant: Mutant, build: Path, *, isolated: bool = False, race: bool = False) -> Any:
    """As launcher_for(). Services run on the reference peer, and locking bugs always with --race."""
    path = mutant.write(build)
    race = race or mutant.races
    if mutant.of_service:
        return launcher_for(REFERENCE / "raft.py", kv=path, isolated=isolated, race=race)
    return launcher_for(path, isolated=isolated, race=race)


def judge_by_tests(
    mutant: Mutant,
    tests: list[LabTest],
    *,
    runs: int,
    budget_s: float | None = None,
    first_seed: int = 0,
    build: Path = BUILD,
    measure_rate: bool = True,
    isolated: bool = False,
    race: bool = False,
) -> MutantResult:
    """Run the suite over seeds until a test fails."""
    # Processor time, so that load does not change the verdict.
    began_s = time.process_time()
    result = MutantResult(mutant.id, "passed" if mutant.correct else "missed")
    try:
        launcher = load_mutant(mutant, build, isolated=isolated, race=race)
    except StaleMutant as error:
        result.verdict, result.line = "stale", str(error)
        return result
    suite = suite_for(mutant, tests)
    for seed in range(first_seed, first_seed + runs):
        result.runs += 1
        for test in suite:
            if budget_s is not None and time.process_time() - began_s > budget_s:
                result.line = f"the budget of {budget_s:g} s is used up"
                result.seconds = time.process_time() - began_s
                return result
            result.tests += 1
            run = run_test(test, launcher, seed)
            if run.outcome().skipped:
                result.skipped += 1
            elif run.error is not None:
                result.verdict = "reported" if mutant.correct else "caught"
                result.by, result.line = classify(run.outcome(), test.name)
                result.test, result.seed = test.name, seed
                result.seconds = time.process_time() - began_s
                if mutant.liveness and measure_rate:
                    own_part = [other for other in suite if other.part == mutant.part and other is not test]
                    result.failed_of = _rate([test, *own_part], launcher, first_seed)
                return result
    result.seconds = time.process_time() - began_s
    return result


def judge_by_fuzzing(
    mutant: Mutant,
    _tests: list[LabTest],
    *,
    budget_s: float,
    build: Path = BUILD,
    isolated: bool = False,
    race: bool = False,
    **_of_tests: Any,
) -> MutantResult:
    """Like `lab fuzz` with seed 0 and one worker."""
    began_s = time.process_time()
    result = MutantResult(mutant.id, "passed" if mutant.correct else "missed")
    launcher = load_mutant(mutant, build, isolated=isolated, race=race)
    sequence = RunSequence(launcher, 0, 0, race=race)
    while True:
        _, _, run = sequence.run()
        result.tests += 1
        outcome = run.outcome()
        if outcome.failed:
            # There is no test, so an exception outside the peer is a bug of the lab.
            caught = "reported" if mutant.correct else "caught"
            result.verdict = "broken" if outcome.ending is Ending.TEST else caught
            result.by, result.line = classify(outcome, "lab fuzz")
            break
        if time.process_time() - began_s > budget_s:
            break
    result.seconds = time.process_time() - began_s
    return result


def _rate(tests: list[LabTest], launcher: PeerLauncher, first_seed: int) -> tuple[int, int]:
    """The number of seeds with which at least one of the tests fails."""
    failed = 0
    for seed in range(first_seed, first_seed + RATE_SEEDS):
        failed += any(run_test(test, launcher, seed).error is not None for test in tests)
    return failed, RATE_SEEDS


def classify(outcome: Outcome, test: str) -> tuple[str, str]:
    """What caught it, and the first line of the failure."""
    return outcome.caught_by or f"test: {test}", outcome.text
