"""Draws operations on a time line for a terminal: a row each, from call to return, a column for each call or return.

The columns are equidistant, because only their order matters. The times are below.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlab.check.linearizability.history import ClientOperation
from raftlab.check.linearizability.labels import call

_STEP = 4  # columns between two moments
_VALUE = 28


def draw(operations: Sequence[ClientOperation]) -> list[str]:
    """A line for each operation, by call, and the times below."""
    rows = sorted(operations, key=lambda operation: operation.called)
    moments: dict[int, float] = {}
    for operation in rows:
        moments[operation.called] = operation.called_s
        if not operation.pending:
            moments[operation.returned] = operation.returned_s
    columns = {moment: place * _STEP for place, moment in enumerate(sorted(moments))}
    end = len(columns) * _STEP
    names = [f"{operation.client}  {call(operation, _VALUE)}" for operation in rows]
    width = max(map(len, names), default=0)
    lines = []
    for name, operation in zip(names, rows, strict=True):
        begin = columns[operation.called]
        if operation.pending:
            bar = f"├{'─' * (end - begin - 1)}  no answer"
        else:
            bar = f"├{'─' * (columns[operation.returned] - begin - 1)}┤"
        lines.append(f"  {name:<{width}}  {' ' * begin}{bar}")
    return [*lines, *_clock({columns[moment]: moments[moment] for moment in columns}, width + 4)]


def _clock(marks: dict[int, float], indent: int) -> list[str]:
    """The times of the columns, as many as there is room for, beginning with the first."""
    line = ""
    for column, at_s in marks.items():
        if not line or len(line) + 2 <= column:
            line = f"{line:<{column}}{at_s:.3f}"
    return [f"{' ' * indent}{line} s"] if line else []
