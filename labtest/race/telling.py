"""A race in words. Start at `race_failure()`."""

from __future__ import annotations

import linecache
import re
from typing import Any, NamedTuple

from labsim.stacks import Place, short_path
from labsim.threading import Condition
from labtest.checks.kept import RACE
from labtest.failure import Failure
from labtest.race.sites import Site

_MADE = re.compile(r"(self\.\w+)\s*(?::[^=]*)?=")  # self.mu = threading.Lock()


class Access(NamedTuple):
    """Who has touched it, where, and what it held then."""

    writes: bool
    site: Site
    locks: tuple[Any, ...]
    begins: str  # the function with which the thread began, or that somebody outside has called


def race_failure(name: str, peer: str, earlier: Access, later: Access, owner: Any) -> Failure:
    """`owner`: the object whose fields may be those locks."""
    first, second = (earlier, later) if earlier.writes else (later, earlier)
    head = f"Race on {name}: "
    text = f"{head}peer {peer} {_told(first, owner)}"
    evidence = [f"{' ' * len(head)}and {_told(second, owner)}; nothing orders the two."]
    likely = _likely(first, second, owner)
    if likely:
        evidence.append(f"  Likely: {likely}")
    places = sorted(Place(access.site.file, access.site.line, access.site.function) for access in (first, second))
    # Of one pair of places, whichever came first: neither the values nor the seed tell two of them apart.
    variety = " and ".join(f"{short_path(place.file)}:{place.line}" for place in places)
    return Failure(text, evidence, rule=RACE.name, variety=variety, peer=peer, places=places)


def remark(name: str, earlier: Access, later: Access, why: str) -> str:
    first, second = (earlier, later) if earlier.writes else (later, earlier)
    return f"{name} is {_done(first)} at {_where(first)} and {_done(second)} at {_where(second)} without order: {why}"


def _done(access: Access) -> str:
    return "written" if access.writes else "read"


def _where(access: Access) -> str:
    return f"{short_path(access.site.file)}:{access.site.line}"


def _told(access: Access, owner: Any) -> str:
    held = [_lock_name(lock, owner) for lock in access.locks]
    holding = f"holding {' and '.join(held)}" if held else "without a lock"
    does = "writes" if access.writes else "reads"
    by = f", called from {access.begins}()" if _is_helper(access) else ""
    return f"{does} it at {_where(access)} in {access.site.function}(){by}, {holding}"


def _is_helper(access: Access) -> bool:
    return access.begins not in ("", access.site.function) and access.site.function != "__init__"


def _likely(first: Access, second: Access, owner: Any) -> str:
    if first.site.function == second.site.function == "__init__":
        return ""
    for one, other in ((first, second), (second, first)):
        if other.site.function == "__init__":
            return f"__init__() starts a thread before it has set {other.site.what}; start threads last."
        lacking = [lock for lock in other.locks if lock not in one.locks]
        if lacking and not one.locks:
            lock = f"`with {_lock_name(lacking[0], owner)}:`"
            if _is_helper(one):
                return f"on the way from {one.begins}() to {one.site.function}() {lock} is missing, or has ended."
            return f"{one.site.function}() forgot {lock}, or has left it."
    if not first.locks and not second.locks:
        return f"neither takes a lock; let one lock guard {first.site.what}."
    return "each takes a lock, but not the same one."


def _lock_name(lock: Any, owner: Any) -> str:
    for name, value in getattr(owner, "__dict__", {}).items():
        if value is lock or (isinstance(value, Condition) and getattr(value, "_lock", None) is lock):
            return f"self.{name}"
    code, instruction = lock._made_at
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
    made = _MADE.match(linecache.getline(code.co_filename, line or 0).strip())
    if made is not None:
        return made[1]
    return f"a {type(lock).__name__} {lock._where_made()}"
