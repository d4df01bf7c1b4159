"""A worker process that makes pages and minimized runs of a submission's failures.

Promise: this process never loads a line of the submission; every run uses sandboxed peers, as graded runs do. The
result is deterministic: shrinking is limited by a number of runs. If it exceeds its real-time limit, the failure is
reported as not minimized.

Start at `begin()`; artifact_worker.py sends the requests.
"""

from __future__ import annotations

import io
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from labsim import Simulation
from raftlab.guest.protocol import ProcessExit
from raftlab.harness.lab_test import LabTest
from raftlab.harness.options import DEFAULT, DEFAULT_KV, command_line
from raftlab.harness.run import Run, run_test
from raftlab.layout import PEER, SERVICE
from raftlab.sandbox.launcher import SandboxedLauncher
from raftlab.sandbox.processes import ForkServerLost, PeerProcess
from raftlab.sandbox.supervisor import PeerSupervisor
from raftlab.tools.grade.runs.worker import RunRequest, limit_process, make_launcher, shown_path
from raftlab.tools.grade.values.results import Artifacts
from raftlab.tools.page.command import run_summary
from raftlab.tools.page.data import page_data
from raftlab.tools.page.html import render_page
from raftlab.tools.selection import load_tests
from raftlab.tools.shrink.report import reproduction_lines
from raftlab.tools.shrink.shrinker import NothingToShrink, ShrinkResult, shrink
from raftlab.tools.timeline.command import print_timeline
from raftlab.tools.workers.server import serve
from raftlab.trace.choice_file import write_choices

_TRIES = 20  # repeated if another process has killed a peer
_DIFFERENT_MAX = 3  # runs that differ from the graded one
_WIDTH = 118
_TIMELINE_CHARS_MAX = 24_000
_EVENTS_LEFT_MAX = 0.9  # the share of events; with more left, a failure is not minimized

# On the student's page, after "Not minimized: ".
TOO_LONG = "minimizing took too long"
NOT_THE_SAME = "the run does not fail the same way each time"
ALL_NEEDED = "almost every event is needed"


class ArtifactRequest(msgspec.Struct):
    """A failed run, and which artifacts to make of it."""

    run: RunRequest
    digest: str  # of the run as it was graded
    page: bool
    shrink_runs: int  # the limit for shrinking it; 0: do not shrink
    shrink_s: float


class ArtifactAnswer(msgspec.Struct):
    artifacts: Artifacts
    files: dict[str, bytes]  # by name


class PeerKilled(Exception):
    """Another process killed a peer, so this run does not count."""


class _LimitedLauncher(SandboxedLauncher):
    """Ends shrinking like Ctrl-C when the runs are used up.

    Raises PeerKilled after a run in which another process killed a peer, so that the result stays deterministic.
    """

    runs_left: int | None = None
    peer_killed = False

    @contextmanager
    def run(self, simulation: Simulation | None) -> Iterator[None]:
        if self.runs_left is not None:
            self.runs_left -= 1
            if self.runs_left < 0:
                self.runs_left = None
                raise KeyboardInterrupt
        self.peer_killed = False
        try:
            with super().run(simulation):
                yield
        finally:
            if self.peer_killed:
                self.peer_killed = False
                raise PeerKilled

    def start_process(self, supervisor: PeerSupervisor) -> PeerProcess:
        process = super().start_process(supervisor)
        wait_exit = process.wait_exit

        def checked() -> ProcessExit | None:
            ended = wait_exit()
            if ended is not None and os.waitstatus_to_exitcode(ended.status) == -signal.SIGKILL:
                self.peer_killed |= ended.cpu_s < self.limits.cpu_s - 0.5  # else it exceeded its limit
            return ended

        process.wait_exit = checked  # type: ignore[method-assign]  # called when a peer has exited
        return process


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    limit_process()

    def answers_to(line: bytes) -> Iterator[bytes]:
        yield msgspec.json.encode(_answer(msgspec.json.decode(line, type=ArtifactRequest)))

    return answers_to


def _answer(wanted: ArtifactRequest) -> ArtifactAnswer:
    request = wanted.run
    (test,) = [test for test in load_tests(Path(request.file)) if test.name == request.test]
    launcher = make_launcher(_LimitedLauncher, request.setup, lambda _: None)
    try:
        different = 0
        for _ in range(_TRIES):
            try:
                answer = _try_once(wanted, test, launcher)
            except (ForkServerLost, PeerKilled):
                launcher.close()
                continue
            if answer is not None:
                return answer
            different += 1
            if different == _DIFFERENT_MAX:
                break
        why = "the run differed when it was repeated" if different else "its processes were killed repeatedly"
        return ArtifactAnswer(Artifacts(test=request.test, seed=request.seed, no_page=why, not_shrunk=NOT_THE_SAME), {})
    finally:
        launcher.close()


