"""One pass, where every written value tells who wrote it: no search, and exact.

A get's value then decodes into the put it began with and the appends since, in their order. So all that was seen of
one put is a **block**: the put, the appends behind it that somebody saw, and the gets. Nothing can come between two
operations of a block, because a get would have shown it; at the end of it, appends that nobody saw may follow, and
each of these is a block of its own, as is a put that nobody saw.

A history is linearizable if and only if

- inside each block nothing is against the clock, and
- of no two blocks each must come before the other. A must come before B if some operation of A had returned before
  some operation of B was called. If blocks must go round in a circle, then two of them do: take the one whose first
  return is the earliest of all.

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
    """Whether each value decodes in one way: no two writes alike, and with appends, none that begins with another."""
    values = sorted(operation.value for operation in operations if operation.kind is not OperationKind.GET)
    if values and not values[0]:
        return False
    if any(operation.kind is OperationKind.APPEND for operation in operations):
        return not any(later.startswith(earlier) for earlier, later in pairwise(values))
    return not any(earlier == later for earlier, later in pairwise(values))


def check(key: str, operations: Sequence[ClientOperation]) -> HistoryViolation | None:
    """The operations of one key, of which can_tell() holds."""
    try:
        _Blocks(key, operations).judge()
    except _Contradiction as found:
        # One operation may have several parts in a contradiction.
        told = sorted(dict.fromkeys(found.operations), key=lambda operation: operation.called)
        return HistoryViolation(key, found.text, told, found.anomaly)
    return None


class _Contradiction(Exception):
    def __init__(self, anomaly: Anomaly, text: str, *operations: ClientOperation) -> None:
        self.anomaly = anomaly
        self.text = text
        self.operations = operations


@dataclass(slots=True)
class _Block:
    """`writes` in their order, the first a put (in the first block of all, maybe an append); gets by how many of these
    they saw. In that first block, gets of 0 writes saw the key without a value."""

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
        self._block_of: dict[ClientOperation, _Block] = {}  # of the writes that were seen

    def judge(self) -> None:
        blocks = self._blocks()
        for block in blocks:
            _check_inside(block)
        seen = self._block_of
        blocks += [_Block([write]) for write in self._writes.values() if write not in seen and not write.pending]
        _check_between(blocks)

    # ---- who wrote what was read ---------------------------------------------------------------------------------

    def _blocks(self) -> list[_Block]:
        """All that somebody saw."""
        groups: dict[ClientOperation | None, list[ClientOperation]] = {}
        for get in self._gets:
            groups.setdefault(self._begins_with(get), []).append(get)
        return [self._block(base, gets) for base, gets in groups.items()]

    def _begins_with(self, get: ClientOperation) -> ClientOperation | None:
        """The put whose value it begins with; None where no put was before."""
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
        raise _Contradiction(Anomaly.UNKNOWN_VALUE, f"{did(get)}, and nobody wrote {short(value[place:])}", get)

    def _block(self, base: ClientOperation | None, gets: list[ClientOperation]) -> _Block:
        longest = max(gets, key=lambda get: len(get.value))
        block = _Block(self._decoded(longest), first=base is None)
        for write in block.writes:
            other = self._block_of.setdefault(write, block)
            if other is not block:
                seen = _saw(other, write)
                raise _Contradiction(
                    Anomaly.TWICE,
                    f"{by(write)} took effect twice: it is in what {seen.client} read and, behind another put, in what "
                    f"{longest.client} read",
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
                    Anomaly.TWICE, f"{by(write)} took effect twice: {get.client} read it at two places", write, get
                )
            if place and write.kind is OperationKind.PUT:
                text = f"{by(write)} must replace what was there, but {did(get)}"
                raise _Contradiction(Anomaly.UNKNOWN_VALUE, text, write, get)
            writes[write] = None
            place += len(write.value)
        return list(writes)

    def _disagree(self, get: ClientOperation, longest: ClientOperation) -> None:
        for one, other in zip(self._decoded(get), self._decoded(longest), strict=False):
            if one is not other:
                raise _Contradiction(
                    Anomaly.ORDER,
                    f"{did(get)}, and {did(longest)}: each of these appends comes right behind the same value",
                    *(one, other, get, longest),
                )
        raise AssertionError("one value decodes in one way")


def _saw(block: _Block, write: ClientOperation) -> ClientOperation:
    """Some get of the block that saw that write."""
    enough = block.writes.index(write) + 1
    return next(get for count, gets in block.gets.items() if count >= enough for get in gets)


# ---- against the clock -------------------------------------------------------------------------------------------


def _check_inside(block: _Block) -> None:
    """Nothing returned before something was called that the values put before it."""
    latest: ClientOperation | None = None  # of all that come before: who was called last

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
    """`before` must come before `after`, by what was read, and was called when `after` had returned."""
    gets = (before.kind is OperationKind.GET, after.kind is OperationKind.GET)
    if gets == (False, True):
        return _Contradiction(
            Anomaly.UNKNOWN_VALUE, f"{did(after)}, before {by(before)} was even called", before, after
        )
    if gets == (True, False):
        seen = _saw(block, after)
        text = f"{did(before)}, although {by(after)} had returned before that get was called; {did(seen)} in the end"
        return _Contradiction(Anomaly.STALE, text, after, before, seen)
    if gets == (True, True):
        text = f"{did(after)}, and then a get that was called later went back: {did(before)}"
        return _Contradiction(Anomaly.STALE, text, after, before)
    seen = _saw(block, after)
    text = f"{by(after)} had returned before {by(before)} was called, but {did(seen)}"
    return _Contradiction(Anomaly.ORDER, text, after, before, seen)


def _check_between(blocks: list[_Block]) -> None:
    """Of no two blocks each must come before the other.

    Between its first return and its last call (`zone`) a block cannot make room for another. So two such zones must
    not overlap, and no block can be all inside one.
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
    """`other` must come after some of `whole` and before some of it, and `whole` stays together."""
    last = max(whole.members(), key=_called)
    early = min(other.members(), key=_returned)
    involved = [*other.writes[:1], early, last]
    if whole.first:
        if last.kind is OperationKind.GET and not whole.writes:
            text = f"{did(last)}, although {_known(early)} before that get was called"
            return _Contradiction(Anomaly.STALE, text, *involved)
        return _Contradiction(
            Anomaly.LOST,
            f"{did(_shows(whole, last))}, so no put came before it, although {_known(early)} before {_called_by(last)}",
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
        text = f"{_known(early)}, but what it wrote is lost: {did(shown)}"
        return _Contradiction(Anomaly.LOST, text, *involved, shown)
    if last.kind is OperationKind.GET:
        text = f"{did(last)}, but {by(other.writes[0])} had replaced that: {_known(early)} before that get was called"
        return _Contradiction(Anomaly.STALE, text, *involved)
    shown = _shows(whole, last)
    text = (
        f"{did(shown)}: nothing came between {by(base)} and {by(last)}, although {by(other.writes[0])} must have: "
        f"{_known(first)} before {_called_by(late)}, and {_known(early)} before {_called_by(last)}"
    )
    return _Contradiction(Anomaly.LOST, text, *involved, shown)


def _shows(block: _Block, operation: ClientOperation) -> ClientOperation:
    """A get that tells where that operation stands: itself, or one that saw it."""
    return operation if operation.kind is OperationKind.GET else _saw(block, operation)


def _known(operation: ClientOperation) -> str:
    return did(operation) if operation.kind is OperationKind.GET else f"{by(operation)} had returned"


def _called_by(operation: ClientOperation) -> str:
    return f"{by(operation)} was called"


def _called(operation: ClientOperation) -> int:
    return operation.called


def _returned(operation: ClientOperation) -> int:
    return operation.returned
