"""What a fuzz run says: while it runs, and at its end. Start at `tell()`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labsim.stacks import short_path
from raftlab.tools.common.text import duration
from raftlab.tools.fuzz.fuzzers import FuzzResult, WorkerDeath
from raftlab.tools.fuzz.minimizer import Find

_REFRESH_S = 0.2
_LINE_EVERY_S = 5.0
_SAID_LINES_MAX = 12


class Progress:
    """One line that changes, on a terminal; elsewhere a line now and then, rarer and rarer."""

    def __init__(self, result: FuzzResult) -> None:
        self._result = result
        self._live = sys.stdout.isatty()
        self._began_s = time.monotonic()
        self._next_s = _REFRESH_S if self._live else _LINE_EVERY_S

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def __call__(self) -> None:
        elapsed_s = self.elapsed_s
        if elapsed_s < self._next_s:
            return
        line = f"{duration(elapsed_s):>9}  {_made(self._result)}"
        if self._live:
            self._next_s = elapsed_s + _REFRESH_S
            print(f"\r{line} \033[K", end="", flush=True)
        else:
            self._next_s = elapsed_s + max(_LINE_EVERY_S, elapsed_s / 20)
            print(line, flush=True)

    def clear(self) -> None:
        if self._live:
            print("\r\033[K", end="", flush=True)


def _made(result: FuzzResult) -> str:
    return f"{result.runs:,} runs, {result.steps:,} steps"


def render(
    result: FuzzResult, elapsed_s: float, files: Sequence[Path], *, play_line: str, repeat_line: str, interrupted: bool
) -> str:
    much = f"{_made(result)} in {duration(elapsed_s)}"
    if result.ours:
        return f"The fuzzer failed: {result.ours}\nThis is a bug in the lab, not in the peer. {much}."
    if result.died is not None:
        return "\n".join([f"\n{much}.", "", *_dead(result.died), "", f"  repeat    {repeat_line}"])
    if result.found is not None:
        return "\n".join([f"\n{much}.", "", *_found(result.found, files, play_line, repeat_line)])
    lines = [f"{'Interrupted. ' if interrupted else ''}No failure found: {much}."]
    lines += [f"{line}." for line in result.checks_off]
    return "\n".join(lines)


def _found(find: Find, files: Sequence[Path], play_line: str, repeat_line: str) -> list[str]:
    report = [f"  {line}".rstrip() for line in find.outcome.report.splitlines()]
    lines = [f"FOUND in run {find.run} of sequence {find.sequence}", *report, ""]
    if find.shortened:
        where = " and ".join(short_path(str(file.resolve())) for file in files)
        lines.append(f"  scenario  {where}, {len(find.steps)} steps of {find.steps_before}:")
        lines += [f"    {step}" for step in [*find.header, *find.steps]]
        lines += ["", f"  play      {play_line}"]
    elif not find.steps_before:
        lines.append("  The peer failed before the first step, so every test fails the same way.")
    else:
        lines.append(
            f"  The {find.steps_before} steps alone do not reproduce the failure; repeating the fuzz run does."
        )
    return [*lines, f"  repeat    {repeat_line}"]


def _dead(died: WorkerDeath) -> list[str]:
    begin, end = died.runs
    lines = [f"FOUND in runs {begin} to {end} of sequence {died.sequence}", f"  The worker process {died.how}."]
    return [*lines, *(f"  {line}" for line in died.output.splitlines()[:_SAID_LINES_MAX])]


def scenario_text(find: Find, repeat_line: str) -> str:
    comment = [f"# {find.summary}", "#", f"# Found by: {repeat_line}. A correct peer passes."]
    return "\n".join([*comment, "", *find.header, *find.steps, ""])


def statistics(result: FuzzResult) -> dict[str, Any]:
    """For programs."""
    find = result.found
    return {
        "found": "" if find is None else find.outcome.name or find.outcome.ending,
        "ending": "" if find is None else find.outcome.ending,
        "runs": result.runs,
        "steps_made": result.steps,
        "seconds": round(result.seconds, 3),
        "steps": None if find is None or not find.shortened else len(find.steps),
        "scenario": None if find is None else [*find.header, *find.steps],
    }
