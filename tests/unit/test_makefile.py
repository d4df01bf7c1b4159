"""What the targets of the Makefile ask pytest and `lab` for."""

import os
import re
import shlex
import subprocess

import pytest

from raftlab.harness.options import KV, OF_MAKE, RUN, RUN_OF_PEER, path
from unit.students import ROOT


def asked_of(program, *arguments):
    """The arguments of the one that make would start. -o: .venv is as it is, and no business of this test."""
    ours = ("MAKE", "MFLAGS", "TEST", "REALTIME", "EXTRA", *(option.variable for option in OF_MAKE))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = ["make", "-n", "-o", ".venv/.ready", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    (line,) = [line for line in done.stdout.splitlines() if f"{program} " in line]
    return shlex.split(line.partition(f"{program} ")[2])


def asked_of_pytest(*arguments):
    return asked_of(" -m pytest", *arguments)


def workers(*arguments):
    asked = asked_of_pytest(*arguments)
    return asked[asked.index("-n") + 1]


@pytest.mark.parametrize("part", ["test-2a", "test-2b", "test-2c", "test-2d"])
def test_a_part_starts_no_worker_by_itself(part):
    assert workers(part) == workers(part, "RUNS=9") == workers(part, "SEED=7", "EXTRA=0") == "0"


@pytest.mark.parametrize("arguments", [["test-2a", "RUNS=10"], ["test-2a", "RUNS=2000"], ["test-2b", "REALTIME=1"]])
def test_workers_start_where_they_pay(arguments):
    assert workers(*arguments) == "auto"


def test_all_tests_have_one_worker_more_than_there_are_cores():
    assert int(workers("test")) == os.cpu_count() + 1


@pytest.mark.parametrize(("jobs", "started"), [("1", "0"), ("2", "2"), ("auto", "auto")])
def test_jobs_says_how_many_workers(jobs, started):
    given = f"JOBS={jobs}"
    assert workers("test-2a", given) == workers("test-2a", "RUNS=50", given) == workers("test", given) == started


def test_several_parts_are_one_run_in_their_order():
    files = [f"tests/test_2{part}{more}.py" for part in "ac" for more in ("", "_extra")]
    assert [word for word in asked_of_pytest("test-2c", "test-2a") if word.startswith("tests/")] == files
    assert [word for word in asked_of_pytest("test-2c", "test-2a", "EXTRA=0") if "tests/" in word] == files[::2]


def test_race_is_all_parts_with_race():
    asked = asked_of_pytest("race", "SEED=3")
    files = [f"tests/test_{part}{more}.py" for part in ("2a", "2b", "2c", "2d", "3a", "3b") for more in ("", "_extra")]
    assert [word for word in asked if word.startswith("tests/")] == files
    assert "--race" in asked
    assert "--race" not in asked_of_pytest("test-2a")
    assert "--race" in asked_of_pytest("test-2a", "RACE=1")


def test_live_gets_only_what_is_given():
    assert asked_of("/lab", "live") == ["live"]
    assert asked_of("/lab", "live", "PEERS=5", "FILE=it's.scenario") == ["live", "it's.scenario", "--peers", "5"]


def test_makefile_and_table_of_options_agree():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = dict(re.findall(r"^OPTION_(\w+) += (?:\$\(if .*?,)?(--\S+)", text, re.MULTILINE))
    assert found == {option.variable: option.flag for option in OF_MAKE}
    with_value = re.findall(r"^OPTION_(\w+) += .*--\S+ (?:\$\(call quoted,)?\$\(\1\)", text, re.MULTILINE)
    assert with_value == [option.variable for option in OF_MAKE if option.metavar]
    (run,) = re.findall(r"^RUN += (.*)", text, re.MULTILINE)
    assert run.split() == [option.variable for option in RUN]


@pytest.mark.parametrize(
    ("target", "options"),
    [
        *((target, RUN) for target in ("replay", "shrink", "timeline", "page", "stress", "test-2a")),
        *((target, RUN_OF_PEER) for target in ("live", "scenario", "fuzz")),
    ],
)
def test_targets_pass_on_how_a_run_is_made(target, options):
    values = {option: "it's my/raft.py" if option.type is path else "1" for option in RUN}
    given = [f"{option.variable}={value}" for option, value in values.items()]
    asked = asked_of(" -m pytest" if target == "test-2a" else "/lab", target, "TEST=test_x", *given)
    for option in options:
        assert option.flag in asked
        if option.metavar:
            assert asked[asked.index(option.flag) + 1] == values[option]
    assert (KV.flag in asked) is (KV in options)
