"""Validates the tests before grading: the solution must pass each of them, with the seeds used for grading.

Promise: no submission is graded on a test that the solution does not pass by the rubric's pass rate and limits. A
validated test is not validated again until the lab, the solution, the test, its seeds or the limits change.

Not promised: a sandbox. Tests and solution are the instructor's own, and run in plain worker processes.

Start at `Validation`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from labsim.stacks import short_path
from raftlab.harness.outcome import Ending, Outcome
from raftlab.harness.records import files_of, files_of_service
from raftlab.tools.common.interrupts import first_done
from raftlab.tools.common.text import counted
from raftlab.tools.grade.grader import Assignment
from raftlab.tools.grade.values.rubric import GradedTest
from raftlab.tools.grade.values.store import write_whole
from raftlab.tools.stress.pool import LocalPool, SeedBatch
from raftlab.tools.workers.job_bundle import JobBundle
from raftlab.tools.workers.process import CannotStart

FILE = "validation.json"  # in OUT
_VERSION = 1
_TESTS_SHOWN_MAX = 5
_LINES_SHOWN_MAX = 14


class ValidationFailed(Exception):
    """A test or the solution is broken; the text names tests, seeds and the fix."""


class _Validated(msgspec.Struct, omit_defaults=True):
    key: str  # a digest of everything that affects its runs
    failed: list[int] = []  # seeds; no more than the pass rate allows


class _Record(msgspec.Struct):
    version: int
    tests: dict[str, _Validated]  # by name


class Validation:
    """One assignment against one solution. `record`: the file that records validated tests, if any."""

    def __init__(self, assignment: Assignment, solution: Path, service: Path, record: Path | None) -> None:
        """`service`: the solution's server.py, needed only if services are graded."""
        solution = solution / "raft.py" if solution.is_dir() else solution
        if not solution.is_file():
            raise ValidationFailed(f"{solution}: no such file; --solution must name a raft.py that passes every test")
        self._service = None
        if any(map(assignment.wants_service, assignment.tests)):
            self._service = service / "server.py" if service.is_dir() else service
            if not self._service.is_file():
                raise ValidationFailed(
                    f"{self._service}: no such file; --kv must name a server.py that passes 3A and 3B"
                )
        self.solution = short_path(str(solution.resolve()))
        self._assignment = assignment
        self._path = record
        self._record = _read(record)
        self._keys = _keys(assignment, solution, self._service)
        self.remaining = [test for test in assignment.tests if not self._is_validated(test)]
        self.runs_wanted = sum(len(test.seeds) for test in self.remaining)
        self.runs_made = 0

    def run(self, jobs: int, watch: Callable[[], None]) -> None:
        """Make the remaining runs, calling `watch` regularly. ValidationFailed if the solution fails a test."""
        failed_runs: dict[str, list[Outcome]] = {test.name: [] for test in self.remaining}
        for race in (False, True):
            if remaining := [test for test in self.remaining if test.race is race]:
                self._make(remaining, failed_runs, jobs, watch, race=race)
        broken = {test.name: failed_runs[test.name] for test in self.remaining if not self._is_validated(test)}
        if broken:
            raise ValidationFailed(self._refusal(broken))

    def _make(
        self,
        tests_left: list[GradedTest],
        failed_runs: dict[str, list[Outcome]],
        jobs: int,
        watch: Callable[[], None],
        *,
        race: bool,
    ) -> None:
        limits = self._assignment.limits
        tests = [self._assignment.files[test.name] for test in tests_left]
        try:
            bundle = JobBundle.of(
                Path(self.solution),
                tests,
                kv=self._service,
                run_limit_s=limits.real_s,
                memory_mb=limits.memory_mb,
                given={"race": race},
                in_place=True,
            )
            pool = LocalPool(bundle, min(jobs, self.runs_wanted))
        except CannotStart as error:
            raise ValidationFailed(f"{error}\n{_USE_ANOTHER}") from None
        try:
            # Hidden tests first: their author may be waiting.
            order = sorted(tests_left, key=lambda test: not test.hidden)
            pending = {pool.submit(SeedBatch(test.of, [seed])): test for test in order for seed in test.seeds}
            remaining = {test.name: len(test.seeds) for test in order}
            while pending:
                done = first_done(pending)
                for test, outcome in [(pending.pop(future), _outcome(future)) for future in done]:
                    self.runs_made += 1
                    remaining[test.name] -= 1
                    if self._reason_failed(outcome):
                        failed_runs[test.name].append(outcome)
                    if len(failed_runs[test.name]) > test.failures_allowed:
                        # The test has failed; its other runs may never end.
                        rest = [future for future, other in pending.items() if other is test and future.cancel()]
                        self.runs_made += len(rest)
                        for future in rest:
                            del pending[future]
                    elif not remaining[test.name]:
                        seeds = sorted(outcome.seed for outcome in failed_runs[test.name])
                        self._record.tests[test.name] = _Validated(self._keys[test.name], seeds)
                watch()
        except CannotStart as error:
            raise ValidationFailed(f"{error}\n{_USE_ANOTHER}") from None
        finally:
            pool.shutdown()
            if self._path is not None:
                # In a fixed order, whichever test was validated first.
                record = msgspec.json.encode(self._record, order="deterministic")
                write_whole(self._path, msgspec.json.format(record, indent=1) + b"\n")

    @property
    def remarks(self) -> list[str]:
        """Failures of the solution that the pass rate allows."""
        return [
            f"{test.name} fails on {self.solution} with seed {', '.join(map(str, found))}, which its pass_rate allows"
            for test in self._assignment.tests
            if (found := self._record.tests[test.name].failed)
        ]

    def _is_validated(self, test: GradedTest) -> bool:
        validated = self._record.tests.get(test.name)
        return (
            validated is not None
            and validated.key == self._keys[test.name]
            and len(validated.failed) <= test.failures_allowed
        )

    def _reason_failed(self, outcome: Outcome) -> str:
        """Why a run of the solution does not pass, for the error message; "" if it passes."""
        limits = self._assignment.limits
        heading = f"{outcome.test}  seed {outcome.seed}"
        if outcome.skipped:
            return f"{heading}\n  The solution skips this test, but must pass it"
        if outcome.ending is Ending.UNVERIFIED and not all(test.unverified_share for test in self._assignment.tests):
            return f"{heading}\n  {outcome.unverified[0]}, or let the rubric allow such messages (checks.undecodable)"
        if outcome.failed:
            return "\n".join(outcome.report.splitlines()[:_LINES_SHOWN_MAX])
        if outcome.cpu_s > limits.cpu_s:
            return (
                f"{heading}\n  It took {outcome.cpu_s:.1f} s of processor time; the limit is {limits.cpu_s} s. "
                "Shorten the test, or raise limits.cpu_s in the rubric"
            )
        return ""

    def _refusal(self, broken: dict[str, list[Outcome]]) -> str:
        many = (
            f"{len(broken)} of {counted(len(self._assignment.tests), 'test')} {'fails' if len(broken) == 1 else 'fail'}"
        )
        lines = [f"{many} on {self.solution}. The solution must pass every test, so no submission was graded:"]
        for outcomes in list(broken.values())[:_TESTS_SHOWN_MAX]:
            first = min(outcomes, key=lambda outcome: outcome.seed)
            lines += ["", *(f"  {line}".rstrip() for line in self._reason_failed(first).splitlines())]
        if len(broken) > _TESTS_SHOWN_MAX:
            lines += ["", f"  and {', '.join(list(broken)[_TESTS_SHOWN_MAX:])}"]
        return "\n".join([*lines, "", f"Fix the tests. {_USE_ANOTHER}"])


