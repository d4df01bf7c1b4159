"""One Shape per annotation: how a value there is encoded, or why it cannot be.

msgspec silently writes a tuple like a list, and any dataclass like a dict. So a shape has two parts:

- lower(value, depth) is the complete rule. It returns the plain values that msgspec must write, or raises Refused with
  the path. It is slow, and the only place that decides.
- guard(...) generates a quick test: does msgspec on its own write exactly what lower() returns? A False costs time,
  never correctness: the value then goes through lower().

A guard checks every container, class, `Any`, str and float. It leaves int, bool, bytes and None to the typed decoder,
which rejects values of other types: msgspec writes in their form only what is equal to one of them.

Start at shape_of(). Inside `Any`, types that msgpack lacks are encoded as extensions: EXT_TUPLE and so on.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
import types
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from labgob import _registry
from labgob._errors import Refused
from labgob._registry import is_dataclass, is_enum, is_named_class, tag_of

DEPTH_MAX = 100  # far below where Python's own stack would end, with room for the caller's frames
INT_MIN, INT_MAX = -(2**63), 2**64 - 1

EXT_TUPLE, EXT_REGISTERED, EXT_BYTEARRAY = 1, 2, 3

PLAIN: frozenset[type] = frozenset({int, str, bool, float, bytes, types.NoneType})

_encode = msgspec.msgpack.Encoder().encode
_Ext = msgspec.msgpack.Ext
_Fits = Callable[[Any], bool]
_Lower = Callable[[Any, int], Any]

_NOT_REGISTERED = "use @labgob.register on this class, or send plain values"
_NOT_DATA = "send plain values (int, str, list, ...) or a registered dataclass"
_FIXES: dict[type, str] = {
    set: "a set has no order; send sorted(...) as a list",
    frozenset: "a set has no order; send sorted(...) as a list",
    memoryview: "send bytes(value)",
}


def _show(value: Any) -> str:
    """The value for an error text; if it is not plain, only its class, because a repr may contain an address."""
    if type(value) not in PLAIN:
        return str(type(value))
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _check_int(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    shown = str(value) if value.bit_length() <= 256 else f"an int of {value.bit_length()} bits"
    raise Refused(f"cannot encode {shown}: an int must be -2**63..2**64-1; send a larger one as a str")


def _check_str(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Refused(
                f"cannot encode a str with a lone surrogate at index {error.start}: send it as bytes"
            ) from None
    return value


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Refused(f"nested deeper than {DEPTH_MAX} levels, or contains itself")


# Any


def is_plain(value: Any, levels: int = 8) -> bool:
    """Whether msgspec alone encodes this exactly. lower_any() checks values nested deeper than `levels`."""
    kind = type(value)
    if kind in PLAIN:
        return True
    if levels == 0:
        return False
    if kind is list:
        return all(type(item) in PLAIN or is_plain(item, levels - 1) for item in value)
    if kind is dict:
        return PLAIN.issuperset(map(type, value)) and all(
            type(item) in PLAIN or is_plain(item, levels - 1) for item in value.values()
        )
    return False


def lower_any(value: Any, depth: int) -> Any:
    """What msgspec must write, so that the decoder's hook returns an equal value of the same type."""
    kind = type(value)
    if kind is int:
        return _check_int(value)
    if kind is str:
        return _check_str(value)
    if kind in PLAIN:
        return value
    _check_depth(depth)
    if kind is list:
        return lower_items(value, lower_any, depth)
    if kind is tuple:
        return _Ext(EXT_TUPLE, _encode_items(value, depth))
    if kind is dict:
        return lower_dict(value, _lower_any_key, lower_any, depth)
    if kind is bytearray:
        return _Ext(EXT_BYTEARRAY, bytes(value))
    tag = tag_of.get(kind)
    if tag is not None:
        return _Ext(EXT_REGISTERED, tag + (_classes.get(kind) or shape_of(kind)).encode(value, depth))
    if kind is _registry.Opaque:
        return _Ext(EXT_REGISTERED, value.tag + value.data)
    raise Refused(f"cannot encode {kind}: {_why_not(kind)}")


