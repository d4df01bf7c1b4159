"""Makes the runs of a submission: the supervisor of its peers, in a process of the grader.

Promise: this process never loads a line of the submission, so what it says of a run is the tester's word. Hidden
tests are loaded here and nowhere else. A run that somebody outside has disturbed is made again.

Start at `begin()`; run_worker.py starts it; raftlab/sandbox/confinement.py describes the sandbox.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.json import encode

from labsim import Unresponsive
from raftlab.check.failure import PeerProcessFailed
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import LoadError
from raftlab.harness.outcome import Ending, Outcome, without_numbers
from raftlab.harness.run import Run, run_test
from raftlab.layout import PEER, SERVICE
from raftlab.sandbox import launcher
from raftlab.sandbox.launcher import SandboxedLauncher, ServicePaths
from raftlab.sandbox.processes import ForkServerLost, PeerProcessKilled
from raftlab.sandbox.supervisor import PeerNotLoadable, PeerTimeout
from raftlab.tools.grade.values.rubric import Limits
from raftlab.tools.selection import load_tests
from raftlab.tools.workers.server import dump_stack_on_crash, serve

_REPORT_CHARS_MAX = 20_000
_TRIES = 5
_MEMORY_MB = 4096  # of this process
_PR_SET_PDEATHSIG = 1
BROKE_THE_TESTER = "The tester itself failed in this run; check the run before you trust the score."


Launcher = TypeVar("Launcher", bound=SandboxedLauncher)


class RunSetup(msgspec.Struct):
    """Whose runs."""

    files: dict[str, bytes]  # the submission's own, by the path that its author knows
    raft: str  # the path of its raft.py
    limits: Limits
    service: bool = False  # whether the service in the folder kv is run, too
    race: bool = False  # preempt threads at any line


class RunRequest(msgspec.Struct):
    """A run to make."""

    setup: RunSetup
    file: str  # of the test
    shown_as: str  # what reports call that file
    test: str
    seed: int
    replay: str


class RunAnswer(msgspec.Struct):
    outcome: Outcome | None = None
    problem: str = ""  # why no run can be made here at all


class Output:
    """The first part of what the peers of a run print."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()

    def add(self, text: str) -> None:
        left = self._bytes_max - len(self._kept)
        self._kept += text.encode(errors="replace")[: max(0, left)]

    def take(self) -> str:
        kept, self._kept = self._kept, bytearray()
        return kept.decode(errors="replace")


def limit_process() -> None:
    """Limit a supervisor process, and end it with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides when it ends
    # And is not to be outlived.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    dump_stack_on_crash()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MB << 20, hard))


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    limit_process()
    judge = _RunMaker()

    def answers_to(line: bytes) -> Iterator[bytes]:
        try:
            yield encode(RunAnswer(judge.run(msgspec.json.decode(line, type=RunRequest))))
        except ForkServerLost as lost:
            yield encode(RunAnswer(problem=str(lost)))

    return answers_to


class _RunMaker:
    """Makes runs, of one submission after another."""

    def __init__(self) -> None:
        self._setup: RunSetup | None = None
        self._launcher: SandboxedLauncher | None = None
        self._output = Output(0)
        self._tests: dict[str, dict[str, LabTest]] = {}

    def run(self, request: RunRequest) -> Outcome:
        launcher = self._launcher_of(request.setup)
        if request.file not in self._tests:
            self._tests[request.file] = {test.name: test for test in load_tests(Path(request.file))}
        test = self._tests[request.file][request.test]
        try:
            outcome = _undisturbed(launcher, test, request)
        except ForkServerLost:
            raise
        except Exception:
            # A mistake of ours that this submission has met. It must not keep the others from being graded.
            launcher.close()
            told = traceback.format_exc()[-_REPORT_CHARS_MAX:]
            outcome = broken_tester(request, told)
        outcome.output = self._output.take()
        return outcome

    def _launcher_of(self, setup: RunSetup) -> SandboxedLauncher:
        if self._launcher is None or setup != self._setup:
            if self._launcher is not None:
                self._launcher.close()
            self._output = Output(setup.limits.output_kb << 10)
            self._launcher = _launcher(setup, self._output)
            self._setup = setup
        return self._launcher


def make_launcher(kind: type[Launcher], setup: RunSetup, show: Callable[[str], Any]) -> Launcher:
    limits = launcher.SandboxLimits(
        cpu_s=setup.limits.cpu_s, memory_mb=setup.limits.memory_mb, real_s=setup.limits.real_s, slice_s=_slice_s(setup)
    )
    service = ServicePaths(*(f"{SERVICE}/{name}.py" for name in ("server", "client", "messages")))
    service_paths = service if setup.service else None
    return kind(setup.files, setup.raft, service_paths, limits=limits, print_text=show, race=setup.race)


def _launcher(setup: RunSetup, output: Output) -> SandboxedLauncher:
    launcher = make_launcher(SandboxedLauncher, setup, output.add)
    for _ in range(_TRIES):
        try:
            launcher.load()
        except ForkServerLost:
            launcher.close()  # if it is no accident, a run will meet it again
            continue
        except LoadError:
            pass  # it will be told of every run
        break
    output.take()
    return launcher


def _slice_s(setup: RunSetup) -> float:
    """A time slice may take as long as the whole run, because the machine may be busy."""
    return float(setup.limits.real_s)


def _undisturbed(launcher: SandboxedLauncher, test: LabTest, request: RunRequest) -> Outcome:
    """What is disturbed from outside says nothing about the submission."""
    for attempt in range(1, _TRIES + 1):
        try:
            run = run_test(test, launcher, request.seed)
        except ForkServerLost:
            launcher.close()
            if attempt == _TRIES:
                raise
            continue
        except LoadError as error:
            return _unloadable(Outcome(test=test.name, seed=request.seed), str(error))
        if not isinstance(run.error, PeerProcessKilled | ForkServerLost):
            return _outcome(launcher, test, request, run)
        launcher.close()
    raise RuntimeError(f"{test.name} was disturbed {_TRIES} times: peer processes are killed from outside")


def shown_path(text: str, test: LabTest, request: RunRequest) -> str:
    """With the test's file as the reader knows it."""
    return text.replace(str(test.file), request.shown_as).encode(errors="replace").decode()


