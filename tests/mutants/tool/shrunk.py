"""`lab mutants shrink`: minimizes the run that caught each mutant, and checks that the result still fails alike.

Each is shrunk in a separate process. Another process replays the file and plays the scenario: on the mutant, where both
must break the same rule, and on the mutant's correct base, where the scenario must pass.

Start at `measure()`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from raftlab.harness.options import arguments
from raftlab.tools.workers.shrinker import shrunk_elsewhere
from tests.mutants.tool.mutants import BUILD, FOLDER, REFERENCE, Mutant

RECORD = FOLDER / "shrunk.json"
_LOST_S = 600
_LIMIT_S = 50.0
_LONG = 1000  # events; a tenth of them may be left
_SHORT = 100  # events that may be left of a shorter run
_STEPS_MAX = 20


@dataclass
class ShrinkMeasurement:
    """The result of shrinking one run."""

    id: str
    test: str
    ending: str = ""  # as in Outcome; "" if it could not be shrunk
    rule: str = ""
    before: int = 0
    after: int = 0
    lines: int = 0
    seconds: float = 0.0
    same_rule: bool = False  # replayed in a new process
    same_run: bool = False  # exactly
    steps: int | None = None
    scenario_breaks: bool = False  # the same rule, in a new process
    scenario_passes: bool = False  # on the correct base

    @property
    def summary(self) -> str:
        scenario = f", {self.steps} steps" if self.has_scenario and self.steps is not None else ""
        return f"{self.before:,} -> {self.after:,} events{scenario}"

    @property
    def enough(self) -> bool:
        return self.after <= (self.before / 10 if self.before > _LONG else _SHORT)

    @property
    def has_scenario(self) -> bool:
        return self.scenario_breaks and self.scenario_passes and (self.steps or 0) <= _STEPS_MAX


def measure(mutant: Mutant, test: str, seed: int, *, out: Path) -> ShrinkMeasurement:
    measured = ShrinkMeasurement(mutant.id, test)
    path = mutant.write(BUILD)
    raft, kv = (REFERENCE / "raft.py", path) if mutant.of_service else (path, None)
    figures_file = out / f"{mutant.id}.json"
    figures_file.parent.mkdir(parents=True, exist_ok=True)
    values = {"raft": raft, "kv": kv, "race": mutant.races}
    folder = Path.cwd()
    figures = shrunk_elsewhere(
        test, seed, values, limit_s=_LIMIT_S, out=out / mutant.id, folder=folder, figures=figures_file
    )
    if figures is None:
        return measured
    measured.ending, measured.rule = figures["ending"], figures["rule"]
    measured.before, measured.after = figures["events_before"], figures["events"]
    measured.lines, measured.seconds = len(figures["recipe"]), figures["seconds"]
    files = [figures["choices"], *([figures["scenario"]] if figures["scenario"] is not None else [])]
    replayed, *played = repeated(raft, kv, files, race=mutant.races)
    measured.same_rule = (replayed["ending"], replayed["rule"]) == (measured.ending, measured.rule or replayed["rule"])
    measured.same_run = replayed["same"]
    if played:
        measured.steps = figures["steps"]
        measured.scenario_breaks = played[0]["rule"] == measured.rule
        right = mutant.base / "raft.py" if not mutant.of_service else REFERENCE / "raft.py"
        measured.scenario_passes = repeated(right, None, files[1:])[0]["ending"] == "passed"
    return measured


def repeated(raft: Path, kv: Path | None, files: Sequence[str], *, race: bool = False) -> list[dict[str, Any]]:
    command = ["-m", "tests.mutants.tool.repetition", str(raft), *files, *arguments({"kv": kv, "race": race})]
    found: list[dict[str, Any]] = json.loads(_python(command))
    return found


def _python(arguments: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=_LOST_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout or done.stderr


def recorded(measured: Iterable[ShrinkMeasurement] = (), file: Path = RECORD) -> dict[str, ShrinkMeasurement]:
    """The records by id, with these in place of their older records."""
    known = json.loads(file.read_text()) if file.exists() else []
    return {one.id: one for one in (*(ShrinkMeasurement(**each) for each in known), *measured)}


def record(measured: Iterable[ShrinkMeasurement], file: Path = RECORD) -> None:
    """Record these; other records stay."""
    known = sorted(recorded(measured, file).values(), key=lambda one: one.id)
    file.write_text(json.dumps([asdict(one) for one in known], indent=1) + "\n")


def table(all_of_them: Iterable[ShrinkMeasurement]) -> str:
    rows = ["| id | broke | events before | left | lines | s | scenario |", "|---|---|---:|---:|---:|---:|---:|"]
    for one in all_of_them:
        steps = "-" if one.steps is None else f"{one.steps}" if one.has_scenario else f"{one.steps}, not good"
        cells = (f"`{one.id}`", one.rule or one.ending, f"{one.before:,}", f"{one.after:,}", f"{one.lines}")
        rows.append(f"| {' | '.join(cells)} | {one.seconds:.1f} | {steps} |")
    return "\n".join(rows)


def summary(all_of_them: Sequence[ShrinkMeasurement]) -> str:
    rules = [one for one in all_of_them if one.rule]
    others = [one for one in all_of_them if one.ending and not one.rule]
    lines = []
    if rules:
        scenarios = [one for one in rules if one.has_scenario]
        lines += [
            f"{len(rules)} runs that broke a rule: {sum(one.same_rule for one in rules)} break the same rule when "
            f"replayed in a new process, {sum(one.same_run for one in rules)} are exactly equal to the recorded run",
            f"{sum(one.enough for one in rules)} of them are short enough: at most {_SHORT} events left, or a tenth "
            f"if there were more than {_LONG:,}",
            f"lines of the reproduction steps: median {median(one.lines for one in rules):g}, most "
            f"{max(one.lines for one in rules)}",
            f"processor time: median {median(one.seconds for one in rules):.1f} s, most "
            f"{max(one.seconds for one in rules):.1f} s",
            f"{len(scenarios)} of them are also a scenario of at most {_STEPS_MAX} steps that breaks the rule in a new "
            "process and passes on the correct peer"
            + (f"; median {median(one.steps or 0 for one in scenarios):g} steps" if scenarios else ""),
        ]
    if others:
        left = median(one.after / max(1, one.before) for one in others)
        lines.append(f"{len(others)} runs that failed in another way: in the median, {left:.0%} of the events are left")
    lost = [one.id for one in all_of_them if not one.ending]
    if lost:
        lines.append(f"not shrunk: {', '.join(lost)}")
    return "\n".join(lines)
