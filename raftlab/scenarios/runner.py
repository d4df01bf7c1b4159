"""Makes a LabTest from a scenario file.

The steps run as lines of that file, so failures, reports of blocked calls and debuggers show its line numbers.

Start at `make_lab_test()`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType

from raftlab.harness.lab_test import LabTest, LabTestKind
from raftlab.scenarios.collection import with_make_config
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.stepped_cluster import ScenarioError
from raftlab.scenarios.text import Script, ScriptError, Step

MakeScenario = Callable[..., Scenario]
OnOutput = Callable[[Step, str], None]
StepRunner = Callable[[Scenario, Script], None]


def make_lab_test(script: Script, *, on_output: OnOutput | None = None, runner: StepRunner | None = None) -> LabTest:
    """`on_output` gets the output of each `show`. `runner` executes the steps itself, or others."""

    def test(make_scenario: MakeScenario) -> None:
        scenario = make_scenario(
            peers=script.peers,
            snapshots=script.snapshots,
            strict=script.strict,
            plain_votes=script.plain_votes,
        )
        scenario.config.begin(f"Scenario: {script.title or script.name}")
        if runner is not None:
            scenario.may_skip = False
            runner(scenario, script)
        else:
            by_line = {step.line: step for step in script.steps}
            exec(_code(script), {"step": lambda line: run_step(scenario, script, by_line[line], on_output)})

    test.__name__ = script.name
    return LabTest(
        script.name, Path(script.file), LabTestKind.SCENARIO, with_make_config(test), breaks_rule=script.breaks
    )


def run_step(scenario: Scenario, script: Script, step: Step, on_output: OnOutput | None) -> None:
    """Execute one step of the script."""
    scenario.step_text = step.text
    try:
        output = step.action(scenario)
    except ScenarioError as error:
        raise ScriptError(script.file, step.line, f"{step.text}: {error}") from None
    finally:
        scenario.step_text = ""
    if step.has_output and on_output is not None:
        on_output(step, output)


def _code(script: Script) -> CodeType:
    """Code whose line n executes the step in line n."""
    lines = [""] * (script.steps[-1].line if script.steps else 0)
    for step in script.steps:
        lines[step.line - 1] = f"step({step.line})"
    return compile("\n".join(lines), script.file, "exec")
