"""One run of a campaign as it travels from a worker: passed, or failed and why.

Failures of one test with one `cause` (the broken rule or the message, its numbers taken out) at one `where` (the
student's innermost line) are taken for one bug. Start at `cause_of()`.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from labtest.verdict import Ending, verdict_of

PASSED = "passed"
FAILED = "failed"
DIED = "died"  # with its process
LATE = "late"  # took longer than the limit, and was ended with its process

_CAUSE_CHARS_MAX = 200


class Outcome(msgspec.Struct, omit_defaults=True):
    """What came of one run. seeds.py writes the same fields for a worker that cannot any more."""

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
    verdict = verdict_of(error, peer_files, test_file)
    said = without_numbers(verdict.text)
    return (verdict.name, verdict.where, said) if verdict.ending is Ending.RULE else (said, verdict.where, "")


def without_numbers(text: str) -> str:
    """The sentence that two failures of one kind share: numbers and quoted values become `#` and `'...'`."""
    text = re.sub(r"'[^']*('|\.\.\.)|\"[^\"]*(\"|\.\.\.)", "'...'", text)
    text = re.sub(r"(§[\d.]*\d|Figure \d+)|0x[0-9a-fA-F]+|(?<![A-Za-z])\d+(\.\d+)?", lambda m: m.group(1) or "#", text)
    text = re.sub(r"#(, ?#)+", "#, ...", text)
    return text if len(text) <= _CAUSE_CHARS_MAX else f"{text[: _CAUSE_CHARS_MAX - 3]}..."
