"""Checks a history in one pass, without search, if every written value identifies its write.

Then a get's value decodes into a put and the appends after it, in order. So everything that was read of one put is a
**block**: the put, the appends after it that were read, and the gets. No other write can come between two operations
of a block, because a get would show it. After a block, appends that were never read may follow; each of these is a
block by itself, as is a put that was never read.

A history is linearizable if and only if

- the operations inside each block are in the order of the clock, and
- no two blocks must each come before the other. A must come before B if some operation of A had returned before
  some operation of B was called. If there is a longer cycle of blocks, two of them also form one: take the block whose
  first return is the earliest of all.

For puts and gets alone these are the zones of Gibbons and Korach ("Testing Shared Memories", 1997). Start at `check()`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from raftlab.check.linearizability.history import Anomaly, ClientOperation, HistoryViolation, OperationKind
from raftlab.check.linearizability.labels import by, did, short

_BEFORE_ALL = -1


def can_tell(operations: Sequence[ClientOperation]) -> bool:
    """Whether each value decodes in one way: no two written values are equal or, with appends, begin with another."""
    values = sorted(operation.value for operation in operations if operation.kind is not OperationKind.GET)
    if values and not values[0]:
        return False
    if any(operation.kind is OperationKind.APPEND for operation in operations):
        return not any(later.startswith(earlier) for earlier, later in pairwise(values))
    return not any(earlier == later for earlier, later in pairwise(values))


def check(key: str, operations: Sequence[ClientOperation]) -> HistoryViolation | None:
    """The operations of one key, of which can_tell() holds."""
    try:
        _Blocks(key, operations).check()
    except _Contradiction as found:
        # An operation may occur several times.
        operations = sorted(dict.fromkeys(found.operations), key=lambda operation: operation.called)
        return HistoryViolation(key, found.text, operations, found.anomaly)
    return None


class _Contradiction(Exception):
    def __init__(self, anomaly: Anomaly, text: str, *operations: ClientOperation) -> None:
        self.anomaly = anomaly
        self.text = text
        self.operations = operations


@dataclass(slots=True)
class _Block:
    """`writes` in their order, the first one a put (in the very first block, maybe an append); gets by the number of
    writes that they read. In the very first block, gets of 0 writes read no value."""

    writes: list[ClientOperation]
    gets: dict[int, list[ClientOperation]] = field(default_factory=dict)
    first: bool = False

    def members(self) -> Iterator[ClientOperation]:
        yield from self.writes
        for gets in self.gets.values():
            yield from gets


class _Blocks:
    def __init__(self, key: str, operations: Sequence[ClientOperation]) -> None:
        self._key = key
        self._gets = [operation for operation in operations if operation.kind is OperationKind.GET]
        self._writes = {
            operation.value: operation for operation in operations if operation.kind is not OperationKind.GET
        }
        self._appends = any(operation.kind is OperationKind.APPEND for operation in self._writes.values())
        self._lengths = sorted({len(value) for value in self._writes})
        self._block_of: dict[ClientOperation, _Block] = {}  # of the writes that were read

    def check(self) -> None:
        blocks = self._blocks()
        for block in blocks:
            _check_inside(block)
        seen = self._block_of
        blocks += [_Block([write]) for write in self._writes.values() if write not in seen and not write.pending]
        _check_between(blocks)

    # ---- who wrote what was read ---------------------------------------------------------------------------------

    def _blocks(self) -> list[_Block]:
        """The blocks of all writes that were read."""
        groups: dict[ClientOperation | None, list[ClientOperation]] = {}
        for get in self._gets:
            groups.setdefault(self._begins_with(get), []).append(get)
        return [self._block(base, gets) for base, gets in groups.items()]

    def _begins_with(self, get: ClientOperation) -> ClientOperation | None:
        """The put whose value it begins with; None if there was no put before."""
        if not get.value:
            return None
        write = self._write_at(get, 0)
        return write if write.kind is OperationKind.PUT else None

    def _write_at(self, get: ClientOperation, place: int) -> ClientOperation:
        value = get.value
        if not self._appends:
            write = self._writes.get(value)
            if write is not None:
                return write
        else:
            for length in self._lengths:
                write = self._writes.get(value[place : place + length])
                if write is not None:
                    return write
        raise _Contradiction(Anomaly.UNKNOWN_VALUE, f"{did(get)}, but no operation wrote {short(value[place:])}", get)

    def _block(self, base: ClientOperation | None, gets: list[ClientOperation]) -> _Block:
        longest = max(gets, key=lambda get: len(get.value))
        block = _Block(self._decoded(longest), first=base is None)
        for write in block.writes:
            other = self._block_of.setdefault(write, block)
            if other is not block:
                seen = _saw(other, write)
                raise _Contradiction(
                    Anomaly.TWICE,
                    f"{by(write)} took effect twice: {seen.client} read it and, after another put, {longest.client} "
                    "read it",
                    *(write, seen, longest),
                )
        places, place = {0: 0}, 0
        for count, write in enumerate(block.writes, start=1):
            place += len(write.value)
            places[place] = count
        for get in gets:
            if len(get.value) not in places or not longest.value.startswith(get.value):
                self._disagree(get, longest)
            block.gets.setdefault(places[len(get.value)], []).append(get)
        return block

    def _decoded(self, get: ClientOperation) -> list[ClientOperation]:
        writes: dict[ClientOperation, None] = {}
        place = 0
        while place < len(get.value):
            write = self._write_at(get, place)
            if write in writes:
                raise _Contradiction(
                    Anomaly.TWICE, f"{by(write)} took effect twice: {get.client} read it twice in one value", write, get
                )
            if place and write.kind is OperationKind.PUT:
                text = f"{by(write)} must replace the old value, but {did(get)}"
                raise _Contradiction(Anomaly.UNKNOWN_VALUE, text, write, get)
            writes[write] = None
            place += len(write.value)
        return list(writes)

    def _disagree(self, get: ClientOperation, longest: ClientOperation) -> None:
        for one, other in zip(self._decoded(get), self._decoded(longest), strict=False):
            if one is not other:
                raise _Contradiction(
                    Anomaly.ORDER,
                    f"{did(get)}, and {did(longest)}: in these values, different appends follow the same beginning",
                    *(one, other, get, longest),
                )
        raise AssertionError("a value must have only one decoding")


def _saw(block: _Block, write: ClientOperation) -> ClientOperation:
    """A get of the block that read that write."""
    enough = block.writes.index(write) + 1
    return next(get for count, gets in block.gets.items() if count >= enough for get in gets)


# ---- against the clock -------------------------------------------------------------------------------------------


def _check_inside(block: _Block) -> None:
    """No operation returned before the call of one that, by the values, comes before it."""
    latest: ClientOperation | None = None  # of all that come before: the one that was called last

    def follows(operation: ClientOperation) -> None:
        if latest is not None and operation.returned < latest.called:
            raise _backwards(latest, operation, block)

    for count in range(len(block.writes) + 1):
        if count:
            write = block.writes[count - 1]
            follows(write)
            latest = write if latest is None else max(latest, write, key=_called)
        gets = block.gets.get(count, [])
        for get in gets:
            follows(get)
        latest = max([*gets] if latest is None else [latest, *gets], key=_called, default=None)


def _backwards(before: ClientOperation, after: ClientOperation, block: _Block) -> _Contradiction:
    """`before` comes before `after`, by the values that were read, but was called when `after` had returned."""
    gets = (before.kind is OperationKind.GET, after.kind is OperationKind.GET)
    if gets == (False, True):
        return _Contradiction(Anomaly.UNKNOWN_VALUE, f"{did(after)} before {by(before)} was called", before, after)
    if gets == (True, False):
        seen = _saw(block, after)
        text = f"{did(before)}, although {by(after)} had returned before {_was_called(before)}; later {did(seen)}"
        return _Contradiction(Anomaly.STALE, text, after, before, seen)
    if gets == (True, True):
        text = f"{did(after)}, and a get that was called later returned an older value: {did(before)}"
        return _Contradiction(Anomaly.STALE, text, after, before)
    seen = _saw(block, after)
    text = f"{by(after)} had returned before {by(before)} was called, but {did(seen)}"
    return _Contradiction(Anomaly.ORDER, text, after, before, seen)


def _check_between(blocks: list[_Block]) -> None:
    """No two blocks must each come before the other.

    Between its first return and its last call (`zone`) a block leaves no room for another. So two zones must not
    overlap, and no block may lie inside a zone.
    """
    zones: list[tuple[int, int, _Block]] = []
    others: list[tuple[int, int, _Block]] = []
    for block in blocks:
        ends = _BEFORE_ALL if block.first else min(operation.returned for operation in block.members())
        begins = max(operation.called for operation in block.members())
        if ends < begins:
            zones.append((ends, begins, block))
        else:
            others.append((begins, ends, block))
    zones.sort(key=lambda zone: zone[:2])
    for (_, begins, block), (ends, _, later) in pairwise(zones):
        if ends < begins:
            raise _crossed(block, later)
    starts = [ends for ends, _, _ in zones]
    for begins, ends, block in others:
        place = bisect_left(starts, begins) - 1
        if place >= 0 and ends < zones[place][1]:
            raise _crossed(zones[place][2], block)


def _crossed(whole: _Block, other: _Block) -> _Contradiction:
    """`other` must come after a part of `whole` and before another part, but `whole` cannot be split."""
    last = max(whole.members(), key=_called)
    early = min(other.members(), key=_returned)
    involved = [*other.writes[:1], early, last]
    if whole.first:
        if last.kind is OperationKind.GET and not whole.writes:
            text = f"{did(last)}, although {_had_returned(early)} before {_was_called(last)}"
            return _Contradiction(Anomaly.STALE, text, *involved)
        return _Contradiction(
            Anomaly.LOST,
            f"{did(_shows(whole, last))}, a value without what {by(other.writes[0])} wrote, although "
            f"{_had_returned(early)} before {_was_called(last)}",
            *whole.writes[:1],
            _shows(whole, last),
            *involved,
        )
    first = min(whole.members(), key=_returned)
    late = max(other.members(), key=_called)
    base = whole.writes[0]
    involved = [base, first, late, *involved]
    alone = len(list(other.members())) == 1
    if alone and early.kind is OperationKind.APPEND:
        shown = _shows(whole, last)
        text = f"{_had_returned(early)}, but what it wrote is lost: {did(shown)}"
        return _Contradiction(Anomaly.LOST, text, *involved, shown)
    if last.kind is OperationKind.GET:
        text = (
            f"{did(last)}, but {by(other.writes[0])} had replaced that value: {_had_returned(early)} before "
            f"{_was_called(last)}"
        )
        return _Contradiction(Anomaly.STALE, text, *involved)
    shown = _shows(whole, last)
    text = (
        f"{did(shown)}, so nothing else came between {by(base)} and {by(last)}; but {by(other.writes[0])} must have "
        f"come between them: {_had_returned(first)} before {_was_called(late)}, and {_had_returned(early)} "
        f"before {_was_called(last)}"
    )
    return _Contradiction(Anomaly.LOST, text, *involved, shown)


def _shows(block: _Block, operation: ClientOperation) -> ClientOperation:
    """A get that shows the position of that operation: itself, or one that read it."""
    return operation if operation.kind is OperationKind.GET else _saw(block, operation)


def _had_returned(operation: ClientOperation) -> str:
    return did(operation) if operation.kind is OperationKind.GET else f"{by(operation)} had returned"


def _was_called(operation: ClientOperation) -> str:
    if operation.kind is OperationKind.GET:
        return f"{operation.client} called get({operation.key!r})"
    return f"{by(operation)} was called"


def _called(operation: ClientOperation) -> int:
    return operation.called


def _returned(operation: ClientOperation) -> int:
    return operation.returned
