"""A worker's answers: what some runs of a sequence have come to, and the one that failed.

Start at `Answering.go_on()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from raftlab.harness.launcher import PeerLauncher
from raftlab.tools.fuzz.minimizer import Find, Finder, OurFailure
from raftlab.tools.generator.sequence import RunSequence
from raftlab.tools.workers.process import restore_paths

if TYPE_CHECKING:
    from raftlab.tools.fuzz.worker import FuzzRequest, FuzzSetup


class Answer(msgspec.Struct):
    """Of the runs that were asked for, up to the one that failed."""

    runs: int
    steps: int
    seconds: float = 0.0  # CPU time, without minimizing; real time if peers are sandboxed
    found: Find | None = None
    checks_off: list[str] = []  # what no rule can read of its messages
    ours: str = ""  # the lab's own failure, which says nothing about the peer


class Answering:
    def __init__(self, setup: FuzzSetup, launcher: PeerLauncher, peer_files: Sequence[Path]) -> None:
        self._setup = setup
        self._launcher = launcher
        self._clock = launcher.work_clock
        self._finder = Finder(launcher, peer_files, limit_s=setup.shorten_s)

    def go_on(self, request: FuzzRequest) -> Answer:
        setup = self._setup
        sequence = RunSequence(
            self._launcher, setup.seed, request.sequence, after=request.after, race=setup.given.get("race", False)
        )
        answer = Answer(0, 0)
        began_s = self._clock()
        try:
            while sequence.runs < request.up_to and (answer.found is None or not answer.found.shortened):
                steps, seed, run = sequence.run()
                answer.checks_off = answer.checks_off or run.checks_off
                if self._finder.outcome(run).failed:
                    find = self._finder.check(steps, seed, run, sequence=request.sequence, number=sequence.runs)
                    # One whose steps alone do not repeat it is told only if there is no other in these runs.
                    answer.found = find if find.shortened or answer.found is None else answer.found
                if answer.found is None:
                    answer.seconds = self._clock() - began_s
        except OurFailure as error:
            answer.ours = f"sequence {request.sequence}, run {sequence.runs}: {error}"
        if answer.found is not None:
            answer.found.outcome.rewrite(lambda text: restore_paths(text, setup.shown_as))
        answer.runs, answer.steps = sequence.runs - request.after, sequence.steps
        return answer
