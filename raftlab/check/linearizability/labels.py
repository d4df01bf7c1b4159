"""Operations in a sentence. Values of appends grow long, and what differs is at their end."""

from __future__ import annotations

from raftlab.check.linearizability.history import ClientOperation, OperationKind

_WIDTH = 40


def short(value: str, width: int = _WIDTH) -> str:
    return repr(value) if len(value) <= width else f"'...{value[-(width - 3) :]}'"


def call(operation: ClientOperation, width: int = _WIDTH) -> str:
    """put('x', 'a'), or get('x') -> 'a'."""
    if operation.kind is OperationKind.GET:
        return f"get({operation.key!r}) -> {short(operation.value, width)}"
    return f"{operation.kind}({operation.key!r}, {short(operation.value, width)})"


def by(operation: ClientOperation) -> str:
    """ "append('x', 'b') of client 1": what was called, and by whom."""
    if operation.kind is OperationKind.GET:
        return f"a get of {operation.client}"
    return f"{call(operation)} of {operation.client}"


def did(operation: ClientOperation) -> str:
    """What it has done, as a clause; of a get, what it returned."""
    if operation.kind is OperationKind.GET:
        told = "nothing" if not operation.value else short(operation.value)
        return f"{operation.client} read {told} for {operation.key!r}"
    return f"{operation.client} did {call(operation)}"
