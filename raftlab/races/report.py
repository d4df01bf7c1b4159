"""Describes data races as text. Start at `RaceFailure`; the detector calls `make_data_race()`."""

from __future__ import annotations

import linecache
import re
from typing import Any, Final, NamedTuple

from labsim.stacks import CodeLocation, short_path
from labsim.threading import Condition
from raftlab.check.failure import Failure
from raftlab.check.harness_rules import RACE
from raftlab.races.data_race import Access, BenignRace, DataRace
from raftlab.races.sites import AccessSite

_ASSIGNED = re.compile(r"(self\.\w+)\s*(?::[^=]*)?=")  # self.mu = threading.Lock()


class DetectedAccess(NamedTuple):
    """One access as the detector sees it, with the lock objects."""

    is_write: bool
    site: AccessSite
    locks: tuple[Any, ...]
    entry_point: str  # the function that the thread or the call from outside started with


class RaceFailure(Failure):
    """A failure with the data race as a value."""

    def __init__(self, race: DataRace, peer: str) -> None:
        first, second = race.first, race.second
        head = f"Data race on {race.variable}: "
        evidence = [f"{' ' * len(head)}and {_describe(second)}; the accesses are not ordered."]
        likely = _likely_cause(first, second)
        if likely:
            evidence.append(f"  Likely: {likely}")
        self.race: Final = race
        # Failures with the same two lines are grouped, in either order.
        variety = " and ".join(f"{short_path(location.file)}:{location.line}" for location in self.places)
        super().__init__(f"{head}peer {peer} {_describe(first)}", evidence, rule=RACE.name, variety=variety, peer=peer)

    @property
    def places(self) -> list[CodeLocation]:
        return sorted((self.race.first.location, self.race.second.location))


def make_data_race(earlier: DetectedAccess, later: DetectedAccess, owner: Any) -> DataRace:
    """`owner`: the object whose fields the locks may be, which gives them names."""
    first, second = (earlier, later) if earlier.is_write else (later, earlier)
    return DataRace(_variable_name(earlier, later), _plain_access(first, owner), _plain_access(second, owner))


def _variable_name(earlier: DetectedAccess, later: DetectedAccess) -> str:
    names = [access.site.expression for access in (earlier, later)]
    fields = [name for name in names if "." in name]  # rather than a local alias
    return next((name for name in fields if name.startswith("self.")), [*fields, *names][0])


def _plain_access(access: DetectedAccess, owner: Any) -> Access:
    site = access.site
    locks = tuple(_lock_name(lock, owner) for lock in access.locks)
    return Access(
        access.is_write, CodeLocation(site.file, site.line, site.function), site.expression, access.entry_point, locks
    )


def describe_benign_race(benign: BenignRace) -> str:
    first, second, comment = benign.race.first, benign.race.second, benign.comment
    if comment is None:
        why = (
            "this is not a failure, because it changes once, from one constant to another; a threading.Event would "
            "be clearer"
        )
    else:
        why = f"this is marked as intended{f' ({comment})' if comment else ''}"
    return (
        f"{benign.race.variable} is {_verb(first)} at {_location(first)} and {_verb(second)} at {_location(second)} "
        f"without synchronization: {why}"
    )


def _verb(access: Access) -> str:
    return "written" if access.is_write else "read"


def _location(access: Access) -> str:
    return f"{short_path(access.location.file)}:{access.location.line}"


def _describe(access: Access) -> str:
    holding = f"holding {' and '.join(access.locks)}" if access.locks else "without a lock"
    does = "writes" if access.is_write else "reads"
    by = f", called from {access.entry_point}()" if _is_called_function(access) else ""
    return f"{does} it at {_location(access)} in {access.location.function}(){by}, {holding}"


def _is_called_function(access: Access) -> bool:
    return access.entry_point not in ("", access.location.function) and access.location.function != "__init__"


def _likely_cause(first: Access, second: Access) -> str:
    if first.location.function == second.location.function == "__init__":
        return ""
    for one, other in ((first, second), (second, first)):
        if other.location.function == "__init__":
            return f"__init__() starts a thread before it sets {other.expression}; start threads last."
        if other.locks and not one.locks:
            lock = f"`with {other.locks[0]}:`"
            if _is_called_function(one):
                return f"{one.entry_point}() calls {one.location.function}() outside {lock}."
            return f"{one.location.function}() accesses it outside {lock}."
    if not first.locks and not second.locks:
        return f"neither access holds a lock; guard {first.expression} with one."
    return "the two accesses hold different locks."


def _lock_name(lock: Any, owner: Any) -> str:
    for name, value in getattr(owner, "__dict__", {}).items():
        if value is lock or (isinstance(value, Condition) and getattr(value, "_lock", None) is lock):
            return f"self.{name}"
    code, instruction = lock._made_at
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
    made = _ASSIGNED.match(linecache.getline(code.co_filename, line or 0).strip())
    if made is not None:
        return made[1]
    return f"a {type(lock).__name__} {lock._where_made()}"
