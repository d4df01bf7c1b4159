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
    """What the lab has found, for whoever started the fuzzer."""

    sequence: int
    run: int
    seed: int  # with which the steps fail
    ending: str
    name: str  # of the rule, or of what else ended it; "" where progress was missing
    mistake: str
    told: list[str]  # what was broken, the evidence, likely causes, a line each
    header: list[str]
    steps: list[str]
    # The steps that were made first, before most of them were left out.
    steps_before: int
    shortened: bool = True  # otherwise the steps alone do not repeat it, and the fuzzer must

    @property
    def title(self) -> str:
        """For a file: what was broken, and a number that tells it from others."""
        text = "\n".join([*self.header, *self.steps])
        return f"{re.sub(r'[^a-z]+', '-', (self.name or 'no-progress').lower())}-{crc32(text.encode()):08x}"

    @property
    def summary(self) -> str:
        if self.ending == Ending.RULE:
            return f"Breaks {self.name}"
        return f"Ends with {self.name}" if self.name else "Gets nowhere"


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
        told = steps if short is None else short
        return Find(
            sequence,
            number,
            seed,
            outcome.ending,
            outcome.name,
            outcome.mistake,
            explained(run.error, run.causes),
            told.header,
            list(told.lines),
            len(steps.lines),
            shortened=short is not None,
        )

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
