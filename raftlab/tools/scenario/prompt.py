"""A scenario at a prompt: the user makes one step at a time, or types other steps. Virtual time is stopped meanwhile.

Start at `walk()`.
"""

from __future__ import annotations

import sys

from labsim import Simulation
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.run import Run, run_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.stepped_cluster import ExpectationFailed, ScenarioError
from raftlab.scenarios.text import EXPECTATIONS, STEPS, Script, Step, parse_step

_HELP = """Enter: make the next step.  run: make all remaining steps.  skip: skip the next step.
show: show all peers.  quit: stop here.  Or type any of these steps:"""


def walk(script: Script, launcher: PeerLauncher, seed: int) -> tuple[Run, int]:
    """The run, and how many steps of the file were skipped."""
    # No timeout: the user may take any time at the prompt.
    simulation = Simulation(seed, unresponsive_s=None)
    walking = _Walk()
    run = run_test(make_lab_test(script, runner=walking.play), launcher, seed, simulation=simulation)
    return run, walking.left


class _Walk:
    def __init__(self) -> None:
        self._waiting: list[Step] = []
        self._left_out = 0
        self._to_the_end = False

    @property
    def left(self) -> int:
        return len(self._waiting) + self._left_out

    def play(self, scenario: Scenario, script: Script) -> None:
        scenario.interactive = True
        print(
            f"{script.title or script.name}\n{script.peers} peers. Enter makes the next step; help lists the commands."
        )
        self._waiting = list(script.steps)
        while True:
            if self._waiting:
                following = self._waiting[0]
                print(f"\nnext  {following.line}: {following.text}")
            else:
                print("\nnext  end of the file")
            typed = self._ask()
            if typed == "quit":
                return
            if typed == "" and not self._waiting:
                return
            self._act(scenario, script, typed)

    def _ask(self) -> str:
        if self._to_the_end and self._waiting:
            return ""
        try:
            return input("step> ").strip()
        except (EOFError, RuntimeError):  # stdin is closed or missing
            print()
            return "quit"

    def _act(self, scenario: Scenario, script: Script, typed: str) -> None:
        if typed == "":
            self._try(scenario, script, self._waiting.pop(0))
        elif typed == "run":
            self._to_the_end = True
        elif typed == "skip":
            if self._waiting:
                print(f"skipped: {self._waiting.pop(0).text}")
                self._left_out += 1
        elif typed in ("help", "?"):
            print(_HELP)
            for word in (*STEPS.values(), *EXPECTATIONS):
                print(f"  {word.usage}")
        else:
            try:
                self._try(scenario, script, Step(0, typed, parse_step(typed, script), typed == "show"))
            except ValueError as error:
                print(f"  {error}")

    def _try(self, scenario: Scenario, script: Script, step: Step) -> None:
        """Impossible steps and failed expectations are printed, and the walk continues. A broken rule ends the run."""
        scenario.step_text = step.text
        try:
            shown = step.action(scenario)
        except (ScenarioError, ExpectationFailed) as error:
            print(f"  {error}")
            self._to_the_end = False
            return
        finally:
            scenario.step_text = ""
        if step.has_output:
            print(shown)
        sys.stdout.flush()
