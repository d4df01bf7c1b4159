"""The errors. Callers catch GobError and its two kinds; Refused gathers the path to the culprit inside."""

from __future__ import annotations

# A path is shown whole up to here; a runaway structure would otherwise print a hundred steps.
_STEPS_SHOWN_MAX = 12


class GobError(ValueError):
    """A value could not be turned into bytes, or bytes into a value."""


class EncodeError(GobError):
    """The value cannot travel; the text names the field and the fix."""


class DecodeError(GobError):
    """The bytes do not hold a value of the type asked for."""


class Refused(Exception):
    """Why a value may not travel. Each level it passes through on the way up adds its step to the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []  # innermost first
        self.owner = ""  # the field whose annotation, not whose value, is at fault

    def text(self, root: str) -> str:
        steps = self.steps[::-1]
        if len(steps) > _STEPS_SHOWN_MAX:
            steps = [*steps[: _STEPS_SHOWN_MAX - 2], " … ", *steps[-2:]]
        where = root + "".join(steps) if steps else ""
        return ": ".join(part for part in (where, self.owner, self.reason) if part)
