"""encode() and decode(), and the wire format.

A message has one of three forms, distinguished by its first byte:

    a msgpack map     a dataclass, its fields by name; decoded by its class. The hot path: msgspec does it alone.
    [value]           a self-describing value: plain values, tuples and registered classes
    [names, value]    containers of unregistered classes, such as a log; `names` lists the classes, and the
                      type given to decode(), list[LogEntry], says where they are

So a dataclass is never decoded as a dict with the same fields, nor a dict as a dataclass.

encode() picks a writer by the value's class, decode() a reader by the requested type; both are made on first use.
If a writer fails, lower() decides: it is slow, and returns the result or raises the reason (see _shapes.py).
"""

from __future__ import annotations

import contextlib
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import msgspec

from labgob import _registry, _shapes
from labgob._errors import DecodeError, EncodeError, GobError, Refused
from labgob._registry import is_dataclass, is_named_class, tag_of
from labgob._shapes import (
    DEPTH_MAX,
    PLAIN,
    Class,
    NoFastPath,
    Shape,
    is_plain,
    lower_any,
    lower_dict,
    shape_of,
)

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

_Writer = Callable[[Any], bytes]
_Reader = Callable[[Buffer], Any]

_DESCRIBED, _NAMED = b"\x91", b"\x92"  # msgpack: an array of one, an array of two
_MAP_MARKS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
_LENGTH_BYTES = 4  # before each value in an Encoder's buffer

_msgpack_encode = msgspec.msgpack.Encoder().encode


# Encoding


def encode(value: Any) -> bytes:
    """The value as bytes. Raises EncodeError, which names the field, if the value cannot be encoded."""
    try:
        # __class__ costs half as much as type(), and a fake one (a mock's) only leads to the slow path.
        return _writers[value.__class__](value)
    except Exception:
        return _encode_slowly(value)


def _encode_slowly(value: Any) -> bytes:
    kind = type(value)
    try:
        if kind not in _writers and is_dataclass(kind):
            _writers[kind] = _dataclass_writer(kind)
            return encode(value)
        return _lowered(value)
    except Refused as refused:
        raise EncodeError(refused.text(kind.__name__)) from None
    except RecursionError:
        raise EncodeError(f"{kind.__name__}: nested too deeply to encode at this depth of the call stack") from None
    except GobError:
        raise
    except Exception as error:  # the value's own code (a property, a __getattr__) or a concurrent change
        raise EncodeError(f"{kind.__name__}: cannot encode: {type(error).__name__}: {error}") from error


def _lowered(value: Any) -> bytes:
    """The complete rule: returns whatever a fast writer returns."""
    kind = type(value)
    if is_dataclass(kind):
        return _msgpack_encode(shape_of(kind).lower(value, 0))
    classes = set(_classes_in(value, 0))
    if all(cls in tag_of for cls in classes):
        return _DESCRIBED + _msgpack_encode(lower_any(value, 0))
    # Sorted: the names come out of a set.
    names = ",".join(sorted(cls.__qualname__ for cls in classes))
    return _NAMED + _msgpack_encode(names) + _msgpack_encode(_lower_named(value, 0))


def _classes_in(value: Any, depth: int) -> Iterator[type]:
    """The named classes in a value's containers."""
    kind = type(value)
    if is_named_class(kind):
        yield kind
    elif kind in (list, tuple, dict) and depth <= DEPTH_MAX:
        for item in value:
            if type(item) not in PLAIN:
                yield from _classes_in(item, depth + 1)
        if kind is dict:
            yield from _classes_in(list(value.values()), depth)


def _lower_named(value: Any, depth: int) -> Any:
    kind = type(value)
    if is_named_class(kind):
        return shape_of(kind).lower(value, depth)
    if kind is list:
        return _shapes.lower_items(value, _lower_named, depth)
    if kind is tuple:
        return tuple(_shapes.lower_items(value, _lower_named, depth))
    if kind is dict:
        return lower_dict(value, _lower_named, _lower_named, depth)
    if kind is bytearray:
        return bytes(value)
    return lower_any(value, depth)


def _dataclass_writer(cls: type) -> _Writer:
    shape = shape_of(cls)
    _decoder(cls, cls)  # What msgspec cannot decode is better rejected by the sender.
    try:
        fits = shape.fits()
    except NoFastPath:
        return _lowered
    if fits is None:
        return _msgpack_encode

    def write(value: Any) -> bytes:
        return _msgpack_encode(value) if fits(value) else _lowered(value)

    return write


def _write_scalar(value: Any) -> bytes:
    return _DESCRIBED + _msgpack_encode(value) if type(value) in PLAIN else _lowered(value)


def _write_plain(value: Any) -> bytes:
    return _DESCRIBED + _msgpack_encode(value) if is_plain(value) else _lowered(value)


