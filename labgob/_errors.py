"""The errors of labgob. Refused is internal: it collects the path to the value at fault."""

from __future__ import annotations

# A longer path is abbreviated: that of a runaway structure has a hundred steps.
_STEPS_SHOWN_MAX = 12


class GobError(ValueError):
    """A value could not be turned into bytes, or bytes into a value."""


class EncodeError(GobError):
    """The value cannot be encoded; the text names the field and the fix."""


class DecodeError(GobError):
    """The bytes do not hold a value of the requested type."""


class Refused(Exception):
    """Why a value cannot be encoded. Each level that it passes on the way up adds a step to the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []  # innermost first
        self.owner = ""  # the field, if its annotation and not its value is at fault

    def text(self, root: str) -> str:
        steps = self.steps[::-1]
        if len(steps) > _STEPS_SHOWN_MAX:
            steps = [*steps[: _STEPS_SHOWN_MAX - 2], " … ", *steps[-2:]]
        where = root + "".join(steps) if steps else ""
        return ": ".join(part for part in (where, self.owner, self.reason) if part)
