"""Formats numbers, times and untrusted text for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def printable(text: str) -> str:
    """Replace the control characters that XML 1.0 cannot represent."""
    return "".join(c if c in "\t\n\r" or c >= " " else "?" for c in text)
