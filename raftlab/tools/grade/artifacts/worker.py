"""What draws and shrinks a submission's failures: the host of its guests, in a process of the grader's own.

Promise: this process never loads a line of the submission; every run is made of guests behind their walls, as graded
runs are. What comes out is the same every time: how far a run is shrunk depends on how many runs that takes, never on
how long they take. One that is too slow for its limit of real time is not shrunk at all, and it says so.

Start at `begin()`; who asks is artifact_worker.py.
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
from raftlab.tools.grade.runs.worker import Request, begin_alone, make_launcher, shown_path
from raftlab.tools.grade.values.results import Shown
from raftlab.tools.page.command import run_summary
from raftlab.tools.page.data import page_data
from raftlab.tools.page.html import render_page
from raftlab.tools.selection import load_tests
from raftlab.tools.shrink.report import reproduction_lines
from raftlab.tools.shrink.shrinker import NothingToShrink, ShrinkResult, shrink
from raftlab.tools.timeline.command import print_timeline
from raftlab.tools.workers.server import serve
from raftlab.trace.choice_file import write_choices

_TRIES = 20  # of which all but the last few end early: somebody outside has killed a guest
_OTHERS_MAX = 3  # runs that are not the graded one
_WIDTH = 118
_TIMELINE_CHARS_MAX = 24_000
_HARDLY = 0.9  # of the events are left

# Said on the student's page, after "Not shrunk: ".
TOO_LONG = "it took too long"
NOT_THE_SAME = "it does not fail the same way each time"
NOTHING_LEFT_OUT = "almost every event is needed"


class Wanted(msgspec.Struct):
    """A failed run to show."""

    run: Request
    digest: str  # of the run as it was graded
    page: bool
    shrink_runs: int  # so many may be made to shrink it; 0: it is not shrunk
    shrink_s: float


class Drawn(msgspec.Struct):
    shown: Shown
    files: dict[str, bytes]  # by name


class Disturbed(Exception):
    """A guest was killed from outside: this run says nothing."""


class _Counted(SandboxedLauncher):
    """Ends a search as Ctrl-C does, when so many runs were begun; what the search does then is let be.

    A run with a guest that was killed comes out as Disturbed, so that chance has no say in what is left.
    """

    runs_left: int | None = None
    disturbed = False

    @contextmanager
    def run(self, simulation: Simulation | None) -> Iterator[None]:
        if self.runs_left is not None:
            self.runs_left -= 1
            if self.runs_left < 0:
                self.runs_left = None
                raise KeyboardInterrupt
        self.disturbed = False
        try:
            with super().run(simulation):
                yield
        finally:
            if self.disturbed:
                self.disturbed = False
                raise Disturbed

    def start_process(self, supervisor: PeerSupervisor) -> PeerProcess:
        process = super().start_process(supervisor)
        wait_exit = process.wait_exit

        def noted() -> ProcessExit | None:
            ended = wait_exit()
            if ended is not None and os.waitstatus_to_exitcode(ended.status) == -signal.SIGKILL:
                self.disturbed |= ended.cpu_s < self.limits.cpu_s - 0.5  # else it was its own limit
            return ended

        process.wait_exit = noted  # type: ignore[method-assign]  # it is asked when a guest is gone
        return process


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    begin_alone()

    def answers_to(line: bytes) -> Iterator[bytes]:
        yield msgspec.json.encode(_drawn(msgspec.json.decode(line, type=Wanted)))

    return answers_to


def _drawn(wanted: Wanted) -> Drawn:
    request = wanted.run
    (test,) = [test for test in load_tests(Path(request.file)) if test.name == request.test]
    launcher = make_launcher(_Counted, request.setup, lambda _: None)
    try:
        others = 0
        for _ in range(_TRIES):
            try:
                drawn = _draw(wanted, test, launcher)
            except (ForkServerLost, Disturbed):
                launcher.close()
                continue
            if drawn is not None:
                return drawn
            others += 1
            if others == _OTHERS_MAX:
                break
        why = "the run differed when it was repeated" if others else "its processes were killed repeatedly"
        return Drawn(Shown(test=request.test, seed=request.seed, no_page=why, not_shrunk=NOT_THE_SAME), {})
    finally:
        launcher.close()


def _draw(wanted: Wanted, test: LabTest, launcher: _Counted) -> Drawn | None:
    """None if it is another run than the graded one."""
    request, name = wanted.run, f"{wanted.run.test}-{wanted.run.seed}"
    shown, files = Shown(test=request.test, seed=request.seed), dict[str, bytes]()
    shrunk = None
    if wanted.shrink_runs:
        shrunk, shown.not_shrunk = _shrink(wanted, test, launcher)
    run = shrunk.original.run if shrunk is not None else run_test(test, launcher, request.seed)
    if run.digest != wanted.digest:
        return None
    if wanted.page:
        shown.page = f"{name}.html"
        files[shown.page] = _page(run, test, request, request.replay)
    if shrunk is not None:
        best = shrunk.best
        shown.recipe = [shown_path(line, test, request) for line in reproduction_lines(shrunk, "")]
        shown.events, shown.events_left = shrunk.original.events, best.events
        shown.timeline = shown_path(_timeline(shrunk, test), test, request)
        shown.choices = f"{name}.choices"
        files[shown.choices] = _choices(shrunk, test)
        if wanted.page:
            shown.shrunk_page = f"{name}-shrunk.html"
            files[shown.shrunk_page] = _page(
                best.run, test, request, command_line(f"lab replay {shown.choices}", {"isolated": True})
            )
    return Drawn(shown, files)


def _shrink(wanted: Wanted, test: LabTest, launcher: _Counted) -> tuple[ShrinkResult | None, str]:
    """What is left, or why nothing is."""
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
    if shrunk.best.events > _HARDLY * shrunk.original.events:
        return None, NOTHING_LEFT_OUT
    return shrunk, ""


def _page(run: Run, test: LabTest, request: Request, replay: str) -> bytes:
    assert run.simulation is not None and run.simulation.trace is not None
    told = run_summary(run, test.name, replay)
    for name in ("headline", "evidence", "causes"):
        value = told.get(name, "")
        told[name] = (
            shown_path(value, test, request)
            if isinstance(value, str)
            else [shown_path(line, test, request) for line in value]
        )
    data = page_data(run.simulation.trace, told)
    return render_page(data, f"{test.name} {request.seed}").encode(errors="replace")


def _timeline(shrunk: ShrinkResult, test: LabTest) -> str:
    text = io.StringIO()
    ending = f"FAILED: {shrunk.best.run.error}".partition("\n")[0]
    title = f"{test.name}, minimized"
    plain = partial(print_timeline, width=_WIDTH, color=False, ascii_only=False, legend=False)
    plain(shrunk.best.trace, file=text, ending=ending, title=title)
    told = text.getvalue()
    return told if len(told) <= _TIMELINE_CHARS_MAX else f"{told[:_TIMELINE_CHARS_MAX]}…\n"


def _choices(shrunk: ShrinkResult, test: LabTest) -> bytes:
    """As the student replays it, with the student's own files."""
    with tempfile.TemporaryDirectory(prefix="lab-grade-") as folder:
        path = Path(folder) / "choices"
        kv = str(DEFAULT_KV) if test.wants_service else ""
        plan = shrunk.best.plan
        given = {"raft": str(DEFAULT), "kv": kv, "file": ""}
        write_choices(path, plan.choices, test=test.name, digest=shrunk.best.run.digest, play=plan.play, **given)
        return path.read_bytes()


if __name__ == "__main__":
    os._exit(serve(begin))
