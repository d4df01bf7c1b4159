"""One run of the live page, in a process that belongs to it: makes the steps, then waits for the next one.

The process that asks sends the text of a step, and gets a `RunReply`. A step that cannot be made is refused, with the
reason; because a refused step may have had effects, the run is over then, and another process replays the steps before
it. An error of the student's code ends the run as it ends any run; the reply then says how it ended.

Start at `serve()`.
"""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace as changed

from labrpc.conditions import TRANSIT_KINDS, Transit
from labrpc.events import DropReason
from labsim import Event, Simulation
from labsim.choices import (
    ChoiceKind,
    ChoicePoint,
    Choices,
    ChoiceSource,
    Distribution,
    OverridingSource,
    RecordingSource,
    SeededSource,
)
from raftlab.check.task_errors import pytest_says
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import LoadError, PeerLauncher
from raftlab.harness.loader import load_peer
from raftlab.harness.outcome import outcome_of
from raftlab.harness.run import Run, run_test
from raftlab.scenarios.interventions import with_interventions
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.stepped_cluster import ExpectationFailed, ScenarioError
from raftlab.scenarios.text import Script, ScriptError, parse_script, parse_step
from raftlab.tools.live.actions import Actions, RoleObserver, actions_of
from raftlab.tools.page.command import run_summary
from raftlab.tools.page.data import FORMAT, PageDataBuilder, page_data
from raftlab.tools.page.fields import FieldWatcher
from raftlab.tools.selection import SelectionError, select
from raftlab.trace.choice_file import write_choices
from raftlab.trace.events import ANSWER, CLUSTER, DROP, MESSAGE_KINDS, REPLY
from raftlab.trace.operations import CrashHere, Interventions

T = TypeVar("T")

# How often a waiting run looks for a step, and shows the watchdog that it is not blocked.
_POLL_S = 0.2
_UNRESPONSIVE_S = 2.0  # of processor time, because a person waits


class Edit(msgspec.Struct):
    """A choice that is not as the seed has it (labsim/choices.py)."""

    point: tuple[str, ...]
    ordinal: int
    value: Any


class TestRun(msgspec.Struct):
    """The run of a test, and what a person changed in it."""

    __test__ = False  # of pytest's own names for tests

    name: str
    files: list[Path] = []
    edits: list[Edit] = []
    crashes: list[CrashHere] = []
    taken_over_at: int | None = None  # after how many events


class Setup(msgspec.Struct):
    """What a run begins with: the header of a scenario, or a test."""

    raft: Path
    file: str  # the name that errors give
    header: str  # the lines of a scenario before its first step
    seed: int = 1
    race: bool = False
    test: TestRun | None = None

    @property
    def is_stepped(self) -> bool:
        """Whether steps can be made: not in a run of a test, until it is taken over."""
        return self.test is None or self.test.taken_over_at is not None


class Moment(msgspec.Struct):
    """The run after a step, or before the first."""

    step: str
    events: int  # in the trace by then
    digest: str
    actions: Actions
    shown: str = ""  # by `show`


class RunReply(msgspec.Struct, omit_defaults=True):
    moments: list[Moment] = []  # of the steps that were made
    data: bytes = b""  # of the whole run, as the page has it, in JSON
    refused: str = ""  # why the next step was not made
    cannot: str = ""  # why there is no run
    ended: str = ""  # how the run ended, in a line
    rule: str = ""  # that was violated
    snapshots: bool = True  # whether the peer can make snapshots
    edit: Edit | None = None  # the choice that was asked for


class WhatIf(msgspec.Struct):
    """Asks the finished run of a test for a choice: what happens to the message of this event."""

    event: int
    what: str  # one of CHANGES


class Finished(msgspec.Struct):
    """A run that was played out, as on the command line."""

    text: str  # passed, or what failed
    failed: bool
    rule: str = ""
    digest: str = ""
    choices: bytes = b""  # the file for `lab replay`


# What can become of a message instead.
CHANGES: dict[str, Callable[[Transit], Transit]] = {
    "lost": lambda was: changed(was, lost=True, duplicate_ns=None),
    "at once": lambda was: changed(was, lost=False, delay_ns=0),
    "100 ms later": lambda was: changed(was, lost=False, delay_ns=was.delay_ns + 100_000_000),
    "twice": lambda was: changed(was, lost=False, duplicate_ns=was.delay_ns + 1_000_000),
}


