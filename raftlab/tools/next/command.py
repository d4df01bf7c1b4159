"""`lab next`: which milestones a peer passes, and the one thing to do next.

Promise: it runs the tests now, with one seed, and stops at the first milestone that fails. It remembers nothing but
which milestones passed before. Start at `main()`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from labsim.stacks import short_path
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import LoadError
from raftlab.harness.options import KV, RAFT, SEED, add_options
from raftlab.harness.report import explained
from raftlab.harness.run import Run
from raftlab.tools.common.runs import Runs, has_failed
from raftlab.tools.next.milestones import PARTS, Milestone, Part
from raftlab.tools.selection import SelectionError, select

_PASSED_BEFORE = Path("build/next.json")
_GUIDE = "docs/student/guide"
_REPORT_LINES_MAX = 12
_WIDTH_MAX = 100


class Failed(NamedTuple):
    part: Part
    milestone: Milestone
    report: list[str]
    command: str = ""  # that shows the whole report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "A few tests and scenarios show each milestone. They run now, each with one seed."
    add_options(parser.add_argument, RAFT, KV, replace(SEED, default=1, help="the seed of the runs"))


def main(args: argparse.Namespace) -> int:
    passed: list[str] = []
    try:
        failed = _first_failure(args, passed)
    except SelectionError as error:
        print(f"lab next: {error}", file=sys.stderr)
        return 2
    finally:
        _show_progress("")
    lines = [f"{short_path(str(args.raft))}, seed {args.seed}", "", *_overview(passed, failed), ""]
    print("\n".join([*lines, *_advice(failed, _passed_before())]))
    with suppress(OSError):  # a read-only folder
        _PASSED_BEFORE.parent.mkdir(parents=True, exist_ok=True)
        _PASSED_BEFORE.write_bytes(msgspec.json.encode(passed))
    return 0


def _name(part: Part, milestone: Milestone) -> str:
    return f"{part.name} {milestone.title}"


def _first_failure(args: argparse.Namespace, passed: list[str]) -> Failed | None:
    """Run milestone after milestone. The names of those that pass are added to `passed`."""
    runs = Runs(args)
    for part in PARTS:
        for milestone in part.milestones:
            _show_progress(f"{part.name.upper()}: {milestone.title} ...")
            for test in select(milestone.shown_by):
                try:
                    run = runs.run(test, race=milestone.race)
                except LoadError as error:
                    return Failed(part, milestone, str(error).splitlines())
                if has_failed(run):
                    replay = runs.replay_line(test, race=milestone.race)
                    return Failed(part, milestone, _report(test, run), replay)
            passed.append(_name(part, milestone))
    return None


def _report(test: LabTest, run: Run) -> list[str]:
    assert run.error is not None
    lines = [f"{test.name}:", *explained(run.error, run.causes[:1])]
    more = [] if len(lines) <= _REPORT_LINES_MAX else ["..."]
    return [*lines[:_REPORT_LINES_MAX], *more]


# ---- the screen ----------------------------------------------------------------------------------------------------


def _overview(passed: Collection[str], failed: Failed | None) -> list[str]:
    """A line for each part, and the milestones of the part under way."""
    lines = []
    for part in PARTS:
        done = sum(_name(part, milestone) in passed for milestone in part.milestones)
        state = "done" if done == len(part.milestones) else f"{done} of {len(part.milestones)} milestones"
        lines.append(f"{part.name.upper()}  {part.title:<24}{state}")
        if failed is None or part is not failed.part:
            continue
        for milestone in part.milestones:
            mark = "done" if _name(part, milestone) in passed else "next" if milestone is failed.milestone else ""
            lines.append(f"  {mark:<6}{milestone.title}{f' ({milestone.section})' if milestone.section else ''}")
    return lines


def _advice(failed: Failed | None, passed_before: Collection[str]) -> list[str]:
    if failed is None:
        return [
            "Every part passes with this seed. Before you hand in: make stress RUNS=100, make race, make fuzz FOR=60s",
            f"({_GUIDE}/submit.md).",
        ]
    part, milestone = failed.part, failed.milestone
    head = f"Next: {milestone.title}{f' ({milestone.section})' if milestone.section else ''}."
    if _name(part, milestone) in passed_before:
        head += " It passed the last time."
    width = min(shutil.get_terminal_size().columns, _WIDTH_MAX) - 2
    lines = [head, *(f"  {line}" for line in textwrap.wrap(milestone.build, width)), ""]
    lines += [f"  {line}".rstrip() for line in failed.report]
    if failed.command:
        lines += ["", f"  whole report   {failed.command}"]
    return [*lines, f"  guide          {_GUIDE}/{part.name}.md"]


def _passed_before() -> list[str]:
    try:
        return msgspec.json.decode(_PASSED_BEFORE.read_bytes(), type=list[str])
    except (OSError, msgspec.DecodeError):
        return []


def _show_progress(text: str) -> None:
    """On a terminal, one line that is written over."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