def _try_once(wanted: ArtifactRequest, test: LabTest, launcher: _LimitedLauncher) -> ArtifactAnswer | None:
    """None if the run differs from the graded one."""
    request, name = wanted.run, f"{wanted.run.test}-{wanted.run.seed}"
    artifacts, files = Artifacts(test=request.test, seed=request.seed), dict[str, bytes]()
    shrunk = None
    if wanted.shrink_runs:
        shrunk, artifacts.not_shrunk = _shrink(wanted, test, launcher)
    run = shrunk.original.run if shrunk is not None else run_test(test, launcher, request.seed)
    if run.digest != wanted.digest:
        return None
    if wanted.page:
        artifacts.page = f"{name}.html"
        files[artifacts.page] = _page(run, test, request, request.replay)
    if shrunk is not None:
        best = shrunk.best
        artifacts.recipe = [shown_path(line, test, request) for line in reproduction_lines(shrunk, "")]
        artifacts.events, artifacts.events_left = shrunk.original.events, best.events
        artifacts.timeline = shown_path(_timeline(shrunk, test), test, request)
        artifacts.choices = f"{name}.choices"
        files[artifacts.choices] = _choices(shrunk, test)
        if wanted.page:
            artifacts.shrunk_page = f"{name}-shrunk.html"
            replay = command_line(f"lab replay {artifacts.choices}", {"isolated": True})
            files[artifacts.shrunk_page] = _page(best.run, test, request, replay)
    return ArtifactAnswer(artifacts, files)


def _shrink(wanted: ArtifactRequest, test: LabTest, launcher: _LimitedLauncher) -> tuple[ShrinkResult | None, str]:
    """The minimized run, or why there is none."""
    launcher.runs_left = wanted.shrink_runs
    try:
        files = (Path(PEER), Path(SERVICE))
        shrunk = shrink(test, launcher, wanted.run.seed, files, limit_s=wanted.shrink_s, scenario=False)
    except (NothingToShrink, KeyboardInterrupt):
        return None, NOT_THE_SAME
    finally:
        launcher.runs_left = None
    if not shrunk.finished:
        return None, TOO_LONG
    if shrunk.best.events > _EVENTS_LEFT_MAX * shrunk.original.events:
        return None, ALL_NEEDED
    return shrunk, ""


def _page(run: Run, test: LabTest, request: RunRequest, replay: str) -> bytes:
    assert run.simulation is not None and run.simulation.trace is not None
    summary = run_summary(run, test.name, replay)
    for name in ("headline", "evidence", "causes"):
        value = summary.get(name, "")
        summary[name] = (
            shown_path(value, test, request)
            if isinstance(value, str)
            else [shown_path(line, test, request) for line in value]
        )
    data = page_data(run.simulation.trace, summary)
    return render_page(data, f"{test.name} {request.seed}").encode(errors="replace")


def _timeline(shrunk: ShrinkResult, test: LabTest) -> str:
    text = io.StringIO()
    ending = f"FAILED: {shrunk.best.run.error}".partition("\n")[0]
    title = f"{test.name}, minimized"
    show = partial(print_timeline, width=_WIDTH, color=False, ascii_only=False, legend=False)
    show(shrunk.best.trace, file=text, ending=ending, title=title)
    timeline = text.getvalue()
    return timeline if len(timeline) <= _TIMELINE_CHARS_MAX else f"{timeline[:_TIMELINE_CHARS_MAX]}…\n"


def _choices(shrunk: ShrinkResult, test: LabTest) -> bytes:
    """A choice file with which the student replays the run on their own files."""
    with tempfile.TemporaryDirectory(prefix="lab-grade-") as folder:
        path = Path(folder) / "choices"
        kv = str(DEFAULT_KV) if test.wants_service else ""
        plan = shrunk.best.plan
        given = {"raft": str(DEFAULT), "kv": kv, "file": ""}
        write_choices(path, plan.choices, test=test.name, digest=shrunk.best.run.digest, play=plan.play, **given)
        return path.read_bytes()


if __name__ == "__main__":
    os._exit(serve(begin))