class TransitRecorder(RecordingSource):
    """Records also what became of every message."""

    def __init__(self, inner: ChoiceSource) -> None:
        super().__init__(inner)
        self.transits: dict[tuple[ChoicePoint, int], Transit] = {}

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        value = super().choose(point, ordinal, distribution)
        if point[0] in TRANSIT_KINDS:
            self.transits[point, ordinal] = value  # type: ignore[assignment]  # of these kinds it is one
        return value


def script_of(setup: Setup) -> Script:
    """A script has at least one step, so one is added and removed."""
    script = parse_script(f"{setup.header}\nheal\n", setup.file)
    script.steps.pop()
    return script


def without_snapshots(header: str) -> str:
    """The header for a peer that has no snapshot() yet."""
    return "\n".join(line for line in header.splitlines() if line.split() != ["snapshots"])


def serve(connection: Connection, setup: Setup, steps: list[str]) -> None:
    """The body of the process: a run with these steps, then what is asked for, until it ends or the asker is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    try:
        launcher = load_peer(setup.raft, race=setup.race)
    except LoadError as error:
        connection.send(RunReply(cannot=str(error)))
        return
    try:
        _LiveRun(connection, setup, steps).make(launcher)
    except SelectionError as error:
        connection.send(RunReply(cannot=str(error)))
    except (BrokenPipeError, ConnectionResetError):
        return  # the server has ended


def finish(connection: Connection, setup: Setup, steps: list[str]) -> None:
    """The body of a process that plays a branch out, as the command line does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        launcher = load_peer(setup.raft, race=setup.race)
        connection.send(_played_out(setup, steps, launcher))
    except (LoadError, SelectionError, ScriptError) as error:
        connection.send(Finished(str(error), True))


def _played_out(setup: Setup, steps: list[str], launcher: PeerLauncher) -> Finished:
    recorder = TransitRecorder(_source_of(setup))
    if setup.test is None:
        header = setup.header if launcher.has_method("snapshot") else without_snapshots(setup.header)
        test = make_lab_test(parse_script("\n".join([header, *(steps or ["show"])]), setup.file))
    else:
        interventions = Interventions(setup.test.crashes, setup.test.taken_over_at, steps)
        test = with_interventions(_test_of(setup.test), interventions)
    run = run_test(test, launcher, setup.seed, choice_source=recorder)
    done = Finished("passed", False, digest=run.digest)
    if run.error is not None and not pytest_says(run.error, "Skipped"):
        done = Finished(outcome_of(run.error).text, True, getattr(run.error, "rule", None) or "", run.digest)
    if setup.test is not None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "choices"
            files = str(setup.test.files[0]) if setup.test.files else ""
            write_choices(
                file,
                recorder.choices,
                test=setup.test.name,
                digest=run.digest,
                play=interventions,
                raft=str(setup.raft),
                file=files,
            )
            done.choices = file.read_bytes()
    return done


def _source_of(setup: Setup) -> ChoiceSource:
    source: ChoiceSource = SeededSource(setup.seed)
    if setup.test is None or not setup.test.edits:
        return source
    choices = Choices()
    choices.chosen = {(edit.point, edit.ordinal): edit.value for edit in setup.test.edits}
    return OverridingSource(source, choices)


def _test_of(run: TestRun) -> LabTest:
    tests = select([run.name], run.files)
    if len(tests) != 1:
        raise SelectionError(f"{run.name!r} is {len(tests)} tests; name one")
    if tests[0].wants_service:
        raise SelectionError(f"{run.name}: a test of the service cannot be steered; name one of parts 2A to 2D")
    return tests[0]


class _Over(Exception):
    """Ends a run from inside, without a verdict."""


