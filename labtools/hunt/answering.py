"""A worker's answers: what some runs of a lane have reached, and the one that failed.

Start at `Answering.go_on()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from labtools.hunt.corpus import Corpus, read_corpus
from labtools.hunt.finding import Find, Finder, OurFailure
from labtools.hunt.hunting import Lane
from labtools.shrink.shrinking import clock_of
from labtools.stress.seeds import really

if TYPE_CHECKING:
    from labtools.hunt.worker import Setup


class Answer(msgspec.Struct):
    """Of the runs that were asked for, up to the one that failed."""

    runs: int
    steps: int
    seconds: float = 0.0  # of processor time, without what shortening took; of real time if peers are guests
    found: Find | None = None
    reached: Corpus = msgspec.field(default_factory=Corpus)  # that is new in this lane
    checks_off: list[str] = []  # what no rule can read of its messages
    ours: str = ""  # the lab's own failure, which says nothing about the peer


class Answering:
    def __init__(self, setup: Setup, peer_class: Any, peer_files: Sequence[Path]) -> None:
        self._setup = setup
        self._peer_class = peer_class
        self._corpus = read_corpus(Path(setup.corpus)) if setup.corpus else Corpus()
        self._clock = clock_of(peer_class)
        self._finder = Finder(peer_class, peer_files, limit_s=setup.shorten_s)
        self._number = -1
        self._lane: Lane | None = None

    def go_on(self, number: int, up_to: int) -> Answer:
        lane = self._lane_at(number)
        before = (lane.runs, lane.steps, len(lane.beginnings), set(lane.states))
        answer = Answer(0, 0)
        began_s = self._clock()
        try:
            while lane.runs < up_to and (answer.found is None or not answer.found.shortened):
                steps, seed, run = lane.run()
                answer.checks_off = answer.checks_off or run.checks_off
                if self._finder.verdict(run).failed:
                    find = self._finder.look_at(steps, seed, run, lane=number, number=lane.runs)
                    # One whose steps alone do not repeat it is told only if there is no other in these runs.
                    answer.found = find if find.shortened or answer.found is None else answer.found
                if answer.found is None:
                    answer.seconds = self._clock() - began_s
        except OurFailure as error:
            answer.ours = f"lane {number}, run {lane.runs}: {error}"
        if answer.found is not None:
            answer.found.told = [really(line, self._setup.shown_as) for line in answer.found.told]
        answer.runs, answer.steps = lane.runs - before[0], lane.steps - before[1]
        answer.reached = Corpus(lane.states - before[3], lane.beginnings[before[2] :])
        return answer

    def _lane_at(self, number: int) -> Lane:
        """A fresh process makes the runs of its lane again that another one had made."""
        if self._lane is None or self._number != number:
            setup = self._setup
            how = {"guided": setup.guided, "race": setup.race}
            self._number, self._lane = number, Lane(self._peer_class, setup.seed, number, corpus=self._corpus, **how)
        return self._lane
