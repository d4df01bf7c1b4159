"""A lane: runs drawn one after the other, each from its number alone.

Promise: a seed and a lane are one sequence of runs, in any process. Not promised: that a run fails; most peers are
right. What is drawn next is in step_generator.py.

Start at `Lane.run()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.run import Run, run_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.stepped_cluster import ExpectationFailed, ScenarioError
from raftlab.scenarios.text import Script, parse_step
from raftlab.tools.generator.step_generator import StepGenerator

SEED = 1  # of timeouts and turns: what `lab scenario` plays with, so that a list of steps alone is the run
PROGRESS = "expect progress"
_STEPS = (10, 100)  # of a run, at least and at most
_VIRTUAL_S_MAX = 60.0  # of virtual time; a run may take 120 s, and what comes at its end takes some
PEERS = (3, 3, 3, 4, 5, 5)
_WITH_SNAPSHOTS = 0.6


@dataclass(frozen=True)
class ScenarioSteps:
    """A run: the lines of a scenario."""

    peers: int
    snapshots: bool
    lines: tuple[str, ...] = ()

    @property
    def header(self) -> list[str]:
        return [*([] if self.peers == 3 else [f"peers {self.peers}"]), *(["snapshots"] if self.snapshots else [])]


class RunSequence:
    """Runs, one after the other."""

    def __init__(self, launcher: PeerLauncher, seed: int, number: int, *, after: int = 0, race: bool = False) -> None:
        """`after`: how many of its runs were made before."""
        self._launcher = launcher
        self._seed_text = f"{seed} {number}"
        self._race = race
        self._has_snapshots = launcher.has_method("snapshot")
        self.runs = after
        self.steps = 0  # made here, in all runs

    def run(self) -> tuple[ScenarioSteps, int, Run]:
        """The next run: its steps up to where it ended, its seed, and what came of it."""
        self.runs += 1
        random = Random(f"{self._seed_text} {self.runs}")
        # Who loses a turn, and when, is drawn from the seed alone.
        seed = random.randrange(1, 1 << 31) if self._race else SEED
        snapshots = self._has_snapshots and random.random() < _WITH_SNAPSHOTS
        peers = random.choice(PEERS)
        player = StepPlayer(random)
        script = Script("fuzz.scenario", peers=peers, snapshots=snapshots)
        run = run_test(make_lab_test(script, runner=player.play), self._launcher, seed)
        self.steps += len(player.made)
        return ScenarioSteps(peers, snapshots, tuple(player.made)), seed, run


class StepPlayer:
    """Makes the steps of one run: whatever is drawn, and at its end progress is asked for."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.made: list[str] = []

    def play(self, scenario: Scenario, script: Script) -> None:
        scenario.interactive = True
        generator = StepGenerator(scenario, self._random, snapshots=script.snapshots)
        wanted = self._random.randint(*_STEPS)
        tried = 0
        while tried < wanted and scenario.now_s < _VIRTUAL_S_MAX:
            tried += 1
            self._make(scenario, script, generator.draw())
        self._make(scenario, script, PROGRESS)

    def _make(self, scenario: Scenario, script: Script, text: str) -> None:
        """One step. It is among those made already when a rule is broken in it. If it makes no sense, what is left of
        it is the time that somebody's clock ran in vain."""
        action = parse_step(text, script)
        scenario.step_text = text
        self.made.append(text)
        try:
            action(scenario)
        except (ExpectationFailed, ScenarioError):
            ran = {i: ran_ns // 1_000_000 for i, ran_ns in scenario.clock_ran_ns.items()}
            self.made[-1:] = [f"run {i} {ran_ms}ms" for i, ran_ms in ran.items() if ran_ms]
            if ran:
                scenario.settle()  # as after any step that is made
        finally:
            scenario.step_text = ""