class _LiveRun:
    def __init__(self, connection: Connection, setup: Setup, steps: list[str]) -> None:
        self._connection = connection
        self._setup = setup
        self._title = setup.test.name if setup.test is not None else script_of(setup).title or "live"
        self._snapshots = True
        self._steps = steps
        self._recorder = TransitRecorder(_source_of(setup))
        # Transits are needed for what-if questions only, which are about tests.
        source = self._recorder if setup.test is not None else None
        self._simulation = Simulation(setup.seed, choice_source=source, unresponsive_s=_UNRESPONSIVE_S)
        assert self._simulation.trace is not None
        self._trace: list[Event] = self._simulation.trace
        self._watch = FieldWatcher(self._simulation, self._trace)
        self._roles = RoleObserver()
        self._observed = 0
        self._builder: PageDataBuilder | None = None
        self._scenario: Scenario | None = None
        self._moments: list[Moment] = []  # that no reply has had yet
        self._pending = ""  # the step under way

    def make(self, launcher: PeerLauncher) -> None:
        self._simulation.subscribe(self._watch.observe)
        run = run_test(
            _watched(self._lab_test(launcher), self._watch), launcher, self._setup.seed, simulation=self._simulation
        )
        if isinstance(run.error, _Over):
            return
        self._send_end(run)
        if not self._setup.is_stepped:
            self._answer_what_if()

    def _lab_test(self, launcher: PeerLauncher) -> LabTest:
        self._snapshots = launcher.has_method("snapshot")
        if self._setup.test is None:
            script = script_of(self._setup)
            script.snapshots = script.snapshots and self._snapshots
            return make_lab_test(script, runner=self._play)
        run = self._setup.test
        return with_interventions(_test_of(run), Interventions(run.crashes, run.taken_over_at), runner=self._play)

    def _answer_what_if(self) -> None:
        while True:
            try:
                asked = self._connection.recv()
            except EOFError:
                return
            self._connection.send(self._what_if(asked))

    def _what_if(self, asked: WhatIf) -> RunReply:
        if not 0 <= asked.event < len(self._trace):
            return RunReply(refused=f"there is no event {asked.event + 1}")
        event = self._trace[asked.event]
        if event.kind not in MESSAGE_KINDS:
            return RunReply(refused="this event is not about a message; choose one that is")
        message = event.detail
        cluster = sum(one.kind == CLUSTER for one in self._trace[: asked.event + 1])
        mark = "" if cluster == 1 else f" of network {cluster}"
        kind = ChoiceKind.REPLY if event.kind in (ANSWER, REPLY) else ChoiceKind.REQUEST
        if event.kind == DROP and event.note == DropReason.LOST_REPLY:
            kind = ChoiceKind.REPLY
        point = (kind, f"{message.source}->{message.target}{mark}", message.rpc)
        was = self._recorder.transits.get((point, message.ordinal))
        if was is None:
            return RunReply(refused="nothing was chosen for this message: its sender was disconnected, or its link cut")
        value = CHANGES[asked.what](was)
        if value == was:
            return RunReply(refused=f"this already happened to the message: {asked.what}")
        return RunReply(edit=Edit(point, message.ordinal, msgspec.to_builtins(value)))

    # ---- inside the run -----------------------------------------------------------------------------------

    def _play(self, scenario: Scenario, script: Script) -> None:
        self._scenario = scenario
        self._script = script
        script.snapshots = script.snapshots and self._snapshots
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
        summary = {"test": self._title, "seed": self._setup.seed, "ends_ns": self._simulation.now_ns}
        self._connection.send(
            RunReply(self._moments, b"" if refused else self._data(summary), refused, snapshots=self._snapshots)
        )
        self._moments = []

    def _send_end(self, run: Run) -> None:
        """The run failed, in a step or before the first."""
        summary = run_summary(run, self._title, "")
        if run.error is not None:
            summary["headline"] = outcome_of(run.error).text
        if self._scenario is not None:
            self._moments.append(self._moment(self._pending, ended=True))
        elif self._setup.test is None:
            found = outcome_of(run.error, self._setup.raft.parent)
            where = f" ({found.where})" if found.where else ""
            self._connection.send(RunReply(cannot=f"the run fails before the first step: {found.text}{where}"))
            return
        else:
            self._moments.append(Moment("", len(self._trace), run.digest, Actions([], [], [], [])))
        ended = str(summary.get("headline", "" if self._setup.test is not None else "the run ended"))
        self._connection.send(
            RunReply(
                self._moments,
                _encoded(page_data(self._trace, summary, self._watch)),
                ended=ended,
                rule=str(summary.get("rule") or ""),
                snapshots=self._snapshots,
            ),
        )

    def _data(self, summary: dict[str, Any]) -> bytes:
        """Of the whole run so far. What was read before is not read again."""
        if self._builder is None:
            self._builder = PageDataBuilder(self._trace, has_steps=True)
        collecting = gc.isenabled()
        gc.disable()  # as page_data() does
        try:
            self._builder.read()
            return _encoded({"format": FORMAT, "run": summary, **self._builder.columns(self._watch)})
        finally:
            if collecting:
                gc.enable()


def _encoded(data: dict[str, Any]) -> bytes:
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
