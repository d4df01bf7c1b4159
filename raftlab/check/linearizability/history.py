"""A history: the operations of all clients and their results, in the order in which they began.

Its time is a count of calls and returns, so no two of them are equal. Clock times are only for display.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

NEVER = 1 << 62  # the return of an operation that has not returned


class OperationKind(StrEnum):
    GET = "get"
    PUT = "put"
    APPEND = "append"


class CheckResult(StrEnum):
    OK = "ok"
    VIOLATION = "violation"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class ClientOperation:
    """One call of a client. `value` is what was written, or what a get returned."""

    client: str
    kind: OperationKind
    key: str
    value: str
    called: int
    returned: int = NEVER  # NEVER: it may have taken effect, or may do so later
    called_s: float = 0.0
    returned_s: float = 0.0

    @property
    def pending(self) -> bool:
        return self.returned == NEVER


class Anomaly(StrEnum):
    """The kind of a violation, if known."""

    STALE = "stale"  # a read returned an old value when a newer one had been written
    LOST = "lost"  # a write had returned, and a later read does not contain it
    TWICE = "twice"  # a write took effect twice
    ORDER = "order"  # two reads, or a read and the clock, disagree on the order of writes
    UNKNOWN_VALUE = "unknown value"  # a read returned a value that was not written, or not yet
    OTHER = "other"


@dataclass(frozen=True)
class HistoryViolation:
    """Operations of one key that no order explains, and why in a sentence."""

    key: str
    text: str
    operations: list[ClientOperation]
    anomaly: Anomaly = Anomaly.OTHER


@dataclass
class History:
    """Records what clients do. `now` returns the clock time, for display."""

    now: Callable[[], float] = field(default=lambda: 0.0)
    operations: list[ClientOperation] = field(default_factory=list)
    _count: int = 0

    def call(self, client: str, kind: OperationKind, key: str, value: str = "") -> ClientOperation:
        operation = ClientOperation(client, kind, key, value, self._next(), called_s=self.now())
        self.operations.append(operation)
        return operation

    def returns(self, operation: ClientOperation, value: str | None = None) -> None:
        """`value`: what a get returned."""
        operation.returned, operation.returned_s = self._next(), self.now()
        if value is not None:
            operation.value = value

    def _next(self) -> int:
        self._count += 1
        return self._count
