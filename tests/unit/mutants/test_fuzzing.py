"""What a fuzz run finds of the mutants: whom it is asked for, and what is said of it."""

from tests.mutants.tool import fuzzing
from tests.mutants.tool.fuzzing import Measured
from unit.tools.peers import ROOT, lab

FOUND = Measured("b", found="one-vote", runs=12, seconds=0.4, steps=5, right_passes=True)
LATE = Measured("a", runs=900, seconds=60.1)
RIGHT = Measured("c", correct=True, runs=1000, seconds=60.0)


def test_only_safety_and_durability_are_asked_for():
    assert fuzzing.is_asked_for("one-vote")
    assert not fuzzing.is_asked_for("rpc-budget")
    assert not fuzzing.is_asked_for("")


def test_what_was_measured_is_noted_and_told(tmp_path):
    file = tmp_path / "fuzzed.json"
    fuzzing.record([FOUND], file)
    fuzzing.record([LATE], file)
    assert list(fuzzing.recorded(file=file).values()) == [LATE, FOUND]
    assert fuzzing.summary([LATE, FOUND, RIGHT]).splitlines() == [
        "1 of 2 found",
        "processor time for all: 60 s",
        "until one is found: median 0.4 s",
        "1 are scenarios: median 5 steps, most 5; 1 of them pass on the right peer",
        "got away: a",
        "1 of 1 variants were accused of nothing, in 1,000 runs",
    ]
    assert fuzzing.table([LATE, FOUND]).splitlines()[2:] == [
        "| `a` | no | 900 | 60.1 | - |",
        "| `b` | one-vote | 12 | 0.4 | 5 |",
    ]


def test_a_mutant_is_hunted_in_processes_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    figures = tmp_path / "figures.json"
    assert lab("mutants", "fuzz", 5, "commit-minority", "--json", figures) == 0
    out = capsys.readouterr().out
    assert "1 of 1 found\n" in out
    assert "pass on the right peer" in out