_USE_ANOTHER = (
    "If the solution is incorrect, name a correct one with --solution PATH (make: SOLUTION=path), and its service with "
    "--kv PATH (make: KV=path)"
)


def _outcome(future: Future[list[Outcome]]) -> Outcome:
    (outcome,) = future.result()
    return outcome


def _keys(assignment: Assignment, solution: Path, service: Path | None) -> dict[str, str]:
    """By test, a digest of everything that affects its runs here."""
    everything = hashlib.blake2b(assignment.lab_code.encode(), digest_size=16)
    for file in [*files_of(solution), *(files_of_service(service) if service is not None else [])]:
        content = file.read_bytes()
        everything.update(f"{file.name} {len(content)} ".encode() + content)
    keys = {}
    for test in assignment.tests:
        one = everything.copy()
        one.update(msgspec.json.encode(test.seeds))
        one.update(assignment.files[test.name].file.read_bytes())
        keys[test.name] = one.hexdigest()
    return keys


def _read(file: Path | None) -> _Record:
    """The recorded tests; none if the file cannot be read."""
    try:
        found = None if file is None else msgspec.json.decode(file.read_bytes(), type=_Record)
    except (OSError, msgspec.MsgspecError):
        found = None
    return _Record(_VERSION, {}) if found is None or found.version != _VERSION else found
