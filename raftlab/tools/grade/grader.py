"""Grades a class: several submissions in parallel, each peer in a sandbox, each run in the store.

Promise: a submission's result depends only on its files, the tests and the rubric, not on other submissions, the number
of jobs or interruptions. All public runs of the class end before the first hidden one starts, so a peer in a hidden
test cannot pass on what it observes.

Start at `grade()`; `_Grading` grades one submission.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec

from raftlab.harness.lab_test import LabTest
from raftlab.harness.options import run_line
from raftlab.harness.outcome import FAILED, Ending, Outcome
from raftlab.harness.records import files_of
from raftlab.layout import PEER
from raftlab.tools.common.interrupts import first_done, result_of
from raftlab.tools.grade.artifacts.artifact_worker import (
    SelectedFailure,
    artifact_pool,
    make_artifacts,
    select_failures,
    without_files,
)
from raftlab.tools.grade.runs.run_digest import FUZZ_TESTS, run_digest
from raftlab.tools.grade.runs.run_worker import make_run, run_pool
from raftlab.tools.grade.runs.worker import RunRequest, RunSetup
from raftlab.tools.grade.submission_loader import SERVER, Submission
from raftlab.tools.grade.values.results import Artifacts, Result, TestResult, without_skipped_points
from raftlab.tools.grade.values.rubric import FUZZ, Failures, GradedTest, Limits, RubricError
from raftlab.tools.grade.values.store import Store
from raftlab.tools.workers.pool import LocalPool
from raftlab.tools.workers.process import WorkerProcess


@dataclass(frozen=True)
class Assignment:
    """The tests, which are the same for all submissions, and how they are run."""

    tests: tuple[GradedTest, ...]
    files: dict[str, LabTest]  # by name
    limits: Limits
    reference: dict[str, bytes] = field(default_factory=dict)  # the peer that services run on; {}: the submission's
    reference_path: str = ""  # its path
    failures: Failures = field(default_factory=Failures)

    @property
    def not_graded(self) -> list[LabTest]:
        asked = {test.name for test in self.tests}
        return [test for name, test in self.files.items() if name not in asked]

    @property
    def lab_code(self) -> str:
        """A digest of everything that affects every run: the lab's code, Python, dependencies, the limits."""
        below = [platform.python_version(), *(f"{name} {version(name)}" for name in ("greenlet", "msgspec", "pytest"))]
        digest = hashlib.blake2b(" ".join(below).encode(), digest_size=16)
        digest.update(run_digest().encode())
        digest.update(msgspec.json.encode(self.limits))
        digest.update(msgspec.json.encode(self.reference) if self.reference else b"")
        return digest.hexdigest()

    def wants_service(self, test: GradedTest) -> bool:
        return self.files[test.name].wants_service


def reference_files(raft: Path) -> dict[str, bytes]:
    """The peer that services run on, and the files beside it, by name."""
    raft = raft / "raft.py" if raft.is_dir() else raft
    if not raft.is_file():
        raise RubricError(
            f'raft = "reference" needs a raft.py to run services on, but {raft} does not exist; use --solution PATH '
            '(make: SOLUTION=path), or set raft = "own"'
        )
    return {path.name: path.read_bytes() for path in files_of(raft) if path.parent == raft.resolve().parent}


@dataclass
class GradeProgress:
    """The state of the progress display. Grading threads write it; the main thread reads it."""

    submissions: int
    runs_wanted: int  # at most: a failed test is not repeated
    done: list[Result] = field(default_factory=list)
    at: dict[str, str] = field(default_factory=dict)  # the current test, by submission
    runs_made: int = 0
    runs_stored: int = 0
    runs_not_needed: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def count(self, *, made: int = 0, stored: int = 0, not_needed: int = 0) -> None:
        with self._counting:
            self.runs_made += made
            self.runs_stored += stored
            self.runs_not_needed += not_needed


