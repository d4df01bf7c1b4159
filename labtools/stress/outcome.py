"""One run of a campaign as it travels from a worker: passed, or failed and why.

Failures of one test with one `cause` (the broken rule or the message, its numbers taken out) at one `where` (the
student's innermost line) are taken for one bug. Start at `cause_of()`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from labsim import SimulationError, TaskFailed
from labsim.stacks import short_path
from labtest.failure import Failure

PASSED = "passed"
FAILED = "failed"
DIED = "died"  # with its process
LATE = "late"  # took longer than the limit, and was ended with its process

_CAUSE_CHARS_MAX = 200


class Outcome(msgspec.Struct, omit_defaults=True):
    """What came of one run. workers/process.py writes the same fields for a worker that cannot any more."""

    test: str
    seed: int
    kind: str = PASSED
    digest: str = ""
    virtual_s: float = 0.0
    real_s: float = 0.0
    events: int = 0
    cause: str = ""
    where: str = ""
    said: str = ""  # where the cause is the name of a rule: what was wrong, in words
    report: str = ""
    checks_off: list[str] = []


def cause_of(error: BaseException, peer_files: Path, test_file: Path) -> tuple[str, str, str]:
    """Cause, where and said of a failure; `peer_files` is the peer's file, or the folder of its package."""
    origin = error.__cause__ if isinstance(error, TaskFailed) and error.__cause__ is not None else error
    if isinstance(origin, Failure):
        text = origin.text
    elif isinstance(origin, SimulationError):
        text = str(origin)
    else:
        text = "".join(traceback.format_exception_only(origin)).strip()
    said = without_numbers(text.partition("\n")[0])
    frames = list(_frames(origin.__traceback__))
    where = _innermost(frames, peer_files) or _named_in(str(error), peer_files) or _innermost(frames, test_file)
    rule = getattr(origin, "rule", None)
    return (str(rule), where, said) if rule else (said, where, "")


def without_numbers(text: str) -> str:
    """The sentence that two failures of one kind share: numbers and quoted values become `#` and `'...'`."""
    text = re.sub(r"'[^']*('|\.\.\.)|\"[^\"]*(\"|\.\.\.)", "'...'", text)
    text = re.sub(r"(§[\d.]*\d|Figure \d+)|0x[0-9a-fA-F]+|(?<![A-Za-z])\d+(\.\d+)?", lambda m: m.group(1) or "#", text)
    text = re.sub(r"#(, ?#)+", "#, ...", text)
    return text if len(text) <= _CAUSE_CHARS_MAX else f"{text[: _CAUSE_CHARS_MAX - 3]}..."


def _frames(tb: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while tb is not None:
        yield tb.tb_frame.f_code.co_filename, tb.tb_lineno, tb.tb_frame.f_code.co_name
        tb = tb.tb_next


def _innermost(frames: list[tuple[str, int, str]], files: Path) -> str:
    for filename, line, function in reversed(frames):
        if files == Path(filename) or files in Path(filename).parents:
            return f"{short_path(filename)}:{line} in {function}"
    return ""


def _named_in(text: str, files: Path) -> str:
    """The first of these files that a deadlock's or the watchdog's own text names, with its line."""
    for found in re.finditer(r"(\S+\.py):(\d+)( in \w+)?", text):
        path = Path(found.group(1)).resolve()
        if files == path or files in path.parents:
            return found.group(0)
    return ""