def _encode_items(value: tuple[Any, ...], depth: int) -> bytes:
    if PLAIN.issuperset(map(type, value)):
        try:
            return _encode(value)
        except Exception:
            pass  # an int that is too large, or an invalid str: lower_any() raises the reason
    return _encode(lower_items(value, lower_any, depth))


def _why_not(kind: type) -> str:
    if kind in _FIXES:
        return _FIXES[kind]
    if (_registry.class_named(_registry.name_of(kind).encode()) or kind) is not kind:
        return "another class with this name was registered later; register each class once, under its own name"
    return _NOT_REGISTERED if is_named_class(kind) else _NOT_DATA


def _lower_any_key(key: Any, depth: int) -> Any:
    # msgspec decodes an array that is a key as a tuple, because a list cannot be a key. It writes no extensions there.
    kind = type(key)
    if kind in PLAIN:
        return lower_any(key, depth)
    _check_depth(depth)
    if kind is tuple:
        return tuple(lower_items(key, _lower_any_key, depth))
    raise Refused(f"cannot encode {kind} as a dict key: use int or str keys, or annotate the type of the field's keys")


def lower_items(items: Any, lower: _Lower, depth: int) -> list[Any]:
    lowered: list[Any] = []
    try:
        for item in items:
            lowered.append(lower(item, depth + 1))  # noqa: PERF401 - its length is the culprit's index
    except Refused as refused:
        refused.steps.append(f"[{len(lowered)}]")
        raise
    return lowered


def _hashable(key: Any) -> Any:
    if type(key) is list:
        return tuple(map(_hashable, key))
    if type(key) is _Ext:
        raise Refused("cannot encode this dict key: annotate the types of its parts instead of Any")
    return key


def lower_dict(value: dict[Any, Any], lower_key: _Lower, lower_value: _Lower, depth: int) -> dict[Any, Any]:
    lowered: dict[Any, Any] = {}
    key = None
    try:
        for key, item in value.items():
            lowered[_hashable(lower_key(key, depth + 1))] = lower_value(item, depth + 1)
    except Refused as refused:
        refused.steps.append(f"[{key!r}]" if type(key) in PLAIN else f"[{type(key).__name__}]")
        raise
    if len(lowered) != len(value):
        raise Refused("cannot encode a dict with two keys that would be equal after decoding")
    return lowered


# The shapes of annotations


class NoFastPath(Exception):
    """This type has no guard, because it contains itself; its values always go through lower()."""


