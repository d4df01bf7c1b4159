"""Whether the exam can be passed at all: every test that will be graded, on a right raft.py, with the very seeds.

Promise: nobody is graded with a test that the solution does not pass, by the rubric's own measure and within its
limits. What was proved is not proved again until the lab, the solution, the test, its seeds or the limits change.

Not promised: walls. Tests and solution are the grader's own, and run in plain worker processes.

Start at `Proof`.
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
from raftlab.tools.grade.grader import Exam
from raftlab.tools.grade.values.rubric import Graded
from raftlab.tools.grade.values.store import write_whole
from raftlab.tools.stress.pool import Batch, LocalPool
from raftlab.tools.workers.job_bundle import Kit
from raftlab.tools.workers.process import CannotStart

NOTE = "proof.json"  # in OUT
_VERSION = 1
_TESTS_TOLD_MAX = 5
_LINES_TOLD_MAX = 14


class ProofError(Exception):
    """The exam is broken, or the solution; the text names tests, seeds and the fix."""


class _Proved(msgspec.Struct, omit_defaults=True):
    code: str  # a digest of all that decides about it
    failed: list[int] = []  # seeds; no more than the rubric forgives


class _Note(msgspec.Struct):
    version: int
    proved: dict[str, _Proved]  # by test


class Proof:
    """One exam against one solution. `note` is where it is written down, if it is."""

    def __init__(self, exam: Exam, solution: Path, service: Path, note: Path | None) -> None:
        """`service`: the server.py of the solution, which is asked for only where services are graded."""
        solution = solution / "raft.py" if solution.is_dir() else solution
        if not solution.is_file():
            raise ProofError(f"{solution}: no such file; --solution must name a raft.py that passes every test")
        self._service = None
        if any(map(exam.wants_service, exam.tests)):
            self._service = service / "server.py" if service.is_dir() else service
            if not self._service.is_file():
                raise ProofError(f"{self._service}: no such file; --kv must name a server.py that passes 3A and 3B")
        self.solution = short_path(str(solution.resolve()))
        self._exam = exam
        self._path = note
        self._note = _read(note)
        self._codes = _codes(exam, solution, self._service)
        self.left = [test for test in exam.tests if not self._is_proved(test)]
        self.runs_wanted = sum(len(test.seeds) for test in self.left)
        self.runs_made = 0

    def run(self, jobs: int, watch: Callable[[], None]) -> None:
        """Make what is left of it; `watch` is called now and then. ProofError if a test is not passed."""
        wrong: dict[str, list[Outcome]] = {test.name: [] for test in self.left}
        for race in (False, True):
            if left := [test for test in self.left if test.race is race]:
                self._make(left, wrong, jobs, watch, race=race)
        broken = {test.name: wrong[test.name] for test in self.left if not self._is_proved(test)}
        if broken:
            raise ProofError(self._refusal(broken))

    def _make(
        self,
        tests_left: list[Graded],
        wrong: dict[str, list[Outcome]],
        jobs: int,
        watch: Callable[[], None],
        *,
        race: bool,
    ) -> None:
        limits = self._exam.limits
        tests = [self._exam.files[test.name] for test in tests_left]
        try:
            kit = Kit.of(
                Path(self.solution),
                tests,
                kv=self._service,
                run_limit_s=limits.real_s,
                memory_mb=limits.memory_mb,
                given={"race": race},
                in_place=True,
            )
            pool = LocalPool(kit, min(jobs, self.runs_wanted))
        except CannotStart as error:
            raise ProofError(f"{error}\n{_NO_SOLUTION}") from None
        try:
            # The hidden tests first: whoever has just written one waits for it.
            order = sorted(tests_left, key=lambda test: not test.hidden)
            pending = {pool.submit(Batch(test.of, [seed])): test for test in order for seed in test.seeds}
            left = {test.name: len(test.seeds) for test in order}
            while pending:
                done = first_done(pending)
                for test, outcome in [(pending.pop(future), _outcome(future)) for future in done]:
                    self.runs_made += 1
                    left[test.name] -= 1
                    if self._why_not(outcome):
                        wrong[test.name].append(outcome)
                    if len(wrong[test.name]) > test.failures_allowed:
                        # It may be one that never ends, and this is known now.
                        rest = [future for future, other in pending.items() if other is test and future.cancel()]
                        self.runs_made += len(rest)
                        for future in rest:
                            del pending[future]
                    elif not left[test.name]:
                        seeds = sorted(outcome.seed for outcome in wrong[test.name])
                        self._note.proved[test.name] = _Proved(self._codes[test.name], seeds)
                watch()
        except CannotStart as error:
            raise ProofError(f"{error}\n{_NO_SOLUTION}") from None
        finally:
            pool.shutdown()
            if self._path is not None:
                # In one order, whichever was proved first.
                note = msgspec.json.encode(self._note, order="deterministic")
                write_whole(self._path, msgspec.json.format(note, indent=1) + b"\n")

    @property
    def remarks(self) -> list[str]:
        """What the rubric forgives the solution too."""
        return [
            f"{test.name} fails on {self.solution} with seed {', '.join(map(str, found))}, which its pass_rate allows"
            for test in self._exam.tests
            if (found := self._note.proved[test.name].failed)
        ]

    def _is_proved(self, test: Graded) -> bool:
        proved = self._note.proved.get(test.name)
        return (
            proved is not None and proved.code == self._codes[test.name] and len(proved.failed) <= test.failures_allowed
        )

    def _why_not(self, outcome: Outcome) -> str:
        """The beginning of what is to be said of a run that earns nothing; "" if it earns its points."""
        limits = self._exam.limits
        heading = f"{outcome.test}  seed {outcome.seed}"
        if outcome.skipped:
            return f"{heading}\n  The solution skips this test, but must pass it"
        if outcome.ending is Ending.UNVERIFIED and not all(test.unverified_share for test in self._exam.tests):
            return f"{heading}\n  {outcome.unverified[0]}, or let the rubric allow such messages (checks.undecodable)"
        if outcome.failed:
            return "\n".join(outcome.report.splitlines()[:_LINES_TOLD_MAX])
        if outcome.cpu_s > limits.cpu_s:
            return (
                f"{heading}\n  It took {outcome.cpu_s:.1f} s of processor time; the limit is {limits.cpu_s} s. "
                "Shorten the test, or raise limits.cpu_s in the rubric"
            )
        return ""

    def _refusal(self, broken: dict[str, list[Outcome]]) -> str:
        many = f"{len(broken)} of {counted(len(self._exam.tests), 'test')} {'fails' if len(broken) == 1 else 'fail'}"
        lines = [f"{many} on {self.solution}. The solution must pass every test, so no submission was graded:"]
        for outcomes in list(broken.values())[:_TESTS_TOLD_MAX]:
            first = min(outcomes, key=lambda outcome: outcome.seed)
            lines += ["", *(f"  {line}".rstrip() for line in self._why_not(first).splitlines())]
        if len(broken) > _TESTS_TOLD_MAX:
            lines += ["", f"  and {', '.join(list(broken)[_TESTS_TOLD_MAX:])}"]
        return "\n".join([*lines, "", f"Fix the tests. {_NO_SOLUTION}"])


_NO_SOLUTION = (
    "If the solution is incorrect, name a correct one with --solution PATH (make: SOLUTION=path), and its service with "
    "--kv PATH (make: KV=path)"
)


def _outcome(future: Future[list[Outcome]]) -> Outcome:
    (outcome,) = future.result()
    return outcome


def _codes(exam: Exam, solution: Path, service: Path | None) -> dict[str, str]:
    """By test, a digest of all that decides about its runs here."""
    everything = hashlib.blake2b(exam.lab_code.encode(), digest_size=16)
    for file in [*files_of(solution), *(files_of_service(service) if service is not None else [])]:
        content = file.read_bytes()
        everything.update(f"{file.name} {len(content)} ".encode() + content)
    codes = {}
    for test in exam.tests:
        one = everything.copy()
        one.update(msgspec.json.encode(test.seeds))
        one.update(exam.files[test.name].file.read_bytes())
        codes[test.name] = one.hexdigest()
    return codes


def _read(note: Path | None) -> _Note:
    """What cannot be read is as if it had not been proved."""
    try:
        found = None if note is None else msgspec.json.decode(note.read_bytes(), type=_Note)
    except (OSError, msgspec.MsgspecError):
        found = None
    return _Note(_VERSION, {}) if found is None or found.version != _VERSION else found
