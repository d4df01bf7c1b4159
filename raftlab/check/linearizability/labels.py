"""Operations as text. Long values are cut at the beginning, because values of appends differ at the end."""

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
    """ "append('x', 'b') by client 1": the call and the client."""
    if operation.kind is OperationKind.GET:
        return f"a get by {operation.client}"
    return f"{call(operation)} by {operation.client}"


def did(operation: ClientOperation) -> str:
    """What the client did, as a clause; of a get, what it read."""
    if operation.kind is OperationKind.GET:
        value = "nothing" if not operation.value else short(operation.value)
        return f"{operation.client} read {value} for {operation.key!r}"
    return f"{operation.client} called {call(operation)}"
