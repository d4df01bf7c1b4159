"""A failed run in words: what was expected and what was seen, where in the student's file, how to replay it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from labsim import Wait, WaitKind
from raftlab.check.failure import Failure, PeerProcessFailed
from raftlab.check.harness_rules import HARNESS_RULES
from raftlab.check.rules import RULES
from raftlab.check.task_errors import describe_error

_RULES = {rule.name: f"{rule.title} ({rule.section})" for rule in RULES}
_RULES |= {rule.name: f"{rule.title} ({rule.section})" for rule in HARNESS_RULES}
_MAX_BLOCKED = 4
_WIDTH = 112


def describe(
    error: BaseException,
    test: str,
    run: int | str,
    replay: str,
    *,
    causes: Sequence[str] = (),
    shrink: str = "",
    page: str = "",
) -> str:
    """The whole report, plain text: what was broken or missing, the evidence, the likely cause, how to replay it and,
    where that can be done, how to `shrink` it.

    `run` is its seed, or in words which one it is.
    """
    lines = [f"{test}  {f'seed {run}' if isinstance(run, int) else run}", *explained(error, causes)]
    lines += ["", f"replay    {replay}", *([f"shrink    {shrink}"] if shrink else [])]
    lines += [f"page      {page}"] if page else []
    return "\n".join([lines[0], *(f"  {line}".rstrip() for line in lines[1:])])


def explained(error: BaseException, causes: Sequence[str]) -> list[str]:
    """What was broken or missing, the evidence, and the likely causes, a line each."""
    lines = message_lines(error)
    if isinstance(error, Failure):
        count = 1 if error.rule is None else 2
        lines[:count] = [part for line in lines[:count] for part in textwrap.wrap(line, _WIDTH)]
    for cause in causes:
        lines += ["", *cause.splitlines()]
    return lines


def headline(error: BaseException) -> str:
    """What was broken or missing, in one line."""
    return error.text.partition("\n")[0] if isinstance(error, Failure) else message_lines(error)[0]


def message_lines(error: BaseException) -> list[str]:
    """What was broken or missing, and the evidence, a line each."""
    if isinstance(error, PeerProcessFailed):
        return error.lines
    if isinstance(error, Failure):
        broken = [] if error.rule is None else [f"Broken rule: {_RULES.get(error.rule, error.rule)}"]
        return [*broken, *error.text.splitlines(), *error.evidence, *_blocked(error.snapshot.blocked)]
    return describe_error(error)


def _blocked(waits: Sequence[Wait]) -> list[str]:
    if not waits:
        return []
    locks = any(wait.kind in (WaitKind.LOCK, WaitKind.OWN_LOCK, WaitKind.LOST_LOCK) for wait in waits)
    head = "Blocked (if a thread waits while it holds the lock, its whole peer stops):" if locks else "Blocked:"
    return [head, *(line for wait in waits[:_MAX_BLOCKED] for line in wait.text.splitlines())]
