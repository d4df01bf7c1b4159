"""`lab mutants fuzz`: which mutants are fuzzed, and how results are recorded."""

from tests.mutants.tool import fuzzing
from tests.mutants.tool.fuzzing import FuzzMeasurement
from unit.tools.peers import ROOT, lab

FOUND = FuzzMeasurement("b", found="one-vote", runs=12, seconds=0.4, steps=5, right_passes=True)
LATE = FuzzMeasurement("a", runs=900, seconds=60.1)
RIGHT = FuzzMeasurement("c", correct=True, runs=1000, seconds=60.0)


def test_only_safety_and_durability_rules_are_fuzzed():
    assert fuzzing.is_asked_for("one-vote")
    assert not fuzzing.is_asked_for("rpc-budget")
    assert not fuzzing.is_asked_for("")


def test_measurements_are_recorded_and_reported(tmp_path):
    file = tmp_path / "fuzzed.json"
    fuzzing.record([FOUND], file)
    fuzzing.record([LATE], file)
    assert list(fuzzing.recorded(file=file).values()) == [LATE, FOUND]
    assert fuzzing.summary([LATE, FOUND, RIGHT]).splitlines() == [
        "1 of 2 mutants found",
        "processor time for all: 60 s",
        "time to find one: median 0.4 s",
        "1 are scenarios: median 5 steps, most 5; 1 of them pass on the correct peer",
        "missed: a",
        "1 of 1 variants have no false positive in 1,000 runs",
    ]
    assert fuzzing.table([LATE, FOUND]).splitlines()[2:] == [
        "| `a` | no | 900 | 60.1 | - |",
        "| `b` | one-vote | 12 | 0.4 | 5 |",
    ]


def test_mutant_is_fuzzed_in_separate_processes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    figures = tmp_path / "figures.json"
    assert lab("mutants", "fuzz", 5, "commit-minority", "--json", figures) == 0
    out = capsys.readouterr().out
    assert "1 of 1 mutants found\n" in out
    assert "pass on the correct peer" in out
