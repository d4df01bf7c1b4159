"""A race as data: what two threads of a peer touched and nothing ordered. What it is called in words: race/telling.py.

Plain values, because it may come from a peer in a process of its own. Start at `Unordered`.
"""

from __future__ import annotations

import msgspec

from labsim.stacks import CodeLocation


class Access(msgspec.Struct, array_like=True, frozen=True):
    """Who has touched it, where, and which locks it held then."""

    is_write: bool
    location: CodeLocation
    expression: str  # as it stands there: self.log
    entry_point: str  # the function with which the thread began, or that somebody outside has called
    locks: tuple[str, ...]  # the names of locks


class DataRace(msgspec.Struct, array_like=True, frozen=True):
    """Two that nothing orders, the one that writes first."""

    variable: str  # as the source names it: self.log
    first: Access
    second: Access


class BenignRace(msgspec.Struct, array_like=True, frozen=True):
    """One that is no failure. `excuse`: what the line's comment says; None: it is a flag that changes once."""

    race: DataRace
    comment: str | None
