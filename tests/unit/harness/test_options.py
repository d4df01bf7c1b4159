"""The options that commands share, and the lines that repeat a run with them."""

import shlex
from argparse import ArgumentParser
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from raftlab.harness.options import FILE, RUN, RUN_OF_PEER, SEED, add_options, arguments, command_line, given, run_line


def parser_of(command):
    parser = ArgumentParser()
    import_module(f"raftlab.tools.{command}.command").add_arguments(parser)
    return parser


def test_command_line_is_quoted_and_omits_defaults():
    assert run_line("replay", "test_x", 7, {"raft": "raft/raft.py"}) == "make replay TEST=test_x SEED=7"
    mine = run_line("page", "test_x", 0, {"raft": "my peers/raft.py", "kv": None, "race": True})
    assert mine == "make page TEST=test_x SEED=0 RAFT='my peers/raft.py' RACE=1"
    other = run_line("shrink", "test_x", 7, {"raft": Path("a/raft.py"), "isolated": True}, file="my tests/h.py")
    assert other == "lab shrink test_x --seed 7 --file 'my tests/h.py' --raft a/raft.py --isolated"
    assert command_line("make fuzz", {"seed": 7, "jobs": 2, "isolated": False}) == "make fuzz SEED=7 JOBS=2"


@pytest.mark.parametrize("command", ["replay", "shrink", "timeline", "page", "stress"])
def test_a_line_for_lab_gives_a_command_the_same_options(command):
    values = {"raft": "my peers/raft.py", "kv": "k/server.py", "isolated": True, "race": True}
    line = run_line(command, "test_x", 7, values, file="my tests/h.py")
    args = parser_of(command).parse_args(shlex.split(line)[2:])
    assert given(args) == values
    assert given(args, service=False) == {name: value for name, value in values.items() if name != "kv"}
    assert (args.seed, args.file) == (7, [Path("my tests/h.py")])


@pytest.mark.parametrize("command", ["scenario", "fuzz"])
def test_a_command_without_services_has_all_other_options(command):
    values = {"raft": "a/raft.py", "isolated": True, "race": True}
    args = parser_of(command).parse_args(arguments({**values, "seed": 7}))
    assert given(args) == values
    assert args.seed == 7


def test_last_of_two_equal_options_counts():
    parser = ArgumentParser()
    add_options(parser.add_argument, *RUN, replace(SEED, default=3, help="of the draw"))
    assert parser.parse_args([]).seed == 3
    assert "of the draw (default: 3)" in parser.format_help()
    assert [action.dest for action in parser._actions[1:]] == [option.name for option in RUN]


def test_a_path_within_quotes_may_begin_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    parser = ArgumentParser()
    add_options(parser.add_argument, *RUN_OF_PEER, FILE)
    args = parser.parse_args(["--raft", "~/my raft.py", "--file", "~/t.py"])
    assert (args.raft, args.file) == (Path("/home/ann/my raft.py"), [Path("/home/ann/t.py")])
