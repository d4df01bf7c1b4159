"""The registered classes, which a field annotated `Any` may hold, by the name that their encoding contains.

The name is module and class, so that two modules may each have an `Op`. Registering a second class under the same name
(in a reloaded module, or in a function that ran twice) replaces the first: a name can be decoded as one class only.

Several programs in one process, usually copies of each other, each have their own classes, and decode bytes from
another program as their own classes: see `separate()`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

C = TypeVar("C", bound=type)

_NAME_BYTES_MAX = 255  # the length is encoded in one byte

# Read directly on the hot path; written only here.
tag_of: dict[type, bytes] = {}  # class -> length byte and name, as encoded; of all programs

Names = dict[bytes, type]

_shared: Names = {}
_find_own: list[Callable[[], Names | None]] = []


def separate(find_own: Callable[[], Names | None]) -> None:
    """Give each program in this process its own classes: `find_own` returns the calling program's dict of them.

    None: the caller does not belong to a program, and all programs share the classes that it registers.
    """
    _find_own[:] = [find_own]


def _own() -> Names:
    own = _find_own[0]() if _find_own else None
    return _shared if own is None else own


def class_named(name: bytes) -> type | None:
    """The calling program's class of that name, or else the shared one."""
    return _own().get(name) or _shared.get(name)


class Opaque(msgspec.Struct, frozen=True):
    """A value of a class that is not registered here: it can be stored, compared and encoded again, unchanged."""

    tag: bytes
    data: bytes

    def __repr__(self) -> str:
        return f"<a {self.tag[1:].decode(errors='replace')}>"


# The number of active carrying_unknown() contexts. Without one, decoding an unknown class is an error.
carriers: list[int] = [0]


@contextmanager
def carrying_unknown() -> Iterator[None]:
    """Decode values of unregistered classes as Opaque: for a program that passes on values without their classes."""
    carriers[0] += 1
    try:
        yield
    finally:
        carriers[0] -= 1


def carries_unknown() -> bool:
    """Whether a carrying_unknown() context is active."""
    return carriers[0] > 0


def is_namedtuple(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_dataclass(cls: Any) -> bool:
    return isinstance(cls, type) and dataclasses.is_dataclass(cls)


def is_enum(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, enum.Enum)


def is_named_class(cls: Any) -> bool:
    """Whether objects of this class can be encoded: a dataclass, an enum or a NamedTuple."""
    return is_dataclass(cls) or is_enum(cls) or is_namedtuple(cls)


def name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def register(cls: C) -> C:
    """Let fields annotated `Any` hold this dataclass, enum or NamedTuple. Can be used as a decorator."""
    if not is_named_class(cls):
        raise TypeError(
            f"register(): {cls!r} is not a dataclass, enum or NamedTuple; "
            "make it one, and put @labgob.register above @dataclass"
        )
    name = name_of(cls).encode()
    if len(name) > _NAME_BYTES_MAX:
        raise TypeError(f"register(): the name {name_of(cls)} must be 1..{_NAME_BYTES_MAX} bytes, got {len(name)}")
    own = _own()
    retired = own.get(name)
    if retired is not None and retired is not cls:
        tag_of.pop(retired, None)
    own[name] = cls
    tag_of[cls] = bytes([len(name)]) + name
    return cls


def forget(is_gone: Callable[[type], bool]) -> None:
    """Drop the classes for which this is true, and with them the programs that they keep in memory."""
    for cls in [cls for cls in tag_of if is_gone(cls)]:
        del tag_of[cls]
    for name in [name for name, cls in _shared.items() if is_gone(cls)]:
        del _shared[name]
