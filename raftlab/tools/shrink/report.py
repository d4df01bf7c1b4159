"""The report of a shrunk run. Start at `render()`."""

from __future__ import annotations

import textwrap
import time
from shlex import quote
from typing import Any

from labsim.stacks import short_path
from raftlab.harness.options import KV, RAFT, Values, command_line
from raftlab.harness.report import headline
from raftlab.tools.shrink.shrinker import ShrinkResult, ShrunkFiles

_WIDTH = 112


def render(shrunk: ShrinkResult, files: ShrunkFiles, test: str, seed: int, values: Values) -> str:
    """`values`: the options of the run, from options.given()."""
    original, best = shrunk.original, shrunk.best
    others = {
        name: value for name, value in values.items() if name not in (RAFT.name, KV.name)
    }  # the choice file contains these
    lines = [f"{test}  seed {seed}", *_wrapped(headline(best.run.error or Exception()), "  "), ""]
    lines += reproduction_lines(shrunk)
    left = f"{best.events:,} of {original.events:,} events remain"
    lines += ["", f"  {left}, after {shrunk.runs:,} runs.{_why_it_ended(shrunk)}"]
    lines += [
        f"  timeline  {short_path(str(files.timeline))}",
        f"  trace     {short_path(str(files.trace))}",
        f"  replay    {command_line(f'lab replay {quote(short_path(str(files.choices)))}', others)}",
    ]
    if files.scenario is not None and shrunk.scenario is not None:
        other = ", from another run that breaks the same rule" if shrunk.from_fuzzing else ""
        lines.append(f"  scenario  {short_path(str(files.scenario))}{other}:")
        lines += [f"    {step}" for step in shrunk.scenario]
    elif shrunk.rule and not shrunk.interrupted:
        lines.append("  scenario  found no scenario that breaks the same rule")
    return "\n".join(lines)


def statistics(shrunk: ShrinkResult, files: ShrunkFiles) -> dict[str, Any]:
    """The report for programs (--json). Its keys are a file format."""
    return {
        "ending": shrunk.original.outcome.ending,
        "rule": shrunk.rule,
        "events_before": shrunk.original.events,
        "events": shrunk.best.events,
        "recipe": shrunk.reproduction_steps,
        "told": reproduction_lines(shrunk, ""),
        "runs": shrunk.runs,
        "in_time": shrunk.finished,
        "without_its_test": shrunk.best.plan.play is not None,
        "seconds": round(time.process_time(), 3),
        "choices": str(files.choices),
        "scenario": None if files.scenario is None else str(files.scenario),
        "steps": None if shrunk.scenario is None else shrunk.steps,
    }


def reproduction_lines(shrunk: ShrinkResult, indent: str = "  ") -> list[str]:
    """The reproduction steps, with the line before and the line after them."""
    steps = shrunk.reproduction_steps
    at_s = shrunk.best.failed_ns / 1e9
    end = f"{indent}It breaks {shrunk.rule} at {at_s:.3f} s." if shrunk.rule else f"{indent}It fails at {at_s:.3f} s."
    return [f"{indent}{shrunk.header}:", *(f"{indent}  {line}" for line in steps or ["nothing else"]), end]


def _why_it_ended(shrunk: ShrinkResult) -> str:
    if shrunk.interrupted:
        return " Interrupted; this is the best result so far."
    return "" if shrunk.finished else " Stopped at the time limit; raise it with --limit."


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
