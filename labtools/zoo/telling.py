"""What came of all hunts: a table for the terminal, one for people (docs/zoo.md), and the record for the quick zoo.

Start at `table()` and `markdown()`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from labtools.zoo.hunting import PARTS, Result
from labtools.zoo.mutants import REFERENCE, ZOO, Mutant

RECORD = ZOO / "caught.json"


def _by(result: Result) -> str:
    if not result.by:
        skipped = f", {result.skipped} of {result.tests} tests skipped" if result.skipped else ""
        return (result.verdict.upper() if result.bad else result.verdict) + skipped
    rate = "" if result.failed_of is None else f", {result.failed_of[0]} of {result.failed_of[1]} seeds"
    return f"{'ACCUSED ' if result.verdict == 'accused' else ''}{result.by}{rate}"


def table(results: list[Result], zoo: dict[str, Mutant]) -> str:
    rows = [("id", "part", "caught by", "runs", "tests", "s", "first line of the report")]
    rows += [
        (r.id, zoo[r.id].part, _by(r), str(r.runs), str(r.tests), f"{r.seconds:.1f}", _short(r.line, 100))
        for r in results
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    right = (3, 4, 5)
    lines = [
        "  ".join([*(row[k].rjust(widths[k]) if k in right else row[k].ljust(widths[k]) for k in range(6)), row[6]])
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def summary(results: list[Result], zoo: dict[str, Mutant], seconds: float) -> str:
    lines = []
    for base in dict.fromkeys(zoo[r.id].base for r in results if not zoo[r.id].control):
        mutants = [r for r in results if not zoo[r.id].control and zoo[r.id].base == base]
        lines += _summary_of(mutants, "" if base == REFERENCE else f" of {base.name}")
    controls = [r for r in results if zoo[r.id].control]
    if controls:
        passed = sum(r.verdict == "passed" for r in controls)
        lines.append(f"{passed} of {len(controls)} controls passed")
    lines.append(f"{seconds:.0f} s in all")
    return "\n".join(lines)


def _summary_of(mutants: list[Result], whose: str) -> list[str]:
    caught = [r for r in mutants if r.verdict == "caught"]
    named = [r for r in caught if not r.by.startswith("test: ")]
    line = f"{len(caught)} of {len(mutants)} mutants{whose} caught, {len(named)} of them by name"
    if caught:
        line += f"; runs of the suite: median {median(r.runs for r in caught):g}, most {max(r.runs for r in caught)}"
    away = [r.id for r in mutants if r.verdict != "caught"]
    return [line, *([f"got away: {', '.join(away)}"] if away else [])]


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


_GO = {"A": "always", "S": "sometimes", "R": "rarely", "N": "never", "": "-"}


def markdown(results: list[Result], zoo: dict[str, Mutant]) -> str:
    """The table beside what the classical Go suite notices."""
    out = [
        "# Wrong Rafts, and what catches them",
        "",
        "Written by `lab zoo run --markdown docs/zoo.md`; edit tests/zoo, not this file.",
        "",
        "Each line is the reference peer with one mistake put in (`lab zoo show ID` prints it as a diff), hunted",
        "with the lab's own tests and scenarios over fixed seeds. *Caught by* is the rule whose check noticed, the",
        "error the simulation ended with, or the test that failed. *Runs* counts runs of the whole suite, *s* is",
        "processor time. For mistakes that only cost time: with how many seeds that test, or one of the mutant's own",
        "part, fails.",
        "",
        "*Go* is how often the classical Go suite would notice (a judgement: always, sometimes, rarely, never);",
        "**caught** and **missed** say what one full run of that suite did say, where we have one.",
        "",
        _summary_markdown(results, zoo),
        "",
    ]
    mutants = [r for r in results if not zoo[r.id].control and zoo[r.id].of_reference]
    for part in PARTS:
        chosen = [r for r in mutants if zoo[r.id].part == part]
        if not chosen:
            continue
        kind = zoo[chosen[0].id].kind
        out += [f"## Part {part.upper()}", "", f"| id | a {kind} that | rule | caught by | runs | s | Go |"]
        out.append("|---|---|---|---|---:|---:|---|")
        for r in chosen:
            m = zoo[r.id]
            go = _GO[m.go]
            if m.go_caught is not None:
                go += ", **caught**" if m.go_caught else ", **missed**"
            by = _by(r).replace("test: ", "")
            cells = (f"`{m.id}`", m.what, m.rule, by, str(r.runs), f"{r.seconds:.1f}", go)
            out.append(f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |")
        out.append("")
    out += _in_strangers([r for r in results if not zoo[r.id].control and not zoo[r.id].of_reference], zoo)
    controls = [r for r in results if zoo[r.id].control]
    if controls:
        out += [
            "## Controls",
            "",
            "Correct Rafts of other kinds, whole peers of other designs among them, and services of other designs on",
            "the reference. They must pass.",
            "",
        ]
        out += ["| id | a peer that | verdict | runs |", "|---|---|---|---:|"]
        out += [f"| `{r.id}` | {zoo[r.id].what} | {_by(r)} | {r.runs} |" for r in controls]
        out.append("")
    return "\n".join(out)


def _in_strangers(results: list[Result], zoo: dict[str, Mutant]) -> list[str]:
    """The same mistakes in peers of other designs: a column for each."""
    bases = list(dict.fromkeys(zoo[r.id].base.name for r in results))
    if not bases:
        return []
    caught = {(zoo[r.id].base.name, zoo[r.id].what): _by(r).replace("test: ", "") for r in results}
    out = ["## The same mistakes in peers of other designs", "", f"| a peer that | {' | '.join(bases)} |"]
    out.append(f"|---|{'---|' * len(bases)}")
    mistakes = dict.fromkeys(zoo[r.id].what for r in results)
    out += [f"| {what} | {' | '.join(caught.get((base, what), '-') for base in bases)} |" for what in mistakes]
    return [*out, ""]


def _summary_markdown(results: list[Result], zoo: dict[str, Mutant]) -> str:
    return "\n".join(f"{line}." for line in summary(results, zoo, sum(r.seconds for r in results)).splitlines())


def record(results: Iterable[Result], file: Path = RECORD) -> None:
    """Note what caught which, beside what is noted already; the quick zoo begins there."""
    known: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for result in results:
        if result.verdict == "caught":
            known[result.id] = {"test": result.test, "seed": result.seed}
    file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def with_section(text: str, heading: str, section: str) -> str:
    """The page with that section of it written anew; at its end, if it has none yet."""
    before, found, after = text.partition(f"{heading}\n")
    _, next_one, rest = after.partition("\n## ") if found else ("", "", "")
    return "".join([before if found else f"{text.rstrip()}\n\n", section.rstrip("\n"), "\n", next_one, rest])


def sections(text: str, headings: Iterable[str]) -> str:
    """Those sections of the page that other measurements have written: a hunt leaves them as they are."""
    found = []
    for heading in headings:
        _, there, after = text.partition(f"{heading}\n")
        if there:
            found.append(f"\n{heading}\n{after.partition(chr(10) + '## ')[0].rstrip()}\n")
    return "".join(found)
