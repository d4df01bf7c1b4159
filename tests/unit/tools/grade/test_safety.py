"""The cap on the score of a submission that violates a safety rule."""

from __future__ import annotations

import msgspec
import pytest

from raftlab.check.harness_rules import HARNESS_RULES
from raftlab.check.rules.checker import RULES
from raftlab.harness.outcome import Ending, Outcome
from raftlab.tools.grade.output import as_csv, as_gradescope
from raftlab.tools.grade.pages.submission import class_page, submission_page
from raftlab.tools.grade.values.results import Result
from raftlab.tools.grade.values.results import TestResult as Scored
from raftlab.tools.grade.values.rubric import SAFETY_RULES, Checks, GradedTest, Rubric
from raftlab.tools.selection import load_tests
from unit.students import ROOT

CAPPED = Rubric(runs=2, pass_rate=0.5, points={"2a": 40, "2b": 60}, checks=Checks(safety_violation="cap:60"))


def graded(rubric: Rubric = CAPPED) -> list[GradedTest]:
    tests = [test for file in ("2a", "2b") for test in load_tests(ROOT / f"tests/test_{file}.py")[:2]]
    return rubric.assign(tests[:2], tests[2:], "p")


def result(rule: str, at: int, tests: list[GradedTest] | None = None) -> Result:
    """One run of all violates the rule, in that test. The pass rate allows it."""
    tests = tests or graded()
    good = [Outcome(test=test.name, seed=test.seeds[0]) for test in tests]
    bad = [Outcome(test=test.name, seed=1, ending=Ending.RULE, name=rule) for test in tests]
    each = enumerate(zip(tests, good, bad, strict=True))
    return Result("ann", "", (), tuple(Scored(t, (a, b if i == at else a)) for i, (t, a, b) in each), file="ann.py")


def test_safety_rules_exist() -> None:
    assert {rule.name for rule in (*RULES, *HARNESS_RULES)} >= SAFETY_RULES


def test_one_violation_anywhere_caps_the_score() -> None:
    assert [result("one-vote", at).score for at in range(4)] == [60, 60, 60, 60]
    assert [result("rpc-budget", at).score for at in range(4)] == [100, 100, 100, 100]
    refused = msgspec.structs.replace(CAPPED, checks=Checks(safety_violation="refuse"))
    assert result("one-leader", 0, graded(refused)).score == 0
    allowed = msgspec.structs.replace(CAPPED, checks=Checks())
    assert result("one-leader", 0, graded(allowed)).score == 100


def test_cap_leaves_lower_scores_alone() -> None:
    failed = result("one-vote", 0)
    runs = tuple(Outcome(test="x", ending=Ending.EXPECTATION) for _ in range(2))
    worse = Result("bob", "", (), (failed.tests[0], *(Scored(one.test, runs) for one in failed.tests[1:])))
    assert (worse.score, worse.cap) == (20, 60)


def test_runs_that_cost_nothing_cap_nothing() -> None:
    tests = [
        msgspec.structs.replace(test, part="race", points=0.0) if i == 0 else test for i, test in enumerate(graded())
    ]
    assert result("one-vote", 0, tests).cap is None


def test_pages_and_tables_name_the_violation() -> None:
    one = result("one-vote", 0)
    name = one.tests[0].test.name
    for full in (True, False):
        page = submission_page(one, "Raft", full=full)
        assert f"the score is at most 60: one-vote in {name}." in page
    assert "safety violated" in class_page([one], "Raft", page_of=lambda one: "")
    found = as_gradescope(one)
    assert found["score"] == 60 and f"one-vote in {name}" in found["output"]
    assert as_csv([one]).splitlines()[1].startswith("ann,60,100,")


@pytest.mark.parametrize("at", [2, 3])
def test_student_reads_nothing_of_a_hidden_violation(at: int) -> None:
    one = result("one-vote", at)
    name = one.tests[at].test.name
    texts = submission_page(one, "Raft", full=False), as_gradescope(one)["output"]
    assert all("one-vote" not in text and name not in text for text in texts)
    assert all("a safety rule in a test that is not shown" in text for text in texts)
    assert f"one-vote in {name}" in submission_page(one, "Raft", full=True)