def _write_list(value: list[Any]) -> bytes:
    """A list of plain values, or of one class: the log of a persist()."""
    if value:
        # The class's writer checks the other items.
        kind = type(value[0])
        if kind not in PLAIN and kind not in tag_of and is_dataclass(kind):
            write = _list_writers.get(kind)
            if write is None:
                write = _list_writers[kind] = _list_writer(kind)
            return write(value)
    return _write_plain(value)


def _list_writer(cls: type) -> _Writer:
    shape = shape_of(types.GenericAlias(list, (cls,)))
    head = _NAMED + _msgpack_encode(cls.__qualname__)
    try:
        fits = shape.fits()
    except NoFastPath:
        return _lowered

    def write(value: list[Any]) -> bytes:
        return head + _msgpack_encode(value) if fits is None or fits(value) else _lowered(value)

    return write


_writers: dict[type, _Writer] = {**dict.fromkeys(PLAIN, _write_scalar), dict: _write_plain, list: _write_list}
_list_writers: dict[type, _Writer] = {}


# Decoding


@overload
def decode(data: Buffer, as_type: type[T]) -> T: ...
@overload
def decode(data: Buffer, as_type: Any) -> Any: ...
def decode(data: Buffer, as_type: Any) -> Any:
    """The value in these bytes, of the requested type: a class, list[LogEntry], int | None, Any, …

    Raises DecodeError if the bytes hold anything else.
    """
    try:
        read = _readers[as_type]
    except (KeyError, TypeError):  # TypeError: an annotation may be unhashable
        read = _new_reader(as_type)
    try:
        return read(data)
    except DecodeError:
        raise
    except Exception as error:
        raise _explained(error, as_type, data) from error


def _decoder(read_as: Any, asked: Any) -> msgspec.msgpack.Decoder[Any]:
    try:
        return msgspec.msgpack.Decoder(read_as, ext_hook=_ext_hook)
    except (TypeError, NameError) as error:
        raise Refused(f"cannot send {shape_of(asked).name}: {error}") from None


def _new_reader(as_type: Any) -> _Reader:
    try:
        shape = shape_of(as_type)
        bare = _decoder(as_type, as_type).decode
        if isinstance(shape, Class) and shape.is_map:
            read: _Reader = bare
        else:
            read = _message_reader(as_type, shape, bare)
    except Refused as refused:
        raise DecodeError(refused.text("")) from None
    with contextlib.suppress(TypeError):  # unhashable: made again each time
        _readers[as_type] = read
    return read


def _message_reader(as_type: Any, shape: Shape, bare: _Reader) -> _Reader:
    described: _Reader = _decoder(tuple[as_type], as_type).decode
    named: _Reader = _decoder(tuple[str, as_type], as_type).decode
    takes_dataclass = _takes_dataclass(shape)

    def read(data: Buffer) -> Any:
        mark = data[:1]
        if mark == _DESCRIBED:
            return _read_described(data)
        if mark == _NAMED:
            return _read_named(data)
        if mark and mark[0] in _MAP_MARKS:
            if not takes_dataclass:
                raise DecodeError(f"{shape.name}: these bytes hold a dataclass; decode them as its class")
            return bare(data)
        raise DecodeError(f"{shape.name}: these bytes are damaged, or not from labgob.encode()")

    def _read_described(data: Buffer) -> Any:
        if not shape.classes:  # otherwise a dict could be decoded as a dataclass
            try:
                return described(data)[0]
            except msgspec.ValidationError:
                pass  # it may be an extension (a tuple) where msgspec expects an array
        value = _read_any(data)[0]
        return bare(_msgpack_encode(shape.lower(value, 0)))

    def _read_named(data: Buffer) -> Any:
        if shape.has_any:
            raise DecodeError(
                f"{shape.name}: these bytes hold objects of a class; "
                "decode them as a type that names the class, such as list[LogEntry]"
            )
        names, value = named(data)
        if not shape.classes.issuperset(names.split(",")):
            raise DecodeError(f"{shape.name}: these bytes hold {names.replace(',', ', ')}")
        return value

    return read


def _takes_dataclass(shape: Shape) -> bool:
    members = shape.members if isinstance(shape, _shapes.Union) else [shape]
    return any(isinstance(member, Class) and member.is_map for member in members)


def _ext_hook(code: int, data: memoryview) -> Any:
    """Unpack what lower_any() has packed."""
    if code == _shapes.EXT_TUPLE:
        return tuple(_read_list(data))
    if code == _shapes.EXT_REGISTERED:
        end = 1 + data[0]
        name = bytes(data[1:end])
        cls = _registry.class_named(name)
        if cls is None:
            if _registry.carriers[0]:
                return _registry.Opaque(bytes(data[:end]), bytes(data[end:]))
            raise DecodeError(
                f"these bytes hold a {name.decode(errors='replace')}, which is not registered here; "
                "use @labgob.register on this class"
            )
        reader = _registered_readers.get(cls)
        if reader is None:
            reader = _registered_readers[cls] = _decoder(cls, cls).decode
        return reader(data[end:])
    if code == _shapes.EXT_BYTEARRAY:
        return bytearray(data)
    raise DecodeError(f"damaged: unknown extension {code}")


