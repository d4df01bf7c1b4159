"""What clients asked for and what they were told: the operations of a run, in the order in which they began.

Time here is a count of beginnings and endings, in the order in which they happened, so no two are at once. The clock's
time is kept for readers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

NEVER = 1 << 62  # when an operation returned that has not


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
    """One call of a client. `value` is what was written, or what a get has returned."""

    client: str
    kind: OperationKind
    key: str
    value: str
    called: int
    returned: int = NEVER  # NEVER: nobody knows whether it has happened, or will
    called_s: float = 0.0
    returned_s: float = 0.0

    @property
    def pending(self) -> bool:
        return self.returned == NEVER


class Anomaly(StrEnum):
    """What kind of violation it is, where that can be told."""

    STALE = "stale"  # an old value was read when a newer one was there
    LOST = "lost"  # a write that had returned is not in what was read later
    TWICE = "twice"  # a write took effect twice
    ORDER = "order"  # writes are in an order that no other reader, or the clock, can agree with
    UNKNOWN_VALUE = "unknown value"  # nobody wrote what was read, or not yet, or not so
    OTHER = "other"


@dataclass(frozen=True)
class HistoryViolation:
    """Operations of one key that cannot be ordered, and in a sentence why not."""

    key: str
    text: str
    operations: list[ClientOperation]
    anomaly: Anomaly = Anomaly.OTHER


@dataclass
class History:
    """Takes down what clients do. `now` tells the time, for readers."""

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
