"""Writes and reads traces as JSON lines, and writes ShiViz's format. docs/student/trace.md describes both.

Promise: read_trace() returns a list of `labsim.Event` whose messages have the interface of `labrpc.Message` (source,
target, service_method, decode_args(), decode_reply()), so readers of live traces can read files without the peer's
classes. A damaged file raises TraceFileError with the line number.

Not promised: the bytes. Of saved state and snapshots, a file has size, checksum and the first bytes. An object comes
back as its fields, a tuple as a list. Start at write_trace().
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from labsim import Event
from raftlab.trace.events import ANSWER, DELIVER, DETAILS, DROP, DUPLICATE, LOG, MESSAGE_KINDS, PERSIST, REPLY, SEND

FORMAT = "raftlab trace"
VERSION = 2

_WHOLE_BYTES = 48  # longer values keep only their beginning
_DEEP = 40


class TraceFileError(Exception):
    """The file is not a valid trace; the text says where and why."""


class TraceFileHeader(msgspec.Struct, omit_defaults=True):
    """The first line."""

    format: str
    version: int
    test: str = ""
    seed: int | None = None
    digest: str = ""
    events: int | None = None  # how many lines follow; without it, a truncated file is not noticed


class _EventLine(msgspec.Struct, omit_defaults=True):
    """One event in the file."""

    at_ns: int
    kind: str
    node: str = ""
    incarnation: int = 0
    message: int = 0
    copy: int = 0  # 1 for a duplicated request, whose handler may answer otherwise
    method: str = ""
    source: str = ""
    target: str = ""
    args: Any = None
    reply: Any = None
    detail: Any = None
    note: str = ""


class Trace(NamedTuple):
    header: TraceFileHeader
    events: list[Event]


class RecordedBytes(NamedTuple):
    """The beginning of bytes; len() is their true length."""

    size: int
    start: bytes
    crc32: int

    def __len__(self) -> int:
        return self.size


class RecordedMessage:
    """Has the interface of labrpc.Message."""

    __slots__ = ("_args", "_reply", "id", "service_method", "source", "target")

    def __init__(self, id_: int, source: str, target: str, service_method: str, args: Any) -> None:
        self.id = id_
        self.source = source
        self.target = target
        self.service_method = service_method
        self._args = args
        self._reply: Any = None

    @property
    def method_name(self) -> str:
        return self.service_method.rpartition(".")[2]

    @property
    def rpc(self) -> str:
        """As in Message; a file has no other name."""
        return self.service_method

    def decode_args(self) -> Any:
        return self._args

    def decode_reply(self) -> Any:
        return self._reply

    def __repr__(self) -> str:
        return f"<RecordedMessage {self.id} {self.service_method} {self.source}->{self.target}>"


# ---- values --------------------------------------------------------------------------------------------------


def plain(value: Any, depth: int = 0) -> Any:
    """A value as plain JSON. Never fails: any other value becomes its repr."""
    if value is None or value.__class__ in (bool, int, float, str):
        return value
    if depth > _DEEP:
        return {"$repr": "..."}
    names = _field_names(value.__class__)
    if names is not None:
        return {name: plain(getattr(value, name, None), depth + 1) for name in names}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _plain_bytes(bytes(value))
    if isinstance(value, RecordedBytes):
        return _plain_recorded(value)
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: plain(item, depth + 1) for key, item in value.items()}
        return {"$pairs": [[plain(key, depth + 1), plain(item, depth + 1)] for key, item in value.items()]}
    if isinstance(value, (set, frozenset)):
        # Sorted: the order of a set depends on the hash seed.
        return {"$set": sorted((plain(item, depth + 1) for item in value), key=repr)}
    if isinstance(value, SimpleNamespace):
        return {name: plain(item, depth + 1) for name, item in vars(value).items()}
    for base in (bool, int, float, str):  # enums and other subclasses
        if isinstance(value, base):
            return base(value)
    return {"$repr": _safe_repr(value)}


@functools.lru_cache(maxsize=256)  # a peer may make its classes anew for every incarnation
def _field_names(cls: type) -> tuple[str, ...] | None:
    """The fields of a dataclass or a msgspec.Struct; None for any other class."""
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return cls.__struct_fields__ if issubclass(cls, msgspec.Struct) else None


def _plain_bytes(value: bytes) -> dict[str, Any]:
    start = base64.b64encode(value[:_WHOLE_BYTES]).decode()
    if len(value) <= _WHOLE_BYTES:
        return {"$bytes": len(value), "base64": start}
    return {"$bytes": len(value), "base64": start, "crc32": crc32(value)}


def _plain_recorded(value: RecordedBytes) -> dict[str, Any]:
    shown: dict[str, Any] = {"$bytes": value.size, "base64": base64.b64encode(value.start).decode()}
    if value.size > len(value.start):
        shown["crc32"] = value.crc32
    return shown


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr fails: {type(error).__name__}>"


def _revive(value: Any) -> Any:
    """The inverse of plain(): objects with attributes, lengths and items."""
    if isinstance(value, list):
        return [_revive(item) for item in value]
    if isinstance(value, dict):
        if "$bytes" in value:
            start = base64.b64decode(value["base64"])
            return RecordedBytes(int(value["$bytes"]), start, value.get("crc32", crc32(start)))
        if "$pairs" in value:
            return [(_revive(key), _revive(item)) for key, item in value["$pairs"]]
        if "$set" in value:
            return [_revive(item) for item in value["$set"]]
        if "$repr" in value:
            return value["$repr"]
        return SimpleNamespace(**{key: _revive(item) for key, item in value.items()})
    return value


# ---- JSON lines ----------------------------------------------------------------------------------------------


def write_trace(
    path: Path | str, events: Sequence[Event], *, test: str = "", seed: int | None = None, digest: str = ""
) -> None:
    """Write a header and the events, one line each."""
    encode = msgspec.json.Encoder().encode
    with Path(path).open("wb") as file:
        file.write(encode(TraceFileHeader(FORMAT, VERSION, test, seed, digest, len(events))) + b"\n")
        for line in _lines(events):
            file.write(encode(line) + b"\n")


def _lines(events: Iterable[Event]) -> Iterator[_EventLine]:
    original: dict[int, Any] = {}
    for event in events:
        line = _EventLine(event.at_ns, event.kind, event.node, event.incarnation, event.message, note=event.note)
        detail = event.detail
        if event.kind in MESSAGE_KINDS:
            line.method, line.source, line.target = detail.service_method, detail.source, detail.target
            if event.kind == SEND:
                original[event.message] = detail
                line.args = plain(detail.decode_args())
            elif event.kind == ANSWER:
                line.reply = plain(detail.decode_reply())
            line.copy = int(original.get(event.message, detail) is not detail)
        else:
            line.detail = plain(detail)
        yield line


def read_trace(path: Path | str) -> Trace:
    """Read a file that write_trace() wrote."""
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TraceFileError(f"{path}: {error.strerror or error}") from None
    header = _read_header(path, lines)
    decode = msgspec.json.Decoder(_EventLine).decode
    reader = _TraceReader()
    events = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            events.append(reader.event(decode(line)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            shown = line[:60].decode("utf-8", "replace")
            raise TraceFileError(f"{path}:{number}: not an event: {error}: {shown}") from None
        except (KeyError, ValueError, TypeError) as error:
            raise TraceFileError(f"{path}:{number}: not an event: {_describe(error)}") from None
    if header.events is not None and header.events != len(events):
        raise TraceFileError(
            f"{path}:{len(lines)}: the file has {len(events)} events, but its first line says {header.events} (if you "
            "truncated or filtered it, remove the field 'events' from the first line)"
        )
    return Trace(header, events)


def _describe(error: Exception) -> str:
    return f"the field {error} is missing" if isinstance(error, KeyError) else str(error)


def _read_header(path: Path, lines: list[bytes]) -> TraceFileHeader:
    if not lines:
        raise TraceFileError(f"{path}:1: the file is empty; a trace begins with a line that names its format")
    try:
        header = msgspec.json.decode(lines[0], type=TraceFileHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceFileError(
            f'{path}:1: not a trace: the first line must be like {{"format":"{FORMAT}","version":{VERSION}}} ({error})'
        ) from None
    if header.format != FORMAT:
        raise TraceFileError(f"{path}:1: not a trace: its format is {header.format!r}, not {FORMAT!r}")
    if header.version != VERSION:
        raise TraceFileError(f"{path}:1: version {header.version} of the format; this program reads {VERSION}")
    return header


class _TraceReader:
    """Lines to events. Arguments are only in the line of the send, a reply only in that of the answer."""

    def __init__(self) -> None:
        self._messages: dict[tuple[int, int], RecordedMessage] = {}

    def event(self, line: _EventLine) -> Event:
        return Event(line.at_ns, line.kind, line.node, line.incarnation, line.message, self._detail(line), line.note)

    def _detail(self, line: _EventLine) -> Any:
        kind = line.kind
        if kind in MESSAGE_KINDS:
            return self._message(line)
        known = DETAILS.get(kind)
        if isinstance(known, type) and issubclass(known, msgspec.Struct):
            fields = msgspec.structs.fields(known)
            _need(line.detail, *(field.name for field in fields if field.required))
            return known(**{f.name: _revive(line.detail[f.name]) for f in fields if f.name in line.detail})
        return _revive(line.detail)

    def _message(self, line: _EventLine) -> RecordedMessage:
        if not (line.method and line.source):
            raise ValueError(f"a {line.kind!r} must have a method and a source")
        key = (line.message, line.copy)
        if line.kind == SEND:
            self._messages[key] = RecordedMessage(
                line.message, line.source, line.target, line.method, _revive(line.args)
            )
        elif key not in self._messages:
            # A duplicate, or a file whose beginning was removed.
            sent = self._messages.get((line.message, 0))
            args = None if sent is None else sent.decode_args()
            self._messages[key] = RecordedMessage(line.message, line.source, line.target, line.method, args)
        message = self._messages[key]
        if line.kind == ANSWER:
            message._reply = _revive(line.reply)
        return message


def _need(detail: Any, *names: str) -> None:
    if not isinstance(detail, dict):
        raise ValueError("the field 'detail' must be an object")
    for name in names:
        if name not in detail:
            raise KeyError(f"detail.{name}")


# ---- ShiViz --------------------------------------------------------------------------------------------------

# For ShiViz's field "Log parsing regular expression".
SHIVIZ_REGEX = r"(?<host>\S+) (?<clock>{.*})\n(?<time>\S+) (?<event>.*)"


def write_shiviz(path: Path | str, events: Sequence[Event]) -> None:
    """Write the run for ShiViz: a process per peer and one for the tester, ordered by vector clocks."""
    Path(path).write_text("".join(shiviz_lines(events)), encoding="utf-8")


def shiviz_lines(events: Sequence[Event]) -> Iterator[str]:
    """Two lines per event. A request is an edge from send to deliver, a reply one from answer to reply."""
    lost = {id(e.detail): e.note for e in events if e.kind == DROP}
    clocks: dict[str, dict[str, int]] = {}
    carried: dict[tuple[int, str], dict[str, int]] = {}
    for event in events:
        if event.kind in (DROP, DUPLICATE):
            continue  # these are not events of a process
        host = _host(event.node)
        clock = clocks.setdefault(host, {})
        came_from = {DELIVER: SEND, REPLY: ANSWER}.get(event.kind)
        if came_from is not None:
            # A duplicate is another object, but was sent with the first.
            sent = carried.get((id(event.detail), came_from)) or carried.get((-event.message, came_from)) or {}
            for name, count in sent.items():
                clock[name] = max(clock.get(name, 0), count)
        clock[host] = clock.get(host, 0) + 1
        if event.kind in (SEND, ANSWER):
            carried[(id(event.detail), event.kind)] = carried[(-event.message, event.kind)] = dict(clock)
        encoded = msgspec.json.encode(dict(sorted(clock.items()))).decode()
        yield f"{host} {encoded}\n{event.at_ns / 1e9:.6f} {_describe_event(event, lost)}\n"


def _host(node: str) -> str:
    return f"peer{''.join(node.split())}" if node else "tester"


def _describe_event(event: Event, lost: dict[int, str]) -> str:
    detail = event.detail
    if event.kind in MESSAGE_KINDS:
        method = detail.method_name
        asks = event.kind in (SEND, DELIVER)
        what = _json(detail.decode_args() if asks else detail.decode_reply())
        other = detail.target if event.kind in (SEND, REPLY) else detail.source
        way = "to" if event.kind in (SEND, ANSWER) else "from"
        loss = f" (lost: {lost[id(detail)]})" if event.kind in (SEND, ANSWER) and id(detail) in lost else ""
        return f"{event.kind} {method} {way} {other}{loss} {what}"
    if event.kind == PERSIST:
        return f"persist {len(detail.raft_state)} bytes, snapshot {len(detail.snapshot)} bytes"
    if event.kind == LOG:
        return " ".join(f"[{detail.topic}] {detail.text}".split())
    return f"{event.kind} {'' if detail is None else _json(detail)}".rstrip()


def _json(value: Any) -> str:
    text = msgspec.json.encode(plain(value)).decode()
    return text if len(text) <= 300 else f"{text[:297]}..."
