"""labgob: what travels, what is refused, and with which words. The fuzzing is in test_fuzz.py."""

from __future__ import annotations

import dataclasses
import enum
import math
import subprocess
import sys
import textwrap
import threading
import typing
import uuid
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar

import pytest

import labgob
from labgob import _codec, _shapes
from raftlab.layout import FOLDERS
from unit.labgob.sameness import same


@dataclass(slots=True)
class LogEntry:
    term: int
    command: Any


@dataclass(slots=True)
class RequestVoteArgs:
    term: int
    candidate_id: int
    last_log_index: int = 0
    last_log_term: int = 0


@dataclass
class AppendEntriesArgs:
    term: int
    leader_id: int
    entries: list[LogEntry] = field(default_factory=list)
    leader_commit: int = 0


@dataclass(frozen=True)
class Point:
    x: int
    y: int


@dataclass(frozen=True)
class Point3D(Point):
    z: int = 0


@labgob.register
@dataclass
class Op:
    kind: str
    key: str
    value: Any = None


@labgob.register
class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Role(enum.IntEnum):
    FOLLOWER = 0
    LEADER = 1


class Shade(enum.Enum):
    DARK = 1


class Flags(enum.IntFlag):
    A = 1
    B = 2


@labgob.register
class Pair(NamedTuple):
    left: int
    right: Any = None


@dataclass
class Node:
    value: Any
    next: Node | None = None


Term = NewType("Term", int)
V = TypeVar("V")


@dataclass
class Box(Generic[V]):
    item: V


@dataclass
class Everything:
    flag: bool
    number: int
    real: float
    text: str
    data: bytes
    mutable: bytearray
    nothing: None
    anything: Any
    numbers: list[int]
    points: list[Point]
    by_name: dict[str, Point]
    by_id: dict[int, list[str]]
    by_role: dict[Role, int]
    by_pair: dict[tuple[int, int], str]
    pair: tuple[int, str]
    many: tuple[Point, ...]
    role: Role
    flags: Flags
    maybe: Point | None
    maybe_old_style: Optional[int]  # noqa: UP045 - the spelling must work too
    either: int | str | list[Point]
    named: Pair
    term: Term
    choice: Literal["a", 1]
    loose_list: list  # type: ignore[type-arg]
    loose_dict: dict  # type: ignore[type-arg]
    loose_tuple: tuple  # type: ignore[type-arg]
    thing: object
    alias: typing.List[int]  # noqa: UP006 - the spelling must work too


def everything() -> Everything:
    return Everything(
        flag=True,
        number=-5,
        real=2.5,
        text="§5.4.2",
        data=b"\x00\xff",
        mutable=bytearray(b"ab"),
        nothing=None,
        anything={1: [(1, "a"), Op("put", "k", (2,))]},
        numbers=[1, 2],
        points=[Point(1, 2)],
        by_name={"b": Point(3, 4), "a": Point(5, 6)},
        by_id={7: ["x"], 3: []},
        by_role={Role.LEADER: 1},
        by_pair={(1, 2): "p"},
        pair=(1, "one"),
        many=(Point(0, 0), Point(1, 1)),
        role=Role.LEADER,
        flags=Flags.A | Flags.B,
        maybe=Point(8, 9),
        maybe_old_style=None,
        either=[Point(1, 1)],
        named=Pair(1, (2, 3)),
        term=Term(4),
        choice="a",
        loose_list=[1, (2,), Colour.RED],
        loose_dict={(1, "a"): (2,)},
        loose_tuple=(1, (2, [3])),
        thing=(1,),
        alias=[3],
    )


def everything_plain() -> Everything:
    """The same for the fast path: nothing in it needs more than msgspec."""
    return dataclasses.replace(
        everything(), anything=1, loose_list=[], loose_dict={}, loose_tuple=(), thing=2, named=Pair(1)
    )


def round_trip(value: Any, as_type: Any = None) -> Any:
    return labgob.decode(labgob.encode(value), as_type or type(value))


def refusal(value: Any) -> str:
    with pytest.raises(labgob.EncodeError) as caught:
        labgob.encode(value)
    return str(caught.value)


def decode_refusal(data: Any, as_type: Any) -> str:
    with pytest.raises(labgob.DecodeError) as caught:
        labgob.decode(data, as_type)
    return str(caught.value)


# What travels


