"""A data race as plain values, because it may come from a sandboxed process. report.py describes it.

Start at `DataRace`.
"""

from __future__ import annotations

import msgspec

from labsim.stacks import CodeLocation


class Access(msgspec.Struct, array_like=True, frozen=True):
    """One access: where, in which thread, and holding which locks."""

    is_write: bool
    location: CodeLocation
    expression: str  # in the source: self.log
    entry_point: str  # the function that the thread or the call from outside started with
    locks: tuple[str, ...]  # the names of locks


class DataRace(msgspec.Struct, array_like=True, frozen=True):
    """Two unordered accesses; `first` is a write."""

    variable: str  # as the source names it: self.log
    first: Access
    second: Access


class BenignRace(msgspec.Struct, array_like=True, frozen=True):
    """A race that is not a failure. `comment`: the text after `# race: ok`; None: a flag that changes once."""

    race: DataRace
    comment: str | None
