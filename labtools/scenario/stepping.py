"""A scenario at a prompt: one step at a time, `show` in between, other steps instead. The world waits meanwhile.

Start at `walk()`.
"""

from __future__ import annotations

import sys
from typing import Any

from labsim import Simulation
from labtest.checks import CheckedTrace
from labtest.running import Run, run_test
from labtest.scenarios.playing import as_test
from labtest.scenarios.scenario import Scenario
from labtest.scenarios.stage import ScenarioError
from labtest.scenarios.text import EXPECTATIONS, STEPS, Script, Step, parse_step

_HELP = """Enter: the next step.  run: all that are left.  skip: leave the next one out.  show: look.  quit: end here.
Or type a step of your own:"""


def walk(script: Script, peer_class: Any, seed: int) -> Run:
    # Nobody is late here: whoever sits at the prompt may think as long as they like.
    simulation = Simulation(seed, unresponsive_s=None)
    simulation.trace = CheckedTrace(simulation)
    return run_test(as_test(script, player=_Walk().play), peer_class, seed, simulation=simulation)


class _Walk:
    def __init__(self) -> None:
        self._waiting: list[Step] = []
        self._to_the_end = False

    def play(self, scenario: Scenario, script: Script) -> None:
        print(f"{script.title or script.name}\n{script.peers} peers. Enter makes the next step; help says what else.")
        self._waiting = list(script.steps)
        while True:
            if self._waiting:
                following = self._waiting[0]
                print(f"\nnext  {following.line}: {following.text}")
            else:
                print("\nnext  nothing: the file ends here")
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
        except EOFError:
            print()
            return "quit"

    def _act(self, scenario: Scenario, script: Script, typed: str) -> None:
        if typed == "":
            self._try(scenario, script, self._waiting.pop(0))
        elif typed == "run":
            self._to_the_end = True
        elif typed == "skip":
            if self._waiting:
                print(f"left out: {self._waiting.pop(0).text}")
        elif typed in ("help", "?"):
            print(_HELP)
            for word in (*STEPS.values(), *EXPECTATIONS):
                print(f"  {word.usage}")
        else:
            try:
                self._try(scenario, script, Step(0, typed, parse_step(typed), typed == "show"))
            except ValueError as error:
                print(f"  {error}")

    def _try(self, scenario: Scenario, script: Script, step: Step) -> None:
        """What makes no sense is said, and nothing is lost by it. What the peers do wrong ends the run."""
        scenario.words = step.text
        try:
            shown = step.act(scenario)
        except ScenarioError as error:
            print(f"  {error}")
            return
        finally:
            scenario.words = ""
        if step.shows:
            print(shown)
        sys.stdout.flush()