def grade(
    submissions: Sequence[Submission],
    assignment: Assignment,
    *,
    jobs: int,
    runs: Path,
    pages: Callable[[str], Path],
    progress: GradeProgress,
    watch: Callable[[], None],
) -> list[Result]:
    """The results in the order of the submissions. The calling thread calls `watch` regularly.

    `runs`: the folder for the store of runs. `pages`: the folder for a submission's pages of failures, by its name.
    """
    stop = threading.Event()
    gradings = [_Grading(submission, assignment, runs, pages(submission.name), progress) for submission in submissions]
    code = assignment.lab_code
    pool, artifacts = run_pool(jobs), artifact_pool(jobs)
    try:
        for hidden in (False, True):
            waiting = {
                pool.submit(partial(grading.make_runs, artifacts=artifacts, lab_code=code, stop=stop, hidden=hidden))
                for grading in gradings
            }
            while waiting:
                ended = first_done(waiting)
                waiting -= ended
                for future in ended:
                    future.result()  # an error of the grader ends grading at once
                watch()
        return [grading.result() for grading in gradings]
    finally:
        stop.set()
        artifacts.shutdown()
        pool.shutdown()


class Stopped(Exception):
    """The grading was interrupted."""


class _Grading:
    """Grades one submission."""

    def __init__(
        self, submission: Submission, assignment: Assignment, runs: Path, pages: Path, progress: GradeProgress
    ) -> None:
        self._submission = submission
        self._assignment = assignment
        self._store_path = runs / f"{submission.name}.jsonl"
        self._artifacts_path = runs.with_name("shown") / f"{submission.name}.jsonl"
        self._pages = pages
        self._progress = progress
        files = _files_by_path(submission.files)
        self._setup = RunSetup(files, f"{PEER}/raft.py", assignment.limits)
        if assignment.reference:
            files = {path: content for path, content in files.items() if not path.startswith(f"{PEER}/")}
            files |= _files_by_path(assignment.reference)
        self._service_setup = RunSetup(files, f"{PEER}/raft.py", assignment.limits, service=True)
        self._problems = {False: "", True: ""}  # why the peer (False) or the service (True) cannot be loaded
        self._results: dict[str, TestResult] = {}
        self._forced: Counter[str] = Counter()
        self._artifacts: list[Artifacts] = []
        self._spent_s = {False: 0.0, True: 0.0}  # True: by race and fuzz runs, which have a separate limit

    def make_runs(
        self, worker: WorkerProcess, *, artifacts: LocalPool, lab_code: str, stop: threading.Event, hidden: bool
    ) -> None:
        """Make the runs of the public tests, or of the hidden ones."""
        store = None if self._submission.problem else Store(self._store_path, Outcome)
        try:
            for test in self._assignment.tests:
                if test.hidden == hidden:
                    self._results[test.name] = self._test_result(test, worker, store, lab_code, stop)
        finally:
            if store is not None:
                store.close()
        if not hidden:
            # Before any hidden run, so the artifacts cannot reveal one.
            self._make_artifacts(artifacts, lab_code, stop)
        self._progress.at.pop(self._submission.name, None)
        if hidden:
            self._progress.done.append(self.result())

    def _make_artifacts(self, pool: LocalPool, lab_code: str, stop: threading.Event) -> None:
        """Pages and minimized runs of failures. They do not change the results."""
        selected = select_failures(list(self._results.values()), self._assignment.failures)
        if selected:
            store = Store(self._artifacts_path, Artifacts)
            try:
                for failure in selected:
                    if stop.is_set():
                        raise Stopped
                    self._artifacts.append(self._artifacts_of(failure, pool, store, lab_code))
            finally:
                store.close()
        current = {name for artifacts in self._artifacts for name in artifacts.files}
        for file in self._pages.iterdir() if self._pages.is_dir() else ():
            if file.name not in current:
                file.unlink()  # of an earlier submission

    def _artifacts_of(
        self, failure: SelectedFailure, pool: LocalPool, store: Store[Artifacts], lab_code: str
    ) -> Artifacts:
        run, failures = failure.run, self._assignment.failures
        self._progress.at[self._submission.name] = f"page of {run.test}"
        request = self._request(self._assignment.files[run.test], run.seed, run.replay, hidden=False)
        key = self._run_key(run.test, lab_code)
        make = partial(
            make_artifacts,
            failure=failure,
            request=request,
            run_key=key,
            failures=failures,
            folder=self._pages,
            store=store,
        )
        artifacts = result_of(pool.submit(make))
        if sum(one.bytes for one in (*self._artifacts, artifacts)) > failures.pages_mb << 20:
            return without_files(
                artifacts, self._pages, f"with this page, all pages together would exceed {failures.pages_mb} MB"
            )
        return artifacts

    def _test_result(
        self,
        test: GradedTest,
        worker: WorkerProcess,
        store: Store[Outcome] | None,
        lab_code: str,
        stop: threading.Event,
    ) -> TestResult:
        not_run = self._reason_not_run(test)
        if not_run or store is None:
            self._progress.count(not_needed=len(test.seeds))
            return TestResult(test, (), not_run)
        runs = self._runs_of(test, worker, store, self._run_key(test.name, lab_code, race=test.race), stop)
        self._forced[test.part] += any(run.ending is Ending.FORCED for run in runs)
        if runs and runs[-1].ending is Ending.UNLOADABLE and not test.race:
            # The student reads this, and the report of a hidden test may reveal that test.
            of_service = self._assignment.wants_service(test)
            what = "The service" if of_service else "raft.py"
            problem = f"{what} cannot be loaded in a hidden test." if test.hidden else runs[-1].report
            self._problems[of_service] = problem
        return TestResult(test, tuple(runs))

    def _reason_not_run(self, test: GradedTest) -> str:
        """Why a test is not run, or ""."""
        limits = self._assignment.limits
        of_service = self._assignment.wants_service(test)
        own_peer = not of_service or not self._assignment.reference
        if self._submission.problem or (own_peer and "raft.py" not in self._submission.files):
            return f"the submission has no {'raft.py' if own_peer else SERVER}."
        if of_service and SERVER not in self._submission.files:
            return f"the submission has no {SERVER} with a client.py beside it."
        if own_peer and self._problems[False]:
            return "raft.py cannot be loaded."
        if of_service and self._problems[True]:
            return "the service cannot be loaded."
        if self._forced[test.part] >= limits.forced_per_part:
            return f"{self._forced[test.part]} tests of this part were killed, so the rest of the part was not run."
        if test.race and self._results[test.of].verdict == FAILED:
            return "the same test fails without preemption, too."
        if self._spent_s[test.additional] >= limits.submission_s:
            return f"the submission has used up its {limits.submission_s} s of real time."
        return ""

    def result(self) -> Result:
        submission = self._submission
        results = [self._results[test.name] for test in self._assignment.tests]
        if any(result.verdict == Ending.UNVERIFIED for result in results):
            results = [result.with_single_server_tests_unverified for result in results]
        results = without_skipped_points(results)
        # Of public tests only: the student reads this, and names of methods could reveal a hidden test.
        public = [run for result in results if not result.test.hidden for run in result.runs]
        off = dict.fromkeys(f"{line}." for run in public for line in run.checks_off)
        if not off and any(run.checks_off for result in results for run in result.runs):
            off["In hidden tests the peer sent messages that the checks cannot read; in public tests it did not."] = (
                None
            )
        if self._assignment.reference and any(map(self._assignment.wants_service, self._assignment.tests)):
            off["Services ran on the course's raft.py. If you replay a run of a service, it uses your raft.py."] = None
        unverified = tuple(dict.fromkeys(f"{line}." for run in public for line in run.unverified))
        if not unverified and any(run.unverified for result in results for run in result.runs):
            unverified = ("Some hidden tests depend on messages that the checks cannot read; public tests do not.",)
        problem, of_parts = self._load_problems()
        remarks = (*submission.remarks, *of_parts, *off)
        return Result(
            submission.name,
            problem,
            remarks,
            tuple(results),
            sum(self._spent_s.values()),
            submission.file,
            tuple(self._artifacts),
            unverified,
        )

    def _load_problems(self) -> tuple[str, list[str]]:
        """Why no test could run, or ""; and why some parts could not."""
        of_peer, of_service = self._problems.values()
        kinds = {self._assignment.wants_service(test) for test in self._assignment.tests}
        if self._submission.problem:
            return self._submission.problem, []
        if of_peer and (kinds == {False} or not self._assignment.reference):
            return of_peer, []
        if of_service and kinds == {True}:
            return of_service, []
        problems = {"Parts 2A to 2D": of_peer, "Parts 3A and 3B": of_service}
        return "", [f"{parts}: {why}" for parts, why in problems.items() if why]

    def _run_key(self, test: str, lab_code: str, *, race: bool = False) -> str:
        """A digest of everything that affects the runs of a test."""
        content = self._assignment.files[test].file.read_bytes()
        other = f"{lab_code} {self._submission.digest} {'race ' if race else ''}"
        return hashlib.blake2b(other.encode() + content, digest_size=16).hexdigest()

    def _request(self, test: LabTest, seed: int, replay: str, *, hidden: bool, race: bool = False) -> RunRequest:
        setup = self._service_setup if test.wants_service else self._setup
        setup = msgspec.structs.replace(setup, race=race)
        shown_as = f"{'hidden' if hidden else 'tests'}/{test.file.name}"
        return RunRequest(setup, str(test.file), shown_as, test.name, seed, replay)

    def _runs_of(
        self, test: GradedTest, worker: WorkerProcess, store: Store[Outcome], code: str, stop: threading.Event
    ) -> list[Outcome]:
        """Seed after seed, until all runs are made or too many have failed."""
        progress = self._progress
        lab_test = self._assignment.files[test.name]
        progress.at[self._submission.name] = test.name
        runs: list[Outcome] = []
        failures = 0
        for seed in test.seeds:
            if stop.is_set():
                raise Stopped
            replay = self._replay(test, lab_test, seed)
            run = store.get(code, lab_test.name, seed)
            if run is not None:
                progress.count(stored=1)
            else:
                run = make_run(worker, self._request(lab_test, seed, replay, hidden=test.hidden, race=test.race))
                store.add(code, run)
                progress.count(made=1)
            run.replay = replay
            runs.append(run)
            self._spent_s[test.additional] += run.real_s
            failures += run.failed or (test.skips_fail and run.ending is Ending.SKIPPED)
            if failures > test.failures_allowed or run.ending is Ending.UNLOADABLE:
                break
        progress.count(not_needed=len(test.seeds) - len(runs))
        return runs

    def _replay(self, test: GradedTest, lab_test: LabTest, seed: int) -> str:
        """The replay command: of a public test for the student, of a hidden one for the grader."""
        if not test.hidden:
            file = FUZZ_TESTS if test.part == FUZZ else ""
            return run_line("replay", test.of, seed, {"isolated": True, "race": test.race}, file=file)
        here = self._submission.path
        raft = here / "raft.py" if here.is_dir() else here
        if lab_test.wants_service and self._assignment.reference:
            raft = Path(self._assignment.reference_path)
        kv = here / SERVER if lab_test.wants_service else None
        values = {"raft": raft, "kv": kv, "isolated": True}
        return run_line("replay", test.name, seed, values, file=str(lab_test.file))


def _files_by_path(files: dict[str, bytes]) -> dict[str, bytes]:
    """The submission's files by the paths that its author knows."""
    return {name if "/" in name else f"{PEER}/{name}": content for name, content in files.items()}
