"""labgob under fire: generated values must come back the same, and garbage must never do anything but be refused."""

from __future__ import annotations

import contextlib
import enum
import random
import types
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import labgob
from labgob import _codec
from unit.labgob.sameness import same

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)


class Role(enum.Enum):
    FOLLOWER = "follower"
    LEADER = "leader"


@labgob.register
class Verb(enum.IntEnum):
    GET = 1
    PUT = 2


@labgob.register
@dataclass(frozen=True)
class Command:
    verb: Verb
    key: str
    value: Any = None


class Span(NamedTuple):
    start: int
    end: int | None


@dataclass(slots=True)
class Entry:
    term: int
    command: Any


@dataclass
class Message:
    term: int
    ratio: float
    role: Role
    entries: list[Entry]
    spans: dict[str, tuple[Span, ...]]
    last: Entry | None = None
    blob: bytes = b""
    ok: bool = False
    extra: Any = None


PLAIN_TYPES = (types.NoneType, bool, int, float, str, bytes)


ints = st.integers(-(2**63), 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.none() | st.booleans() | ints | st.floats() | texts | st.binary(max_size=20)
keys = st.recursive(scalars, lambda inner: st.tuples(inner, inner), max_leaves=3)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(Command, st.sampled_from(Verb), texts, inner)
        | st.binary(max_size=5).map(bytearray)
        | st.sampled_from(Verb)
    )


anything = st.recursive(scalars, containers, max_leaves=12)
entries = st.builds(Entry, ints, anything)
spans = st.builds(Span, ints, st.none() | ints)
messages = st.builds(
    Message,
    term=ints,
    ratio=st.floats(),
    role=st.sampled_from(Role),
    entries=st.lists(entries, max_size=4),
    spans=st.dictionaries(texts, st.lists(spans, max_size=3).map(tuple), max_size=3),
    last=st.none() | entries,
    blob=st.binary(max_size=20),
    ok=st.booleans(),
    extra=anything,
)


@SETTINGS
@given(anything)
def test_anything_plain_or_registered_survives_an_any_field(value: Any) -> None:
    sent = Entry(1, value)
    assert same(labgob.decode(labgob.encode(sent), Entry), sent)
    assert same(labgob.decode(labgob.encode([value]), list), [value])
    assert same(labgob.decode(labgob.encode((value,)), Any), (value,))


@SETTINGS
@given(messages)
def test_fast_path_round_trips_and_equals_slow_path(message: Message) -> None:
    data = labgob.encode(message)
    assert same(labgob.decode(data, Message), message)
    assert data == _codec._lowered(message)
    assert data == labgob.encode(labgob.decode(data, Message))


@SETTINGS
@given(st.lists(entries, max_size=5), st.dictionaries(st.sampled_from(Role), spans), ints)
def test_a_persisted_state_survives(log: list[Entry], by_role: dict[Role, Span], term: int) -> None:
    encoder = labgob.Encoder()
    for value in (term, log, by_role):
        encoder.encode(value)
    decoder = labgob.Decoder(encoder.bytes())
    assert decoder.decode(int) == term
    assert same(decoder.decode(list[Entry]), log)
    assert same(decoder.decode(dict[Role, Span]), by_role)
    assert decoder.done


# Garbage


def is_any(value: Any) -> bool:
    if isinstance(value, Command):
        return is_command(value)
    if isinstance(value, list | tuple):
        return all(map(is_any, value))
    if isinstance(value, dict):
        return all(map(is_any, value)) and all(map(is_any, value.values()))
    # A timestamp is the one thing msgspec makes of foreign bytes that labgob never writes.
    return type(value) in (*PLAIN_TYPES, bytearray, Verb) or type(value).__name__ == "datetime"


def is_command(value: Any) -> bool:
    return type(value) is Command and type(value.verb) is Verb and type(value.key) is str and is_any(value.value)


def is_entry(value: Any) -> bool:
    return type(value) is Entry and type(value.term) is int and is_any(value.command)


