"""A run of a test that a user has changed: additional crashes, and scenario steps after some event.

After that event the run continues as a scenario: the test ends where it waits, all clocks are frozen, and messages in
flight are queued. Up to there it equals the run of the test, event by event.

Start at `with_interventions()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from labsim import Event, Simulation, current_simulation
from raftlab.harness.config import Config
from raftlab.harness.lab_test import LabTest
from raftlab.scenarios.in_flight import QueueingChoiceSource
from raftlab.scenarios.runner import StepRunner
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.text import Script, parse_step
from raftlab.trace import events
from raftlab.trace.operations import CrashHere, Interventions


class _TakenOver(BaseException):
    """Ends the test. Not an Exception, so that the test's handlers do not catch it."""


def with_interventions(test: LabTest, interventions: Interventions, *, runner: StepRunner | None = None) -> LabTest:
    """`runner` executes the steps after the test has ended, instead of the recorded ones."""

    @wraps(test.function)
    def changed(make: Callable[..., Config]) -> Any:
        simulation = current_simulation()
        assert simulation is not None
        assert simulation.trace is not None
        source = QueueingChoiceSource(simulation.choice_source)
        source.queues_messages = False
        simulation.choice_source = source  # before the network is created
        configs: list[Config] = []

        def make_config(**how: Any) -> Config:
            configs.append(make(**how))
            return configs[-1]

        _Interrupter(simulation, simulation.trace, configs, interventions)
        try:
            return test.function(make_config)
        except _TakenOver:
            simulation.end_other_testers()
        scenario = _take_over(simulation, configs[-1], source)
        script = Script(test.name, peers=configs[-1].n, snapshots=True)
        if runner is not None:
            runner(scenario, script)
            return None
        for text in interventions.steps:
            scenario.step_text = text
            parse_step(text, script)(scenario)
        return None

    return replace(test, function=changed)


class _Interrupter:
    def __init__(
        self, simulation: Simulation, trace: Sequence[Event], configs: Sequence[Config], interventions: Interventions
    ) -> None:
        self._simulation = simulation
        self._trace = trace
        self._configs = configs
        self._crashes = sorted(interventions.crashes, key=lambda crash: crash.at)
        self._taken_over_at = interventions.taken_over_at
        simulation.subscribe(self._observe)

    def _observe(self, _: Sequence[Event]) -> None:
        count = len(self._trace)
        if not self._configs:
            return  # the cluster is not complete yet
        while self._crashes and count >= self._crashes[0].at:
            crash = self._crashes.pop(0)
            self._simulation.spawn(self._crash, crash, name="crash")
        if self._taken_over_at is not None and count >= self._taken_over_at:
            self._taken_over_at = None
            self._simulation.interrupt_main(_TakenOver())

    def _crash(self, crash: CrashHere) -> None:
        config = self._configs[-1]
        if crash.peer >= config.n or not config.is_up(crash.peer):
            return
        connected, paused = config.connected(crash.peer), config.is_paused(crash.peer)
        config.crash1(crash.peer)
        # Restart at once, because a test calls any peer that it has not crashed itself.
        config.restart(crash.peer)
        if not connected:
            config.disconnect(crash.peer)
        if paused:
            config.pause(crash.peer)


def _take_over(simulation: Simulation, config: Config, source: QueueingChoiceSource) -> Scenario:
    source.queues_messages = True
    config.network.queue_delayed()
    scenario = Scenario(config, source)
    trace = simulation.trace or []
    begin = max((i for i, event in enumerate(trace) if event.kind == events.CLUSTER), default=0)
    scenario.observe_again(trace[begin + 1 :])
    return scenario