def broken_tester(request: RunRequest, what: str) -> Outcome:
    """Of a run that ended the process that makes it, or met a bug of the lab."""
    lines = [f"{request.test}  seed {request.seed}", *(f"  {line}" for line in what.splitlines())]
    return Outcome(
        test=request.test, seed=request.seed, ending=Ending.DIED, text=BROKE_THE_TESTER, report="\n".join(lines)
    )


def _outcome(launcher: SandboxedLauncher, test: LabTest, request: RunRequest, run: Run) -> Outcome:
    outcome = run.outcome((Path(PEER), Path(SERVICE)), test.file, replay=request.replay)
    outcome.real_s, outcome.virtual_s = round(run.real_s, 3), round(run.virtual_s, 6)
    outcome.dropped = launcher.dropped_chars
    outcome.rewrite(lambda text: shown_path(text, test, request))
    if run.error is None or not outcome.failed:
        return outcome
    outcome.ending = _ending(run.error, outcome.ending)
    if outcome.ending is Ending.UNLOADABLE:
        return _unloadable(outcome, shown_path(str(run.error), test, request))
    if outcome.ending is Ending.FORCED:
        # Where it was at that moment is chance, and would differ from one grading to the next.
        outcome.report = without_stack(outcome.report)
        outcome.digest, outcome.virtual_s, outcome.events = "", 0.0, 0
        outcome.text, outcome.where, outcome.mistake = without_numbers(outcome.text), "", ""
    return outcome


_STACK_LINE = re.compile(r"\s+\S+:\d+ in ")  # a file need not be a .py: "<string>:8 in ..."


def without_stack(report: str) -> str:
    kept = [line for line in report.splitlines() if ".py:" not in line and not _STACK_LINE.match(line)]
    return "\n".join(line.removesuffix(" It is here:") for line in kept)


def _unloadable(outcome: Outcome, why: str) -> Outcome:
    outcome.ending, outcome.report = Ending.UNLOADABLE, why
    outcome.text, outcome.headline, outcome.where, outcome.mistake = why.partition("\n")[0], "", "", ""
    outcome.rewrite(str)
    return outcome


def _ending(error: BaseException, ending: Ending) -> Ending:
    """As a grade tells them apart."""
    if isinstance(error, PeerNotLoadable):
        return Ending.UNLOADABLE
    if isinstance(error, PeerTimeout | Unresponsive):  # Unresponsive: a message of the peer keeps the supervisor busy
        return Ending.FORCED
    if isinstance(error, PeerProcessFailed):
        if error.kind == "Died":
            return Ending.DIED
        if error.kind == "Misbehaved":
            return Ending.MISBEHAVED
        if error.kind == "Unresponsive" or "MemoryError" in (error.kind, error.name):
            return Ending.FORCED
    return ending


if __name__ == "__main__":
    os._exit(serve(begin))
