"""Random runs as lab tests, so that every tool that runs tests over seeds can fuzz, for example the grader or

lab stress --file raftlab/tools/generator/as_test.py
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from labsim import random
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.text import Script
from raftlab.tools.generator.sequence import PEERS, StepPlayer

MakeScenario = Callable[..., Scenario]


def test_fuzz_2c(make_scenario: MakeScenario) -> None:
    _fuzz(make_scenario, snapshots=False)


def test_fuzz_2d(make_scenario: MakeScenario) -> None:
    _fuzz(make_scenario, snapshots=True)


def _fuzz(make_scenario: MakeScenario, *, snapshots: bool) -> None:
    generator = Random(random.getrandbits(64))
    peers = generator.choice(PEERS)
    scenario = make_scenario(peers=peers, snapshots=snapshots)
    StepPlayer(generator).play(scenario, Script("fuzz.scenario", peers=peers, snapshots=snapshots))
