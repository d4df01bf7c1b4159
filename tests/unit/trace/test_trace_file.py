"""The trace file: a round trip keeps what readers need, and a damaged file is one clear error."""

import json
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from zlib import crc32

import pytest

from labsim import Event, random, time
from raft.raft import Raft
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import load_tests
from raftlab.trace.trace_file import (
    SHIVIZ_REGEX,
    RecordedBytes,
    TraceFileError,
    _revive,
    plain,
    read_trace,
    shiviz_lines,
    write_shiviz,
    write_trace,
)

TESTS = Path(__file__).parents[2]
REPEATED = [
    ("test_2a.py", "test_reelection_2a"),
    ("test_2b.py", "test_rejoin_2b"),
    ("test_2c.py", "test_persist1_2c"),
    ("test_2d.py", "test_snapshot_install_unreliable_crash_2d"),
]


def run_lab_test(file, name, seed=7):
    function = next(test for test in load_tests(TESTS / file) if test.name == name)
    run = run_test(function, InProcessLauncher(Raft), seed)
    assert run.error is None
    return run


@collect
def duplicated(make_config):
    cfg = make_config(servers=3, unreliable=True)
    cfg.network.duplicates(0.5)
    cfg.check_one_leader()
    for i in range(5):
        cfg.one(i, 3, retry=True)
    time.sleep(random.random())


@pytest.mark.parametrize(("file", "name"), REPEATED)
def test_a_run_survives_the_way_out_and_in(tmp_path, file, name):
    run = run_lab_test(file, name)
    live = run.simulation.trace
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    write_trace(first, live, test=name, seed=7, digest=run.digest)
    header, events = read_trace(first)
    assert (header.test, header.seed, header.digest, header.events) == (name, 7, run.digest, len(live))
    assert len(events) == len(live)
    for there, here in zip(events, live, strict=True):
        assert (there.at_ns, there.kind, there.node, there.incarnation, there.message, there.note) == (
            here.at_ns,
            here.kind,
            here.node,
            here.incarnation,
            here.message,
            here.note,
        )
        if here.kind == "send":
            assert there.detail.decode_args().term == here.detail.decode_args().term
            assert (there.detail.source, there.detail.target) == (here.detail.source, here.detail.target)
            assert there.detail.service_method == here.detail.service_method
        elif here.kind in ("answer", "reply"):
            assert plain(there.detail.decode_reply()) == plain(here.detail.decode_reply())
        elif here.kind == "persist":
            assert len(there.detail.raft_state) == len(here.detail.raft_state)
            assert len(there.detail.snapshot) == len(here.detail.snapshot)
        elif here.kind == "apply":
            assert there.detail.command_index == here.detail.command_index
        elif here.kind == "started":
            assert there.detail == here.detail
    write_trace(second, events, test=name, seed=7, digest=run.digest)
    assert first.read_bytes() == second.read_bytes()


def test_a_duplicate_keeps_its_own_answer(tmp_path):
    live = run_test(duplicated, InProcessLauncher(Raft), 3).simulation.trace
    assert any(event.kind == "duplicate" for event in live)
    write_trace(tmp_path / "t", live)
    events = read_trace(tmp_path / "t").events
    first: dict[int, int] = {}
    for there, here in zip(events, live, strict=True):
        if here.kind in ("send", "deliver", "duplicate", "answer", "reply", "drop"):
            # The same events share a message object as in the live trace.
            assert first.setdefault(id(here.detail), id(there.detail)) == id(there.detail)
            assert there.detail.decode_args().term == here.detail.decode_args().term
    assert len(set(first.values())) == len(first)  # and a duplicate is another object


def test_format_matches_the_documentation(tmp_path):
    events = run_lab_test("test_2b.py", "test_basic_agree_2b").simulation.trace
    write_trace(tmp_path / "t", events, test="x", seed=7)
    first, *rest = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    assert first == {"format": "raftlab trace", "version": 2, "test": "x", "seed": 7, "events": len(events)}
    send = next(line for line in rest if line["kind"] == "send")
    assert set(send) == {"at_ns", "kind", "node", "incarnation", "message", "method", "source", "target", "args"}
    assert set(send["args"]) == {"term", "candidate_id", "last_log_index", "last_log_term"}
    assert not any("args" in line for line in rest if line["kind"] != "send")
    assert {line["kind"] for line in rest if "reply" in line} == {"answer"}


# ---- values ----------------------------------------------------------------------------------------------------


@dataclass
class Op:
    key: str
    value: object = None


class Colour(IntEnum):
    RED = 3


class Odd:
    def __repr__(self):
        raise RuntimeError


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "json_value"),
    [
        (None, None),
        (1.5, 1.5),
        ((1, "x", True), [1, "x", True]),
        (Op("x", Op("y")), {"key": "x", "value": {"key": "y", "value": None}}),
        (b"abc", {"$bytes": 3, "base64": "YWJj"}),
        (b"a" * 100, {"$bytes": 100, "base64": "YWFh" * 16, "crc32": crc32(b"a" * 100)}),
        ({"a": [b""]}, {"a": [{"$bytes": 0, "base64": ""}]}),
        ({1: "a"}, {"$pairs": [[1, "a"]]}),
        ({"$bytes": 1}, {"$pairs": [["$bytes", 1]]}),
        ({"b", "a"}, {"$set": ["a", "b"]}),
        (Colour.RED, 3),
        (Odd(), {"$repr": "<Odd, whose repr fails: RuntimeError>"}),
        (int, {"$repr": "<class 'int'>"}),
    ],
)
def test_values_as_json(value, json_value):
    assert plain(value) == json_value
    assert json.loads(json.dumps(json_value)) == json_value
    if not any(mark in str(json_value) for mark in ("$pairs", "$set", "$repr")):
        assert plain(_revive(json_value)) == json_value