class _Guard:
    """The source of one guard function, and the objects it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.variables = 0
        self.names: dict[str, Any] = {"type": type, "PLAIN": PLAIN, "is_plain": is_plain}
        self.inside: list[type] = []  # the classes being written, to detect one that contains itself

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def refuse_unless(self, condition: str) -> None:
        self.line(f"if not ({condition}): return False")

    def fresh(self) -> str:
        self.variables += 1
        return f"v{self.variables}"

    def variable(self, expr: str) -> str:
        """A variable with the value of `expr`, so that it is evaluated once."""
        if expr.isidentifier():
            return expr
        variable = self.fresh()
        self.line(f"{variable} = {expr}")
        return variable

    def name(self, thing: Any) -> str:
        for name, known in self.names.items():
            if known is thing:
                return name
        name = f"c{len(self.names)}"
        self.names[name] = thing
        return name

    def block(self, header: str, write: Callable[[], None]) -> None:
        """A compound statement, omitted if its body would be empty."""
        before = len(self.lines)
        self.line(header)
        self.indent += 1
        write()
        self.indent -= 1
        if len(self.lines) == before + 1:
            del self.lines[before:]

    def function(self) -> _Fits | None:
        """The compiled guard; None: there is nothing to check."""
        if not self.lines:
            return None
        # As parameters the names are locals, which speeds up the loop over the entries of a log.
        parameters = "".join(f", {name}={name}" for name in self.names)
        source = "\n".join([f"def fits(value{parameters}):", *self.lines, "    return True"])
        space = dict(self.names)
        exec(_compiled(source), space)
        fits: _Fits = space["fits"]
        return fits


@lru_cache(maxsize=256)
def _compiled(source: str) -> types.CodeType:
    """Cached: a class that every incarnation of a peer defines again has the same guard each time."""
    return compile(source, "<labgob>", "exec")


class Shape:
    """How a value with one annotation is encoded."""

    name: str  # for error texts: list[LogEntry]
    python: type | None = None  # the one class its values have, where there is one
    classes: frozenset[str] = frozenset()  # named classes at this level and in the containers of this level
    has_any: bool = False  # whether those containers (classes not entered) reach an Any

    def lower(self, value: Any, depth: int) -> Any:
        raise NotImplementedError

    def guard(self, guard: _Guard, expr: str) -> None:
        """Write lines that `return False` unless msgspec encodes `expr` correctly on its own."""
        raise NotImplementedError

    def fits(self) -> _Fits | None:
        """The compiled guard, or None if there is nothing to check. Raises NoFastPath."""
        guard = _Guard()
        self.guard(guard, "value")
        return guard.function()

    def encode(self, value: Any, depth: int) -> bytes:
        return _encode(self.lower(value, depth))

    def expected(self, value: Any) -> Refused:
        return Refused(f"expected {self.name}, got {_show(value)}")


class _Any(Shape):
    name = "Any"
    has_any = True

    def lower(self, value: Any, depth: int) -> Any:
        return lower_any(value, depth)

    def guard(self, guard: _Guard, expr: str) -> None:
        guard.refuse_unless(f"type({expr}) in PLAIN or is_plain({expr})")


class _Scalar(Shape):
    """None, bool, int, float, str, bytes, bytearray."""

    def __init__(self, python: type, lower: Callable[[Any], Any], *, guarded: bool = False) -> None:
        self.name = "None" if python is types.NoneType else python.__name__
        self.python = python
        self._convert = lower
        self._guarded = guarded

    def lower(self, value: Any, depth: int) -> Any:
        lowered = self._convert(value)
        if lowered is NotImplemented:
            raise self.expected(value)
        return lowered

    def guard(self, guard: _Guard, expr: str) -> None:
        if self._guarded:
            guard.refuse_unless(f"type({expr}) is {guard.name(self.python)}")


def _lower_int(value: Any) -> Any:
    if type(value) is int:
        return _check_int(value)
    if isinstance(value, enum.Enum):
        value = value.value  # an int-valued enum arrives as the int that the field promises
    if not isinstance(value, int) or isinstance(value, bool):
        return NotImplemented
    return _check_int(int(value))


def _lower_float(value: Any) -> Any:
    if isinstance(value, float):
        return float(value)
    if type(value) is not int:
        return NotImplemented
    try:
        exact = float(value)
    except OverflowError:
        exact = float("inf")
    if exact != value:
        raise Refused(f"cannot encode {_show(value)} as a float without loss: annotate the field as int")
    return exact


def _lower_str(value: Any) -> Any:
    # str.__str__ and not str(): a subclass, such as a str enum, may define another __str__.
    return _check_str(str.__str__(value)) if isinstance(value, str) else NotImplemented


def _lower_bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else NotImplemented


_ANY = _Any()
_SCALARS: dict[Any, Shape] = {
    types.NoneType: _Scalar(types.NoneType, lambda value: None if value is None else NotImplemented),
    bool: _Scalar(bool, lambda value: value if type(value) is bool else NotImplemented),
    int: _Scalar(int, _lower_int),
    float: _Scalar(float, _lower_float, guarded=True),  # an int beyond 2**53 would be rounded
    str: _Scalar(str, _lower_str, guarded=True),  # msgspec writes a datetime, a UUID, … as a str
    bytes: _Scalar(bytes, _lower_bytes),
    bytearray: _Scalar(bytearray, _lower_bytes),
}


class _Literal(Shape):
    def __init__(self, choices: tuple[Any, ...]) -> None:
        self.name = " | ".join(map(repr, choices))
        self.choices = choices

    def lower(self, value: Any, depth: int) -> Any:
        if any(type(value) is type(choice) and value == choice for choice in self.choices):
            return value
        raise self.expected(value)

    def guard(self, guard: _Guard, expr: str) -> None:
        guard.refuse_unless(f"type({expr}) in {guard.name(frozenset(map(type, self.choices)))}")


class _Enum(Shape):
    def __init__(self, cls: type[enum.Enum]) -> None:
        if {type(member.value) for member in cls} not in ({int}, {str}):
            raise Refused(f"cannot send the enum {cls.__name__}: its values must be all int or all str")
        self.name = cls.__name__
        self.python = cls
        self.classes = frozenset({cls.__qualname__})

    def lower(self, value: Any, depth: int) -> Any:
        if type(value) is not self.python:
            raise self.expected(value)
        return value.value  # type: ignore[attr-defined]  # an enum's, as just seen

    def guard(self, guard: _Guard, expr: str) -> None:
        guard.refuse_unless(f"type({expr}) is {guard.name(self.python)}")


class _List(Shape):
    """list[item], and tuple[item, ...]."""

    def __init__(self, python: type, item: Shape) -> None:
        self.name = f"list[{item.name}]" if python is list else f"tuple[{item.name}, ...]"
        self.python = python
        self.item = item
        self.classes, self.has_any = item.classes, item.has_any

    def lower(self, value: Any, depth: int) -> Any:
        if not isinstance(value, self.python or ()):
            raise self.expected(value)
        _check_depth(depth)
        return lower_items(value, self.item.lower, depth)

    def guard(self, guard: _Guard, expr: str) -> None:
        items, item = guard.variable(expr), guard.fresh()
        guard.refuse_unless(f"type({items}) is {guard.name(self.python)}")
        guard.block(f"for {item} in {items}:", lambda: self.item.guard(guard, item))


class _Tuple(Shape):
    """tuple[a, b]: a fixed number of items, each of its own shape."""

    python = tuple

    def __init__(self, items: list[Shape]) -> None:
        self.name = f"tuple[{', '.join(item.name for item in items) or '()'}]"
        self.items = items
        self.classes = frozenset().union(*(item.classes for item in items))
        self.has_any = any(item.has_any for item in items)

    def lower(self, value: Any, depth: int) -> Any:
        if not isinstance(value, tuple):
            raise self.expected(value)
        if len(value) != len(self.items):
            raise Refused(f"expected {self.name}, got a tuple of {len(value)}")
        _check_depth(depth)
        return _lower_fields([(f"[{i}]", item) for i, item in enumerate(self.items)], value, depth)

    def guard(self, guard: _Guard, expr: str) -> None:
        items = guard.variable(expr)
        guard.refuse_unless(f"type({items}) is tuple and len({items}) == {len(self.items)}")
        for i, item in enumerate(self.items):
            item.guard(guard, f"{items}[{i}]")


def _lower_fields(fields: list[tuple[str, Shape]], values: Any, depth: int) -> list[Any]:
    lowered: list[Any] = []
    try:
        for (_, shape), value in zip(fields, values, strict=True):
            lowered.append(shape.lower(value, depth + 1))
    except Refused as refused:
        refused.steps.append(fields[len(lowered)][0])
        raise
    return lowered


class _Dict(Shape):
    python = dict

    def __init__(self, key: Shape, value: Shape) -> None:
        self.name = f"dict[{key.name}, {value.name}]"
        self.key, self.value = key, value
        self._lower_key = _lower_any_key if isinstance(key, _Any) else key.lower
        self.classes = key.classes | value.classes
        self.has_any = key.has_any or value.has_any

    def lower(self, value: Any, depth: int) -> Any:
        if not isinstance(value, dict):
            raise self.expected(value)
        _check_depth(depth)
        return lower_dict(value, self._lower_key, self.value.lower, depth)

    def guard(self, guard: _Guard, expr: str) -> None:
        items, key, value = guard.variable(expr), guard.fresh(), guard.fresh()
        guard.refuse_unless(f"type({items}) is dict")
        if isinstance(self.key, _Scalar):  # 1 and an enum of value 1 are two keys here and would be one there
            guard.refuse_unless(f"PLAIN.issuperset(map(type, {items}))")
        guard.block(f"for {key} in {items}:", lambda: self.key.guard(guard, key))
        guard.block(f"for {value} in {items}.values():", lambda: self.value.guard(guard, value))


class Union(Shape):
    def __init__(self, members: list[Shape]) -> None:
        self.name = " | ".join(member.name for member in members)
        self.members = members
        self.classes = frozenset().union(*(member.classes for member in members))
        self.has_any = any(member.has_any for member in members)

    def lower(self, value: Any, depth: int) -> Any:
        for member in self.members:
            if member.python is type(value):
                return member.lower(value, depth)
        for member in self.members:  # an int for a float, a str subclass for a str, …
            try:
                return member.lower(value, depth)
            except Refused:
                continue
        raise self.expected(value)

    def guard(self, guard: _Guard, expr: str) -> None:
        value = guard.variable(expr)
        word = "if"
        for member in self.members:
            if member.python is None:
                raise NoFastPath
            guard.line(f"{word} type({value}) is {guard.name(member.python)}:")
            guard.indent += 1
            guard.line("pass")
            member.guard(guard, value)
            guard.indent -= 1
            word = "elif"
        guard.line("else: return False")


class Class(Shape):
    """A dataclass (which travels as a map) or a NamedTuple (as an array)."""

    python: type

    def __init__(self, cls: type) -> None:
        self.name = cls.__name__
        self.python = cls
        self.classes = frozenset({cls.__qualname__})
        self.is_map = is_dataclass(cls)
        self.fields: list[tuple[str, Shape]] = []  # filled in later: a class may contain itself
        self._lowers: list[tuple[str, _Lower]] = []
        self._fits: _Fits | None = None

    def fill(self) -> None:
        cls = self.python
        if self.is_map:
            names = [field.name for field in dataclasses.fields(cls)]
        else:
            names = list(getattr(cls, "_fields"))  # noqa: B009 - mypy knows no _fields of a type
        try:
            hints = typing.get_type_hints(cls)
        except NameError as error:
            raise Refused(
                f"cannot resolve an annotation of {cls.__name__} ({error}): define that class at module level"
            ) from None
        for name in names:
            try:
                self.fields.append((name, shape_of(hints.get(name, Any))))
            except Refused as refused:
                refused.owner = refused.owner or f"{cls.__name__}.{name}"
                raise
        self._lowers = [(name, shape.lower) for name, shape in self.fields]

    def lower(self, value: Any, depth: int) -> Any:
        if type(value) is not self.python:
            raise self.expected(value)
        _check_depth(depth)
        if not self.is_map:
            return _lower_fields([(f".{name}", shape) for name, shape in self.fields], value, depth)
        lowered: dict[str, Any] = {}
        name = ""
        try:
            for name, lower in self._lowers:
                lowered[name] = lower(getattr(value, name), depth + 1)
        except AttributeError:
            raise Refused(f"cannot encode a {self.name} without its field {name}: set the field first") from None
        except Refused as refused:
            refused.steps.append(f".{name}")
            raise
        return lowered

    def guard(self, guard: _Guard, expr: str) -> None:
        if self.python in guard.inside:
            raise NoFastPath
        guard.inside.append(self.python)
        value = guard.variable(expr)
        guard.refuse_unless(f"type({value}) is {guard.name(self.python)}")
        self.guard_fields(guard, value)
        guard.inside.pop()

    def guard_fields(self, guard: _Guard, value: str) -> None:
        for name, shape in self.fields:
            shape.guard(guard, f"{value}.{name}")

    def fits(self) -> _Fits | None:
        """Like the base's, for values that are known to be of this very class."""
        guard = _Guard()
        guard.inside.append(self.python)
        self.guard_fields(guard, "value")
        return guard.function()

    def encode(self, value: Any, depth: int) -> bytes:
        # The fast path again, for a registered command inside an Any.
        if self._fits is None:
            try:
                self._fits = self.fits() or (lambda _: True)
            except NoFastPath:
                self._fits = lambda _: False
        try:
            if self._fits(value):
                return _encode(value)
        except Exception:
            pass  # lower() raises the reason and the path
        return _encode(self.lower(value, depth))