def test_every_kind_of_field_arrives_equal_and_of_the_same_type() -> None:
    value = everything()
    assert same(round_trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        *[
            None,
            True,
            False,
            0,
            1,
            -1,
            2**31,
            2**63,
            2**64 - 1,
            -(2**63),
            1.0,
            -0.0,
            1e300,
            math.inf,
            -math.inf,
        ],
        *[
            math.nan,
            "",
            "a",
            "é\U0001f600\x00",
            b"",
            b"\xff",
            [],
            [1, [2, [3]]],
            {},
            {"a": {"b": 1}},
            (),
            (1,),
        ],
        *[(1, (2, [3, (4,)])), [(1,)], {1: "int", "1": "str"}, {None: 1, b"k": 2, 1.5: 3, True: 4}],
        *[
            {(1, ("a", None)): (2,)},
            bytearray(b"x"),
            Op("get", "k"),
            Op("put", "k", [Op("nested", "", (1,))]),
        ],
        *[Colour.BLUE, [Colour.RED, Colour.RED], Pair(1, Pair(2, ())), [{"k": (Op("a", "b"),)}]],
        *[{"z": 1, "a": 2, "m": 3}, "x" * 70_000, b"y" * 70_000, list(range(300))],
    ],
    ids=lambda value: repr(value)[:30],
)
def test_any_value_arrives_equal_and_of_the_same_type(value: Any) -> None:
    assert same(round_trip(LogEntry(1, value)), LogEntry(1, value))
    assert same(round_trip([value], list), [value])
    assert same(round_trip([value], Any), [value])
    if type(value) is not Op:  # a dataclass at the top is read by its class
        assert same(round_trip(value, Any), value)


@pytest.mark.parametrize(
    ("value", "as_type"),
    [
        (3, int),
        (None, int | None),
        (1, float),
        ([1, 2.5], list[float]),
        ([1, 2], list[int]),
        ((1, "a"), tuple[int, str]),
        ([(1, 2), (3, 4)], list[tuple[int, int]]),
        ((1, 2, 3), tuple[int, ...]),
        ({"a": 1}, dict[str, int]),
        ({3: (1, "x")}, dict[int, tuple[int, Any]]),
        ([], list[LogEntry]),
        ([LogEntry(1, 2), LogEntry(2, ("x",))], list[LogEntry]),
        ((LogEntry(1, 2), None), tuple[LogEntry, LogEntry | None]),
        ({"a": [Point(1, 2)], "b": []}, dict[str, list[Point]]),
        ({Role.LEADER: Point(1, 2)}, dict[Role, Point]),
        (Point(1, 2), Point | None),
        (None, Point | None),
        (Role.LEADER, Role),
        (Colour.RED, Colour),
        ([Op("put", "k")], list[Op]),
        (Pair(1, (2,)), Pair),
        ([Node(1), None], list[Node | None]),
        (bytearray(b"x"), bytearray),
    ],
    ids=repr,
)
def test_error_names_the_requested_type_of_a_non_dataclass(value: Any, as_type: Any) -> None:
    arrived = round_trip(value, as_type)
    assert arrived == value and type(arrived) is (float if as_type is float else type(value))


def test_an_int_in_a_float_field_arrives_as_a_float() -> None:
    @dataclass
    class Wait:
        seconds: float

    arrived = round_trip(Wait(3))
    assert arrived.seconds == 3.0 and type(arrived.seconds) is float


def test_subclasses_arrive_as_what_the_annotation_promises() -> None:
    class Name(str):
        def __str__(self) -> str:
            return "not this"

    @dataclass
    class Fields:
        number: int
        text: str
        data: bytes
        numbers: list[int]

    class Big(int):
        pass

    for number in (Role.LEADER, Shade.DARK, Big(1)):
        sent = Fields(number, Name("n"), bytearray(b"ab"), [Role.LEADER])  # type: ignore[arg-type]
        assert same(round_trip(sent), Fields(1, "n", b"ab", [1]))


def test_a_class_that_contains_itself() -> None:
    value = Node((1,), Node("a", Node(None)))
    assert same(round_trip(value), value)


def test_a_typevar_is_any() -> None:
    assert same(round_trip(Box((1, 2))), Box((1, 2)))


def test_a_class_made_in_a_function() -> None:
    @dataclass
    class Local:
        points: dict[str, tuple[Point, ...]]
        any: Any = None

    assert same(round_trip(Local({"a": (Point(1, 2),)}, (1,))), Local({"a": (Point(1, 2),)}, (1,)))


