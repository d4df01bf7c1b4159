"""A failed run in words: what was expected and what was seen, where in the student's file, how to replay it."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from types import TracebackType

from labsim import SimulationError, TaskFailed
from labsim.stacks import short_path
from labtest.failure import Failure

_ROOT = Path(__file__).parent.parent
_OURS = tuple(f"{_ROOT / name}/" for name in ("labsim", "labgob", "labrpc", "labtest", "labtools"))
_MAX_FRAMES = 8


def describe(error: BaseException, test: str, seed: int, replay: str) -> str:
    """The whole report, plain text."""
    lines = [f"{test}  seed {seed}", *(f"  {line}" for line in _what(error)), ""]
    lines.append(f"  replay  {replay}")
    return "\n".join(lines)


def _what(error: BaseException) -> list[str]:
    if isinstance(error, Failure):
        return [error.text, *_frames(error.__traceback__), *error.evidence]
    if isinstance(error, TaskFailed) and error.__cause__ is not None:
        cause = error.__cause__
        who = f"Peer {error.node}" if error.node is not None else "The tester"
        text = "".join(traceback.format_exception_only(cause)).strip().splitlines()
        return [f"{who} ended with an exception in {error.task}:", *text, *_frames(cause.__traceback__)]
    if isinstance(error, SimulationError):
        return str(error).splitlines()
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return [*text, *_frames(error.__traceback__)]


def _frames(tb: TracebackType | None) -> list[str]:
    """The frames outside our own rooms, innermost first: the student's line is on top."""
    found = []
    while tb is not None:
        code = tb.tb_frame.f_code
        if not code.co_filename.startswith(_OURS) and "site-packages" not in code.co_filename:
            where = f"{short_path(code.co_filename)}:{tb.tb_lineno} in {code.co_name}"
            found.append(f"    {where:<44}  {linecache.getline(code.co_filename, tb.tb_lineno).strip()}".rstrip())
        tb = tb.tb_next
    return found[::-1][:_MAX_FRAMES]
