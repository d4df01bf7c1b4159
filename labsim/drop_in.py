"""The base of the drop-in classes of threading and queue: one name, two kinds of objects.

Inside a simulation a drop-in makes a simulated object, which belongs to that simulation. Outside it makes the standard
library's object, so the same code runs on real threads; a subclass makes there what the same subclass of the standard
class would. Both kinds of objects are instances of the drop-in.

Not promised, for objects of subclasses outside a simulation: `Queue.put(q, item)` (use `super().put(item)`);
`type(q) is Sub` (use isinstance); `__slots__` in a subclass of local or SimpleQueue.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any, NoReturn, Self

from labsim import stacks
from labsim.current import run_context
from labsim.simulation import Simulation

_OURS = ("labsim.drop_in", "labsim.threading", "labsim.queue")
_STANDARD: dict[type, type] = {}
_MAKERS: dict[type, Callable[..., Any]] = {}

MadeAt = tuple[CodeType, int]


class DropIn(ABCMeta):
    """The metaclass of drop-ins. Derived from ABCMeta, so that a class may inherit from both a drop-in and an ABC."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        standard: type | None = None,
        maker: Callable[..., Any] | None = None,
        **others: Any,
    ) -> DropIn:
        """`maker`: makes the standard object, if that is not done by calling the standard class."""
        cls = super().__new__(mcls, name, bases, namespace, **others)
        if standard is not None:
            _STANDARD[cls] = standard
            _MAKERS[cls] = maker or standard
        return cls

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or issubclass(subclass, _STANDARD.get(cls, ()))

    def __instancecheck__(cls, instance: object) -> bool:
        # Not ABCMeta's, which caches negative results.
        return cls.__subclasscheck__(instance.__class__)


def refuse_to_copy(self: object) -> NoReturn:
    """For `__reduce__`, which copy, deepcopy and pickle all call."""
    raise TypeError(f"cannot pickle {type(self).__name__!r} object")


class Primitive(metaclass=DropIn):
    """The base of all drop-ins but Thread and Barrier: outside a simulation their objects are of another class."""

    __slots__ = ()

    _simulation: Simulation
    _made_at: MadeAt

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        simulation = run_context.simulation
        if simulation is None:
            return make_standard(cls, *args, **kwargs)  # type: ignore[no-any-return]
        self = object.__new__(cls) if simulation.ordering is None else simulation.ordering.new(cls)
        self._simulation = simulation
        # The first frame outside labsim. Its line number is computed on demand.
        frame = sys._getframe(1)
        while frame.f_globals.get("__package__") == "labsim" and frame.f_back is not None:
            frame = frame.f_back
        self._made_at = (frame.f_code, frame.f_lasti)
        return self

    __reduce__ = refuse_to_copy

    def _where_made(self) -> str:
        code, instruction = self._made_at
        line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
        return f"made at {stacks.short_path(code.co_filename)}:{line}"


def make_standard(cls: type, *args: Any, **kwargs: Any) -> Any:
    """What a drop-in's `__new__` returns outside a simulation."""
    maker = _MAKERS.get(cls)
    if maker is not None:
        return maker(*args, **kwargs)
    variant, new = _standard_variant(cls)
    # Python then calls __init__, because the variant is a subclass of cls. object's __new__ takes no arguments.
    return new(variant) if new is object.__new__ else new(variant, *args, **kwargs)


class NoInitSubclass:
    """The first base of a variant: keeps the variant from calling a student's __init_subclass__."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        pass


class _StandardVariant(DropIn):
    def mro(cls) -> list[type]:
        itself, *bases = super().mro()
        return [itself, *(base for base in bases if not (isinstance(base, DropIn) and base.__module__ in _OURS))]


@cache
def _standard_variant(cls: type) -> tuple[type, Callable[..., Any]]:
    """A subclass of `cls` in which standard classes replace the drop-ins, so that super() finds these."""
    standards = [_STANDARD[base] for base in cls.__mro__ if base in _STANDARD]
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return _StandardVariant(cls.__name__, (NoInitSubclass, cls, *standards), namespace), standards[0].__new__
