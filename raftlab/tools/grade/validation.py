"""Validates the tests before grading: the solution must pass each of them, with the seeds used for grading.

Promise: no submission is graded on a test that the solution does not pass by the rubric's pass rate and limits. A
validated test is not validated again until the lab, the solution, the test, its seeds or the limits change.

The runs are made as those of submissions: sandboxed, by the same worker, within the same limits.

Start at `Validation`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from labsim.stacks import short_path
from raftlab.harness.options import run_line
from raftlab.harness.outcome import Ending, Outcome
from raftlab.harness.records import files_of, files_of_service
from raftlab.layout import PEER, ROOT, SERVICE
from raftlab.tools.common.interrupts import first_done
from raftlab.tools.common.text import counted
from raftlab.tools.grade.grader import Assignment
from raftlab.tools.grade.runs.run_digest import FUZZ_TESTS
from raftlab.tools.grade.runs.run_worker import RunWorkerError, make_run, run_pool
from raftlab.tools.grade.runs.worker import RunRequest, RunSetup
from raftlab.tools.grade.values.rubric import FUZZ, GradedTest
from raftlab.tools.grade.values.store import write_whole
from raftlab.tools.workers.process import restore_paths

FILE = "validation.json"  # in OUT
_VERSION = 1
_TESTS_SHOWN_MAX = 5
_LINES_SHOWN_MAX = 14


class ValidationFailed(Exception):
    """A test or the solution is broken; the text names tests, seeds and the fix."""


class _Validated(msgspec.Struct, omit_defaults=True):
    key: str  # a digest of everything that affects its runs
    failed: list[int] = []  # seeds; no more than the pass rate allows


class _ValidationRecord(msgspec.Struct):
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
        self._files, self._shown_as = _files(solution, self._service)
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
        self._make(failed_runs, jobs, watch)
        broken = {test.name: failed_runs[test.name] for test in self.remaining if not self._is_validated(test)}
        if broken:
            raise ValidationFailed(self._refusal(broken))

    def _make(self, failed_runs: dict[str, list[Outcome]], jobs: int, watch: Callable[[], None]) -> None:
        pool = run_pool(min(jobs, self.runs_wanted))
        try:
            # Hidden tests first: their author may be waiting.
            order = sorted(self.remaining, key=lambda test: not test.hidden)
            pending = {
                pool.submit(partial(make_run, request=self._request(test, seed))): test
                for test in order
                for seed in test.seeds
            }
            remaining = {test.name: len(test.seeds) for test in order}
            while pending:
                done = first_done(pending)
                for test, outcome in [(pending.pop(future), self._outcome(future)) for future in done]:
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
        finally:
            pool.shutdown()
            if self._path is not None:
                # In a fixed order, whichever test was validated first.
                record = msgspec.json.encode(self._record, order="deterministic")
                write_whole(self._path, msgspec.json.format(record, indent=1) + b"\n")

    def _request(self, test: GradedTest, seed: int) -> RunRequest:
        with_service = self._assignment.wants_service(test)
        limits = self._assignment.limits
        setup = RunSetup(self._files, f"{PEER}/raft.py", limits, service=with_service, race=test.race)
        file = str(self._assignment.files[test.name].file)
        shown = short_path(file)
        given: dict[str, Any] = {"raft": self.solution, "kv": self._service if with_service else None}
        given |= {"isolated": True, "race": test.race}
        own_file = shown if test.hidden else FUZZ_TESTS if test.part == FUZZ else ""
        return RunRequest(setup, file, shown, test.of, seed, run_line("replay", test.of, seed, given, file=own_file))

    def _outcome(self, future: Future[Outcome]) -> Outcome:
        """With the paths that the reader knows."""
        try:
            outcome = future.result()
        except RunWorkerError as error:
            raise ValidationFailed(str(error)) from None
        if outcome.ending is Ending.UNLOADABLE:
            raise ValidationFailed(f"{restore_paths(outcome.report, self._shown_as)}\n{_USE_ANOTHER}")
        outcome.rewrite(lambda text: restore_paths(text, self._shown_as))
        return outcome

    @property
    def remarks(self) -> list[str]:
        """Failures of the solution that the pass rate allows."""
        return [
            f"{test.name} fails on {self.solution} with seed {', '.join(map(str, found))}; its pass_rate allows that"
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
            return f"{heading}\n  The solution skips this test, but it must pass the test"
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


def _files(raft: Path, service: Path | None) -> tuple[dict[str, bytes], dict[str, str]]:
    """The solution's files by the paths that a submission's have, and these paths with the ones the reader knows."""
    raft = raft.resolve()
    places = {f"{PEER}/raft.py": raft}
    places |= {f"{PEER}/{path.relative_to(raft.parent)}": path for path in files_of(raft) if path != raft}
    shown_as = {f"{PEER}/raft.py": short_path(str(raft)), f"{PEER}/": f"{short_path(str(raft.parent))}/"}
    if service is not None:
        own = {path.name: path for path in files_of_service(service)} | {"server.py": service.resolve()}
        # As in load_sandboxed(): what does not lie beside it is the lab's.
        ours = {name: ROOT / SERVICE / name for name in ("client.py", "messages.py")}
        places |= {f"{SERVICE}/{name}": path for name, path in {**ours, **own}.items() if path.exists()}
        shown_as[f"{SERVICE}/"] = f"{short_path(str(service.resolve().parent))}/"
    return {place: path.read_bytes() for place, path in places.items()}, shown_as


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


def _read(file: Path | None) -> _ValidationRecord:
    """The recorded tests; none if the file cannot be read."""
    try:
        found = None if file is None else msgspec.json.decode(file.read_bytes(), type=_ValidationRecord)
    except (OSError, msgspec.MsgspecError):
        found = None
    return _ValidationRecord(_VERSION, {}) if found is None or found.version != _VERSION else found
