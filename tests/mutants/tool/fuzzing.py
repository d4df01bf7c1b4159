"""`lab mutants fuzz`: which mutants that break safety or durability `lab fuzz` finds, and how soon.

Each is fuzzed in a separate process, with the same seed on one core. The scenario found must pass on the mutant's
correct base.

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
from tests.mutants.tool.mutants import BUILD, FOLDER, Mutant
from tests.mutants.tool.shrunk import repeated

RECORD = FOLDER / "fuzzed.json"
SEED = 105  # not used to tune the fuzzer
_LOST_S = 3600
# Rules about speed and liveness, which fuzzing does not check.
_OTHER_RULES = (
    *("answers-requests", "calls-return", "committed-gets-applied", "quiet-death", "race", "rpc-budget"),
    "start-returns-at-once",
)


@dataclass
class FuzzMeasurement:
    """The result of one fuzz run."""

    id: str
    correct: bool = False
    found: str = ""  # a rule, an exception or "expectation"; "" if nothing was found
    runs: int = 0
    seconds: float = 0.0
    steps: int | None = None  # of the scenario
    right_passes: bool = False  # the scenario, on the correct base

    @property
    def summary(self) -> str:
        return f"{self.found or 'nothing found'} after {self.runs:,} runs, {self.seconds:.1f} s"


def is_asked_for(rule: str) -> bool:
    """Whether mutants that were caught by this rule are fuzzed."""
    return bool(rule) and rule not in _OTHER_RULES


def measure(mutant: Mutant, *, limit_s: float, out: Path) -> FuzzMeasurement:
    path = mutant.write(BUILD)
    out.mkdir(parents=True, exist_ok=True)
    scenario = out / f"{mutant.id}.scenario"
    found = _fuzz(path, limit_s, out / f"{mutant.id}.json")
    figures_of_it = {name: found[name] for name in ("found", "runs", "seconds", "steps")}
    measured = FuzzMeasurement(mutant.id, mutant.correct, **figures_of_it)
    if measured.steps is not None and not mutant.correct:
        scenario.write_text("\n".join([*found["scenario"], ""]))
        measured.right_passes = repeated(mutant.base / "raft.py", None, [str(scenario)])[0]["ending"] == "passed"
    return measured


def _fuzz(raft: Path, limit_s: float, figures: Path) -> dict[str, Any]:
    figures.unlink(missing_ok=True)
    values = {"raft": raft, "jobs": 1, "seed": SEED, "for": f"{limit_s:.0f}s", "out": figures.parent / "found"}
    command = [sys.executable, "-m", "raftlab", "fuzz", *arguments(values), "--json", str(figures)]
    subprocess.run(command, capture_output=True, timeout=_LOST_S, check=False, stdin=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(figures.read_text())
    return found


def recorded(measured: Iterable[FuzzMeasurement] = (), file: Path = RECORD) -> dict[str, FuzzMeasurement]:
    """The records by id, with these in place of their older records."""
    known = json.loads(file.read_text()) if file.exists() else []
    return {one.id: one for one in (*(FuzzMeasurement(**each) for each in known), *measured)}


def record(measured: Iterable[FuzzMeasurement], file: Path = RECORD) -> None:
    """Record these; other records stay."""
    known = sorted(recorded(measured, file).values(), key=lambda one: one.id)
    file.write_text(json.dumps([asdict(one) for one in known], indent=1) + "\n")


def table(all_of_them: Iterable[FuzzMeasurement]) -> str:
    rows = ["| id | found | runs | s | steps |", "|---|---|---:|---:|---:|"]
    for one in all_of_them:
        steps = "-" if one.steps is None else str(one.steps) + ("" if one.right_passes else ", not good")
        cells = (f"`{one.id}`", one.found or "no", f"{one.runs:,}", f"{one.seconds:.1f}", steps)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def summary(measured: Sequence[FuzzMeasurement]) -> str:
    variants = [one for one in measured if one.correct]
    all_of_them = [one for one in measured if not one.correct]
    lines = [*_summary(all_of_them)] if all_of_them else []
    if variants:
        accused = [one.id for one in variants if one.found]
        runs = sum(one.runs for one in variants)
        lines.append(
            f"{len(variants) - len(accused)} of {len(variants)} variants have no false positive in {runs:,} runs"
        )
        lines += [f"FALSE POSITIVES: {', '.join(accused)}"] if accused else []
    return "\n".join(lines)


def _summary(all_of_them: Sequence[FuzzMeasurement]) -> list[str]:
    found = [one for one in all_of_them if one.found]
    lines = [
        f"{len(found)} of {len(all_of_them)} mutants found",
        f"processor time for all: {sum(one.seconds for one in all_of_them):,.0f} s",
    ]
    if found:
        lines.append(f"time to find one: median {median(one.seconds for one in found):.1f} s")
    steps = [one.steps for one in found if one.steps is not None]
    if steps:
        lines.append(
            f"{len(steps)} are scenarios: median {median(steps):g} steps, most {max(steps)}; "
            f"{sum(one.right_passes for one in found)} of them pass on the correct peer"
        )
    away = [one.id for one in all_of_them if not one.found]
    return [*lines, *([f"missed: {', '.join(away)}"] if away else [])]
