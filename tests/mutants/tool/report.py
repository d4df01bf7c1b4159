"""Reports on mutants: a table for the terminal, the record for the quick test, and a table of all records.

Start at `table()` and `overview()`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from tests.mutants.tool import fuzzing, shrunk
from tests.mutants.tool.measurement import MutantResult
from tests.mutants.tool.mutants import FOLDER, REFERENCE, Mutant

RECORD = FOLDER / "caught.json"


def _by(result: MutantResult) -> str:
    if not result.by:
        skipped = f", {result.skipped} of {result.tests} tests skipped" if result.skipped else ""
        return (result.verdict.upper() if result.bad else result.verdict) + skipped
    rate = "" if result.failed_of is None else f", {result.failed_of[0]} of {result.failed_of[1]} seeds"
    return f"{'FALSE POSITIVE ' if result.verdict == 'reported' else ''}{result.by}{rate}"


def table(results: list[MutantResult], by_id: dict[str, Mutant]) -> str:
    rows = [("id", "part", "caught by", "runs", "tests", "s", "first line of the report")]
    rows += [
        (r.id, by_id[r.id].part, _by(r), str(r.runs), str(r.tests), f"{r.seconds:.1f}", _short(r.line, 100))
        for r in results
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    right = (3, 4, 5)
    lines = [
        "  ".join([*(row[k].rjust(widths[k]) if k in right else row[k].ljust(widths[k]) for k in range(6)), row[6]])
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def summary(results: list[MutantResult], by_id: dict[str, Mutant], seconds: float) -> str:
    lines = []
    for base in dict.fromkeys(by_id[r.id].base for r in results if not by_id[r.id].correct):
        mutants = [r for r in results if not by_id[r.id].correct and by_id[r.id].base == base]
        lines += _summary_of(mutants, "" if base == REFERENCE else f" of {base.name}")
    variants = [r for r in results if by_id[r.id].correct]
    if variants:
        passed = sum(r.verdict == "passed" for r in variants)
        lines.append(f"{passed} of {len(variants)} variants passed")
    lines.append(f"{seconds:.0f} s in total")
    return "\n".join(lines)


def _summary_of(mutants: list[MutantResult], whose: str) -> list[str]:
    caught = [r for r in mutants if r.verdict == "caught"]
    named = [r for r in caught if not r.by.startswith("test: ")]
    line = f"{len(caught)} of {len(mutants)} mutants{whose} caught, {len(named)} of them by name"
    if caught:
        line += f"; runs of the suite: median {median(r.runs for r in caught):g}, most {max(r.runs for r in caught)}"
    away = [r.id for r in mutants if r.verdict != "caught"]
    return [line, *([f"missed: {', '.join(away)}"] if away else [])]


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


_GO = {"A": "always", "S": "sometimes", "R": "rarely", "N": "never", "": ""}
_COLUMNS = ("id", "part", "a peer that", "breaks", "caught by", "in", "seed", "runs", "fuzz", "shrunk", "Go")


def overview(by_id: Iterable[Mutant]) -> str:
    """A table with everything that is recorded of each mutant."""
    mutants = [mutant for mutant in by_id if not mutant.correct]
    caught = {mutant.id: known for mutant in mutants if (known := recorded().get(mutant.id))}
    found, left = fuzzing.recorded(), shrunk.recorded()
    named = sum(not one["by"].startswith("test: ") for one in caught.values())
    lines = [
        f"{len(caught)} of {len(mutants)} mutants caught by the tests, {named} of them by a rule or an error",
        *(f"fuzz: {line}" for line in fuzzing.summary(list(found.values())).splitlines()),
        *(f"shrink: {line}" for line in shrunk.summary(list(left.values())).splitlines()),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for mutant in mutants:
        by = caught.get(mutant.id, {"by": "", "test": "", "seed": "", "runs": ""})
        cells = (
            *(f"`{mutant.id}`", mutant.part, mutant.what, mutant.rule),
            *(str(by[name]) for name in ("by", "test", "seed", "runs")),
            *(
                found[mutant.id].summary if mutant.id in found else "",
                left[mutant.id].summary if mutant.id in left else "",
            ),
            _GO[mutant.go] + {None: "", True: ", caught", False: ", missed"}[mutant.go_caught],
        )
        lines.append(f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |")
    return "\n".join([*lines, ""])


def recorded(file: Path = RECORD) -> dict[str, dict[str, Any]]:
    """What caught each mutant, by id: `by`, `test`, `seed`, and `runs` of the suite until then."""
    return json.loads(file.read_text()) if file.exists() else {}


def record(results: Iterable[MutantResult], file: Path = RECORD) -> None:
    """Record what caught each mutant; other records stay. The quick measurement starts there."""
    known = recorded(file)
    for result in results:
        if result.verdict == "caught":
            known[result.id] = {name: getattr(result, name) for name in ("by", "test", "seed", "runs")}
    file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
