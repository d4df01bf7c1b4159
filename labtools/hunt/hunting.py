"""One lane of a hunt: runs drawn one after the other, each from its number and, if it is guided, from what those before
it have reached.

Promise: a seed and a lane are one sequence of runs, in any process. Not promised: that a run fails; most peers are
right. What is drawn next is in drawing.py, what counts as reached in states.py.

Start at `Lane.run()`.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from labtest.checks import CheckedTrace
from labtest.running import Run, run_test
from labtest.scenarios.playing import as_test
from labtest.scenarios.scenario import Scenario
from labtest.scenarios.stage import NotMet, ScenarioError
from labtest.scenarios.text import Script, parse_step
from labtools.hunt.corpus import Corpus, Steps
from labtools.hunt.drawing import Drawer
from labtools.hunt.states import abstract

SEED = 1  # of timeouts and turns: what `lab scenario` plays with, so that a list of steps alone is the run
RUNS = 500  # of a lane; the next one begins anew
PROGRESS = "expect progress"
_STEPS = (10, 100)  # of a run, at least and at most
_DRAWING_S = 60.0  # of virtual time; a run may take 120 s, and what comes at its end takes some
PEERS = (3, 3, 3, 4, 5, 5)
_WITH_SNAPSHOTS = 0.6
_VARIED = 0.6  # how many runs begin as an earlier one did
_RECENT = 100


class Lane:
    """Runs, one after the other."""

    def __init__(
        self,
        peer_class: Any,
        seed: int,
        number: int,
        *,
        guided: bool = False,
        race: bool = False,
        corpus: Corpus | None = None,
    ) -> None:
        """`guided`: most runs begin as one that reached something new. `corpus`: what an earlier hunt has reached; it
        is not changed."""
        self._peer_class = peer_class
        self._chance_of = f"{seed} {number}"
        self._guided = guided
        self._race = race
        self._has_snapshots = hasattr(peer_class, "snapshot")
        self.runs = 0
        self.steps = 0  # made, in all runs
        self.states: set[int] = set(corpus.states) if corpus is not None else set()
        self.beginnings: list[Steps] = list(corpus.beginnings) if corpus is not None else []

    def run(self) -> tuple[Steps, int, Run]:
        """The next run: its steps up to where it ended, its seed, and what came of it."""
        self.runs += 1
        chance = Random(f"{self._chance_of} {self.runs}")
        # Who loses a turn, and when, is drawn from the seed alone.
        seed = chance.randrange(1, 1 << 31) if self._race else SEED
        begun = self._begin(chance)
        player = Player(begun, chance, self.states)
        script = Script("hunt.scenario", peers=begun.peers, snapshots=begun.snapshots)
        run = run_test(as_test(script, player=player.play), self._peer_class, seed)
        self.steps += len(player.made)
        if self._guided and player.new_up_to:
            self.beginnings.append(Steps(begun.peers, begun.snapshots, tuple(player.made[: player.new_up_to])))
        return Steps(begun.peers, begun.snapshots, tuple(player.made)), seed, run

    def _begin(self, chance: Random) -> Steps:
        """As an earlier run that reached something new, up to some step of it; or with nothing."""
        known = self.beginnings if self._guided else []
        if known and chance.random() < _VARIED:
            begun = chance.choice(known[-_RECENT:] if chance.random() < 0.5 else known)
            return msgspec.structs.replace(begun, lines=begun.lines[: chance.randint(1, len(begun.lines))])
        snapshots = self._has_snapshots and chance.random() < _WITH_SNAPSHOTS
        return Steps(chance.choice(PEERS), snapshots)


class Player:
    """Makes the steps of one run: how it begins, then whatever is drawn, and at its end progress is asked for."""

    def __init__(self, begun: Steps, chance: Random, states: set[int] | None = None) -> None:
        """`states`: what was reached before, and gets what is new; None if nobody asks."""
        self._states = states
        self._begun = begun
        self._chance = chance
        self.made: list[str] = []
        self.new_up_to = 0  # how many steps until it last reached something new

    def play(self, scenario: Scenario, script: Script) -> None:
        scenario.goes_on = True
        trace = scenario.trace
        drawer = Drawer(scenario, trace, self._chance, snapshots=script.snapshots)
        waiting = list(reversed(self._begun.lines))
        wanted = len(waiting) + self._chance.randint(*_STEPS)
        tried = 0
        while tried < wanted and scenario.now_s < _DRAWING_S:
            tried += 1
            self._make(scenario, script, waiting.pop() if waiting else drawer.draw())
            if self._states is not None:
                self._look(scenario, trace)
        self._make(scenario, script, PROGRESS)

    def _make(self, scenario: Scenario, script: Script, text: str) -> None:
        """One step. It is among those made already when a rule is broken in it. If it makes no sense, what is left of
        it is the time that somebody's clock ran in vain."""
        try:
            act = parse_step(text, script)
        except ValueError:
            return  # of a corpus that another version has written
        scenario.words = text
        self.made.append(text)
        try:
            act(scenario)
        except (NotMet, ScenarioError):
            ran = {i: ran_ns // 1_000_000 for i, ran_ns in scenario.ran_ns.items()}
            self.made[-1:] = [f"run {i} {ran_ms}ms" for i, ran_ms in ran.items() if ran_ms]
            if ran:
                scenario.settle()  # as after any step that is made
        finally:
            scenario.words = ""

    def _look(self, scenario: Scenario, trace: CheckedTrace) -> None:
        assert self._states is not None
        state = abstract(scenario, trace.facts)
        if state not in self._states:
            self._states.add(state)
            self.new_up_to = len(self.made)
