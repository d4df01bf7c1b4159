"""Every mutant still applies to the reference and is still caught, and every correct peer still passes.

This is the quick measurement. It starts with the test and the seed that last caught a mutant
(tests/mutants/caught.json, written by `lab mutants run --record`). If that run passes, because a peer, a test or a rule
has changed, it tries a few more runs before it fails. `lab mutants run` is the whole measurement.
"""

import argparse
import json
import signal
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

from labsim import Deadlock, Simulation, SimulationError
from raftlab.check.failure import Failure
from raftlab.harness.outcome import outcome_of
from raftlab.harness.run import run_test
from raftlab.tools.selection import select
from tests.mutants.tool import command, measurement, report
from tests.mutants.tool.mutants import Mutant, StaleMutant, load_mutants
from unit.soak import SOAK
from unit.tools.peers import lab_command
from unit.tools.processes import children_of, gone, on_linux, wait_until

MUTANTS = load_mutants()
WRONG = [mutant for mutant in MUTANTS if not mutant.correct]


def share(mutant):
    """One of how many is caught each time; in a soak all are."""
    if SOAK:
        return 1
    if mutant.races or mutant.of_service:
        return 3  # they take longest
    return 1 if mutant.of_reference else 5  # the same mistakes in peers of other designs


SAMPLE = [mutant for mutant in WRONG if crc32(mutant.id.encode()) % share(mutant) == 0]
CONTROLS = [mutant for mutant in MUTANTS if mutant.correct]
CAUGHT = json.loads(report.RECORD.read_text())

# A quick sample: each correct peer runs some of these tests, and all of them in a soak.
CONTROL_TESTS = [
    "test_many_elections_2a",
    "test_rejoin_2b",
    "test_repeated_requests_2b",
    "test_figure8_scripted_2c",
    "test_snapshot_basic_2d",
    "test_one_partition_3a",
    "test_paused_leader_3a",
]
if SOAK:
    CONTROL_TESTS += [
        "test_count_2b",
        "test_backup_2b",
        "test_persist2_2c",
        "test_snapshot_install_unreliable_2d",
        "test_persist_concurrent_unreliable_3a",
        "test_snapshot_unreliable_recover_concurrent_partition_3b",
    ]
CONTROL_TESTS_EACH = len(CONTROL_TESTS) if SOAK else 2


pytestmark = pytest.mark.usefixtures("raft_package_restored")


def by_id(mutant):
    return mutant.id


@pytest.mark.parametrize("mutant", MUTANTS, ids=by_id)
def test_applies_to_its_peer(mutant):
    main = mutant.base / ("server.py" if mutant.of_service else "raft.py")
    assert (mutant.source() != main.read_text()) is (mutant.edits != ())
    mutant.messages_source()
    if mutant.of_service:
        assert mutant.correct or mutant.diff()


@cache
def every_test():
    return {test.name: test for test in select(["*"])}


@pytest.mark.parametrize("mutant", SAMPLE, ids=by_id)
def test_mutant_is_caught(mutant, tmp_path, monkeypatch):
    # Whoever has not waited for a second will not do so in five.
    monkeypatch.setitem(Simulation.__init__.__kwdefaults__, "unresponsive_s", 1.0)
    known = CAUGHT.get(mutant.id)
    assert known is not None, f"{mutant.id} has never been caught; run: lab mutants run {mutant.id} --record"
    tests = every_test()
    if known["test"] in tests:
        launcher = measurement.load_mutant(mutant, tmp_path)
        if run_test(tests[known["test"]], launcher, known["seed"]).error is not None:
            return
    further = [test for test in tests.values() if test.part == mutant.part or test.name == known["test"]]
    result = measurement.judge_by_tests(mutant, further, runs=3, budget_s=20, build=tmp_path, measure_rate=False)
    assert result.verdict == "caught", (
        f"{mutant.id}, a peer that {mutant.what}, was missed: {known['test']} with seed {known['seed']} passes, "
        f"and so did {result.tests} other runs"
    )


@pytest.mark.parametrize("mutant", CONTROLS, ids=by_id)
def test_correct_peer_passes(mutant, tmp_path):
    suite = measurement.suite_for(mutant, select(CONTROL_TESTS))
    first = CONTROLS.index(mutant) % len(suite)
    tests = [*suite[first:], *suite[:first]][:CONTROL_TESTS_EACH]
    result = measurement.judge_by_tests(mutant, tests, runs=1, first_seed=1, build=tmp_path)
    assert result.verdict == "passed", f"{mutant.id} is correct, and {result.by} says in {result.test}: {result.line}"


def test_record_names_only_what_there_is():
    assert set(CAUGHT) <= {mutant.id for mutant in WRONG}


def test_stale_edit_is_an_error():
    mutant = Mutant("example", "2a", "a rule", "does something", (("self.no_such_field = 1", "pass"),))
    with pytest.raises(StaleMutant) as caught:
        mutant.source()
    assert str(caught.value) == (
        "example: the text to replace must occur once in raft/raft.py, but occurs 0 times; "
        "adapt the edit in tests/mutants to the reference:\nself.no_such_field = 1"
    )
    with pytest.raises(StaleMutant, match=r"but occurs [0-9]+ times"):
        replace(mutant, edits=(("self.mu", "self.my"),)).source()
    with pytest.raises(StaleMutant, match="is not valid Python"):
        replace(mutant, edits=(("class Raft:\n", "class Raft\n"),)).source()


