"""Checks a whole history, key by key: by value if possible, else by search."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from raftlab.check.linearizability import by_value, search
from raftlab.check.linearizability.history import CheckResult, ClientOperation, HistoryViolation, OperationKind

# The limit for the searches of one history, all keys together. A step tries one operation at one position and takes
# some microseconds. Steps are counted, not timed, so that a history always has the same result.
STEPS = 1_000_000


class HistoryCheck(NamedTuple):
    result: CheckResult
    violation: HistoryViolation | None = None
    key: str | None = None  # where a search gave up
    steps: int = 0  # that the searches took


def check(
    operations: Iterable[ClientOperation], *, steps: int = STEPS, alive: Callable[[], None] = lambda: None
) -> HistoryCheck:
    """The first violation, by key; else UNKNOWN if for some key the search gave up. `alive`: see search.check()."""
    by_key: dict[str, list[ClientOperation]] = {}
    for operation in operations:
        # A get that has not returned does not matter.
        if operation.kind is not OperationKind.GET or not operation.pending:
            by_key.setdefault(operation.key, []).append(operation)
    gave_up: str | None = None
    taken = 0
    for key in sorted(by_key):
        if by_value.can_tell(by_key[key]):
            violation = by_value.check(key, by_key[key])
        else:
            found = search.check(key, by_key[key], steps=steps - taken, alive=alive)
            taken += found.steps
            violation = found.violation
            if found.result is CheckResult.UNKNOWN:
                gave_up = key if gave_up is None else gave_up
        if violation is not None:
            return HistoryCheck(CheckResult.VIOLATION, violation, steps=taken)
    if gave_up is not None:
        return HistoryCheck(CheckResult.UNKNOWN, key=gave_up, steps=taken)
    return HistoryCheck(CheckResult.OK, steps=taken)
