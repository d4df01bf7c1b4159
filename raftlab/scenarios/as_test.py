"""A file of steps as a test: run_test() takes it like any other.

The steps run as lines of the file itself, so that whatever tells where a test was (a failure, a stuck call, a
debugger) names the line of the scenario.

Start at `as_test()`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType

from raftlab.harness.lab_test import LabTest, LabTestKind
from raftlab.scenarios.collection import of_config
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.stage import ScenarioError
from raftlab.scenarios.text import Script, ScriptError, Step

MakeScenario = Callable[..., Scenario]
OnOutput = Callable[[Step, str], None]
Player = Callable[[Scenario, Script], None]


def as_test(script: Script, *, on_output: OnOutput | None = None, player: Player | None = None) -> LabTest:
    """`on_output` is told what each `show` shows; a `player` plays the steps instead."""

    def test(make_scenario: MakeScenario) -> None:
        scenario = make_scenario(
            peers=script.peers,
            snapshots=script.snapshots,
            strict=script.strict,
            plain_votes=script.plain_votes,
        )
        scenario.config.begin(f"Scenario: {script.title or script.name}")
        if player is not None:
            scenario.skips = False
            player(scenario, script)
        else:
            by_line = {step.line: step for step in script.steps}
            exec(_code(script), {"step": lambda line: play(scenario, script, by_line[line], on_output)})

    test.__name__ = script.name
    return LabTest(script.name, Path(script.file), LabTestKind.SCENARIO, of_config(test), breaks_rule=script.breaks)


def play(scenario: Scenario, script: Script, step: Step, on_output: OnOutput | None) -> None:
    """One step of the script."""
    scenario.words = step.text
    try:
        shown = step.act(scenario)
    except ScenarioError as error:
        raise ScriptError(script.file, step.line, f"{step.text}: {error}") from None
    finally:
        scenario.words = ""
    if step.shows and on_output is not None:
        on_output(step, shown)


def _code(script: Script) -> CodeType:
    """Line n of it runs the step in line n."""
    lines = [""] * (script.steps[-1].line if script.steps else 0)
    for step in script.steps:
        lines[step.line - 1] = f"step({step.line})"
    return compile("\n".join(lines), script.file, "exec")