def is_message(value: Any) -> bool:
    return (
        type(value) is Message
        and type(value.term) is int
        and type(value.ratio) is float
        and type(value.role) is Role
        and type(value.entries) is list
        and all(map(is_entry, value.entries))
        and type(value.spans) is dict
        and all(type(key) is str for key in value.spans)
        and all(type(some) is tuple and all(type(span) is Span for span in some) for some in value.spans.values())
        and (value.last is None or is_entry(value.last))
        and type(value.blob) is bytes
        and type(value.ok) is bool
        and is_any(value.extra)
    )


def is_list_of_entries(value: Any) -> bool:
    return type(value) is list and all(map(is_entry, value))


KINDS: list[tuple[Any, Any]] = [
    (Message, is_message),
    (Entry, is_entry),
    (Any, is_any),
    (int, lambda value: type(value) is int),
    (str, lambda value: type(value) is str),
    (list[Entry], is_list_of_entries),
    (dict[str, int], lambda value: all(type(k) is str and type(v) is int for k, v in value.items())),
    (tuple[int, Any], lambda value: type(value[0]) is int and is_any(value[1])),
    (Role, lambda value: type(value) is Role),
    (Span | None, lambda value: value is None or type(value) is Span),
]
ENTRIES = [Entry(1, "x"), Entry(2, (1, (2.5, None))), Entry(3, Command(Verb.PUT, "k", [b"v", {1: ()}]))]
VALID = [
    labgob.encode(value)
    for value in (
        Message(3, 0.5, Role.LEADER, ENTRIES, {"a": (Span(1, None), Span(2, 3))}, ENTRIES[1], b"blob", True, (1,)),
        ENTRIES[2],
        ENTRIES,
        [1, "two", (3.0, b"four"), {"five": None}],
        Role.LEADER,
        {"a": 1},
        (1, bytearray(b"x")),
        Span(1, 2),
        2**40,
        "text",
    )
]


def feed(data: bytes) -> int:
    """Decode as every kind; how many took it. Any other outcome than a fitting value or DecodeError fails."""
    taken = 0
    for kind, fits in KINDS:
        try:
            value = labgob.decode(data, kind)
        except labgob.DecodeError:
            continue
        assert fits(value), (data, kind, value)
        taken += 1
    with contextlib.suppress(labgob.DecodeError):
        labgob.Decoder(data).decode(Any)
    return taken


def test_the_kinds_take_what_is_valid() -> None:
    # Else the tests below would pass with a decoder that refuses everything.
    assert [feed(data) for data in VALID] == [1, 1, 1, 1, 1, 2, 2, 1, 2, 2]


def test_random_bytes_are_refused_or_fit() -> None:
    rng = random.Random(6824)
    marks = [b"", b"\x91", b"\x92", b"\x81", b"\x82\xa4term", b"\x91\xc7\x05\x01", b"\x91\xc7\x20\x02"]
    for _ in range(4_000):
        feed(rng.choice(marks) + rng.randbytes(rng.randrange(24)))


def test_mutated_messages_are_refused_or_fit() -> None:
    rng = random.Random(6825)
    taken = 0
    for i in range(4_000):
        data = bytearray(VALID[i % len(VALID)])
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    data[at] ^= 1 << rng.randrange(8)
                case 2:
                    data[at:at] = rng.randbytes(rng.randrange(1, 4))
                case 3 if len(data) > 1:
                    del data[at]
        taken += feed(bytes(data))
    assert taken > 100  # some damage leaves a valid value: the other half of the claim was tried too


def test_messages_cut_at_every_byte_or_continued_are_refused() -> None:
    rng = random.Random(6826)
    count = 0
    for data in VALID:
        for cut in range(len(data)):
            assert feed(data[:cut]) == 0
            count += 1
        for _ in range(200):
            assert feed(data + rng.randbytes(rng.randrange(1, 9))) == 0
            count += 1
    assert count > 2_000


@pytest.mark.parametrize("mark", [b"\x91", b"\x81", b"\x92\xa0", b"\x81\x01", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff"])
def test_deep_or_boundless_nesting_is_refused(mark: bytes) -> None:
    assert feed(mark * 50_000) == 0
    assert feed(b"\x91" + mark * 50_000) == 0
