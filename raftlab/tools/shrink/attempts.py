"""One attempt: a run with some choices at their defaults and some acts removed, and whether it fails the same way.

A `RunPlan` says what is left. A broken rule or an exception in a peer is wrong whatever the test expects, so its plan
is a list of operations without the test's code (`RecordedSchedule`). A failed expectation needs the test's code, so its
plan is the test, and only faults are removed, each of which is a choice.

Start at `Attempts.run_new()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from labrpc.conditions import TRANSIT_KINDS, Transit
from labsim import Event, current_simulation
from labsim.choices import (
    ChoiceKind,
    ChoicePoint,
    Choices,
    ChoiceSource,
    DefaultSource,
    Distribution,
    OverridingSource,
    RecordingSource,
    SeededSource,
)
from raftlab.check.diagnosis import examine
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.outcome import Ending, Outcome
from raftlab.harness.run import Run, run_test
from raftlab.scenarios.recorded_schedule import ScheduleRecording, make_schedule_test, record_operations
from raftlab.trace.operations import FailureLocation, RecordedCluster, RecordedSchedule, ScheduledOperation

T = TypeVar("T")

# How much later than the best run so far another may fail.
_GRACE_NS = 500_000_000
_A_MOMENT_NS = 1_000_000
# The cost of reading a choice, in events. A removed fault saves its line.
_LINE: dict[str, int] = {ChoiceKind.FAULT: -2, ChoiceKind.NODE: 3}


class FailureSignature(NamedTuple):
    """What must stay the same: the rule, or the line of the test and the diagnosis."""

    mistake: str
    where: FailureLocation | None = None
    diagnoses: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunPlan:
    choices: Choices
    play: RecordedSchedule | None = None  # None: the test itself
    fails_at_end: bool = False  # it fails at its end, so its length must stay

    def key(self) -> bytes:
        """Plans with equal keys make equal runs."""
        play = self.play
        parts = (
            None if play is None else msgspec.to_builtins(play),
            sorted((place, ordinal, repr(value)) for (place, ordinal), value in self.choices.chosen.items()),
            sorted(self.choices.picked.items()),
        )
        return blake2b(repr(parts).encode(), digest_size=16).digest()


@dataclass
class Attempt:
    """The result of a plan. `plan` is reduced to what the run used before it failed."""

    plan: RunPlan
    run: Run
    outcome: Outcome
    signature: FailureSignature | None  # None: it passed
    notes: ScheduleRecording = field(default_factory=ScheduleRecording)
    asked_ns: dict[tuple[ChoicePoint, int], int] = field(default_factory=dict)  # by choice: when it was made

    @property
    def trace(self) -> Sequence[Event]:
        simulation = self.run.simulation
        return (simulation.trace if simulation is not None else None) or ()

    @property
    def events(self) -> int:
        return len(self.trace)

    @property
    def failed_ns(self) -> int:
        assert self.run.simulation is not None
        return self.run.simulation.now_ns

    @cached_property
    def cost(self) -> tuple[int, int, int]:
        """How much there is to read: events and reproduction steps. Among equals, fewer choices left,
        and whose messages are less late."""
        choices, play = self.plan.choices, self.plan.play
        lines = sum(_LINE.get(place[0], 10) for place, _ in choices.chosen) + 2 * len(choices.picked)
        lines = min(lines, self.events)  # nobody reads more lines than events
        if play is not None:
            lines += 10 * len(play.acts) + 5 * play.how.get("servers", 3)
        late_ns = sum(transit.delay_ns + (transit.duplicate_ns or 0) for transit in transits_of(choices).values())
        return self.events + lines, len(choices.chosen) + len(choices.picked), late_ns


def transits_of(choices: Choices) -> dict[tuple[ChoicePoint, int], Transit]:
    """The transit of each message that has a choice."""
    return {
        key: msgspec.convert(value, Transit) if isinstance(value, dict) else value
        for key, value in choices.chosen.items()
        if key[0][0] in TRANSIT_KINDS
    }


class _TimedSource(RecordingSource):
    """Also records when each choice was made."""

    def __init__(self, inner: ChoiceSource) -> None:
        super().__init__(inner)
        self.asked_ns: dict[tuple[ChoicePoint, int], int] = {}

    def choose(self, place: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        value = super().choose(place, ordinal, distribution)
        simulation = current_simulation()
        if simulation is not None:
            self.asked_ns[place, ordinal] = simulation.now_ns
        return value

    def until(self, ns: int) -> Choices:
        """The choices made by that time; later ones cannot matter."""
        choices = Choices()
        choices.chosen = {key: value for key, value in self.choices.chosen.items() if self.asked_ns.get(key, 0) <= ns}
        choices.picked = {key: label for key, label in self.choices.picked.items() if key[0] <= ns}
        return choices


class SeededDefaults(NamedTuple):
    """Takes from a seed what a plan leaves open, instead of the defaults: the scheduling, or everything."""

    seed: int
    randomize_all: bool = False

    def choice_source(self) -> ChoiceSource:
        return SeededSource(self.seed) if self.randomize_all else _SeededScheduling(self.seed)


class _SeededScheduling(DefaultSource):
    def __init__(self, seed: int) -> None:
        self.pick = SeededSource(seed).pick  # type: ignore[method-assign]  # one method of another choice source


class Attempts:
    """Runs plans, each only once."""

    def __init__(self, test: LabTest, launcher: PeerLauncher, peer_files: Sequence[Path]) -> None:
        self._test = test
        self._launcher = launcher
        self._peer_files = peer_files
        self._made: set[tuple[bytes, SeededDefaults | None]] = set()
        self.count = 0

    def run_seed(self, choice_source: ChoiceSource, seed: int) -> Attempt:
        """Run the test itself with a seed."""
        return self._run(None, choice_source, seed)

    def run_plan(self, plan: RunPlan, defaults: SeededDefaults | None = None) -> Attempt:
        """Run a plan, even if it ran before."""
        otherwise = DefaultSource() if defaults is None else defaults.choice_source()
        return self._run(plan.play, OverridingSource(otherwise, plan.choices), 0, fails_at_end=plan.fails_at_end)

    def run_new(self, plan: RunPlan, defaults: SeededDefaults | None = None) -> Attempt | None:
        """Run a plan; None if it ran before."""
        key = (plan.key(), defaults)
        if key in self._made:
            return None
        self._made.add(key)
        return self.run_plan(plan, defaults)

    def without_test(self, original: Attempt) -> RunPlan | None:
        """A plan with the acts of the run's last cluster, without the test. None if the test's expectation failed."""
        if original.outcome.ending in (Ending.EXPECTATION, Ending.TEST) or not original.notes.clusters:
            return None
        cluster = original.notes.clusters[-1]
        failed_ns = original.failed_ns - cluster.made_ns
        acts = _with_simple_commands([act for act in cluster.acts if act.at_ns <= failed_ns])
        end_ns = failed_ns + _A_MOMENT_NS if cluster.ended_ns is None else cluster.ended_ns
        play = RecordedSchedule(cluster.how, self._test.wants_service, acts, end_ns)
        choices = _without_earlier_clusters(original, cluster)
        return RunPlan(choices, play, cluster.ended_ns is not None)

    def _run(
        self, play: RecordedSchedule | None, choice_source: ChoiceSource, seed: int, *, fails_at_end: bool = False
    ) -> Attempt:
        self.count += 1
        source = _TimedSource(choice_source)
        notes, performed = ScheduleRecording(), set[int]()
        test = record_operations(self._test, notes) if play is None else make_schedule_test(play, performed=performed)
        run = run_test(test, self._launcher, seed, choice_source=source)
        assert run.simulation is not None
        outcome = run.outcome(self._peer_files, self._test.file)
        plan = RunPlan(source.until(run.simulation.now_ns))
        if play is not None:
            failed_ns = run.simulation.now_ns
            acts = [act for n, act in enumerate(play.acts) if n in performed and act.at_ns <= failed_ns]
            end_ns = play.end_ns if fails_at_end else min(play.end_ns, failed_ns + _A_MOMENT_NS)
            plan = RunPlan(plan.choices, msgspec.structs.replace(play, acts=acts, end_ns=end_ns), fails_at_end)
        return Attempt(plan, run, outcome, _signature_of(run, outcome, notes), notes, source.asked_ns)


def _signature_of(run: Run, outcome: Outcome, notes: ScheduleRecording) -> FailureSignature | None:
    if not outcome.failed:
        return None
    if outcome.ending not in (Ending.EXPECTATION, Ending.TEST):
        return FailureSignature(outcome.mistake)
    assert run.simulation is not None and run.error is not None
    try:
        found = examine(run.simulation.trace or (), run.error, end_ns=run.simulation.now_ns)
    except Exception:  # Figure 2's fields may have any type in a peer
        found = []
    return FailureSignature(outcome.mistake, notes.failed_at, tuple(one.name for one in found[:1]))


def _with_simple_commands(acts: Sequence[ScheduledOperation]) -> list[ScheduledOperation]:
    """Replace commands other than ints and strings by names, so that a file can contain them."""
    names: dict[str, str] = {}
    simple = []
    for act in acts:
        if act.does == "start" and type(act.args[1]) not in (int, str):
            name = names.setdefault(repr(act.args[1]), f"command{len(names) + 1}")
            act = msgspec.structs.replace(act, args=[act.args[0], name])
        simple.append(act)
    return simple


def _without_earlier_clusters(original: Attempt, cluster: RecordedCluster) -> Choices:
    """The choices as if the last cluster were the only one: rename links, renumber incarnations, shift times."""
    choices = original.plan.choices
    if cluster.number == 1:
        return choices
    suffix, remapped = f" of network {cluster.number}", Choices()
    lives: dict[ChoicePoint, int] = {}  # of each node, in this cluster
    for (place, ordinal), value in sorted(choices.chosen.items(), key=lambda chosen: chosen[0]):
        if original.asked_ns.get((place, ordinal), 0) < cluster.made_ns:
            continue
        if place[0] == ChoiceKind.NODE:
            lives[place] = lives.get(place, 0) + 1
            remapped.chosen[place, lives[place]] = value
        elif any(part.endswith(suffix) for part in place):
            remapped.chosen[tuple(part.removesuffix(suffix) for part in place), ordinal] = value
    remapped.picked = {
        (at_ns - cluster.made_ns, nth): task
        for (at_ns, nth), task in choices.picked.items()
        if at_ns >= cluster.made_ns
    }
    return remapped


def with_grace_period(plan: RunPlan) -> RunPlan:
    """Let the run fail a little later: what is removed may have made it fail earlier."""
    if plan.play is None or plan.fails_at_end:
        return plan
    return replace(plan, play=msgspec.structs.replace(plan.play, end_ns=plan.play.end_ns + _GRACE_NS))
