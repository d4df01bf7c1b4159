"""A race in words. Start at `RaceFailure`; who has seen a race makes it out of `unordered()`."""

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
    """Who has touched it, where, and what it held then."""

    writes: bool
    site: AccessSite
    locks: tuple[Any, ...]
    begins: str  # the function with which the thread began, or that somebody outside has called


class RaceFailure(Failure):
    """A failure that also is to be had as data."""

    def __init__(self, race: DataRace, peer: str) -> None:
        first, second = race.first, race.second
        head = f"Race on {race.name}: "
        evidence = [f"{' ' * len(head)}and {_describe(second)}; nothing orders the two."]
        likely = _likely_cause(first, second)
        if likely:
            evidence.append(f"  Likely: {likely}")
        self.race: Final = race
        # Of one pair of places, whichever came first: neither the values nor the seed tell two of them apart.
        variety = " and ".join(f"{short_path(place.file)}:{place.line}" for place in self.places)
        super().__init__(f"{head}peer {peer} {_describe(first)}", evidence, rule=RACE.name, variety=variety, peer=peer)

    @property
    def places(self) -> list[CodeLocation]:
        return sorted((self.race.first.place, self.race.second.place))


def make_data_race(earlier: DetectedAccess, later: DetectedAccess, owner: Any) -> DataRace:
    """`owner`: the object whose fields may be those locks."""
    first, second = (earlier, later) if earlier.writes else (later, earlier)
    return DataRace(_variable_name(earlier, later), _plain_access(first, owner), _plain_access(second, owner))


def _variable_name(earlier: DetectedAccess, later: DetectedAccess) -> str:
    names = [access.site.what for access in (earlier, later)]
    fields = [name for name in names if "." in name]  # and not what somebody calls it for short
    return next((name for name in fields if name.startswith("self.")), [*fields, *names][0])


def _plain_access(access: DetectedAccess, owner: Any) -> Access:
    site = access.site
    held = tuple(_lock_name(lock, owner) for lock in access.locks)
    return Access(access.writes, CodeLocation(site.file, site.line, site.function), site.what, access.begins, held)


def describe_benign_race(remark: BenignRace) -> str:
    first, second, excuse = remark.race.first, remark.race.second, remark.excuse
    if excuse is None:
        why = "no failure, because it only goes from one constant to another, once; a threading.Event says so better"
    else:
        why = f"the line says it is so on purpose{f' ({excuse})' if excuse else ''}"
    return (
        f"{remark.race.name} is {_verb(first)} at {_location(first)} and {_verb(second)} at {_location(second)} "
        f"without order: {why}"
    )


def _verb(touch: Access) -> str:
    return "written" if touch.writes else "read"


def _location(touch: Access) -> str:
    return f"{short_path(touch.place.file)}:{touch.place.line}"


def _describe(touch: Access) -> str:
    holding = f"holding {' and '.join(touch.held)}" if touch.held else "without a lock"
    does = "writes" if touch.writes else "reads"
    by = f", called from {touch.begins}()" if _is_helper(touch) else ""
    return f"{does} it at {_location(touch)} in {touch.place.function}(){by}, {holding}"


def _is_helper(touch: Access) -> bool:
    return touch.begins not in ("", touch.place.function) and touch.place.function != "__init__"


def _likely_cause(first: Access, second: Access) -> str:
    if first.place.function == second.place.function == "__init__":
        return ""
    for one, other in ((first, second), (second, first)):
        if other.place.function == "__init__":
            return f"__init__() starts a thread before it has set {other.what}; start threads last."
        if other.held and not one.held:
            lock = f"`with {other.held[0]}:`"
            if _is_helper(one):
                return f"on the way from {one.begins}() to {one.place.function}() {lock} is missing, or has ended."
            return f"{one.place.function}() forgot {lock}, or has left it."
    if not first.held and not second.held:
        return f"neither takes a lock; let one lock guard {first.what}."
    return "each takes a lock, but not the same one."


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
