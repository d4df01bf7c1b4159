"""What the test targets of the Makefile ask pytest for."""

import os
import subprocess

import pytest

from infra.students import ROOT


def asked_of_pytest(*arguments):
    """The arguments of the one pytest that make would start. -o: .venv is as it is, and no business of this test."""
    ours = ("MAKE", "MFLAGS", "SEED", "RUNS", "TEST", "JOBS", "RAFT", "RACE", "REALTIME", "EXTRA")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = ["make", "-n", "-o", ".venv/.ready", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    (line,) = [line for line in done.stdout.splitlines() if " -m pytest " in line]
    return line.partition(" -m pytest ")[2].split()


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
