"""The result of a submission: runs in, points out.

Promise: equal runs give byte-identical results, whatever their order and duration. Only the class overview uses real
time. Start at `Result`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
from msgspec.structs import replace as replaced

from raftlab.harness.outcome import FAILED, Ending, Outcome
from raftlab.tools.grade.values.overrides import Override
from raftlab.tools.grade.values.roster import Student
from raftlab.tools.grade.values.rubric import SAFETY_RULES, GradedTest, apportion

PROVENANCE = "provenance.json"  # how the results were made; beside the overview


def without_replay(run: Outcome) -> Outcome:
    """For a reader who cannot use the command. It is the last line of the report, too."""
    lines = run.report.rstrip().split("\n")
    if lines[-1].split()[:1] == ["replay"]:
        del lines[-1]
    return replaced(run, replay="", report="\n".join(lines).rstrip())


def with_rule_only(run: Outcome) -> Outcome:
    """Without evidence, causes and output."""
    text = f"Violates {run.rule}" if run.rule else "Fails without violating a rule" if run.failed else ""
    return Outcome(
        test=run.test, seed=run.seed, ending=run.ending, name=run.rule, text=text, headline=text, report=text
    )


class Artifacts(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The page and the minimized run of a failed public test. Files are in a folder beside the student's page."""

    test: str
    seed: int
    page: str = ""  # of the run; "" if there is none
    no_page: str = ""  # why
    recipe: list[str] = []  # reproduction steps; []: it was not minimized
    not_shrunk: str = ""  # why
    timeline: str = ""
    shrunk_page: str = ""
    choices: str = ""  # the choice file that replays the minimized run
    events: int = 0
    events_left: int = 0
    files: dict[str, str] = {}  # digests
    bytes: int = 0  # of the files


@dataclass(frozen=True)
class TestResult:
    __test__ = False  # for pytest: this is not a class of tests

    test: GradedTest
    runs: tuple[Outcome, ...]
    not_run: str = ""  # why the test was not run, or ""

    @property
    def failures(self) -> list[Outcome]:
        return [run for run in self.runs if run.failed or (self.test.skips_fail and run.ending is Ending.SKIPPED)]

    @property
    def for_students(self) -> TestResult:
        """Without what the rubric does not show, and without the replay commands of a hidden test, which name the
        grader's files."""
        if self.test.show == "rule":
            return replace(self, runs=tuple(map(with_rule_only, self.runs)))
        return replace(self, runs=tuple(map(without_replay, self.runs))) if self.test.hidden else self

    @property
    def verdict(self) -> str:
        """PASSED, UNVERIFIED, SKIPPED, or FAILED, by the rubric's pass rate.

        A test with runs missing has failed too often already.
        """
        if len(self.runs) < len(self.test.seeds) or len(self.failures) > self.test.failures_allowed:
            return FAILED
        endings = {run.ending for run in self.runs}
        if Ending.UNVERIFIED in endings:
            return Ending.UNVERIFIED
        return Ending.PASSED if Ending.PASSED in endings or self.test.skips_fail else Ending.SKIPPED

    @property
    def with_single_server_tests_unverified(self) -> TestResult:
        """For a peer that is unverified in other tests: tests with a single server are unverified, too."""
        runs = (replaced(run, ending=Ending.UNVERIFIED) if run.alone and run.passed else run for run in self.runs)
        return replace(self, runs=tuple(runs))

    @property
    def passed(self) -> bool:
        return self.verdict == Ending.PASSED or (self.verdict == Ending.UNVERIFIED and self.test.unverified_share > 0)

    @property
    def safety_rules(self) -> list[str]:
        """The violated ones, also if the test has passed by its pass rate."""
        return sorted({run.rule for run in self.runs if run.rule in SAFETY_RULES}) if self.test.counts else []

    @property
    def skipped(self) -> bool:
        return self.verdict == Ending.SKIPPED

    @property
    def earned(self) -> float:
        share: dict[str, float] = {Ending.PASSED: 1.0, Ending.UNVERIFIED: self.test.unverified_share}
        return round(self.test.points * share.get(self.verdict, 0.0), 2)

    @property
    def possible(self) -> float:
        """What a correct peer of this design can earn."""
        return 0.0 if self.skipped else self.test.points

    @property
    def summary(self) -> str:
        """One line that reveals nothing of a hidden test."""
        if self.not_run:
            return f"Not run: {self.not_run}"
        if self.skipped:
            return "Skipped: the test does not apply to this design and does not count."
        if self.verdict == Ending.UNVERIFIED:
            share = self.test.unverified_share
            worth = (
                "the test earns nothing"
                if not share
                else "the test earns all its points"
                if share == 1
                else f"the test earns {share:.0%} of its points"
            )
            return f"Unverified: the peer's messages cannot be read, so {worth}."
        many = len(self.test.seeds)
        good = sum(run.passed for run in self.runs)
        if self.passed:
            return f"Passed {good} of {many} runs." if many > 1 else "Passed."
        left = many - len(self.runs)
        rest = f"; {left} not run" if left else ""
        return f"Failed {len(self.failures)} of {len(self.runs)} runs{rest}." if many > 1 else "Failed."


