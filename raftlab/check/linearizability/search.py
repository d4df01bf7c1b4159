"""Searches for an order of histories in which equal values were written: Wing and Gong's search with Lowe's cache.

The search places one operation after the other: any that was called before the first return of those that are left. A
set of placed operations with the value that they leave is never tried twice. A get whose value fits is placed at once,
because it changes nothing, so only writes are a choice. A write that has not returned may be placed or left out.

Values are known by their length and a number (their bytes modulo a prime of 127 bits), so that an append costs the
same however long the value has become.

Start at `check()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from raftlab.check.linearizability.history import NEVER, CheckResult, ClientOperation, HistoryViolation, OperationKind
from raftlab.check.linearizability.labels import by, did

_PRIME = (1 << 127) - 309
_EXPLAIN_STEPS = 20_000  # for each attempt to leave an operation out of a violation,
_EXPLAIN_STEPS_MAX = 300_000  # and for all of them
_ALIVE_STEPS = 10_000

_Value = tuple[int, int]  # length in bytes, number
_NOTHING: _Value = (0, 0)


class SearchResult(NamedTuple):
    result: CheckResult
    violation: HistoryViolation | None = None
    steps: int = 0


def check(
    key: str, operations: Sequence[ClientOperation], *, steps: int, alive: Callable[[], None] = lambda: None
) -> SearchResult:
    """The operations of one key. `alive` is called from time to time, for a watchdog."""
    search = _Search(operations, steps, alive)
    result = search.run()
    violation = None
    if result is CheckResult.VIOLATION:
        violation = _Explainer(key, operations, alive).explained()
    return SearchResult(result, violation, search.steps)


def _value(text: str) -> _Value:
    data = text.encode("utf-8", "surrogatepass")
    return len(data), int.from_bytes(data, "big") % _PRIME


class _Step:
    """One operation, ready to be placed."""

    __slots__ = ("bit", "called", "is_append", "is_get", "returned", "shift", "value")

    def __init__(self, operation: ClientOperation, place: int) -> None:
        self.bit = 1 << place
        self.called = operation.called
        self.returned = operation.returned
        self.is_get = operation.kind is OperationKind.GET
        self.is_append = operation.kind is OperationKind.APPEND
        self.value = _value(operation.value)
        self.shift = pow(256, self.value[0], _PRIME)

    def after(self, value: _Value) -> _Value:
        if not self.is_append:
            return self.value
        return value[0] + self.value[0], (value[1] * self.shift + self.value[1]) % _PRIME


class _Search:
    """All operations before `base` are placed, and those from it on whose bit in `mask` is set."""

    def __init__(self, operations: Sequence[ClientOperation], steps: int, alive: Callable[[], None]) -> None:
        ordered = sorted(operations, key=lambda operation: operation.called)
        certain = [operation for operation in ordered if not operation.pending]
        self._all = [_Step(operation, 0) for operation in certain]
        # Separate from the others: an operation that never returns would prevent `base` from advancing.
        self._open = [
            _Step(operation, place)
            for place, operation in enumerate(operation for operation in ordered if operation.pending)
        ]
        self._limit = steps
        self._alive = alive
        self._alive_at = _ALIVE_STEPS
        self.steps = 0

    def run(self) -> CheckResult:
        base, mask, value = self._placed_gets(0, 0, _NOTHING)
        seen = {(base, mask, 0, value)}
        stack = [self._next(base, mask, 0, value)]
        if base == len(self._all):
            return CheckResult.OK
        while stack:
            state = next(stack[-1], None)
            if state is None:
                stack.pop()
                continue
            if state in seen:
                continue
            if self.steps >= self._limit:
                return CheckResult.UNKNOWN
            if self.steps >= self._alive_at:
                self._alive_at += _ALIVE_STEPS
                self._alive()
            seen.add(state)
            base, mask, opened, value = state
            if base == len(self._all):
                return CheckResult.OK
            stack.append(self._next(base, mask, opened, value))
        return CheckResult.VIOLATION

    def _next(self, base: int, mask: int, opened: int, value: _Value) -> Iterator[tuple[int, int, int, _Value]]:
        """Each state that one more write leads to."""
        until = NEVER
        for place, step in self._left(base, mask):
            if step.called > until:
                break
            until = min(until, step.returned)
            if not step.is_get:
                self.steps += 1
                yield self._placed(base, mask | 1 << place, opened, step.after(value))
        for step in self._open:
            if step.called > until:
                break
            if not opened & step.bit:
                self.steps += 1
                yield self._placed(base, mask, opened | step.bit, step.after(value))

    def _placed(self, base: int, mask: int, opened: int, value: _Value) -> tuple[int, int, int, _Value]:
        base, mask, value = self._placed_gets(base, mask, value)
        return base, mask, opened, value

    def _placed_gets(self, base: int, mask: int, value: _Value) -> tuple[int, int, _Value]:
        """Place every get that may be next and whose value fits, and advance `base`."""
        until = NEVER
        placed = True
        while placed:
            placed, until = False, NEVER
            for place, step in self._left(base, mask):
                if step.called > until:
                    break
                if step.is_get and step.value == value:
                    mask |= 1 << place
                    placed = True
                else:
                    until = min(until, step.returned)
        while mask & 1:
            mask >>= 1
            base += 1
        return base, mask, value

    def _left(self, base: int, mask: int) -> Iterator[tuple[int, _Step]]:
        """The operations that are not placed, in the order of their calls, and their positions from base on."""
        steps = self._all
        for place in range(len(steps) - base):
            if not mask >> place & 1:
                yield place, steps[base + place]


# ---- which operations --------------------------------------------------------------------------------------------


class _Explainer:
    """Reduces a violation to few operations: leaves out gets, and treats writes as if they had not returned.

    A get that the violation does not need can go. A write that may or may not have happened, without ending the
    violation, is not part of it.
    """

    def __init__(self, key: str, operations: Sequence[ClientOperation], alive: Callable[[], None]) -> None:
        self._key = key
        self._operations = operations
        self._alive = alive
        self._left = _EXPLAIN_STEPS_MAX

    def explained(self) -> HistoryViolation:
        last = self._first_wrong_return()
        kept = _until(self._operations, last.returned)
        for one in sorted(kept, key=lambda operation: -operation.called):
            if one.called == last.called or one.pending:
                continue
            without = [operation for operation in kept if operation is not one]
            if one.kind is not OperationKind.GET:
                without.append(_opened(one))
            if self._is_wrong(without):
                kept = without
        by_call = {operation.called: operation for operation in self._operations}
        needed = [by_call[one.called] for one in kept if not one.pending or _may_matter(one, kept)]
        text = f"no order of these operations explains that {did(last)}"
        if last.kind is not OperationKind.GET:
            text = f"no order explains these operations once {by(last)} has returned"
        return HistoryViolation(self._key, text, sorted(needed, key=lambda operation: operation.called))

    def _first_wrong_return(self) -> ClientOperation:
        """The last operation of the shortest prefix that is not linearizable."""
        ended = sorted((one for one in self._operations if not one.pending), key=lambda one: one.returned)
        low, high = 1, len(ended)
        while low < high:
            middle = (low + high) // 2
            if self._is_wrong(_until(self._operations, ended[middle - 1].returned)):
                high = middle
            else:
                low = middle + 1
        return ended[high - 1]

    def _is_wrong(self, operations: Sequence[ClientOperation]) -> bool:
        """Whether it is known to be a violation. In doubt, the operations are kept, which is also correct."""
        if self._left <= 0:
            return False
        search = _Search(operations, min(_EXPLAIN_STEPS, self._left), self._alive)
        result = search.run()
        self._left -= search.steps + 1
        return result is CheckResult.VIOLATION


def _until(operations: Sequence[ClientOperation], moment: int) -> list[ClientOperation]:
    """The history up to that moment: without later calls and returns, and without gets that had not returned."""
    known = []
    for operation in operations:
        if operation.called > moment:
            continue
        if operation.returned <= moment:
            known.append(operation)
        elif operation.kind is not OperationKind.GET:
            known.append(_opened(operation))
    return known


def _opened(operation: ClientOperation) -> ClientOperation:
    return ClientOperation(operation.client, operation.kind, operation.key, operation.value, operation.called)


def _may_matter(write: ClientOperation, kept: Sequence[ClientOperation]) -> bool:
    """For a write that may be left out: whether a get read its value."""
    return bool(write.value) and any(
        write.value in operation.value for operation in kept if operation.kind is OperationKind.GET
    )