def test_the_senders_changes_do_not_reach_the_receiver() -> None:
    raw, view = bytearray(b"abc"), memoryview(bytearray(b"xyz"))

    @dataclass
    class Blob:
        data: bytes
        view: bytes
        any: Any

    commands: list[Any] = [1, {"k": [2]}]
    data = labgob.encode(Blob(raw, view, commands))  # type: ignore[arg-type]
    raw[:] = b"!!!"
    view[:] = b"!!!"
    commands[1]["k"].append(3)
    commands.append(4)
    first, second = labgob.decode(data, Blob), labgob.decode(data, Blob)
    assert same(first, Blob(b"abc", b"xyz", [1, {"k": [2]}]))
    first.any[1]["k"].append(5)
    assert same(second, Blob(b"abc", b"xyz", [1, {"k": [2]}]))


def test_what_was_decoded_keeps_nothing_of_a_mutable_buffer() -> None:
    buffer = bytearray(labgob.encode(LogEntry(1, [b"abc", bytearray(b"def"), ("tuple",)])))
    arrived = labgob.decode(buffer, LogEntry)
    buffer[:] = bytes(len(buffer))
    assert same(arrived, LogEntry(1, [b"abc", bytearray(b"def"), ("tuple",)]))
    assert same(labgob.decode(memoryview(labgob.encode([1, (2,)])), Any), [1, (2,)])


def test_new_fields_with_defaults_and_fields_since_removed() -> None:
    def version(*names: str) -> type:
        return dataclasses.make_dataclass("Args", [(name, int, 7) for name in names])

    old, new = version("term"), version("term", "extra")
    assert labgob.decode(labgob.encode(old(1)), new) == new(1, 7)
    assert labgob.decode(labgob.encode(new(1, 2)), old) == old(1)


def test_a_message_is_compact() -> None:
    assert len(labgob.encode(RequestVoteArgs(1, 2, 3, 4))) <= 64
    entries = [LogEntry(1, "x" * 5000)]
    assert len(labgob.encode(AppendEntriesArgs(1, 0, entries))) <= 5000 + 100


# Several values in one buffer


def test_values_come_out_of_a_buffer_in_the_order_they_went_in() -> None:
    encoder = labgob.Encoder()
    log = [LogEntry(1, "a"), LogEntry(2, (3,))]
    for value in (7, None, log, {"k": 1}):
        encoder.encode(value)
    data = encoder.bytes()
    assert data == encoder.bytes()
    decoder = labgob.Decoder(data)
    assert not decoder.done
    assert decoder.decode(int) == 7
    assert decoder.decode(int | None) is None
    assert same(decoder.decode(list[LogEntry]), log)
    assert not decoder.done
    assert decoder.decode(Any) == {"k": 1}
    assert decoder.done
    with pytest.raises(
        labgob.DecodeError, match=r"^no more values: all 4 have been decoded; check Decoder.done first$"
    ):
        decoder.decode(int)


def test_a_buffer_read_with_the_wrong_type_stays_in_place() -> None:
    encoder = labgob.Encoder()
    encoder.encode(1)
    encoder.encode("a")
    decoder = labgob.Decoder(encoder.bytes())
    decoder.decode(int)
    with pytest.raises(labgob.DecodeError, match=r"^value 2 of 2: int: expected int, got str 'a'$"):
        decoder.decode(int)
    assert decoder.decode(str) == "a"


def test_a_value_that_was_refused_is_not_in_the_buffer() -> None:
    encoder = labgob.Encoder()
    encoder.encode(1)
    with pytest.raises(labgob.EncodeError):
        encoder.encode(object())
    assert labgob.Decoder(encoder.bytes()).decode(int) == 1
    assert len(encoder.bytes()) == 6


def test_a_damaged_buffer() -> None:
    encoder = labgob.Encoder()
    encoder.encode(300)
    data = encoder.bytes()
    for cut in range(1, len(data)):
        with pytest.raises(labgob.DecodeError, match=r"^value 1: damaged or truncated, or not from labgob.Enc"):
            labgob.Decoder(data[:cut]).decode(int)
    assert labgob.Decoder(b"").done
    with pytest.raises(
        labgob.DecodeError, match=r"^no more values: all 0 have been decoded; check Decoder.done first$"
    ):
        labgob.Decoder(b"").decode(int)
    with pytest.raises(labgob.DecodeError, match=r"^Decoder\(\): data must be bytes, got NoneType$"):
        labgob.Decoder(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, [0, 0, 0, 0, 0], Point(1, 2), "", {}, None], ids=repr)
