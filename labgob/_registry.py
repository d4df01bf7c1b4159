"""The classes that may travel in a field typed `Any`, by the name they travel under.

The name is module and class, so that two modules may each have an `Op`. Registering a second class under one
name (a module loaded again, a class made in a function that ran twice) retires the first: bytes name a class,
so only one of them could ever arrive.

That is so within one program. Where several programs run in one process, copies of each other as a rule, each has its
own classes, and bytes of one arrive in the other as that one's: see `separate()`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

C = TypeVar("C", bound=type)

_NAME_BYTES_MAX = 255  # the length travels in one byte

# Read directly on the hot path; written only here.
tag_of: dict[type, bytes] = {}  # class -> length byte and name, as they travel; of all programs

Names = dict[bytes, type]

_everybodys: Names = {}
_find_own: list[Callable[[], Names | None]] = []


def separate(find_own: Callable[[], Names | None]) -> None:
    """Let programs in this process have classes of their own: `find_own` finds the caller's dict for them.

    None: the caller belongs to no program, and what it registers is everybody's.
    """
    _find_own[:] = [find_own]


def _own() -> Names:
    own = _find_own[0]() if _find_own else None
    return _everybodys if own is None else own


def class_named(name: bytes) -> type | None:
    """The caller's own class of that name, or else everybody's."""
    return _own().get(name) or _everybodys.get(name)


class Opaque(msgspec.Struct, frozen=True):
    """A value of a class that is registered elsewhere and not here: it can be carried and compared, and goes on as it
    came."""

    tag: bytes
    data: bytes

    def __repr__(self) -> str:
        return f"<a {self.tag[1:].decode(errors='replace')}>"


# How many carrying_unknown() are entered: where none is, such values are refused.
carriers: list[int] = [0]


@contextmanager
def carrying_unknown() -> Iterator[None]:
    """Decode values of unregistered classes too, to carry and compare them: for a program that passes on the values of
    others, and shall not know their classes."""
    carriers[0] += 1
    try:
        yield
    finally:
        carriers[0] -= 1


def carries_unknown() -> bool:
    """Whether carrying_unknown() is entered."""
    return carriers[0] > 0


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
    own = _own()
    retired = own.get(name)
    if retired is not None and retired is not cls:
        tag_of.pop(retired, None)
    own[name] = cls
    tag_of[cls] = bytes([len(name)]) + name
    return cls


def forget(is_gone: Callable[[type], bool]) -> None:
    """Drop the classes of which this is true, and with them the programs that they would keep in memory."""
    for cls in [cls for cls in tag_of if is_gone(cls)]:
        del tag_of[cls]
    for name in [name for name, cls in _everybodys.items() if is_gone(cls)]:
        del _everybodys[name]
