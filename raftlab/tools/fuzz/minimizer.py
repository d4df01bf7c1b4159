"""A run that failed, made into a scenario of a few steps that fails the same way.

Start at `Finder.look_at()`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import msgspec

from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.outcome import Ending, Outcome
from raftlab.harness.report import explained
from raftlab.harness.run import Run, run_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import parse_script
from raftlab.tools.generator.sequence import SEED, ScenarioSteps
from raftlab.tools.shrink.scenario_writer import ScenarioWriter

FILE = "found.scenario"


class Find(msgspec.Struct):
    """A failed run, as steps."""

    sequence: int
    run: int
    outcome: Outcome  # its seed is the one with which the steps fail, its report has no commands
    header: list[str]
    steps: list[str]
    steps_before: int  # before most of them were left out
    shortened: bool = True  # otherwise the steps alone do not reproduce it, but the fuzz run does

    @property
    def title(self) -> str:
        """For a file: what was broken, and a number that tells it from others."""
        text = "\n".join([*self.header, *self.steps])
        return f"{re.sub(r'[^a-z]+', '-', (self.outcome.name or 'no-progress').lower())}-{crc32(text.encode()):08x}"

    @property
    def summary(self) -> str:
        if self.outcome.rule:
            return f"Breaks {self.outcome.rule}"
        return f"Ends with {self.outcome.name}" if self.outcome.name else "Makes no progress"


class OurFailure(Exception):
    """A run failed in the lab's own code. It says nothing about the peer."""


class Finder:
    def __init__(self, launcher: PeerLauncher, peer_files: Sequence[Path], *, limit_s: float) -> None:
        self._launcher = launcher
        self._peer_files = peer_files
        self._limit_s = limit_s

    def outcome(self, run: Run) -> Outcome:
        outcome = run.outcome(self._peer_files)
        if outcome.ending is Ending.TEST:
            raise OurFailure(outcome.text) from run.error
        return outcome

    def check(self, steps: ScenarioSteps, seed: int, run: Run, *, sequence: int, number: int) -> Find:
        """`steps` are those of the run, which has failed."""
        outcome = self.outcome(run)
        short = None
        for with_seed in dict.fromkeys((SEED, seed)):
            short = self._shorten(steps, with_seed, outcome.mistake)
            if short is not None:
                seed = with_seed
                run = self._play(short, seed)
                break
        assert run.error is not None
        outcome.seed, outcome.report = seed, "\n".join(explained(run.error, run.causes))
        left = steps if short is None else short
        lines = list(left.lines)
        return Find(sequence, number, outcome, left.header, lines, len(steps.lines), shortened=short is not None)

    def _shorten(self, steps: ScenarioSteps, seed: int, mistake: str) -> ScenarioSteps | None:
        def same(run: Run) -> bool:
            return run.error is not None and run.outcome(self._peer_files).mistake == mistake

        clock = self._launcher.work_clock
        scripting = ScenarioWriter(self._launcher, same, limit_s=self._limit_s, clock=clock, seed=seed)
        lines = scripting.shorten(steps.header, list(steps.lines))
        if lines is None:
            return None
        short = replace(steps, lines=tuple(lines))
        plain = replace(short, snapshots=any(line.startswith("snapshot ") for line in lines))
        return plain if plain == short or same(self._play(plain, seed)) else short

    def _play(self, steps: ScenarioSteps, seed: int) -> Run:
        script = parse_script("\n".join([*steps.header, *steps.lines]), FILE)
        return run_test(make_lab_test(script), self._launcher, seed)
