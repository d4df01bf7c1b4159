"""Types of command-line arguments: each takes what was typed and says what is allowed where it does not fit."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def jobs(text: str) -> int | None:
    """A number, or None for `auto`: one for each core."""
    return None if text == "auto" else positive(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 86_400:
        raise ArgumentTypeError(f"must be seconds, above 0 and at most 86400, got {text!r}")
    return value


def duration(text: str) -> float:
    """In seconds."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text)
    value = sum(int(n or 0) * unit for n, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0
    if not value:
        raise ArgumentTypeError(f"must be a time like 90s, 10m or 1h30m, got {text!r}")
    return float(value)
