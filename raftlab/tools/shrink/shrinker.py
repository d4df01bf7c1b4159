"""Shrinks a failing run, given by test and seed, for `lab shrink` and other tools.

Start at `shrink()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labsim.choices import Choices, SeededSource
from raftlab.check.harness_rules import RACE
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.outcome import Ending
from raftlab.scenarios.text import parse_script
from raftlab.tools.generator.sequence import RunSequence
from raftlab.tools.shrink.attempts import Attempt, Attempts, RunPlan, SeededDefaults
from raftlab.tools.shrink.reproduction_steps import reproduction_header, reproduction_steps
from raftlab.tools.shrink.scenario_writer import SEED, ScenarioWriter, breaks_rule, steps_in
from raftlab.tools.shrink.search import SHORT, Progress, Search
from raftlab.tools.timeline.command import print_timeline
from raftlab.trace.choice_file import write_choices
from raftlab.trace.operations import RecordedSchedule
from raftlab.trace.trace_file import write_trace

OUT = Path("build/shrunk")
LIMIT_S = 50.0
_SCENARIO_SHARE = 0.25  # of the time that there is
_FUZZING_SHARE = 0.06  # extra, if the run has no short scenario; as much again to shorten what fuzzing finds
STEPS_MANY = 20  # a longer scenario is hard to read

_WIDTH = 120


class NothingToShrink(Exception):
    """The run passes, or fails differently each time; the message says which."""


@dataclass
class ShrinkResult:
    """The same failure, before and after."""

    original: Attempt
    best: Attempt
    runs: int
    finished: bool  # it ended because nothing was left to try
    interrupted: bool = False
    scenario: list[str] | None = None  # its lines, for a broken rule
    from_fuzzing: bool = False  # that scenario is of another run that breaks the same rule: of this one none is short

    @property
    def reproduction_steps(self) -> list[str]:
        return reproduction_steps(self.best)

    @property
    def header(self) -> str:
        return reproduction_header(self.best)

    @property
    def steps(self) -> int:
        """The number of steps of the scenario."""
        return len(steps_in(self.scenario or ()))

    @property
    def rule(self) -> str:
        """The broken rule, or ""."""
        outcome = self.original.outcome
        return outcome.name if outcome.ending is Ending.RULE else ""


def _no_progress(best: Attempt, runs: int) -> None:
    pass


def shrink(
    test: LabTest,
    launcher: PeerLauncher,
    seed: int,
    peer_files: tuple[Path, ...],
    *,
    limit_s: float = LIMIT_S,
    progress: Progress = _no_progress,
    scenario: bool = True,
) -> ShrinkResult:
    """Minimize the run. Raises NothingToShrink if it passes. Ctrl-C ends the search with the best result so far."""
    attempts = Attempts(test, launcher, peer_files)
    original = attempts.run_seed(SeededSource(seed), seed)
    if original.signature is None:
        raise NothingToShrink(f"{test.name} with seed {seed} does not fail, so there is nothing to shrink")
    second = attempts.run_seed(SeededSource(seed), seed)
    if second.run.digest != original.run.digest or second.signature != original.signature:
        raise NothingToShrink(
            f"{test.name} with seed {seed} fails differently each time: {original.outcome.text!r}, then "
            f"{second.outcome.text!r}. The peer or the test keeps state between runs (a module or class variable), or "
            "uses randomness that does not come from the seed; to find the cause, run pytest --check-determinism"
        )
    first = original
    plan = attempts.without_test(original)
    if plan is not None:
        without_test = attempts.run_plan(plan)
        first = without_test if without_test.signature == original.signature else original
    # A scenario cannot express preemptions.
    is_rule = original.outcome.ending is Ending.RULE and original.outcome.name != RACE.name
    scenario_s = limit_s * _SCENARIO_SHARE if scenario and is_rule else 0.0
    clock = launcher.work_clock
    search = Search(attempts, first, original.signature, limit_s=limit_s - scenario_s, progress=progress, clock=clock)
    shrunk = ShrinkResult(original, first, 0, finished=True)
    try:
        search.run()
        if scenario_s:
            writer = ScenarioWriter(launcher, breaks_rule(original.outcome.name), limit_s=scenario_s, clock=clock)
            shrunk.scenario = writer.write(search.best.trace, search.best.plan.play)
            if not test.wants_service and (shrunk.scenario is None or shrunk.steps > STEPS_MANY):
                fuzzed = _fuzzed_scenario(launcher, original.outcome.name, limit_s * _FUZZING_SHARE, clock)
                shrunk.from_fuzzing = fuzzed is not None and (
                    shrunk.scenario is None or len(fuzzed) < len(shrunk.scenario)
                )
                shrunk.scenario = fuzzed if shrunk.from_fuzzing else shrunk.scenario
            if shrunk.scenario is not None and search.best.events > SHORT:
                search.best = min([search.best, *_as_steps(attempts, search.best, shrunk.scenario)], key=_events)
    except KeyboardInterrupt:
        shrunk.interrupted = True
    shrunk.best, shrunk.runs, shrunk.finished = search.best, attempts.count, search.finished
    return shrunk


def _fuzzed_scenario(launcher: PeerLauncher, rule: str, limit_s: float, clock: Callable[[], float]) -> list[str] | None:
    """A scenario that breaks the same rule in another way, if fuzzing finds one. It starts from the shortest found,
    because a long one takes longer to minimize."""
    until_s = clock() + limit_s
    sequence = RunSequence(launcher, SEED, 0)
    header: list[str] = []
    best: list[str] = []
    while clock() < until_s and not 0 < len(best) <= STEPS_MANY:
        steps, _, run = sequence.run()
        if breaks_rule(rule)(run) and (not best or len(steps.lines) < len(best)):
            header, best = steps.header, list(steps.lines)
    if not best:
        return None
    lines = ScenarioWriter(launcher, breaks_rule(rule), limit_s=limit_s, clock=clock).shorten(header, best)
    return None if lines is None else [*header, *lines]


def _as_steps(attempts: Attempts, best: Attempt, scenario: list[str]) -> list[Attempt]:
    """Runs of the scenario's steps that fail the same way: without heartbeats or other campaigns."""
    play = best.plan.play
    if play is None:
        return []
    servers = parse_script("\n".join(scenario), "shrunk.scenario").peers
    plan = RunPlan(Choices(), RecordedSchedule({**play.how, "servers": servers}, False, [], 0, steps=scenario))
    made = (attempts.run_plan(plan, defaults) for defaults in (None, SeededDefaults(SEED, randomize_all=True)))
    # Repeat each with its own choices only: choices after the failure do not matter.
    repeated = (attempts.run_plan(attempt.plan) for attempt in made if attempt.signature == best.signature)
    return [attempt for attempt in repeated if attempt.signature == best.signature]