@dataclass(frozen=True)
class Result:
    """One submission."""

    name: str
    problem: str  # why no test could run, or ""
    remarks: tuple[str, ...]  # about the submission
    tests: tuple[TestResult, ...]
    real_s: float = field(compare=False, default=0.0)
    file: str = ""  # the submitted file or folder
    shown: tuple[Artifacts, ...] = ()  # of failures of public tests
    unverified_because: tuple[str, ...] = ()  # what cannot be verified, why, and what to change
    # These three are not stored: class_list.py adds them.
    student: Student | None = None
    override: Override | None = None
    instead: str = ""  # the student's submission that counts, if it is not this one

    @property
    def earned_by_tests(self) -> float:
        return round(sum(test.earned for test in self.tests), 2)

    @property
    def earned(self) -> float:
        """At most the cap for safety violations. Before any override."""
        return self.earned_by_tests if self.cap is None else min(self.earned_by_tests, self.cap)

    @property
    def cap(self) -> float | None:
        """The most that can be earned, because a safety rule was violated; None: everything."""
        share = min((test.test.safety_share for test in self.tests if test.safety_rules), default=1.0)
        return None if share == 1.0 else round(share * self.score_max, 2)

    @property
    def score(self) -> float:
        if self.override is None:
            return self.earned
        if self.override.points is not None:
            return self.override.points
        return max(0.0, round(self.earned + (self.override.adjust or 0.0), 2))

    @property
    def in_statistics(self) -> bool:
        return not (self.problem or self.excused or self.instead)

    @property
    def has_score(self) -> bool:
        given = self.override is not None and self.override.points is not None
        return not self.excused and (given or bool(self.tests))

    @property
    def excused(self) -> bool:
        return self.override is not None and self.override.excused

    @property
    def score_max(self) -> float:
        return round(sum(test.possible for test in self.tests), 2)

    @property
    def parts(self) -> dict[str, tuple[float, float]]:
        """Earned and possible points of each part, in the order of the tests."""
        found: dict[str, tuple[float, float]] = {}
        for test in sorted(self.tests, key=lambda t: t.test.part):
            earned, possible = found.get(test.test.part, (0.0, 0.0))
            found[test.test.part] = (round(earned + test.earned, 2), round(possible + test.possible, 2))
        return found

    @property
    def unverified(self) -> bool:
        return any(test.verdict == Ending.UNVERIFIED for test in self.tests)

    @property
    def misbehaved(self) -> bool:
        return any(run.ending is Ending.MISBEHAVED for test in self.tests for run in test.runs)

    @property
    def rules_broken(self) -> Counter[str]:
        """The violated rules, with the number of tests in which each was."""
        return Counter(rule for test in self.tests for rule in sorted({run.rule for run in test.failures if run.rule}))


def without_skipped_points(tests: Sequence[TestResult]) -> list[TestResult]:
    """The points of skipped tests go to the others of their part, or to all others if none of the part is left, so that
    all submissions are graded out of the same total."""
    points = {test.test.name: test.test.points for test in tests}
    for part in dict.fromkeys(test.test.part for test in tests if test.skipped):
        skipped = [test.test.name for test in tests if test.skipped and test.test.part == part]
        left = [test for test in tests if not test.skipped and test.test.points]
        names = [test.test.name for test in left if test.test.part == part] or [test.test.name for test in left]
        if names:
            total = sum(points[name] for name in (*skipped, *names))
            points |= dict(zip(names, apportion(total, [points[name] for name in names]), strict=True))
    return [replace(test, test=replaced(test.test, points=points[test.test.name])) for test in tests]


def has_other_name_than_file(name: str, file: str) -> bool:
    """Whether a submission's name is not simply its file's, as ann_2 for ann.zip beside ann.py."""
    return bool(file) and not file.startswith(name)


def cap_text(result: Result, *, full: bool) -> str:
    """Why the score is capped, or "". Not `full`: for the student, without names from hidden tests."""
    if result.cap is None:
        return ""
    found = [(rule, test.test) for test in result.tests for rule in test.safety_rules]
    rules = [
        f"{rule} in {test.name}" for rule, test in found if full or (test.shows_rules and test.visibility == "visible")
    ]
    if len(rules) < len(found):
        rules.append("a safety rule in a test that is not shown")
    return f"Safety is violated, so the score is at most {points(result.cap)}: {', '.join(rules)}."


def override_text(result: Result) -> str:
    """What the course staff decided, for the student."""
    override = result.override or Override()
    score = f"{points(result.score)} of {points(result.score_max)} points"
    decision = (
        "Excused."
        if override.excused
        else f"The course staff set the score to {score}."
        if override.points is not None
        else f"The course staff changed the score by {override.adjust:+g} to {score}."
        if override.adjust is not None
        else ""
    )
    return "\n".join(filter(None, (decision, override.comment)))


def points(value: float) -> str:
    """12, 7.5, 3.33: at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def tests_failed(results: Sequence[Result]) -> Counter[str]:
    """How many submissions failed each test."""
    return Counter(
        test.test.name for result in results for test in result.tests if not test.passed and not test.skipped
    )
