"""Clients of the service under test: each is a node with a student's clerk, and each call goes into the history.

Start at `Client`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from labrpc import ClientEnd
from labsim import Node
from labsim.trace import fingerprint_of
from raftapi import Clerk
from raftlab.check.failure import short
from raftlab.check.linearizability import ClientOperation, History, OperationKind
from raftlab.harness.runtime import CallTimeout, Runtime
from raftlab.trace import events

# Limit of one call. The tests disconnect servers for a few seconds at most.
OPERATION_LIMIT_S = 40.0


class Client:
    """One client: calls get, put and append of its clerk, and records the results."""

    def __init__(
        self,
        name: str,
        node: Node | None,
        ends: list[ClientEnd],
        reaches: list[int],
        history: History,
        runtime: Runtime,
        emit: Callable[[str, Node | None, Any, int], None],
        fail: Callable[[str], NoReturn],
        fail_timeout: Callable[[str], NoReturn],
    ) -> None:
        self.name = name
        self.node = node
        self.ends = ends
        self.reaches = reaches  # the servers it is connected to
        self.clerk: Clerk  # made after this client is connected, because it may send RPCs at once
        self._history = history
        self._runtime = runtime
        self._emit = emit
        self._fail = fail
        self._fail_timeout = fail_timeout

    def get(self, key: str) -> str:
        value = self._do(OperationKind.GET, key, "", lambda: self.clerk.get(key))
        return str(value)

    def put(self, key: str, value: str) -> None:
        self._do(OperationKind.PUT, key, value, lambda: self.clerk.put(key, value))

    def append(self, key: str, value: str) -> None:
        self._do(OperationKind.APPEND, key, value, lambda: self.clerk.append(key, value))

    def _do(self, kind: OperationKind, key: str, value: str, call: Callable[[], Any]) -> Any:
        operation = self._history.call(self.name, kind, key, value)
        self._emit_operation(events.INVOKE, operation)
        try:
            result = self._runtime.wait_for(self.node, call, entry_point=kind, limit_s=OPERATION_LIMIT_S)
        except CallTimeout:
            call_text = f"{kind}({key!r}{'' if kind is OperationKind.GET else f', {short(value)}'})"
            self._fail_timeout(
                f"{call_text} of {self.name} has not returned for {OPERATION_LIMIT_S:g} s{self._runtime.clock}"
            )
        if kind is OperationKind.GET and not isinstance(result, str):
            self._fail(f"get({key!r}) of {self.name} returned {short(result)}; it must return a str")
        self._history.returns(operation, result if kind is OperationKind.GET else None)
        self._emit_operation(events.RETURN, operation)
        return result

    def _emit_operation(self, kind: str, operation: ClientOperation) -> None:
        detail = events.Operation(operation.kind.value, operation.key, operation.value)
        self._emit(kind, self.node, detail, fingerprint_of(detail.op, detail.key, detail.value))