def test_stale_mutant_is_a_result(tmp_path):
    mutant = Mutant("example", "2a", "a rule", "does something", (("self.no_such_field = 1", "pass"),))
    result = measurement.judge_by_tests(mutant, [], runs=1, build=tmp_path)
    assert result.verdict == "stale"
    assert result.bad


def test_two_fuzz_runs_give_one_result(tmp_path):
    mutant = next(mutant for mutant in WRONG if mutant.id == "votedfor-not-reset")
    tests = select(["2a"])
    first, second = (measurement.judge_by_tests(mutant, tests, runs=2, build=tmp_path) for _ in range(2))
    assert replace(first, seconds=0) == replace(second, seconds=0)
    assert first.verdict == "caught"


def test_own_part_is_run_first():
    mutant = next(mutant for mutant in WRONG if mutant.part == "2c")
    parts = [test.part for test in measurement.suite_for(mutant, select([]))]
    assert list(dict.fromkeys(parts)) == ["2c", "2a", "2b", "2d"]
    service = next(mutant for mutant in WRONG if mutant.part == "3b")
    parts = [test.part for test in measurement.suite_for(service, select([]))]
    assert list(dict.fromkeys(parts)) == ["3b", "3a"]


def test_labels_of_caught_mutants():
    named = Failure("Two leaders\nmore")
    named.rule = "one-leader"
    assert measurement.classify(outcome_of(named), "test_x_2a") == ("one-leader", "Two leaders")
    unnamed = Failure("No leader")
    unnamed.rule = None
    assert measurement.classify(outcome_of(unnamed), "test_x_2a") == ("test: test_x_2a", "No leader")
    assert measurement.classify(outcome_of(Deadlock("Deadlock at 1 s: ...")), "test_x_2a") == (
        "Deadlock",
        "Deadlock at 1 s: ...",
    )
    assert measurement.classify(outcome_of(SimulationError("odd")), "test_x_2a")[0] == "SimulationError"


def run_mutants(*args):
    return subprocess.run(lab_command("mutants", *args), capture_output=True, text=True, timeout=100, check=False)


@on_linux
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_command_ends_its_workers(sent):
    # One that takes minutes: all tests, many times over.
    command = lab_command(
        "mutants", "run", "variant-asks-once", "--runs", "1000", "--budget-seconds", "1000", "--jobs", "1"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: children_of(process.pid))
        (worker,) = children_of(process.pid)
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: 1 of 1 have no result" in said
    wait_until(lambda: gone(worker))


def test_command_says_what_was_caught(tmp_path):
    done = run_mutants("run", "wrong-quorum", "variant-asks-once", "--tests", "2a", "--json", str(tmp_path / "z"))
    assert done.returncode == 0, done.stderr
    assert "1 of 1 mutants caught" in done.stdout
    assert "1 of 1 variants passed" in done.stdout
    results = {result["id"]: result for result in json.loads((tmp_path / "z").read_text())}
    assert results["wrong-quorum"]["verdict"] == "caught"
    assert results["variant-asks-once"]["verdict"] == "passed"


def test_exit_status_is_1_if_a_mutant_is_missed():
    done = run_mutants("run", "snap-no-compaction", "--tests", "test_initial_election_2a", "--runs", "1")
    assert done.returncode == 1
    assert "missed: snap-no-compaction" in done.stdout


def test_command_shows_a_mutant_as_a_diff():
    done = run_mutants("show", "figure8-commit")
    assert done.returncode == 0
    assert (
        "-        if majority_has > self.commit_index and self._term_at(majority_has) == self.current_term:"
        in done.stdout
    )


def test_command_writes_a_mutant():
    done = run_mutants("write", "figure8-commit")
    assert done.stdout == "build/mutants/figure8-commit/raft.py\n"
    (mutant,) = (mutant for mutant in WRONG if mutant.id == "figure8-commit")
    assert Path("build/mutants/figure8-commit/raft.py").read_text() == mutant.source()


def test_unknown_mutant_is_named():
    done = run_mutants("run", "no-such-mutant")
    assert done.returncode == 2
    assert done.stderr == "lab mutants: there is no mutant 'no-such-mutant'; see lab mutants list\n"


def test_table_has_a_row_for_each_mutant(tmp_path):
    done = run_mutants("table", "--out", str(tmp_path / "table.md"))
    assert done.stdout == f"{tmp_path}/table.md\n"
    text = (tmp_path / "table.md").read_text()
    assert text.startswith(f"{len(CAUGHT)} of {len(WRONG)} mutants caught by the tests, ")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [mutant.id for mutant in WRONG]
    known = CAUGHT["double-vote"]
    (row,) = (row for row in rows if row.startswith("| `double-vote` | 2a | "))
    assert f" | {known['by']} | {known['test']} | {known['seed']} | {known['runs']} | " in row
    assert row.endswith(" | sometimes, missed |")


def test_broken_worker_is_reported(monkeypatch):
    monkeypatch.setattr(command, "_WORKER", "raftlab.gone")
    args = argparse.Namespace(tests=["2a"], runs=1, seed=0, jobs=1, budget_seconds=None, isolated=False, race=False)
    (result,), _ = command._judge_all(load_mutants()[:1], args)
    assert (result.verdict, result.bad) == ("broken", True)
    assert result.line.endswith("No module named raftlab.gone")
