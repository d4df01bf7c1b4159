"""Could these operations have happened one after the other? A checker for histories of get, put and append.

A history is linearizable if its operations can be put in one order, each somewhere between its call and its return,
so that every get returns what the operations before it have made of its key (Herlihy and Wing). Each key is judged by
itself, because a history is linearizable if and only if each of its keys is.

Where all written values differ, the gets tell who wrote what they read, and `by_value.py` decides in one pass. Where
they do not, `search.py` tries orders, after Wing and Gong with Lowe's memory of what was tried, as Porcupine does.

Promise: OK and VIOLATION are exact, and one history has one verdict, on any machine. UNKNOWN comes only from a search
that has used up its steps. Not promised: that a violation's operations are the fewest; they are few.

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
