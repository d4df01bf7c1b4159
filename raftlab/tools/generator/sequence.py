"""A sequence of random runs, each generated from its number alone.

Promise: a seed and a sequence number give the same runs in any process. step_generator.py generates the steps.

Start at `RunSequence.run()`.
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

SEED = 1  # for timeouts and scheduling; the default of `lab scenario`, so that the steps alone reproduce the run
PROGRESS = "expect progress"
_STEPS = (10, 100)  # per run, minimum and maximum
_VIRTUAL_S_MAX = 60.0  # of virtual time; a run may take 120 s, and the check for progress needs some of it
PEERS = (3, 3, 3, 4, 5, 5)
_WITH_SNAPSHOTS = 0.6


@dataclass(frozen=True)
class ScenarioSteps:
    """The steps of a run, as lines of a scenario."""

    peers: int
    snapshots: bool
    lines: tuple[str, ...] = ()

    @property
    def header(self) -> list[str]:
        return [*([] if self.peers == 3 else [f"peers {self.peers}"]), *(["snapshots"] if self.snapshots else [])]


class RunSequence:
    """Random runs, one after the other."""

    def __init__(self, launcher: PeerLauncher, seed: int, number: int, *, after: int = 0, race: bool = False) -> None:
        """`after`: skip this many runs."""
        self._launcher = launcher
        self._seed_text = f"{seed} {number}"
        self._race = race
        self._has_snapshots = launcher.has_method("snapshot")
        self.runs = after
        self.steps = 0  # made here, in all runs

    def run(self) -> tuple[ScenarioSteps, int, Run]:
        """Make the next run. Returns the steps made, the seed and the run."""
        self.runs += 1
        random = Random(f"{self._seed_text} {self.runs}")
        # The seed alone decides which threads are preempted.
        seed = random.randrange(1, 1 << 31) if self._race else SEED
        snapshots = self._has_snapshots and random.random() < _WITH_SNAPSHOTS
        peers = random.choice(PEERS)
        player = StepPlayer(random)
        script = Script("fuzz.scenario", peers=peers, snapshots=snapshots)
        run = run_test(make_lab_test(script, runner=player.play), self._launcher, seed)
        self.steps += len(player.made)
        return ScenarioSteps(peers, snapshots, tuple(player.made)), seed, run


class StepPlayer:
    """Makes the generated steps of one run, and at its end expects progress."""

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
        """Make one step. It is in `made` before it runs, because it may break a rule. If it is impossible, it is
        replaced by `run` steps for the time that clocks ran."""
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
