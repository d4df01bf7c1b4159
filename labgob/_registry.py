"""The classes that may travel in a field typed `Any`, by the name they travel under.

The name is module and class, so that two modules may each have an `Op`. Registering a second class under one
name (a module loaded again, a class made in a function that ran twice) retires the first: bytes name a class,
so only one of them could ever arrive.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

_NAME_BYTES_MAX = 255  # the length travels in one byte

# Read directly on the hot path; written only by register().
tag_of: dict[type, bytes] = {}  # class -> length byte and name, as they travel
class_named: dict[bytes, type] = {}


def is_namedtuple(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_dataclass(cls: Any) -> bool:
    return isinstance(cls, type) and dataclasses.is_dataclass(cls)


def is_enum(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, enum.Enum)


def is_named_class(cls: Any) -> bool:
    """The classes that can travel at all."""
    return is_dataclass(cls) or is_enum(cls) or is_namedtuple(cls)


def name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def register(cls: C) -> C:
    """Let a dataclass, enum or NamedTuple travel inside fields typed `Any`. Usable as a decorator."""
    if not is_named_class(cls):
        raise TypeError(
            f"register(): {cls!r} is not a dataclass, enum or NamedTuple; "
            "if it is to be a dataclass, put @labgob.register above @dataclass"
        )
    name = name_of(cls).encode()
    if len(name) > _NAME_BYTES_MAX:
        raise TypeError(f"register(): the name {name_of(cls)} must be 1..{_NAME_BYTES_MAX} bytes, got {len(name)}")
    retired = class_named.get(name)
    if retired is not None and retired is not cls:
        del tag_of[retired]
    class_named[name] = cls
    tag_of[cls] = bytes([len(name)]) + name
    return cls