# Annotations to shapes

_classes: dict[type, Shape] = {}  # complete ones only
_pending: dict[type, Shape] = {}  # being built, by the holder of the lock; a class may reach itself through them
_build_lock = threading.RLock()  # for peers on real threads; in a simulation no task ever waits for it

_ALLOWED = "use None, bool, int, float, str, bytes, list, dict, tuple, an enum, a dataclass, or Any"


def shape_of(annotation: Any) -> Shape:
    """The shape of an annotation. Raises Refused if no value with this annotation can be encoded."""
    if annotation is None:
        annotation = types.NoneType
    if annotation in (Any, object):
        return _ANY
    if annotation in (list, tuple):
        return _List(annotation, _ANY)
    if annotation is dict:
        return _Dict(_ANY, _ANY)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if is_named_class(annotation):
        return _class_shape(annotation)
    if isinstance(annotation, typing.NewType):
        return shape_of(annotation.__supertype__)
    if isinstance(annotation, typing.TypeVar):
        return shape_of(annotation.__bound__ or Any)
    return _generic_shape(annotation)


def _generic_shape(annotation: Any) -> Shape:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Annotated, typing.Final):
        return shape_of(args[0])
    if origin is typing.Literal:
        return _Literal(args)
    if origin in (typing.Union, types.UnionType):
        members = [shape_of(arg) for arg in args]
        return _ANY if _ANY in members else Union(members)
    if origin is list:
        return _List(list, shape_of(args[0]))
    if origin is tuple and len(args) == 2 and args[1] is ...:
        return _List(tuple, shape_of(args[0]))
    if origin is tuple:
        return _Tuple([shape_of(arg) for arg in args])
    if origin is dict:
        key = shape_of(args[0])
        if isinstance(key, Class):
            raise Refused(f"cannot send a dict with {key.name} keys: use plain keys, tuples or enums")
        return _Dict(key, shape_of(args[1]))
    shown = annotation.__name__ if isinstance(annotation, type) and origin is None else str(annotation)
    if annotation in (set, frozenset) or origin in (set, frozenset):
        raise Refused(f"cannot send a field annotated {shown}: a set has no order; use a sorted list")
    raise Refused(f"cannot send a field annotated {shown}: {_ALLOWED}")


def _class_shape(cls: type) -> Shape:
    known = _classes.get(cls)
    if known is not None:
        return known
    if is_enum(cls):
        return _classes.setdefault(cls, _Enum(cls))
    with _build_lock:
        if cls in _pending:
            return _pending[cls]
        outermost = not _pending
        shape = _pending[cls] = Class(cls)
        try:
            shape.fill()
            if outermost:
                _classes.update(_pending)
        finally:
            # All or none: after an error, other shapes may refer to an incomplete one.
            if outermost:
                _pending.clear()
        return shape


def forget(is_gone: Callable[[type], bool]) -> None:
    for cls in [cls for cls in _classes if is_gone(cls)]:
        del _classes[cls]
