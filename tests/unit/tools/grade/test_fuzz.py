"""Random runs in grading: the same for all submissions, and free unless they have points."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from raftlab.harness.lab_test import LabTest
from raftlab.layout import ROOT
from raftlab.tools.cli import main as lab
from raftlab.tools.grade.runs import run_digest
from raftlab.tools.grade.values.rubric import GradedTest, Rubric, RubricError
from raftlab.tools.selection import load_tests

PUBLIC = load_tests(Path("tests/test_2c.py"))
FUZZ_TESTS = load_tests(Path(run_digest.FUZZ_TESTS))
RUBRIC = """
seed = "x"
runs = 1
[points]
other = 1
[public]
extra = false
[tests.test_persist1_2c]
points = 9
[fuzz]
runs = 6
points = 4
[failures]
shrink_runs = 40
"""


def rubric(tmp_path: Path, text: str) -> Rubric:
    path = tmp_path / "rubric.toml"
    path.write_text(text)
    return Rubric.read(path)


def test_rubric_sets_fuzz_runs_and_points(tmp_path: Path) -> None:
    def fuzzed(text: str, public: Sequence[LabTest] = PUBLIC) -> list[GradedTest]:
        return [test for test in rubric(tmp_path, text).assign(public, [], "x", FUZZ_TESTS) if test.part == "fuzz"]

    assert fuzzed("[points]\n2c = 9") == []
    (alone,) = fuzzed("[points]\n2c = 9\n[fuzz]\nruns = 3")
    assert (alone.name, alone.points, alone.counts, alone.additional, len(alone.seeds)) == (
        "test_fuzz_2c",
        0,
        False,
        True,
        3,
    )
    both = fuzzed(
        "[points]\n2c = 9\n2d = 9\n[fuzz]\nruns = 3\npoints = 4", [*PUBLIC, *load_tests(Path("tests/test_2d.py"))]
    )
    assert [(test.name, test.points, test.counts) for test in both] == [
        ("test_fuzz_2c", 2, True),
        ("test_fuzz_2d", 2, True),
    ]
    with pytest.raises(RubricError, match=r"random runs belong to parts 2c and 2d, but no test of these is graded"):
        fuzzed("[points]\n2a = 9\n[fuzz]\nruns = 1", load_tests(Path("tests/test_2a.py")))
    for wrong, says in (("runs = -1", "fuzz.runs"), ("points = 3", "fuzz.points: needs fuzz.runs")):
        with pytest.raises(RubricError, match=says):
            rubric(tmp_path, f"[fuzz]\n{wrong}")


def test_fuzz_code_is_in_the_key() -> None:
    names = {str(path.relative_to(ROOT)) for path in run_digest.graded_run_files()}
    assert {
        "raftlab/tools/generator/step_generator.py",
        "raftlab/tools/generator/as_test.py",
        "raftlab/scenarios/scenario.py",
    } <= names
    assert "raftlab/tools/fuzz/command.py" not in names


def test_fuzz_failure_costs_its_points(tmp_path: Path) -> None:
    source = Path("raft/raft.py").read_text(encoding="utf-8")
    right, wrong = tmp_path / "class" / "ann.py", tmp_path / "class" / "eve.py"
    right.parent.mkdir()
    right.write_text(source)
    assert source.count("[(len(self.peers) - 1) // 2]") == 1
    wrong.write_text(source.replace("[(len(self.peers) - 1) // 2]", "[-1]"))  # what one has is committed
    (tmp_path / "rubric.toml").write_text(RUBRIC)
    out = tmp_path / "out"
    options = ["--rubric", str(tmp_path / "rubric.toml"), "--out", str(out), "--jobs", "2"]
    assert lab(["grade", str(right.parent), *options]) == 0
    scores = {row.split(",")[0]: row.split(",")[1] for row in (out / "scores.csv").read_text().splitlines()[1:]}
    results = json.loads((out / "students/eve/results.json").read_text())["tests"]
    (found,) = [test for test in results if test["name"] == "test_fuzz_2c"]
    assert (found["score"], found["max_score"]) == (0, 4)
    assert "A leader commits only what a majority has acknowledged" in found["output"]
    assert "lab replay test_fuzz_2c --seed " in found["output"]
    assert "--file raftlab/tools/generator/as_test.py --isolated" in found["output"]
    page = (out / "students/eve/report.html").read_text()
    assert "<h2>Random runs: 0 of 4 points</h2>" in page
    assert "random, and the same for every submission" in page
    assert float(scores["ann"]) - float(scores["eve"]) >= 4
    assert "<h2>Random runs: 4 of 4 points</h2>" in (out / "students/ann/report.html").read_text()
