"""The rubric: points and seeds of each test, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlab.harness.lab_test import LabTest, LabTestKind
from raftlab.tools.grade.values.rubric import (
    Fuzz,
    GradedTest,
    PerTest,
    Public,
    Race,
    Rubric,
    RubricError,
    apportion,
    seeds,
)


def lab_tests(*names: str) -> list[LabTest]:
    return [LabTest(name, Path("x.py"), LabTestKind.PEER, lambda make_config: None) for name in names]


def read(tmp_path: Path, text: str) -> Rubric:
    path = tmp_path / "rubric.toml"
    path.write_text(text)
    return Rubric.read(path)


def test_a_part_s_points_are_shared_by_weight() -> None:
    rubric = Rubric(points={"2a": 30})
    tests = rubric.assign(lab_tests("test_x_2a", "test_y_2a"), lab_tests("test_z_2a"), "p")
    assert [test.points for test in tests] == [10, 10, 10]
    assert [test.hidden for test in tests] == [False, False, True]


@pytest.mark.parametrize(
    ("total", "weights", "points"),
    [
        (100, [1, 1, 1], [33.34, 33.33, 33.33]),
        (20, [1] * 7, [2.86, 2.86, 2.86, 2.86, 2.86, 2.85, 2.85]),
        (1, [3, 0, 1], [0.75, 0, 0.25]),
        (0.07, [1, 1], [0.04, 0.03]),
        (30, [0.1, 0.2, 0.3], [5, 10, 15]),
        (30, [0, 0], [0, 0]),
        (30, [], []),
    ],
)
def test_points_add_up_exactly(total: float, weights: list[float], points: list[float]) -> None:
    assert apportion(total, weights) == points


def test_race_and_fuzz_points_add_up() -> None:
    rubric = Rubric(points={"2c": 10, "2d": 10}, race=Race(runs=1, points=10), fuzz=Fuzz(runs=1, points=0.05))
    tests = rubric.assign(lab_tests("test_x_2c", "test_y_2c", "test_z_2d"), [], "p", lab_tests("f_2c", "f_2d"))
    assert [test.points for test in tests] == [5, 5, 10, 3.34, 3.33, 3.33, 0.03, 0.02]


def test_parts_without_points_are_not_graded() -> None:
    own = Rubric(points={"2a": 30}, tests={"test_z_2c": PerTest(points=5)})
    tests = own.assign(lab_tests("test_x_2a", "test_y_2b"), lab_tests("test_z_2c", "test_other"), "p")
    assert [(test.name, test.points) for test in tests] == [("test_x_2a", 30), ("test_z_2c", 5)]
    assert [test.name for test in Rubric(points={"2b": 0}).assign(lab_tests("test_y_2b"), [], "p")] == ["test_y_2b"]
    with pytest.raises(RubricError, match="points: no test belongs to a part named here"):
        Rubric(points={"2d": 10}).assign(lab_tests("test_x_2a"), [], "p")


def test_weights_and_points_of_single_tests(tmp_path: Path) -> None:
    rubric = read(
        tmp_path,
        "[points]\n2a = 30\n[hidden]\nweight = 2\n[tests.test_x_2a]\npoints = 5\n[tests.test_y_2a]\nweight = 4\n",
    )
    tests = rubric.assign(lab_tests("test_x_2a", "test_y_2a"), lab_tests("test_z_2a"), "p")
    assert [round(test.points, 3) for test in tests] == [5, 20, 10]


def test_seeds_differ_by_test_and_phrase() -> None:
    one = Rubric(runs=3).assign(lab_tests("test_x_2a", "test_y_2a"), [], "phrase")
    assert one == Rubric(runs=3).assign(lab_tests("test_x_2a", "test_y_2a"), [], "phrase")
    assert len({*one[0].seeds, *one[1].seeds, *seeds("other", "test_x_2a", 3)}) == 9
    assert seeds("phrase", "test_x_2a", 5)[:3] == one[0].seeds  # more runs keep the earlier ones


def test_seeds_derive_from_hidden_tests_or_rubric(tmp_path: Path) -> None:
    file = tmp_path / "h.py"
    file.write_text("# one\n")
    hidden = [LabTest("test_h_2a", file, LabTestKind.PEER, lambda make_config: None)]
    first = Rubric().seed_phrase(hidden)
    file.write_text("# two\n")
    assert first
    assert first != Rubric().seed_phrase(hidden)
    assert Rubric(seed="word").seed_phrase(hidden) == "word"
    assert Rubric().seed_phrase([]) == ""


def test_a_pass_rate_allows_failures() -> None:
    def graded(runs: int, rate: float) -> GradedTest:
        return Rubric(runs=runs, pass_rate=rate).assign(lab_tests("test_x_2a"), [], "p")[0]

    assert [graded(10, 0.9).failures_allowed, graded(10, 1).failures_allowed, graded(3, 0.5).failures_allowed] == [
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("runs = 0", "runs: must be 1..10000, got 0"),
        ("pass_rate = 1.5", "pass_rate: must be above 0 and at most 1, got 1.5"),
        ("[points]\n4a = 5", "points.4a: the part must be one of 2a, 2b, 2c, 2d, 3a, 3b or other"),
        ('raft = "mine"', "Invalid enum value 'mine' - at `$.raft`"),
        ('service_files = ["server.py"]', "service_files: must be server.py, client.py and then other .py files,"),
        ("[points]\n2a = -5", "points.2a: must be 0 or more, got -5"),
        ("[hidden]\nshow = 'all'", "Invalid enum value 'all' - at `$.hidden.show`"),
        ("[public]\nshow = 'nothing'", "Invalid enum value 'nothing' - at `$.public.show`"),
        ("[hiden]\nshow = 'names'", "unknown field `hiden`"),
        ("[limits]\ncpu_s = 0", "limits.cpu_s: must be at least 1, got 0"),
        ("[points]\n2a = nan", "points.2a: must be 0 or more, got nan"),
        ("[hidden]\nweight = inf", "hidden.weight: must be 0 or more, got inf"),
        ("files = ['../raft.py']", "files: must be raft.py and then other .py files"),
        ("files = ['solution.py']", "files: must be raft.py and then other .py files"),
        ("runs = ", "not TOML"),
        ("[checks]\nsafety_violation = 'cap:160'", 'checks.safety_violation: must be "refuse", "allow", or "cap:60"'),
        ("[tests.test_x_2a]\nweight = -1", "tests.test_x_2a.weight: must be 0 or more, got -1"),
    ],
)
def test_invalid_rubric_names_the_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RubricError) as refused:
        read(tmp_path, text)
    assert says in str(refused.value)
    assert "rubric.toml" in str(refused.value)


def test_rubric_with_unknown_test_is_refused() -> None:
    names = ("test_basic_agree_2b", "test_fail_agree_2b", "test_many_elections_2a")
    parts = {"2a": 10.0, "2b": 10.0}

    def refused(name: str, rubric: Rubric) -> str:
        with pytest.raises(RubricError) as error:
            msgspec.structs.replace(rubric, tests={name: PerTest(weight=1)}).assign(lab_tests(*names), [], "p")
        return str(error.value)

    every = Rubric(points=parts)
    assert refused("test_q", every) == "tests.test_q: not found among the 3 graded tests"
    assert refused("test_agree_2b", every).endswith("; did you mean test_fail_agree_2b or test_basic_agree_2b?")
    without = refused("test_q", Rubric(points=parts, public=Public(extra=False)))
    assert without.endswith("among the 3 graded tests (public.extra = false omits tests beyond MIT's)")
    with pytest.raises(RubricError, match="two tests are called test_x_2a"):
        Rubric().assign(lab_tests("test_x_2a"), lab_tests("test_x_2a"), "p")


@pytest.mark.parametrize(
    "table", [{"weight": 3.0}, {"runs": 10}, {"visibility": "hidden"}], ids=lambda t: next(iter(t))
)
def test_table_for_an_ungraded_test_is_refused(table: dict[str, Any]) -> None:
    rubric = Rubric(points={"2a": 30}, tests={"test_y_2b": PerTest(**table)})
    with pytest.raises(RubricError) as error:
        rubric.assign(lab_tests("test_x_2a", "test_y_2b"), [], "p")
    assert str(error.value) == (
        "tests.test_y_2b: this test is not graded, because [points] omits its part; add 2b there, or set "
        "tests.test_y_2b.points, or remove [tests.test_y_2b]"
    )
