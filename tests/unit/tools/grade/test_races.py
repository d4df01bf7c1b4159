"""Runs with --race in grading: as the rubric says, and free unless they have points."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from raftlab.tools.cli import main as lab
from raftlab.tools.grade.values.rubric import GradedTest, Rubric, RubricError
from raftlab.tools.selection import load_tests

PUBLIC = load_tests(Path("tests/test_2a.py"))
TEST = "test_initial_election_2a"
RUBRIC = f"""
seed = "x"
runs = 1
[points]
2a = 9
[public]
extra = false
[tests.test_many_elections_2a]
weight = 0
[race]
runs = 2
tests = ["{TEST}"]
"""
LOCKED = "        with self.mu:\n            return self.current_term, self.role is Role.LEADER\n"


def rubric(tmp_path: Path, text: str) -> Rubric:
    path = tmp_path / "rubric.toml"
    path.write_text(text)
    return Rubric.read(path)


def test_rubric_sets_race_tests_and_points(tmp_path: Path) -> None:
    def races(text: str) -> list[GradedTest]:
        return [test for test in rubric(tmp_path, text).assign(PUBLIC, [], "x") if test.race]

    assert races("[points]\n2a = 9") == []
    assert len(races("[points]\n2a = 9\n[race]\nruns = 1")) == len(PUBLIC)
    (told,) = races(RUBRIC)
    assert (told.name, told.of, told.part) == (f"{TEST} with races", TEST, "race")
    assert (told.points, told.counts, len(told.seeds)) == (0, False, 2)
    (worth,) = races(RUBRIC + "points = 4")
    assert (worth.points, worth.counts) == (4, True)
    with pytest.raises(
        RubricError, match=r"race.tests: test_initial_elction_2a is not a graded public test.*did you mean"
    ):
        races(RUBRIC.replace("initial_election", "initial_elction"))
    for wrong, says in (("runs = -1", "race.runs"), ("points = 3", "race.points: needs race.runs")):
        with pytest.raises(RubricError, match=says):
            rubric(tmp_path, f"[race]\n{wrong}")


def test_race_is_reported_and_costs_its_points(tmp_path: Path) -> None:
    source = Path("raft/raft.py").read_text(encoding="utf-8")
    assert source.count(LOCKED) == 1
    (tmp_path / "ann.py").write_text(source.replace(LOCKED, LOCKED.replace("with self.mu", "if True")))
    for worth in (0, 4):
        (tmp_path / "rubric.toml").write_text(f"{RUBRIC}points = {worth}")
        out = tmp_path / str(worth)
        if worth:
            (tmp_path / "0" / "runs").rename(out.mkdir() or out / "runs")  # they are the same runs
        options = ["--rubric", str(tmp_path / "rubric.toml"), "--out", str(out), "--jobs", "1"]
        options += ["--no-validation"] if worth else []
        assert lab(["grade", str(tmp_path / "ann.py"), *options]) == 0
        assert (out / "scores.csv").read_text().splitlines()[1].split(",")[1:3] == ["9", str(9 + worth)]
        results = json.loads((out / "students/ann/results.json").read_text())["tests"]
        (race,) = [test for test in results if test["name"] == f"{TEST} with races"]
        assert (race["score"], race["max_score"]) == (0, worth)
        assert "Data race on self.role: peer " in race["output"]
        assert f"make replay TEST={TEST} SEED=" in race["output"]
        assert "ISOLATED=1 RACE=1" in race["output"]
        page = (out / "students/ann/report.html").read_text()
        assert ("<h2>Races</h2>" in page) == ("Failures here cost no points." in page) == (worth == 0)
        assert ("<h2>Races: 0 of 4 points</h2>" in page) == (worth == 4)
        junit = ElementTree.fromstring((out / "students/ann/junit.xml").read_text())
        assert junit.get("failures") == ("1" if worth else "0")
