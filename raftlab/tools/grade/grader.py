"""A class, graded: submission after submission, several at a time, every peer behind walls, every run into the store.

Promise: a submission's result depends on nothing but its files, the tests and the rubric: not on the others, not on the
number of jobs, not on how often the grader was killed on the way. No hidden test is run before all public runs of
everybody are over: what a hidden test causes can be seen by the peers in it, and there is nobody left to tell.

Start at `grade()`; one submission is a `_Grading`.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import msgspec

from raftlab.harness.lab_test import LabTest
from raftlab.harness.options import run_line
from raftlab.harness.outcome import FAILED, Ending, Outcome
from raftlab.harness.records import files_of
from raftlab.layout import PEER
from raftlab.tools.common.interrupts import defer_interrupts, first_done
from raftlab.tools.grade.artifacts.artifact_worker import Choice, Desk, chosen, without_files
from raftlab.tools.grade.runs.run_digest import FUZZ_TESTS, run_digest
from raftlab.tools.grade.runs.run_worker import Box
from raftlab.tools.grade.runs.worker import Request, Setup
from raftlab.tools.grade.submission_loader import SERVER, Submission
from raftlab.tools.grade.values.results import Result, Shown, TestResult
from raftlab.tools.grade.values.rubric import FUZZ, Failures, Graded, Limits, RubricError
from raftlab.tools.grade.values.store import Store


@dataclass(frozen=True)
class Exam:
    """What everybody is asked."""

    tests: tuple[Graded, ...]
    files: dict[str, LabTest]  # where each test stands, by name
    limits: Limits
    reference: dict[str, bytes] = field(default_factory=dict)  # the peer that services run on; none: everybody's own
    reference_at: str = ""  # and where that is
    failures: Failures = field(default_factory=Failures)

    @property
    def not_asked(self) -> list[LabTest]:
        asked = {test.name for test in self.tests}
        return [test for name, test in self.files.items() if name not in asked]

    @property
    def lab_code(self) -> str:
        """A digest of what decides about every run: what makes it, what that stands on, the limits."""
        below = [platform.python_version(), *(f"{name} {version(name)}" for name in ("greenlet", "msgspec", "pytest"))]
        digest = hashlib.blake2b(" ".join(below).encode(), digest_size=16)
        digest.update(run_digest().encode())
        digest.update(msgspec.json.encode(self.limits))
        digest.update(msgspec.json.encode(self.reference) if self.reference else b"")
        return digest.hexdigest()

    def wants_service(self, test: Graded) -> bool:
        return self.files[test.name].wants_service


def reference_files(raft: Path) -> dict[str, bytes]:
    """The peer that services are run on, and what lies beside it, by name."""
    raft = raft / "raft.py" if raft.is_dir() else raft
    if not raft.is_file():
        raise RubricError(
            f'raft = "reference" needs a raft.py to run services on, but {raft} does not exist; use --solution PATH '
            '(make: SOLUTION=path), or set raft = "own"'
        )
    return {path.name: path.read_bytes() for path in files_of(raft) if path.parent == raft.resolve().parent}


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
    pages: Callable[[str], Path],
    progress: Progress,
    watch: Callable[[], None],
) -> list[Result]:
    """The results in the order of the submissions; `watch` is called now and then, by the calling thread.

    `pages`: by a submission's name, the folder for what is drawn of it; what is known of that is kept beside `runs`.
    """
    stop = threading.Event()
    gradings = [_Grading(submission, exam, runs, pages(submission.name), progress) for submission in submissions]
    code = exam.lab_code
    boxes = _Boxes()
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="grade")
    try:
        for hidden in (False, True):
            with defer_interrupts():
                waiting = {pool.submit(grading.make_runs, boxes, code, stop, hidden=hidden) for grading in gradings}
            while waiting:
                ended = first_done(waiting)
                waiting -= ended
                for future in ended:
                    future.result()  # a grader that is broken ends here, at once
                watch()
        return [grading.result() for grading in gradings]
    finally:
        stop.set()
        boxes.close()
        pool.shutdown(cancel_futures=True)
        boxes.end()


class Stopped(Exception):
    """The grading was interrupted."""


class _Boxes:
    """One for each thread, and a desk for each that has something to show."""

    def __init__(self) -> None:
        self._boxes: dict[int | tuple[str, int], Box | Desk] = {}

    def mine(self) -> Box:
        box = self._boxes.setdefault(threading.get_ident(), Box())
        assert isinstance(box, Box)
        return box

    def my_desk(self) -> Desk:
        desk = self._boxes.setdefault(("desk", threading.get_ident()), Desk())
        assert isinstance(desk, Desk)
        return desk

    def close(self) -> None:
        """What they are at ends now."""
        for box in list(self._boxes.values()):
            box.close()

    def end(self) -> None:
        """When no thread uses them any more."""
        for box in self._boxes.values():
            box.end()


class _Grading:
    """One submission's way through the exam."""

    def __init__(self, submission: Submission, exam: Exam, runs: Path, pages: Path, progress: Progress) -> None:
        self._submission = submission
        self._exam = exam
        self._store_path = runs / f"{submission.name}.jsonl"
        self._shown_path = runs.with_name("shown") / f"{submission.name}.jsonl"
        self._pages = pages
        self._progress = progress
        own = _package(submission.files)
        self._setup = Setup(own, f"{PEER}/raft.py", exam.limits)
        if exam.reference:
            own = {path: content for path, content in own.items() if not path.startswith(f"{PEER}/")}
            own |= _package(exam.reference)
        self._service_setup = Setup(own, f"{PEER}/raft.py", exam.limits, service=True)
        self._problems = {False: "", True: ""}  # why the peer cannot be loaded, and why the service with its peer
        self._results: dict[str, TestResult] = {}
        self._forced: Counter[str] = Counter()
        self._shown: list[Shown] = []
        self._spent_s = {False: 0.0, True: 0.0}  # the latter by runs besides the tests, which take nothing from these

    def make_runs(self, boxes: _Boxes, lab_code: str, stop: threading.Event, *, hidden: bool) -> None:
        """Those of the public tests, or of the hidden ones."""
        box = boxes.mine()
        store = None if self._submission.problem else Store(self._store_path, Outcome)
        try:
            for test in self._exam.tests:
                if test.hidden == hidden:
                    self._results[test.name] = self._tested(test, box, store, lab_code, stop)
        finally:
            if store is not None:
                store.close()
        if not hidden:
            # Now: nothing that a hidden test has caused can be seen in these.
            self._show(boxes, lab_code, stop)
        self._progress.at.pop(self._submission.name, None)
        if hidden:
            self._progress.done.append(self.result())

    def _show(self, boxes: _Boxes, lab_code: str, stop: threading.Event) -> None:
        """Draw and shrink what has failed. The results stay as they are, whatever becomes of it."""
        choices = chosen(list(self._results.values()), self._exam.failures)
        if choices:
            store = Store(self._shown_path, Shown)
            try:
                for choice in choices:
                    if stop.is_set():
                        raise Stopped
                    self._shown.append(self._show_one(choice, boxes.my_desk(), store, lab_code))
            finally:
                store.close()
        mine = {name for shown in self._shown for name in shown.files}
        for old in self._pages.iterdir() if self._pages.is_dir() else ():
            if old.name not in mine:
                old.unlink()  # of what was handed in before

    def _show_one(self, choice: Choice, desk: Desk, store: Store[Shown], lab_code: str) -> Shown:
        run, failures = choice.run, self._exam.failures
        self._progress.at[self._submission.name] = f"page of {run.test}"
        request = self._request(self._exam.files[run.test], run.seed, run.replay, hidden=False)
        shown = desk.show(choice, request, self._code(run.test, lab_code), failures, self._pages, store)
        if sum(one.bytes for one in (*self._shown, shown)) > failures.pages_mb << 20:
            return without_files(shown, self._pages, f"all pages together would exceed {failures.pages_mb} MB")
        return shown

    def _tested(
        self, test: Graded, box: Box, store: Store[Outcome] | None, lab_code: str, stop: threading.Event
    ) -> TestResult:
        not_run = self._why_not(test)
        if not_run or store is None:
            self._progress.count(spared=len(test.seeds))
            return TestResult(test, (), not_run)
        runs = self._runs_of(test, box, store, self._code(test.name, lab_code, race=test.race), stop)
        self._forced[test.part] += any(run.ending is Ending.FORCED for run in runs)
        if runs and runs[-1].ending is Ending.UNLOADABLE and not test.race:
            # Everybody reads this, and in a hidden test the text may be about that test.
            of_service = self._exam.wants_service(test)
            what = "The service" if of_service else "raft.py"
            problem = f"{what} cannot be loaded in a hidden test." if test.hidden else runs[-1].report
            self._problems[of_service] = problem
        return TestResult(test, tuple(runs))

    def _why_not(self, test: Graded) -> str:
        """Why it is not worth a try, or ""."""
        limits = self._exam.limits
        of_service = self._exam.wants_service(test)
        own_peer = not of_service or not self._exam.reference
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
            return "it fails without preemption, too."
        if self._spent_s[test.besides] >= limits.submission_s:
            return f"the submission has used up its {limits.submission_s} s of real time."
        return ""

    def result(self) -> Result:
        submission = self._submission
        results = [self._results[test.name] for test in self._exam.tests]
        if any(result.verdict == Ending.UNVERIFIED for result in results):
            results = [result.unverified_alone for result in results]
        # Of public tests only: everybody reads this, and names of methods could carry what a hidden test says.
        public = [run for result in results if not result.test.hidden for run in result.runs]
        off = dict.fromkeys(f"{line}." for run in public for line in run.checks_off)
        if not off and any(run.checks_off for result in results for run in result.runs):
            off["In hidden tests the peer sent messages that the checks cannot read. In public tests it sent none."] = (
                None
            )
        if self._exam.reference and any(map(self._exam.wants_service, self._exam.tests)):
            off["Services ran on the course's raft.py. If you replay such a run, it uses your own."] = None
        unverified = tuple(dict.fromkeys(f"{line}." for run in public for line in run.unverified))
        if not unverified and any(run.unverified for result in results for run in result.runs):
            unverified = ("Some hidden tests depend on messages that the checks cannot read; no public test does.",)
        problem, of_parts = self._told_problems()
        remarks = (*submission.remarks, *of_parts, *off)
        return Result(
            submission.name,
            problem,
            remarks,
            tuple(results),
            sum(self._spent_s.values()),
            submission.file,
            tuple(self._shown),
            unverified,
        )

    def _told_problems(self) -> tuple[str, list[str]]:
        """Why nothing could be run, or "", and why some parts could not."""
        of_peer, of_service = self._problems.values()
        asked = {self._exam.wants_service(test) for test in self._exam.tests}
        if self._submission.problem:
            return self._submission.problem, []
        if of_peer and (asked == {False} or not self._exam.reference):
            return of_peer, []
        if of_service and asked == {True}:
            return of_service, []
        told = {"Parts 2A to 2D": of_peer, "Parts 3A and 3B": of_service}
        return "", [f"{parts}: {why}" for parts, why in told.items() if why]

    def _code(self, test: str, lab_code: str, *, race: bool = False) -> str:
        """A digest of all that decides about a run of it."""
        content = self._exam.files[test].file.read_bytes()
        decides = f"{lab_code} {self._submission.digest} {'race ' if race else ''}"
        return hashlib.blake2b(decides.encode() + content, digest_size=16).hexdigest()

    def _request(self, test: LabTest, seed: int, replay: str, *, hidden: bool, race: bool = False) -> Request:
        setup = self._service_setup if test.wants_service else self._setup
        setup = msgspec.structs.replace(setup, race=race)
        shown_as = f"{'hidden' if hidden else 'tests'}/{test.file.name}"
        return Request(setup, str(test.file), shown_as, test.name, seed, replay)

    def _runs_of(
        self, test: Graded, box: Box, store: Store[Outcome], code: str, stop: threading.Event
    ) -> list[Outcome]:
        """Seed after seed, until all are made or too many have failed."""
        progress = self._progress
        lab_test = self._exam.files[test.name]
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
                run = box.run(self._request(lab_test, seed, replay, hidden=test.hidden, race=test.race))
                store.add(code, run)
                progress.count(made=1)
            run.replay = replay
            runs.append(run)
            self._spent_s[test.besides] += run.real_s
            failures += run.failed or (test.skips_fail and run.ending is Ending.SKIPPED)
            if failures > test.failures_allowed or run.ending is Ending.UNLOADABLE:
                break
        progress.count(spared=len(test.seeds) - len(runs))
        return runs

    def _replay(self, test: Graded, lab_test: LabTest, seed: int) -> str:
        """For a public test as the student types it; for a hidden one as the grader does."""
        if not test.hidden:
            file = FUZZ_TESTS if test.part == FUZZ else ""
            return run_line("replay", test.of, seed, {"isolated": True, "race": test.race}, file=file)
        here = self._submission.path
        raft = here / "raft.py" if here.is_dir() else here
        if lab_test.wants_service and self._exam.reference:
            raft = Path(self._exam.reference_at)
        kv = here / SERVER if lab_test.wants_service else None
        values = {"raft": raft, "kv": kv, "isolated": True}
        return run_line("replay", test.name, seed, values, file=str(lab_test.file))


def _package(own: dict[str, bytes]) -> dict[str, bytes]:
    """The submission's files by the paths that its author knows."""
    return {name if "/" in name else f"{PEER}/{name}": content for name, content in own.items()}