def test_encode_and_encoder_bytes_are_not_taken_for_each_other(value: Any) -> None:
    with pytest.raises(labgob.DecodeError):
        labgob.Decoder(labgob.encode(value)).decode(type(value))
    encoder = labgob.Encoder()
    encoder.encode(value)
    with pytest.raises(labgob.DecodeError):
        labgob.decode(encoder.bytes(), type(value))


# What is refused, where it is sent


def test_the_errors_are_value_errors_with_one_base() -> None:
    assert issubclass(labgob.EncodeError, labgob.GobError) and issubclass(labgob.DecodeError, labgob.GobError)
    assert issubclass(labgob.GobError, ValueError)


def with_command(command: Any) -> AppendEntriesArgs:
    return AppendEntriesArgs(1, 2, [LogEntry(1, i) for i in range(3)] + [LogEntry(1, command)])


WHERE = "AppendEntriesArgs.entries[3].command"
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            threading.Lock(),
            f"{WHERE}: cannot encode <class '_thread.lock'>: "
            "send plain values (int, str, list, ...) or a registered dataclass",
        ),
        (
            Point(1, 2),
            f"{WHERE}: cannot encode <class '{__name__}.Point'>: "
            "use @labgob.register on this class, or send plain values",
        ),
        (
            {"a": [1, (2, Role.LEADER)]},
            f"{WHERE}['a'][1][1]: cannot encode <enum 'Role'>: "
            "use @labgob.register on this class, or send plain values",
        ),
        (
            Op("put", "k", [len]),
            f"{WHERE}.value[0]: cannot encode <class 'builtin_function_or_method'>: "
            "send plain values (int, str, list, ...) or a registered dataclass",
        ),
        (
            {1, 2},
            f"{WHERE}: cannot encode <class 'set'>: a set has no order; send sorted(...) as a list",
        ),
        (
            [frozenset()],
            f"{WHERE}[0]: cannot encode <class 'frozenset'>: a set has no order; send sorted(...) as a list",
        ),
        (memoryview(b""), f"{WHERE}: cannot encode <class 'memoryview'>: send bytes(value)"),
        (
            2**64,
            f"{WHERE}: cannot encode 18446744073709551616: an int must be -2**63..2**64-1; send a larger one as a str",
        ),
        (
            (-(2**63) - 1,),
            f"{WHERE}[0]: cannot encode -9223372036854775809: "
            "an int must be -2**63..2**64-1; send a larger one as a str",
        ),
        (
            [1 << 5000],
            f"{WHERE}[0]: cannot encode an int of 5001 bits: "
            "an int must be -2**63..2**64-1; send a larger one as a str",
        ),
        (
            {"k": "ab\ud800"},
            f"{WHERE}['k']: cannot encode a str with a lone surrogate at index 2: send it as bytes",
        ),
        (
            {Colour.RED: 1},
            f"{WHERE}[Colour]: cannot encode <enum 'Colour'> as a dict key: "
            "use int or str keys, or annotate the type of the field's keys",
        ),
        (
            CYCLE,
            "AppendEntriesArgs.entries[3].command[0][0][0][0][0][0][0] … [0][0]: "
            "nested deeper than 100 levels, or contains itself",
        ),
        (
            Op("put", 5),  # type: ignore[arg-type]
            f"{WHERE}.key: expected str, got int 5",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_any_cannot_hold_is_refused_with_its_path(command: Any, text: str) -> None:
    assert refusal(with_command(command)) == text


def test_the_path_starts_at_what_was_given() -> None:
    fix = "send plain values (int, str, list, ...) or a registered dataclass"
    assert refusal(threading.Lock()) == f"cannot encode <class '_thread.lock'>: {fix}"
    assert refusal([1, {"a": len}]) == f"list[1]['a']: cannot encode <class 'builtin_function_or_method'>: {fix}"
    assert refusal([LogEntry(1, 1), LogEntry(2, len)]) == (
        f"list[1].command: cannot encode <class 'builtin_function_or_method'>: {fix}"
    )
    assert refusal(LogEntry) == f"cannot encode <class 'type'>: {fix}"
    assert (
        refusal(2**64)
        == "cannot encode 18446744073709551616: an int must be -2**63..2**64-1; send a larger one as a str"
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"points": (Point(1, 2),)}, "Everything.points: expected list[Point], got <class 'tuple'>"),
        ({"numbers": {1, 2}}, "Everything.numbers: expected list[int], got <class 'set'>"),
        (
            {"points": [Point(1, 2), Point3D(1, 2, 3)]},
            f"Everything.points[1]: expected Point, got <class '{__name__}.Point3D'>",
        ),
        ({"points": [{"x": 1, "y": 2}]}, "Everything.points[0]: expected Point, got <class 'dict'>"),
        ({"by_name": {"k": 1}}, "Everything.by_name['k']: expected Point, got int 1"),
        (
            {"by_name": Point(1, 2)},
            f"Everything.by_name: expected dict[str, Point], got <class '{__name__}.Point'>",
        ),
        ({"by_id": {7: [b"x"]}}, "Everything.by_id[7][0]: expected str, got bytes b'x'"),
        (
            {"by_pair": {(1, 2, 3): ""}},
            "Everything.by_pair[tuple]: expected tuple[int, int], got a tuple of 3",
        ),
        ({"pair": [1, "a"]}, "Everything.pair: expected tuple[int, str], got <class 'list'>"),
        ({"text": uuid.UUID(int=1)}, "Everything.text: expected str, got <class 'uuid.UUID'>"),
        (
            {"text": "\udfff"},
            "Everything.text: cannot encode a str with a lone surrogate at index 0: send it as bytes",
        ),
        ({"text": None}, "Everything.text: expected str, got NoneType None"),
        ({"role": 1}, "Everything.role: expected Role, got int 1"),
        (
            {"maybe": Point3D(1, 2, 3)},
            f"Everything.maybe: expected Point | None, got <class '{__name__}.Point3D'>",
        ),
        ({"maybe_old_style": "x"}, "Everything.maybe_old_style: expected int | None, got str 'x'"),
        ({"choice": "b"}, "Everything.choice: expected 'a' | 1, got str 'b'"),
        (
            {"number": 2**64},
            "Everything.number: cannot encode 18446744073709551616: "
            "an int must be -2**63..2**64-1; send a larger one as a str",
        ),
        (
            {"real": 2**60 + 1},
            "Everything.real: cannot encode int 1152921504606846977 as a float without loss: annotate the field as int",
        ),
        ({"real": "x" * 100}, "Everything.real: expected float, got str '" + "x" * 56 + "..."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_a_typed_field_cannot_hold_is_refused_with_its_path(changes: dict[str, Any], text: str) -> None:
    assert refusal(dataclasses.replace(everything(), **changes)) == text
    if "choice" not in changes:  # the fast path leaves which of the choices it is to the decoder
        assert refusal(dataclasses.replace(everything_plain(), **changes)) == text


def test_a_bool_is_not_an_int_nor_an_int_a_bool() -> None:
    # On the slow path (everything() holds a tuple in an Any) at once; on the fast path when it is decoded.
    assert refusal(dataclasses.replace(everything(), number=True)) == "Everything.number: expected int, got bool True"
    assert refusal(dataclasses.replace(everything(), flag=1)) == "Everything.flag: expected bool, got int 1"
    assert decode_refusal(labgob.encode(Point(1, True)), Point) == "Point.y: expected int, got bool"


def test_a_wrong_scalar_is_refused_at_the_latest_when_decoded() -> None:
    data = labgob.encode(AppendEntriesArgs(1, 2, [LogEntry(1, "a"), LogEntry("two", "b")]))  # type: ignore[arg-type]
    assert decode_refusal(data, AppendEntriesArgs) == "AppendEntriesArgs.entries[1].term: expected int, got str"


def test_a_field_that_was_never_set_is_refused() -> None:
    entry = LogEntry(1, 2)
    del entry.command
    assert refusal(entry) == "cannot encode a LogEntry without its field command: set the field first"


def test_structures_nested_beyond_the_limit_are_refused() -> None:
    def tuples(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = (value,)
        return value

    def lists(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [{"k": value}]
        return value

    def chain(length: int) -> Node:
        node = Node(0)
        for _ in range(length - 1):
            node = Node(0, node)
        return node

    def ops(levels: int) -> Any:
        value: Any = None
        for _ in range(levels):
            value = Op("", "", (value,))
        return value

    assert same(round_trip(LogEntry(1, tuples(100))), LogEntry(1, tuples(100)))
    assert "nested deeper than 100 levels" in refusal(LogEntry(1, tuples(101)))
    assert same(round_trip(LogEntry(1, lists(50))), LogEntry(1, lists(50)))
    assert "nested deeper than 100 levels" in refusal(LogEntry(1, lists(51)))
    assert same(round_trip(chain(101)), chain(101))
    assert "nested deeper than 100 levels" in refusal(chain(102))
    assert same(round_trip([ops(40)], Any), [ops(40)])
    assert "nested deeper than 100 levels" in refusal([ops(100)])
    assert "nested deeper than 100 levels" in refusal(chain(100_000))
    loop = Node(0)
    loop.next = loop
    assert "nested deeper than 100 levels, or contains itself" in refusal(loop)
    assert "contains itself" in refusal(CYCLE)
    mapping: dict[str, Any] = {}
    mapping["self"] = mapping
    assert "contains itself" in refusal(mapping)


def test_no_recursion_error_even_from_a_nearly_full_stack() -> None:
    value: Any = 1
    for _ in range(90):
        value = (value,)
    data = labgob.encode(LogEntry(1, value))
    outcomes = set()

    def at_depth(levels: int) -> None:
        if levels:
            return at_depth(levels - 1)
        for call in (lambda: labgob.encode(LogEntry(1, value)), lambda: labgob.decode(data, LogEntry)):
            try:
                call()
                outcomes.add("fine")
            except labgob.GobError as error:
                outcomes.add(str(error))
        return None

    here = len(__import__("inspect").stack())
    for room in (120, 300, 600):
        at_depth(sys.getrecursionlimit() - here - room)
    assert "LogEntry: nested too deeply to encode at this depth of the call stack" in outcomes
    assert "LogEntry: damaged: nested too deeply" in outcomes


# Annotations


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (set[int], "cannot send a field annotated set[int]: a set has no order; use a sorted list"),
        (frozenset, "cannot send a field annotated frozenset: a set has no order; use a sorted list"),
        (
            complex,
            "cannot send a field annotated complex: "
            "use None, bool, int, float, str, bytes, list, dict, tuple, an enum, a dataclass, or Any",
        ),
        (
            typing.Callable[[], int],
            "cannot send a field annotated typing.Callable[[], int]: "
            "use None, bool, int, float, str, bytes, list, dict, tuple, an enum, a dataclass, or Any",
        ),
        (dict[Point, int], "cannot send a dict with Point keys: use plain keys, tuples or enums"),
        (
            enum.Enum("Mixed", [("A", 1), ("B", "b")]),
            "cannot send the enum Mixed: its values must be all int or all str",
        ),
    ],
    ids=str,
)
def test_unsupported_annotation_is_refused_by_both_sides(annotation: Any, text: str) -> None:
    inner = dataclasses.make_dataclass("Inner", [("field", annotation)])
    outer = dataclasses.make_dataclass("Outer", [("inner", inner), ("more", list[inner])])  # type: ignore[valid-type]
    for _ in range(2):  # the second time nothing half-built is trusted
        assert refusal(inner(None)) == f"Inner.field: {text}"
        assert refusal(outer(inner(None), [])) == f"Inner.field: {text}"
        assert decode_refusal(b"\x81", outer) == f"Inner.field: {text}"
        assert decode_refusal(b"\x81", annotation) == text


@dataclass
class Outer:
    ring: Ring
    bad: set[int]


@dataclass
class Ring:
    outer: Outer | None


def test_a_refused_class_leaves_nothing_half_built() -> None:
    text = "Outer.bad: cannot send a field annotated set[int]: a set has no order; use a sorted list"
    assert refusal(Outer(Ring(None), set())) == text
    assert refusal(Ring(None)) == text
    assert decode_refusal(b"\x81\xa5outer\xc0", Ring) == text


def test_two_keys_that_would_arrive_as_one_are_refused() -> None:
    @dataclass
    class Keyed:
        by_id: dict[int, str]

    assert refusal(Keyed({1: "a", Shade.DARK: "b"})) == (  # type: ignore[dict-item]
        "Keyed.by_id: cannot encode a dict with two keys that would be equal after decoding"
    )


def test_a_set_in_a_dict_field_is_refused_where_it_is_sent() -> None:
    @dataclass
    class Keyed:
        by_id: dict[int, int]

    assert refusal(Keyed({1, 2})) == "Keyed.by_id: expected dict[int, int], got <class 'set'>"  # type: ignore[arg-type]


def test_error_in_the_values_code_is_an_encode_error_with_cause() -> None:
    @dataclass
    class Lazy:
        x: Any = None

        def __getattribute__(self, name: str) -> Any:
            return {}["gone"] if name == "x" else object.__getattribute__(self, name)

    with pytest.raises(labgob.EncodeError, match=r"^Lazy: cannot encode: KeyError: 'gone'$") as caught:
        labgob.encode(Lazy())
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_annotation_that_cannot_be_resolved_says_so() -> None:
    @dataclass
    class Hidden:
        x: int

    @dataclass
    class Local:
        hidden: Hidden

    text = "cannot resolve an annotation of Local (name 'Hidden' is not defined): define that class at module level"
    assert refusal(Local(Hidden(1))) == text
    assert decode_refusal(b"\x80", Local) == text


def test_what_msgspec_cannot_read_is_refused_where_it_is_sent() -> None:
    two = dataclasses.make_dataclass("Two", [("either", Point | LogEntry)])
    assert refusal(two(Point(1, 2))).startswith("cannot send Two: Type unions may not contain more than one dataclass")


# register()


def test_register_returns_the_class_and_may_be_called_twice() -> None:
    assert labgob.register(Op) is Op
    assert same(round_trip([Op("a", "b")], Any), [Op("a", "b")])


def test_register_refuses_what_cannot_travel() -> None:
    class Bare:
        pass

    with pytest.raises(TypeError, match=r"Bare'> is not a dataclass, enum or NamedTuple; .*above @dataclass$"):
        labgob.register(Bare)
    with pytest.raises(TypeError, match=r"the name .* must be 1..255 bytes, got 3\d\d$"):
        labgob.register(dataclasses.make_dataclass("x" * 300, []))


def test_a_class_registered_again_retires_the_first() -> None:
    def make() -> Any:
        @labgob.register
        @dataclass
        class Command:
            x: int

        return Command

    first = make()
    data = labgob.encode([first(1)])
    second = make()
    assert same(labgob.decode(data, Any), [second(1)])
    assert same(round_trip(LogEntry(1, second(2))), LogEntry(1, second(2)))
    assert refusal(LogEntry(1, first(1))) == (
        f"LogEntry.command: cannot encode {first}: "
        "another class with this name was registered later; register each class once, under its own name"
    )


def test_bytes_naming_a_class_not_registered_here() -> None:
    data = labgob.encode(LogEntry(1, Op("a", "b"))).replace(b".Op", b".Oq")
    assert (
        decode_refusal(data, LogEntry)
        == f"these bytes hold a {__name__}.Oq, which is not registered here; use @labgob.register on this class"
    )


def test_values_of_unregistered_classes_can_be_carried() -> None:
    data = labgob.encode([Op("a", "b")]).replace(b".Op", b".Oq")
    with labgob.carrying_unknown():
        with labgob.carrying_unknown():
            carried = labgob.decode(data, list[Any])
        assert carried == labgob.decode(data, list[Any])
    assert labgob.encode(carried) == data
    with pytest.raises(labgob.DecodeError, match="which is not registered here"):
        labgob.decode(data, list[Any])


# What is refused when it arrives


@pytest.mark.parametrize(
    ("value", "as_type", "text"),
    [
        (1, str, "str: expected str, got int 1"),
        ("a", int | None, "int | None: expected int | None, got str 'a'"),
        (True, int, "int: expected int, got bool True"),
        ([1, "a"], list[int], "list[int][1]: expected int, got str 'a'"),
        ((1, 2), list[int], "list[int]: expected list[int], got <class 'tuple'>"),
        ({"a": 1}, Point, "Point: these bytes hold a value that is not a dataclass"),
        ([Point(1, 2)], Point, "Point: these bytes hold a value that is not a dataclass"),
        ([{"x": 1, "y": 2}], list[Point], "list[Point][0]: expected Point, got <class 'dict'>"),
        (Point(1, 2), Any, "Any: these bytes hold a dataclass; decode them as its class"),
        (Point(1, 2), dict, "dict[Any, Any]: these bytes hold a dataclass; decode them as its class"),
        (Point(1, 2), int, "int: these bytes hold a dataclass; decode them as its class"),
        (
            [Point(1, 2)],
            list,
            "list[Any]: these bytes hold objects of a class; "
            "decode them as a type that names the class, such as list[LogEntry]",
        ),
        ([Point(1, 2)], list[LogEntry], None),
        ([Point3D(1, 2, 3)], list[Point], "list[Point]: these bytes hold Point3D"),
        (Role.LEADER, Shade, "Shade: these bytes hold Role"),
        (Role.LEADER, int, "int: these bytes hold Role"),
        (Point(1, 2), LogEntry, "LogEntry: object missing required field term"),
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_refused(value: Any, as_type: Any, text: str | None) -> None:
    said = decode_refusal(labgob.encode(value), as_type)
    assert text is None or said == text


@pytest.mark.parametrize(
    ("data", "as_type", "text"),
    [
        (b"", Point, "Point: damaged or truncated: Input data was truncated"),
        (b"", int, "int: these bytes are damaged, or not from labgob.encode()"),
        (b"\x01", int, "int: these bytes are damaged, or not from labgob.encode()"),
        (b"\x91" * 100_000, Any, "Any: damaged: nested too deeply"),
        (b"\x91\xdd\xff\xff\xff\xff", Any, "Any: damaged or truncated: Input data was truncated"),
        (
            b"\x91\xdf\xff\xff\xff\xff\x01",
            dict,
            "dict[Any, Any]: damaged or truncated: Input data was truncated",
        ),
        (b"\x91\xc6\xff\xff\xff\xff", bytes, "bytes: damaged or truncated: Input data was truncated"),
        (b"\x91\xd4\x63\x00", Any, "damaged: unknown extension 99"),
        (b"\x91\xc7\x00\x02", Any, "Any: damaged or truncated: index out of bounds on dimension 1"),
        (None, int, "decode(): data must be bytes, got NoneType"),
        ("text", Point, "decode(): data must be bytes, got str"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_damaged_bytes_are_refused(data: Any, as_type: Any, text: str) -> None:
    assert decode_refusal(data, as_type) == text


def test_trailing_bytes_are_refused() -> None:
    for value in (Point(1, 2), 1, [Point(1, 2)], (1,)):
        data = labgob.encode(value) + b"\x00"
        assert "trailing characters" in decode_refusal(data, list[Point] if type(value) is list else type(value))


def test_error_in_post_init_is_a_decode_error_with_cause() -> None:
    @dataclass
    class Fussy:
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise KeyError("negative")

    fussy = Fussy(1)
    fussy.x = -1
    with pytest.raises(labgob.DecodeError, match=r"^Fussy: damaged or truncated: 'negative'$") as caught:
        labgob.decode(labgob.encode(fussy), Fussy)
    assert isinstance(caught.value.__cause__, KeyError)


def test_nested_extensions_do_not_exhaust_the_stack() -> None:
    payload = b"\x90"
    for _ in range(2_000):  # tuples in tuples, far deeper than encode() would go
        payload = b"\x91\xc9" + len(payload).to_bytes(4, "big") + b"\x01" + payload
    assert decode_refusal(payload, Any) == "Any: damaged: nested too deeply"


# Determinism, and the two paths being one


def test_the_same_bytes_in_any_process_and_under_any_hash_seed() -> None:
    program = textwrap.dedent(
        """
        import dataclasses, enum, labgob
        from typing import Any
        @labgob.register
        @dataclasses.dataclass
        class Op:
            key: str
            value: Any
        class Role(enum.Enum):
            A = "a"
        @dataclasses.dataclass
        class A:
            d: dict[str, Any]
        @dataclasses.dataclass
        class B:
            a: list[A]
        d = {k: (k, Op(k, {k: 1})) for k in "the quick brown fox jumps".split()}
        print(labgob.encode(B([A(d)])).hex(), labgob.encode([d]).hex(), labgob.encode((A(d), B([]), Role.A)).hex())
        """
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1 and len(outputs.pop()) > 500


def test_the_names_of_classes_travel_sorted() -> None:
    for value in ([Point(1, 2), LogEntry(1, 2), Role.LEADER], [Role.LEADER, LogEntry(1, 2), Point(1, 2), Node(1)]):
        names = ",".join(sorted({type(item).__qualname__ for item in value}))
        assert labgob.encode(value)[2:].startswith(names.encode())


def test_dicts_travel_in_insertion_order() -> None:
    assert list(round_trip({"z": 1, "a": 2})) == ["z", "a"]
    assert labgob.encode({"z": 1, "a": 2}) != labgob.encode({"a": 2, "z": 1})


@pytest.mark.parametrize(
    "value",
    [
        RequestVoteArgs(1, 2),
        with_command(None),
        AppendEntriesArgs(1, 2),
        [LogEntry(1, "a")],
        [1, "a", None],
        {"a": [1, {"b": 2.5}]},
        Point3D(1, 2, 3),
        everything_plain(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_fast_path_is_taken_and_equals_slow_path(value: Any, monkeypatch: Any) -> None:
    slow = _codec._lowered(value)
    labgob.encode(value)  # the first of a class makes its writer
    monkeypatch.setattr(_codec, "_lowered", lambda value: pytest.fail("took the slow path"))
    monkeypatch.setattr(_shapes, "lower_any", lambda value, depth: pytest.fail("took the slow path"))
    assert labgob.encode(value) == slow


def test_labgob_imports_nothing_of_ours() -> None:
    program = "import labgob, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "labgob" in loaded
    assert not ({*FOLDERS} - {"labgob"}) & set(loaded)