_readers: dict[Any, _Reader] = {}
_registered_readers: dict[type, _Reader] = {}
_read_list = msgspec.msgpack.Decoder(list, ext_hook=_ext_hook).decode
_read_any = msgspec.msgpack.Decoder(tuple[Any], ext_hook=_ext_hook).decode


def forget(is_gone: Callable[[type], bool]) -> None:
    """Drop all data about the classes for which this is true."""
    _registry.forget(is_gone)
    _shapes.forget(is_gone)
    caches: list[dict[Any, Any]] = [_writers, _list_writers, _readers, _registered_readers]
    for cache in caches:
        for key in [key for key in cache if any(map(is_gone, _types_in(key)))]:
            del cache[key]


def _types_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _types_in(argument)


_AT = re.compile(r"(?s)(.*?) - at (`key` in )?`\$(.*)`$")


def _explained(error: Exception, as_type: Any, data: Any) -> DecodeError:
    """Any failure as a DecodeError; msgspec's "… - at `$.entries[3].term`" as "Args.entries[3].term: …"."""
    if not isinstance(data, bytes | bytearray | memoryview):
        return DecodeError(f"decode(): data must be bytes, got {type(data).__name__}")
    shape = shape_of(as_type)
    if isinstance(error, Refused):
        return DecodeError(error.text(shape.name) if error.steps else f"{shape.name}: {error.reason}")
    if isinstance(error, RecursionError):
        return DecodeError(f"{shape.name}: damaged: nested too deeply")
    if isinstance(shape, Class) and shape.is_map and data[:1] in (_DESCRIBED, _NAMED):
        return DecodeError(f"{shape.name}: these bytes hold a value that is not a dataclass")
    if not isinstance(error, msgspec.ValidationError):
        return DecodeError(f"{shape.name}: damaged or truncated: {error or type(error).__name__}")
    text, steps = str(error), ""
    match = _AT.match(text)
    if match:
        text, in_key, steps = match[1], match[2], match[3]
        if data[:1] in (_DESCRIBED, _NAMED):
            steps = re.sub(r"^\[\d\]", "", steps)  # the message itself is an array
        if in_key:
            steps += " (a key)"
    text = text.replace("`", "")
    return DecodeError(f"{shape.name}{steps}: {text[:1].lower()}{text[1:]}")


# Several values in one buffer


class Encoder:
    """Appends values to one buffer, as persist() does: e.encode(self.current_term); …; e.bytes()."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def encode(self, value: Any) -> None:
        data = encode(value)
        self._parts.append(len(data).to_bytes(_LENGTH_BYTES, "big"))
        self._parts.append(data)

    def bytes(self) -> bytes:
        return b"".join(self._parts)


class Decoder:
    """Reads an Encoder's values in the order they were appended: term = d.decode(int); …"""

    def __init__(self, data: Buffer) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise DecodeError(f"Decoder(): data must be bytes, got {type(data).__name__}")
        self._data = bytes(data)
        self._at = 0
        self._count = 0

    @property
    def done(self) -> bool:
        """Whether every value has been read."""
        return self._at == len(self._data)

    @overload
    def decode(self, as_type: type[T]) -> T: ...
    @overload
    def decode(self, as_type: Any) -> Any: ...
    def decode(self, as_type: Any) -> Any:
        """The next value. Raises DecodeError, without advancing, if the next value is of another type."""
        if self.done:
            raise DecodeError(f"no more values: all {self._count} have been decoded; check Decoder.done first")
        start, end = self._bounds(self._at)
        if end > len(self._data):
            raise DecodeError(f"value {self._count + 1}: damaged or truncated, or not from labgob.Encoder")
        try:
            value = decode(self._data[start:end], as_type)
        except DecodeError as error:
            raise DecodeError(f"value {self._count + 1}{self._of_all(end)}: {error}") from error
        self._at = end
        self._count += 1
        return value

    def _bounds(self, at: int) -> tuple[int, int]:
        """The start and end of the value whose length is at this position."""
        start = at + _LENGTH_BYTES
        return start, start + int.from_bytes(self._data[at:start], "big")

    def _of_all(self, end: int) -> str:
        """ " of 3": the number of values; "" if the rest of the data is damaged."""
        count = self._count + 1
        while end < len(self._data):
            end = self._bounds(end)[1]
            count += 1
        return f" of {count}" if end == len(self._data) else ""
