"""Reads the fields of Figure 2 from a peer that has them under the paper's names.

They are optional: a peer may have other fields, or be in another process.
"""

from __future__ import annotations

from typing import Any

# By name: whether the value is a list.
NAMES = {
    "current_term": False,
    "voted_for": False,
    "log": True,  # the terms of its entries
    "commit_index": False,
    "last_applied": False,
    "next_index": True,
    "match_index": True,
}

UNREADABLE = object()


def read(peer: Any, name: str) -> Any:
    """A number or None, a list of numbers (for a log, the terms of its entries), or UNREADABLE."""
    try:
        value = vars(peer)[name]
    except (TypeError, KeyError):
        return UNREADABLE
    if name == "log":
        return _terms(peer, value)
    if NAMES[name]:
        return list(value) if isinstance(value, list | tuple) and all(type(one) is int for one in value) else UNREADABLE
    return value if value is None or type(value) is int else UNREADABLE


def _terms(peer: Any, log: Any) -> Any:
    if not isinstance(log, list | tuple):
        return UNREADABLE
    terms = [getattr(entry, "term", None) for entry in log]
    if not all(type(term) is int for term in terms):
        return UNREADABLE
    # Many logs have an entry 0 for what came before: the empty log, or the entries in the snapshot.
    if log and getattr(log[0], "command", 0) is None and (terms[0] == 0 or read_snapshot_index(peer)):
        terms = terms[1:]
    return terms


def read_snapshot_index(peer: Any) -> int:
    value = vars(peer).get("last_included_index", 0)
    return value if type(value) is int else 0


def format_value(value: Any) -> str:
    if value is UNREADABLE:
        return "?"
    if isinstance(value, list):
        return " ".join(str(one) for one in value) or "empty"
    return "none" if value is None else str(value)
