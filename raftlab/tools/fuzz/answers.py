"""A worker's answers: what some runs of a lane have come to, and the one that failed.

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
from raftlab.tools.workers.process import really

if TYPE_CHECKING:
    from raftlab.tools.fuzz.worker import Request, Setup


class Answer(msgspec.Struct):
    """Of the runs that were asked for, up to the one that failed."""

    runs: int
    steps: int
    seconds: float = 0.0  # of processor time, without what shortening took; of real time if peers are guests
    found: Find | None = None
    checks_off: list[str] = []  # what no rule can read of its messages
    ours: str = ""  # the lab's own failure, which says nothing about the peer


class Answering:
    def __init__(self, setup: Setup, launcher: PeerLauncher, peer_files: Sequence[Path]) -> None:
        self._setup = setup
        self._launcher = launcher
        self._clock = launcher.work_clock
        self._finder = Finder(launcher, peer_files, limit_s=setup.shorten_s)

    def go_on(self, request: Request) -> Answer:
        setup = self._setup
        lane = RunSequence(self._launcher, setup.seed, request.lane, after=request.after, race=setup.race)
        answer = Answer(0, 0)
        began_s = self._clock()
        try:
            while lane.runs < request.up_to and (answer.found is None or not answer.found.shortened):
                steps, seed, run = lane.run()
                answer.checks_off = answer.checks_off or run.checks_off
                if self._finder.outcome(run).failed:
                    find = self._finder.look_at(steps, seed, run, lane=request.lane, number=lane.runs)
                    # One whose steps alone do not repeat it is told only if there is no other in these runs.
                    answer.found = find if find.shortened or answer.found is None else answer.found
                if answer.found is None:
                    answer.seconds = self._clock() - began_s
        except OurFailure as error:
            answer.ours = f"lane {request.lane}, run {lane.runs}: {error}"
        if answer.found is not None:
            answer.found.told = [really(line, setup.shown_as) for line in answer.found.told]
        answer.runs, answer.steps = lane.runs - request.after, lane.steps
        return answer