def _events(attempt: Attempt) -> int:
    return attempt.events


def as_scenario(test: LabTest, launcher: PeerLauncher, seed: int, *, limit_s: float = LIMIT_S) -> str:
    """The run as a scenario, without shrinking it first. NothingToShrink if it breaks no rule or has no scenario."""
    attempts = Attempts(test, launcher, ())
    original = attempts.run_seed(SeededSource(seed), seed)
    outcome = original.outcome
    if outcome.ending is not Ending.RULE:
        how = "passes" if original.signature is None else "fails, but breaks no rule"
        raise NothingToShrink(f"{test.name} with seed {seed} {how}; only a run that breaks a rule becomes a scenario")
    plan = attempts.without_test(original)
    writer = ScenarioWriter(launcher, breaks_rule(outcome.name), limit_s=limit_s, clock=launcher.work_clock)
    lines = writer.write(original.trace, None if plan is None else plan.play)
    if lines is None:
        raise NothingToShrink(f"found no scenario that breaks {outcome.name} as {test.name} with seed {seed} does")
    return _text(lines, outcome.name, test, seed)


@dataclass
class ShrunkFiles:
    """The files that were written."""

    choices: Path
    timeline: Path
    trace: Path
    scenario: Path | None = None


def write(
    shrunk: ShrinkResult, test: LabTest, seed: int, out: Path, *, raft: str, kv: str = "", file: str = ""
) -> ShrunkFiles:
    out.mkdir(parents=True, exist_ok=True)
    name, best = f"{test.name}-{seed}", shrunk.best
    files = ShrunkFiles(out / f"{name}.choices", out / f"{name}.txt", out / f"{name}.trace")
    given = {"raft": raft, "kv": kv, "file": file}
    digest = best.run.digest
    write_choices(files.choices, best.plan.choices, test=test.name, digest=digest, play=best.plan.play, **given)
    ending = f"FAILED: {best.run.error}".splitlines()[0]
    with files.timeline.open("w", encoding="utf-8") as text:
        print_timeline(best.trace, file=text, width=_WIDTH, ending=ending, title=f"{test.name}, shrunk")
    write_trace(files.trace, best.trace, test=test.name, seed=seed)
    if shrunk.scenario is not None:
        files.scenario = out / f"{name}.scenario"
        text_of_it = _text(shrunk.scenario, shrunk.rule, test, seed, from_fuzzing=shrunk.from_fuzzing)
        files.scenario.write_text(text_of_it, encoding="utf-8")
    return files


def _text(lines: list[str], rule: str, test: LabTest, seed: int, *, from_fuzzing: bool = False) -> str:
    how = (
        f"in another way than {test.name} with seed {seed}" if from_fuzzing else f"as {test.name} with seed {seed} does"
    )
    comment = [f"# Breaks {rule}, {how}.", "#", "# A correct peer passes."]
    return "\n".join([*comment, "", *lines, ""])