def test_recursive_value_is_cut():
    assert "$repr" in str(plain(CYCLE))


def test_bytes_come_back_with_their_length():
    back = _revive(plain(b"a" * 100))
    assert isinstance(back, RecordedBytes) and len(back) == 100 and back.start == b"a" * 48


# ---- damage ----------------------------------------------------------------------------------------------------

HEADER = '{"format":"raftlab trace","version":2}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the file is empty; a trace begins with a line that names its format"),
        ("hello\n", ":1: not a trace: the first line must be like {"),
        ('{"format":"x","version":1}\n', ":1: not a trace: its format is 'x', not 'raftlab trace'"),
        ('{"format":"raftlab trace","version":1}\n', ":1: version 1 of the format; this program reads 2"),
        (HEADER + '{"at_ns":1,"kind":"phase"}\n{"at_ns":2,"ki', ":3: not an event: "),
        (HEADER + '{"kind":"phase"}\n', ":2: not an event: Object missing required field `at_ns`"),
        (HEADER + '{"at_ns":"x","kind":"phase"}\n', ":2: not an event: Expected `int`, got `str`"),
        (HEADER + "\n", ":2: not an event: "),
        (HEADER + '{"at_ns":1,"kind":"send"}\n', ":2: not an event: a 'send' must have a method and a source"),
        (
            HEADER + '{"at_ns":1,"kind":"started","detail":{"command":1}}\n',
            ":2: not an event: the field 'detail.index'",
        ),
        (HEADER + '{"at_ns":1,"kind":"persist"}\n', ":2: not an event: the field 'detail' must be an object"),
        (
            HEADER + '{"at_ns":1,"kind":"persist","detail":{"raft_state":{"$bytes":1},"snapshot":null}}\n',
            ":2: not an event: the field 'base64' is missing",
        ),
        (
            '{"format":"raftlab trace","version":2,"events":2}\n{"at_ns":1,"kind":"phase"}\n',
            ":2: the file has 1 events, but its first line says 2",
        ),
    ],
)
def test_a_damaged_file_is_one_error_with_its_line(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(TraceFileError) as caught:
        read_trace(path)
    assert f"{path}{message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_cut_anywhere_is_noticed(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trace(path, run_lab_test("test_2b.py", "test_basic_agree_2b").simulation.trace)
    whole = path.read_bytes()
    for end in range(0, len(whole) - 1, 997):
        path.write_bytes(whole[:end])
        with pytest.raises(TraceFileError, match=r"t\.jsonl:\d+: "):
            read_trace(path)


def test_invalid_utf8_is_an_error(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(HEADER.encode() + b'{"at_ns":1,"kind":"\xff\xfe"}\n')
    with pytest.raises(TraceFileError, match=r":2: not an event"):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceFileError, match=r"none\.jsonl: No such file"):
        read_trace(tmp_path / "none.jsonl")


def test_unknown_kinds_pass_through(tmp_path):
    write_trace(tmp_path / "t", [Event(5, "weather", "", 0, 0, {"rain": True}, "")])
    (event,) = read_trace(tmp_path / "t").events
    assert (event.kind, event.detail.rain) == ("weather", True)


# ---- ShiViz ----------------------------------------------------------------------------------------------------


def parse_shiviz(text):
    """As ShiViz does it: JavaScript's (?<name>...) is Python's (?P<name>...)."""
    pattern = re.compile(SHIVIZ_REGEX.replace("(?<", "(?P<"))
    found = list(pattern.finditer(text))
    assert "".join(f"{m.group(0)}\n" for m in found) == text  # every line belongs to an event
    return [(m["host"], json.loads(m["clock"]), m["event"]) for m in found]


@pytest.mark.parametrize("test", [duplicated, None])
def test_shiviz_clocks_are_vector_clocks(tmp_path, test):
    if test is None:
        events = run_lab_test("test_2c.py", "test_persist1_2c").simulation.trace
    else:
        events = run_test(test, InProcessLauncher(Raft), 3).simulation.trace
    write_shiviz(tmp_path / "log", events)
    parsed = parse_shiviz((tmp_path / "log").read_text())
    told = [event for event in events if event.kind not in ("drop", "duplicate")]
    assert len(parsed) == len(told)
    ticks: dict[str, int] = {}
    sent: dict[tuple[int, str], dict[str, int]] = {}
    edges = 0
    for (host, clock, _), event in zip(parsed, told, strict=True):
        # ShiViz demands that a process's own entry rises by one per event.
        assert clock[host] == ticks.get(host, 0) + 1
        ticks[host] = clock[host]
        assert all(count <= ticks.get(other, 0) for other, count in clock.items())
        if event.kind in ("send", "answer"):
            sent.setdefault((event.message, event.kind), clock)
        elif event.kind in ("deliver", "reply"):
            cause = sent[(event.message, {"deliver": "send", "reply": "answer"}[event.kind])]
            assert all(clock[other] >= count for other, count in cause.items())
            edges += 1
    assert edges > 20
    assert set(ticks) == {"peer0", "peer1", "peer2", "tester"}


def test_shiviz_lines_say_what_was_lost():
    events = run_test(duplicated, InProcessLauncher(Raft), 3).simulation.trace
    text = "".join(shiviz_lines(events))
    assert re.search(r"send append_entries to \d \(lost: lost request\) \{\"term\":1", text)
