"""Trying orders, for histories in which equal values were written: Wing and Gong's search with Lowe's memory.

One operation after the other is put in place: any whose turn it can be, that is, which was called before the first
return of those that are left. A set of operations that are placed and the value that they leave are never tried twice.
A get whose value fits is placed at once, because it changes nothing, so only writes are ever a choice. A write that
has not returned may be placed or left out.

Values are known by their length and a number (their bytes modulo a prime of 127 bits), so that an append costs the
same however long the value has become.

Start at `check()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labtest.linearizability.history import NEVER, Kind, Operation, Outcome, Violation
from labtest.linearizability.words import did

_PRIME = (1 << 127) - 309
_EXPLAIN_STEPS = 20_000  # for each try at leaving something out of a violation
_EXPLAIN_TRIES = 200

_Value = tuple[int, int]  # length in bytes, number
_NOTHING: _Value = (0, 0)


class Found(NamedTuple):
    outcome: Outcome
    violation: Violation | None = None
    steps: int = 0


def check(key: str, operations: Sequence[Operation], *, steps: int) -> Found:
    """The operations of one key."""
    search = _Search(operations, steps)
    outcome = search.run()
    violation = None
    if outcome is Outcome.VIOLATION:
        violation = _explained(key, operations)
    return Found(outcome, violation, search.steps)


def _value(text: str) -> _Value:
    data = text.encode("utf-8", "surrogatepass")
    return len(data), int.from_bytes(data, "big") % _PRIME


class _Step:
    """One operation, ready to be placed."""

    __slots__ = ("bit", "called", "is_append", "is_get", "returned", "shift", "value")

    def __init__(self, operation: Operation, place: int) -> None:
        self.bit = 1 << place
        self.called = operation.called
        self.returned = operation.returned
        self.is_get = operation.kind is Kind.GET
        self.is_append = operation.kind is Kind.APPEND
        self.value = _value(operation.value)
        self.shift = pow(256, self.value[0], _PRIME)

    def after(self, value: _Value) -> _Value:
        if not self.is_append:
            return self.value
        return value[0] + self.value[0], (value[1] * self.shift + self.value[1]) % _PRIME


class _Search:
    """What is placed: all operations before `base`, and of those from it on the bits of `mask`, counted from it."""

    def __init__(self, operations: Sequence[Operation], steps: int) -> None:
        ordered = sorted(operations, key=lambda operation: operation.called)
        certain = [operation for operation in ordered if not operation.pending]
        self._all = [_Step(operation, 0) for operation in certain]
        # Apart from the others: one that never returns would keep `base` where it is for ever.
        self._open = [
            _Step(operation, place)
            for place, operation in enumerate(operation for operation in ordered if operation.pending)
        ]
        self._limit = steps
        self.steps = 0

    def run(self) -> Outcome:
        base, mask, value = self._placed_gets(0, 0, _NOTHING)
        seen = {(base, mask, 0, value)}
        stack = [self._next(base, mask, 0, value)]
        if base == len(self._all):
            return Outcome.OK
        while stack:
            state = next(stack[-1], None)
            if state is None:
                stack.pop()
                continue
            if state in seen:
                continue
            if self.steps >= self._limit:
                return Outcome.UNKNOWN
            seen.add(state)
            base, mask, opened, value = state
            if base == len(self._all):
                return Outcome.OK
            stack.append(self._next(base, mask, opened, value))
        return Outcome.VIOLATION

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
        """Place every get whose turn it can be and which fits, and move `base` on."""
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
        """Those that are not placed, in the order of their calls, and their places from base on."""
        steps = self._all
        for place in range(len(steps) - base):
            if not mask >> place & 1:
                yield place, steps[base + place]


# ---- which operations --------------------------------------------------------------------------------------------


def _explained(key: str, operations: Sequence[Operation]) -> Violation:
    """As few as some tries can make them: gets left out, and writes that might as well not have returned.

    If the history is wrong without a get, it is wrong; and if it is wrong even where a write may or may not have
    happened, that write's return is not what makes it so.
    """
    ended = sorted((operation for operation in operations if not operation.pending), key=lambda one: one.returned)
    low, high = 1, len(ended)
    while low < high:
        # The shortest beginning that is wrong: it ends with the return that nothing allows.
        middle = (low + high) // 2
        if _is_wrong(_until(operations, ended[middle - 1].returned)):
            high = middle
        else:
            low = middle + 1
    last = ended[high - 1]
    kept = _until(operations, last.returned)
    tries = 0
    for one in sorted(kept, key=lambda operation: -operation.called):
        if one.called == last.called or one.pending or tries == _EXPLAIN_TRIES:
            continue
        tries += 1
        without = [operation for operation in kept if operation is not one]
        if one.kind is not Kind.GET:
            without.append(_opened(one))
        if _is_wrong(without):
            kept = without
    by_call = {operation.called: operation for operation in operations}
    needed = [by_call[one.called] for one in kept if not one.pending or _may_matter(one, kept)]
    text = f"no order of these operations explains that {did(last)}"
    if last.kind is not Kind.GET:
        text = f"no order explains these operations once {did(last)}"
    return Violation(key, text, sorted(needed, key=lambda operation: operation.called))


def _until(operations: Sequence[Operation], moment: int) -> list[Operation]:
    """What was known then: later calls are not there yet, later returns have not come, and such gets say nothing."""
    known = []
    for operation in operations:
        if operation.called > moment:
            continue
        if operation.returned <= moment:
            known.append(operation)
        elif operation.kind is not Kind.GET:
            known.append(_opened(operation))
    return known


def _opened(operation: Operation) -> Operation:
    return Operation(operation.client, operation.kind, operation.key, operation.value, operation.called)


def _is_wrong(operations: Sequence[Operation]) -> bool:
    return _Search(operations, _EXPLAIN_STEPS).run() is Outcome.VIOLATION


def _may_matter(write: Operation, kept: Sequence[Operation]) -> bool:
    """Of a write that may be left out: whether something that was read has its value in it."""
    return bool(write.value) and any(write.value in operation.value for operation in kept if operation.kind is Kind.GET)
