"""A class, graded: submission after submission, several at a time, every run in its sandbox and into the store.

Promise: a submission's result depends on nothing but its files, the tests and the rubric: not on the others, not on the
number of jobs, not on how often the grader was killed on the way.

Start at `grade()`; one submission is `_Grading.result()`.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from shlex import quote

import msgspec

from labtest.loading import DEFAULT
from labtest.rooms import PEER, PEER_FILES, ROOT
from labtools import manifest
from labtools.grade.intake import Submission
from labtools.grade.results import FORCED, TAMPERED, UNLOADABLE, Result, RunRecord, TestResult
from labtools.grade.rubric import Graded, Limits
from labtools.grade.sandbox.box import Sandbox
from labtools.grade.sandbox.walls import LabCopy
from labtools.grade.store import Store
from labtools.selecting import LabTest
from labtools.stress.kit import replay_line

_WATCH_S = 0.2


@dataclass(frozen=True)
class Exam:
    """What everybody is asked."""

    tests: tuple[Graded, ...]
    files: dict[str, LabTest]  # where each test stands, by name
    limits: Limits

    @property
    def not_asked(self) -> list[LabTest]:
        asked = {test.name for test in self.tests}
        return [test for name, test in self.files.items() if name not in asked]

    @property
    def lab_code(self) -> str:
        """A digest of what decides about every run: what lies in the sandbox, what it stands on, the limits."""
        below = [platform.python_version(), *(f"{name} {version(name)}" for name in ("greenlet", "msgspec", "pytest"))]
        digest = hashlib.blake2b(" ".join(below).encode(), digest_size=16)
        digest.update(manifest.sandbox_digest().encode())
        digest.update(msgspec.json.encode(self.limits))
        return digest.hexdigest()


@dataclass
class Progress:
    """What a progress display is made of. Written by the grading threads, read by the one that shows it."""

    submissions: int
    runs_wanted: int  # at most: a test that has failed is not repeated
    done: list[Result] = field(default_factory=list)
    at: dict[str, str] = field(default_factory=dict)  # submission -> what it is at
    runs_made: int = 0
    runs_stored: int = 0
    runs_spared: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def count(self, *, made: int = 0, stored: int = 0, spared: int = 0) -> None:
        with self._counting:
            self.runs_made += made
            self.runs_stored += stored
            self.runs_spared += spared


def grade(
    submissions: Sequence[Submission],
    exam: Exam,
    *,
    jobs: int,
    runs: Path,
    progress: Progress,
    watch: Callable[[], None],
) -> list[Result]:
    """The results in the order of the submissions; `watch` is called now and then, by the calling thread."""
    lab = LabCopy()
    stop = threading.Event()
    gradings = [
        _Grading(submission, exam, lab, runs / f"{submission.name}.jsonl", progress) for submission in submissions
    ]
    code = exam.lab_code

    pool = ThreadPoolExecutor(jobs, thread_name_prefix="grade")
    try:
        futures = [pool.submit(grading.result, code, stop) for grading in gradings]
        waiting = set(futures)
        while waiting:
            ended, waiting = wait(waiting, timeout=_WATCH_S, return_when=FIRST_COMPLETED)
            for future in ended:
                future.result()  # a grader that is broken ends here, at once
            watch()
        return [future.result() for future in futures]
    finally:
        stop.set()
        for grading in gradings:
            grading.close()
        pool.shutdown(cancel_futures=True)
        lab.close()


class Stopped(Exception):
    """The grading was interrupted."""


class _Grading:
    """One submission's way through the exam."""

    def __init__(self, submission: Submission, exam: Exam, lab: LabCopy, store: Path, progress: Progress) -> None:
        self._submission = submission
        self._exam = exam
        self._lab = lab
        self._store_path = store
        self._progress = progress
        self._sandbox: Sandbox | None = None

    def close(self) -> None:
        sandbox = self._sandbox
        if sandbox is not None:
            sandbox.close()

    def result(self, lab_code: str, stop: threading.Event) -> Result:
        submission, progress = self._submission, self._progress
        if submission.problem:
            tests = tuple(TestResult(test, (), "there is no raft.py to run.") for test in self._exam.tests)
            progress.count(spared=sum(len(test.seeds) for test in self._exam.tests))
            result = Result(submission.name, submission.problem, submission.remarks, tests)
        else:
            store = Store(self._store_path)
            try:
                result = self._graded(store, f"{lab_code} {submission.digest}", stop)
            finally:
                store.close()
                if self._sandbox is not None:
                    self._sandbox.end()
        progress.at.pop(submission.name, None)
        result = replace(result, file=submission.file)
        progress.done.append(result)
        return result

    def _graded(self, store: Store, code: str, stop: threading.Event) -> Result:
        files = _package(self._submission.files)
        self._sandbox = Sandbox(self._lab, files, "raft/raft.py", self._exam.limits)
        results: list[TestResult] = []
        forced: dict[str, int] = {}
        loaded: set[Path] = set()
        problem = ""
        tampered = False
        for test in self._exam.tests:
            if problem:
                not_run = "raft.py cannot be loaded."
            elif tampered:
                not_run = "the submission has changed the tester, so nothing is worth anything."
            elif forced.get(test.part, 0) >= self._exam.limits.forced_per_part:
                not_run = (
                    f"{forced[test.part]} tests of this part had to be ended by force already, "
                    "so the rest of the part was not tried."
                )
            else:
                not_run = ""
            if not_run:
                self._progress.count(spared=len(test.seeds))
                results.append(TestResult(test, (), not_run))
                continue
            runs = self._runs_of(test, store, code, loaded, stop)
            if any(run.kind == FORCED for run in runs):
                forced[test.part] = forced.get(test.part, 0) + 1
            tampered = any(run.kind == TAMPERED for run in runs)
            if runs[-1].kind == UNLOADABLE:
                # Everybody reads this, and in a hidden test the text may be about that test.
                problem = "raft.py cannot be loaded in a hidden test." if test.hidden else runs[-1].report
            results.append(TestResult(test, tuple(runs)))
        if tampered:
            # Who changes the tester in one run may have done it, and undone it, in another.
            results = [replace(result, void=True) for result in results]
        cpu_s = sum(run.cpu_s for result in results for run in result.runs)
        # Of public tests only: everybody reads this, and names of methods could carry what a hidden test says.
        public = [run for result in results if not result.test.hidden for run in result.runs]
        off = dict.fromkeys(f"{line}." for run in public for line in run.checks_off)
        if not off and any(run.checks_off for result in results for run in result.runs):
            off[
                "In hidden tests it sent messages that no check can read, and none of that kind in the public ones."
            ] = None
        return Result(self._submission.name, problem, (*self._submission.remarks, *off), tuple(results), cpu_s)

    def _runs_of(
        self, test: Graded, store: Store, code: str, loaded: set[Path], stop: threading.Event
    ) -> list[RunRecord]:
        """Seed after seed, until all are made or too many have failed."""
        sandbox, progress = self._sandbox, self._progress
        assert sandbox is not None
        lab_test = self._exam.files[test.name]
        content = lab_test.file.read_bytes()
        code = hashlib.blake2b(f"{code} ".encode() + content, digest_size=16).hexdigest()
        progress.at[self._submission.name] = test.name
        runs: list[RunRecord] = []
        failures = 0
        for seed in test.seeds:
            if stop.is_set():
                raise Stopped
            replay = self._replay(test, lab_test, seed)
            run = store.get(code, test.name, seed)
            if run is not None:
                progress.count(stored=1)
            else:
                if lab_test.file not in loaded:
                    # Only now: what comes later (the hidden tests, above all) is not there for what comes earlier.
                    sandbox.load({f"{_shown_folder(test)}/{lab_test.file.name}": content})
                    loaded.add(lab_test.file)
                run = sandbox.run(test.name, seed, replay)
                store.add(code, run)
                progress.count(made=1)
            run.replay = replay
            runs.append(run)
            failures += not run.passed
            if failures > test.failures_allowed or run.kind == UNLOADABLE:
                break
        progress.count(spared=len(test.seeds) - len(runs))
        return runs

    def _replay(self, test: Graded, lab_test: LabTest, seed: int) -> str:
        """For a public test as the student types it; for a hidden one as the grader does."""
        if not test.hidden:
            return replay_line(test.name, seed, str(DEFAULT))
        raft = self._submission.path / "raft.py" if self._submission.path.is_dir() else self._submission.path
        return f"lab replay {test.name} --seed {seed} --file {quote(str(lab_test.file))} --raft {quote(str(raft))}"


def _shown_folder(test: Graded) -> str:
    return "hidden" if test.hidden else "tests"


def _package(own: dict[str, bytes]) -> dict[str, bytes]:
    """The package `raft` as it is run: the lab's own, but for the student's files."""
    ours = {name: (ROOT / PEER / name).read_bytes() for name in PEER_FILES}
    return {f"{PEER}/{name}": content for name, content in (ours | own).items()}
