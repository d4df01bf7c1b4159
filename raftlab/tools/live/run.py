"""One run of the live page, in a process that belongs to it: makes the steps, then waits for the next one.

The process that asks sends the text of a step, and gets a `Reply`. A step that cannot be made is refused, with the
reason; because a refused step may have had effects, the run is over then, and another process replays the steps before
it. An error of the student's code ends the run as it ends any run; the reply then says how it ended.

Start at `serve()`.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from labsim import Event, Simulation
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import LoadError, PeerLauncher
from raftlab.harness.loader import load_peer
from raftlab.harness.run import Run, run_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.stepped_cluster import ExpectationFailed, ScenarioError
from raftlab.scenarios.text import Script, parse_script, parse_step
from raftlab.tools.live.actions import Actions, RoleObserver, actions_of
from raftlab.tools.page.command import run_summary
from raftlab.tools.page.data import page_data
from raftlab.tools.page.fields import FieldWatcher

# How often a waiting run looks for a step, and shows the watchdog that it is not blocked.
_POLL_S = 0.2
_UNRESPONSIVE_S = 2.0  # of processor time: somebody sits at the page


class Setup(msgspec.Struct):
    """What a run begins with."""

    raft: Path
    file: str  # the name that errors give
    header: str  # the lines of a scenario before its first step
    seed: int = 1
    race: bool = False


class Moment(msgspec.Struct):
    """The run after a step, or before the first."""

    step: str
    events: int  # in the trace by then
    digest: str
    actions: Actions
    shown: str = ""  # by `show`


class Reply(msgspec.Struct, omit_defaults=True):
    moments: list[Moment] = []  # of the steps that were made
    data: bytes = b""  # of the whole run, as the page has it, in JSON
    refused: str = ""  # why the next step was not made
    cannot: str = ""  # why there is no run at all
    ended: str = ""  # how the run ended, in a line
    rule: str = ""  # that was violated


def script_of(setup: Setup) -> Script:
    """A script has at least one step, so one is added and removed."""
    script = parse_script(f"{setup.header}\nheal\n", setup.file)
    script.steps.pop()
    return script


def serve(connection: Connection, setup: Setup, steps: list[str]) -> None:
    """The body of the process: a run with these steps, then what is asked for, until it ends or the asker is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    try:
        launcher = load_peer(setup.raft, race=setup.race)
    except LoadError as error:
        connection.send(Reply(cannot=str(error)))
        return
    _LiveRun(connection, setup, steps).make(launcher)


class _Over(Exception):
    """Ends a run from inside, without a verdict."""


class _LiveRun:
    def __init__(self, connection: Connection, setup: Setup, steps: list[str]) -> None:
        self._connection = connection
        self._setup = setup
        self._script = script_of(setup)
        self._steps = steps
        self._simulation = Simulation(setup.seed, unresponsive_s=_UNRESPONSIVE_S)
        assert self._simulation.trace is not None
        self._trace: list[Event] = self._simulation.trace
        self._watch = FieldWatcher(self._simulation, self._trace)
        self._roles = RoleObserver()
        self._observed = 0
        self._scenario: Scenario | None = None
        self._moments: list[Moment] = []  # that no reply has had yet
        self._pending = ""  # the step under way

    def make(self, launcher: PeerLauncher) -> None:
        self._simulation.subscribe(self._watch.observe)
        snapshots = launcher.has_method("snapshot")
        if not snapshots:
            self._script.snapshots = False
        test = make_lab_test(self._script, runner=self._play)
        run = run_test(_watched(test, self._watch), launcher, self._setup.seed, simulation=self._simulation)
        if isinstance(run.error, _Over):
            return
        self._send_end(run)

    # ---- inside the run -----------------------------------------------------------------------------------

    def _play(self, scenario: Scenario, script: Script) -> None:
        self._scenario = scenario
        scenario.interactive = True
        for made in script.steps:  # `logs`
            self._pending = made.text
            made.action(scenario)
        self._note("", "")
        for text in self._steps:
            if refused := self._make_step(text):
                self._send(refused)
                raise _Over
        self._send()
        while True:
            if refused := self._make_step(self._next_step()):
                self._send(refused)
                raise _Over
            self._send()

    def _next_step(self) -> str:
        while not self._connection.poll(_POLL_S):
            self._simulation.switches += 1
        try:
            return str(self._connection.recv())
        except EOFError:
            raise _Over from None

    def _make_step(self, text: str) -> str:
        """Why it was not made, or ""."""
        assert self._scenario is not None
        scenario = self._scenario
        self._pending = scenario.step_text = text
        try:
            shown = parse_step(text, self._script)(scenario)
        except (ScenarioError, ExpectationFailed, ValueError) as error:
            return str(error)
        finally:
            scenario.step_text = ""
        self._note(text, shown if isinstance(shown, str) else "")
        return ""

    def _note(self, text: str, shown: str) -> None:
        self._pending = ""
        self._moments.append(self._moment(text, shown))

    def _moment(self, text: str, shown: str = "", *, ended: bool = False) -> Moment:
        assert self._scenario is not None
        for event in self._trace[self._observed :]:
            self._roles.observe(event)
        self._observed = len(self._trace)
        actions = actions_of(self._scenario, self._roles, snapshots=self._script.snapshots, ended=ended)
        return Moment(text, len(self._trace), self._simulation.digest(), actions, shown)

    # ---- replies ---------------------------------------------------------------------------------------------

    def _send(self, refused: str = "") -> None:
        told = {"test": self._script.title or "live", "seed": self._setup.seed, "ends_ns": self._simulation.now_ns}
        self._connection.send(Reply(self._moments, b"" if refused else self._data(told), refused))
        self._moments = []

    def _send_end(self, run: Run) -> None:
        """The run failed, in a step or before the first."""
        told = run_summary(run, self._script.title or "live", "")
        if self._scenario is None:
            self._connection.send(Reply(cannot=str(told.get("headline", "the run ended before its first step"))))
            return
        self._moments.append(self._moment(self._pending, ended=True))
        ended = str(told.get("headline", "the run ended"))
        self._connection.send(
            Reply(self._moments, self._data(told), ended=ended, rule=str(told.get("rule") or "")),
        )

    def _data(self, told: dict[str, Any]) -> bytes:
        data = page_data(self._trace, told, self._watch)
        return json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii")


def _watched(test: LabTest, watch: FieldWatcher) -> LabTest:
    def function(make_config: Callable[..., Any]) -> Any:
        def make(**how: Any) -> Any:
            config = make_config(**how)
            watch.peer = config.peer
            return config

        return test.function(make)

    return replace(test, function=function)


def header_lines(text: str) -> Iterator[str]:
    """The lines of a scenario before its first step: comments, `peers 5`, `logs 0: 1 1`."""
    for line in text.splitlines():
        word = line.partition("#")[0].split()[:1]
        if word and word[0] not in ("peers", "snapshots", "strict", "needs", "logs", "commit"):
            return
        yield line
