"""Message types that sandboxed peers declare, as the supervisor decodes them: by field names, into its own classes.

Start at `message_type()`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from functools import lru_cache
from keyword import iskeyword
from typing import Any

import labgob

_INTS = (
    "term",
    "candidate_id",
    "last_log_index",
    "last_log_term",
    "leader_id",
    "prev_log_index",
    "prev_log_term",
    "leader_commit",
    "last_included_index",
    "last_included_term",
)
_FIELD_TYPES: dict[str, Any] = {
    **dict.fromkeys(_INTS, int),
    **dict.fromkeys(("vote_granted", "success"), bool),
    "data": bytes,
}


@dataclass(frozen=True)
class MessageType:
    """A declared type, and the classes into which the supervisor decodes its messages."""

    name: str  # the full name, as declared
    typed: Any  # with the types of the paper's fields
    untyped: Any  # with fields of any type

    def class_for(self, data: bytes) -> Any:
        """The first of the two classes that can decode these bytes. Raises ValueError."""
        for type_ in (self.typed, self.untyped):
            with suppress(labgob.DecodeError):
                labgob.decode(data, type_)
                return type_
        raise ValueError(f"an undecodable {self.name}")


@lru_cache(maxsize=1000)
def message_type(name: str, fields: tuple[str, ...], entries: tuple[str, ...]) -> MessageType:
    """Cached, so that equal declarations of two peers give one type."""
    for field in (*fields, *entries):
        if not field.isidentifier() or iskeyword(field) or field.startswith("__"):
            raise ValueError(f"a type with an invalid field name {field[:40]!r}")
    short_name = name.rpartition(".")[2]
    if not short_name.isidentifier() or iskeyword(short_name):
        short_name = "Message"
    if not fields:
        return MessageType(name, Any, make_dataclass(short_name, []))
    entry: Any = Any
    if entries:
        types = {"term": int, "command": Any}
        entry = make_dataclass("LogEntry", [(field, types.get(field, Any)) for field in entries])
    typed = {**_FIELD_TYPES, "entries": list[entry]} if entries else _FIELD_TYPES
    return MessageType(
        name,
        make_dataclass(short_name, [(field, typed.get(field, Any)) for field in fields]),
        make_dataclass(short_name, [(field, Any) for field in fields]),
    )
