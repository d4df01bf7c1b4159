"""Unverified and skipped tests: their points, and how results and pages show them."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from raftlab.harness.outcome import FAILED, Ending, Outcome
from raftlab.tools.grade.grader import Assignment, GradeProgress, grade
from raftlab.tools.grade.output import as_csv, as_gradescope, as_junit
from raftlab.tools.grade.pages.submission import class_page, submission_page
from raftlab.tools.grade.submission_loader import WantedFiles, load_submissions
from raftlab.tools.grade.values.results import Result, TestResult
from raftlab.tools.grade.values.rubric import Checks, GradedTest, Rubric, RubricError
from raftlab.tools.selection import load_tests
from tests.mutants.tool.mutants import PEERS
from unit.students import ROOT, renamed_package

WHY = "Leadership cannot be verified: say vote_granted."


def graded_test(name: str = "test_x_2a", runs: int = 2, **more: object) -> GradedTest:
    values = {"name": name, "part": "2a", "hidden": False, "points": 10.0, "seeds": tuple(range(runs))}
    values |= {"pass_rate": 1.0, "visibility": "visible", "show": "everything", "shown_name": name}
    return GradedTest(**(values | more))  # type: ignore[arg-type]


def runs_of(test: GradedTest, *kinds: str) -> TestResult:
    runs = (
        Outcome(test=test.name, seed=i, ending=kind, text="it needs plain votes" if kind == Ending.SKIPPED else "")
        for i, kind in enumerate(kinds)
    )
    return TestResult(test, tuple(runs))


@pytest.mark.parametrize(("share", "earned", "passed"), [(0.0, 0, False), (0.6, 6, True), (1.0, 10, True)])
def test_the_rubric_says_what_unverified_is_worth(share: float, earned: float, passed: bool) -> None:
    test = graded_test(unverified_share=share)
    for kinds in ((Ending.UNVERIFIED, Ending.UNVERIFIED), (Ending.PASSED, Ending.UNVERIFIED)):
        result = runs_of(test, *kinds)
        assert (result.verdict, result.earned, result.possible, result.passed) == (
            Ending.UNVERIFIED,
            earned,
            10,
            passed,
        )
    assert runs_of(test, Ending.UNVERIFIED, Ending.RULE).verdict == FAILED
    assert runs_of(test, Ending.PASSED, Ending.PASSED).earned == 10


def test_skipped_test_does_not_count() -> None:
    skipped = runs_of(graded_test(), Ending.SKIPPED, Ending.SKIPPED)
    assert (skipped.verdict, skipped.earned, skipped.possible, skipped.failures) == (Ending.SKIPPED, 0, 0, [])
    assert runs_of(graded_test(), Ending.SKIPPED, Ending.PASSED).verdict == Ending.PASSED
    assert runs_of(graded_test(), Ending.SKIPPED, Ending.RULE).verdict == FAILED
    strict = runs_of(graded_test(skips_fail=True), Ending.SKIPPED, Ending.SKIPPED)
    assert (strict.verdict, strict.earned, strict.possible) == (FAILED, 0, 10)
    result = Result("ann", "", (), (skipped, runs_of(graded_test("test_y_2a"), Ending.PASSED, Ending.PASSED)))
    assert (result.score, result.score_max, result.parts) == (10, 10, {"2a": (10, 10)})


@pytest.mark.parametrize(("value", "share"), [("refuse", 0.0), ("allow", 1.0), ("cap:60", 0.6), ("cap:5", 0.05)])
def test_the_rubric_s_values_for_undecodable(value: str, share: float) -> None:
    rubric = Rubric(checks=Checks(undecodable=value), runs=1)
    (test,) = rubric.assign(load_tests(ROOT / "tests/test_2a.py")[:1], [], "p")
    assert (test.unverified_share, test.skips_fail) == (share, False)


@pytest.mark.parametrize("value", ["", "cap", "cap:600", "cap:-1", "deny"])
def test_invalid_value_for_undecodable_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "rubric.toml"
    path.write_text(f'[checks]\nundecodable = "{value}"\n')
    with pytest.raises(RubricError, match=r'checks.undecodable: must be "refuse", "allow", or "cap:60"'):
        Rubric.read(path)


def a_result(share: float = 0.0) -> Result:
    tests = (
        runs_of(graded_test("test_x_2a", unverified_share=share), Ending.UNVERIFIED, Ending.UNVERIFIED),
        runs_of(graded_test("test_y_2a"), Ending.SKIPPED, Ending.SKIPPED),
        runs_of(graded_test("test_z_2a"), Ending.PASSED, Ending.PASSED),
    )
    return Result("ann", "", (), tests, unverified_because=(WHY,))


@pytest.mark.parametrize("full", [False, True])
def test_page_explains_unverified_and_lists_skips(full: bool) -> None:
    page = submission_page(a_result(), "Raft", full=full)
    assert "What cannot be verified" in page and WHY in page
    assert "✗ unverified" in page and "– skipped" in page
    assert "1 of 2 tests passed, 1 skipped" in page
    assert "Skipped; these tests do not count:" in page and "it needs plain votes" in page
    assert "What went wrong" not in page


def test_the_overview_flags_both() -> None:
    page = class_page([a_result()], "Raft", page_of=lambda result: "")
    assert '<span class="tag bad">unverified</span>' in page
    assert '<span class="tag">skipped tests</span>' in page
    assert "1 of 3" in page  # failed


def test_outputs_have_unverified_and_skipped() -> None:
    found = as_gradescope(a_result())
    assert [(t["score"], t["max_score"], t.get("status")) for t in found["tests"]] == [
        (0, 10, "failed"),
        (0, 0, None),
        (10, 10, "passed"),
    ]
    assert found["output"] == f"{WHY}\n10 of 20 points in the 3 tests shown here."
    suite = ElementTree.fromstring(as_junit(a_result()))
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "1")
    row = dict(zip(*csv.reader(io.StringIO(as_csv([a_result()]))), strict=True))
    assert (row["score"], row["of"]) == ("10", "20")


FILES = ("raft.py", "messages.py")


def grade_one(
    folder: Path, tests: tuple[str, ...], *, undecodable: str = "refuse", hidden: Path | None = None
) -> Result:
    known = {test.name: test for part in "ab" for test in load_tests(ROOT / f"tests/test_2{part}.py")}
    known |= {test.name: test for test in load_tests(ROOT / "tests/test_2b_extra.py")}
    rubric = Rubric(runs=1, checks=Checks(undecodable=undecodable))
    secret = load_tests(hidden) if hidden else []
    asked = rubric.assign([known[name] for name in tests], secret, "p")
    exam = Assignment(tuple(asked), known | {test.name: test for test in secret}, rubric.limits)
    found = load_submissions(folder, WantedFiles(FILES)).submissions
    progress = GradeProgress(1, len(tests))
    runs, pages = folder.parent / "runs", folder.parent / "pages"
    (result,) = grade(found, exam, jobs=1, runs=runs, pages=lambda _: pages, progress=progress, watch=lambda: None)
    return result


ASKED = ("test_initial_election_2a", "test_basic_agree_2b", "test_alone_2b")


def test_undecodable_peer_earns_nothing(tmp_path: Path) -> None:
    (tmp_path / "class/bob").mkdir(parents=True)
    renamed_package(tmp_path / "class/bob", vote_granted="yes", success="matches")
    result = grade_one(tmp_path / "class", ASKED)
    assert result.score == 0 and result.score_max == 50
    # Where there is a single server nothing is sent, which proves nothing of such a peer.
    assert {test.verdict for test in result.tests} == {Ending.UNVERIFIED}
    assert [line.partition(" cannot")[0] for line in result.unverified_because] == ["Leadership", "Commits"]
    assert grade_one(tmp_path / "class", ASKED, undecodable="allow").score == 50


def test_inapplicable_scenario_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "class/cy").mkdir(parents=True)
    for name in FILES:
        (tmp_path / "class/cy" / name).write_bytes((PEERS / "pre_vote" / name).read_bytes())
    scenario = tmp_path / "split_vote_2a.scenario"
    scenario.write_bytes((ROOT / "tests/scenarios/2a/split_vote.scenario").read_bytes())
    result = grade_one(tmp_path / "class", ("test_initial_election_2a",), hidden=scenario)
    assert [test.verdict for test in result.tests] == [Ending.PASSED, Ending.SKIPPED]
    assert (result.score, result.score_max) == (20, 20)  # out of the same total as all others
    assert result.tests[1].runs[0].cause.startswith("the scenario needs plain votes")
