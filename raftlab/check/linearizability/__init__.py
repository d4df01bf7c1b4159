"""Checks whether histories of get, put and append are linearizable.

A history is linearizable if its operations have an order in which each takes effect between its call and its return,
and every get returns the value that the earlier operations leave (Herlihy and Wing). Keys are checked separately,
because a history is linearizable if and only if the history of each key is.

If all written values differ, each get shows which writes it read, and `by_value.py` decides in one pass. Otherwise
`search.py` tries orders: Wing and Gong's algorithm with Lowe's cache, as in Porcupine.

Promise: OK and VIOLATION are exact, and a history has the same result on any machine. UNKNOWN comes only from a search
that has used up its steps. Not promised: that a violation has as few operations as possible.

Start at `check()`.
"""

from raftlab.check.linearizability.checker import STEPS, HistoryCheck, check
from raftlab.check.linearizability.diagram import draw
from raftlab.check.linearizability.history import (
    Anomaly,
    CheckResult,
    ClientOperation,
    History,
    HistoryViolation,
    OperationKind,
)

__all__ = [
    "STEPS",
    "Anomaly",
    "CheckResult",
    "ClientOperation",
    "History",
    "HistoryCheck",
    "HistoryViolation",
    "OperationKind",
    "check",
    "draw",
]
