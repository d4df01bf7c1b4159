"""The rubric: which tests are graded, and for how many points. A small TOML file; every line is optional.

Promise: a rubric and a set of tests give each test its points and seeds, the same for every submission. A rubric that
names an unknown test or part is refused, with the name.

Start at `Rubric.read()` and `Rubric.assign()`.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import msgspec

from raftlab.harness.lab_test import LabTest

# As in Gradescope: who sees a result, and when.
Visibility = Literal["visible", "hidden", "after_due_date", "after_published"]
# What students see of a test: its name and failures, its name and violated rules, its name, or only that it exists.
Show = Literal["everything", "rule", "names", "nothing"]

# The raft.py that services of parts 3A and 3B run on: the submission's, or the instructor's.
OnRaft = Literal["own", "reference"]

PARTS = ("2a", "2b", "2c", "2d", "3a", "3b")
_POINTS = {"2a": 20.0, "2b": 30.0, "2c": 30.0, "2d": 20.0}
OTHER = "other"  # the part of a test without a part in its name
RACE = "race"  # the part of runs with preemption at any line (docs/student/races.md)


FUZZ = "fuzz"  # the part of random runs (docs/student/fuzz.md)
_RACES = " with races"  # at the end of such a test's name


# Figure 3's properties and what they rest on: a peer that violates one can lose or change a committed command.
SAFETY_RULES = frozenset(
    (
        "one-vote",
        "earned-leadership",
        "one-leader",
        "terms-never-fall",
        "up-to-date-vote",
        "log-matching",
        "leader-append-only",
        "success-means-match",
        "acknowledged-stay",
        "earned-commit",
        "leader-completeness",
        "applies-only-committed",
        "applied-on-majority",
        "saved-before-reply",
        "saved-before-campaign",
        "saved-before-counting",
        "snapshot-stays",
        "state-machine-safety",
        "apply-order",
        "linearizability",
    )
)


class RubricError(Exception):
    """The rubric cannot be used; the text names the file, the line's key and its legal values."""


class Limits(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Limits of one run of a submission, and of all its runs."""

    cpu_s: int = 30  # of one server, from its start to its crash, or of one clerk
    real_s: int = 120
    memory_mb: int = 1024  # of all servers together; a clerk may use a sixteenth of it
    output_kb: int = 8  # how much of its output is kept
    submission_s: int = 3600  # real time of all its runs; the rest is not run
    # After this many killed tests in a part, the rest of the part is not run.
    forced_per_part: int = 2


class Public(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    visibility: Visibility = "visible"
    weight: float = 1.0
    extra: bool = True  # also the tests beyond MIT's
    show: Literal["everything", "rule", "names"] = "everything"


class Hidden(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    visibility: Visibility = "after_published"
    show: Show = "nothing"
    weight: float = 1.0


class Checks(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How to grade a test without a verdict."""

    # Unverified, because votes or acknowledgments cannot be decoded: "refuse" gives nothing, "cap:60" gives 60 % of its
    # points, "allow" all of them.
    undecodable: str = "refuse"
    # Skipped, because it does not apply to the design: "exclude" does not count it, "fail" gives nothing.
    skipped: Literal["exclude", "fail"] = "exclude"

    # One of SAFETY_RULES was violated in any test: "allow" costs only that test, "cap:60" gives at most 60 % of all
    # points, "refuse" none.
    safety_violation: str = "allow"

    @staticmethod
    def share(text: str) -> float | None:
        """The share of points; None if the text is invalid."""
        cap = re.fullmatch(r"cap:(\d\d?)", text)
        if cap:
            return int(cap[1]) / 100
        return {"refuse": 0.0, "allow": 1.0}.get(text)


class Failures(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What students see of failures in public tests, besides reports."""

    pages: int = 10  # runs with a page; 0: none
    pages_mb: int = 20  # size of all pages together
    shrink: int = 5  # causes that are minimized; 0: none
    shrink_runs: int = 300  # runs for each; fewer if they are long
    shrink_s: int = 120  # real time for each; beyond it, a cause is not minimized


class Race(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Runs of public tests with preemption at any line. Without points, failures are shown but cost nothing."""

    runs: int = 0  # seeds of each; 0: none
    tests: tuple[str, ...] = ()  # only these tests; (): all public tests that are graded
    points: float = 0.0  # divided among them, on top of the parts'


class Fuzz(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Random runs, the same for all submissions. Without points, failures are shown but cost nothing."""

    runs: int = 0  # this many without snapshots and, if 2D is graded, this many with them; 0: none
    points: float = 0.0  # half for each group, on top of the parts'


class PerTest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What differs for one test. `weight` is its share of the part's points; `points` are on top of them."""

    runs: int | None = None
    pass_rate: float | None = None
    weight: float | None = None
    points: float | None = None
    visibility: Visibility | None = None


class GradedTest(msgspec.Struct, frozen=True):
    """One test with its points and seeds."""

    name: str
    part: str
    hidden: bool
    points: float  # whole hundredths
    seeds: tuple[int, ...]
    pass_rate: float
    visibility: Visibility
    show: Show
    shown_name: str
    race: bool = False
    unverified_share: float = 0.0  # see Checks
    safety_share: float = 1.0  # likewise
    skips_fail: bool = False

    @property
    def of(self) -> str:
        """The test that is run."""
        return self.name.removesuffix(_RACES)

    @property
    def counts(self) -> bool:
        """Whether it is graded; False: its failures are only shown."""
        return not self.additional or self.points > 0

    @property
    def shows_rules(self) -> bool:
        """Whether students see which rules its failures violate."""
        return self.show in ("everything", "rule")

    @property
    def additional(self) -> bool:
        """Whether it is a race or fuzz run, which has a separate time limit."""
        return self.part in (RACE, FUZZ)

    @property
    def failures_allowed(self) -> int:
        # The small term corrects rates like 0.9 of 10, which gives 0.9999999999999998 failures.
        return int(len(self.seeds) * (1 - self.pass_rate) + 1e-9)


class Rubric(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    title: str = "Raft"
    runs: int = 2  # seeds of each test
    pass_rate: float = 1.0  # the share of them that must pass, for the points
    seed: str = ""  # the text from which the seeds are derived; see seed_phrase()
    # The student's files; all others come from the lab. The first is required.
    files: tuple[str, ...] = ("raft.py", "messages.py")
    # The same in the folder kv, if 3A or 3B is graded. The first two are required.
    service_files: tuple[str, ...] = ("server.py", "client.py", "messages.py")
    raft: OnRaft = "own"
    points: dict[str, float] = msgspec.field(default_factory=lambda: dict(_POINTS))
    public: Public = Public()
    hidden: Hidden = Hidden()
    checks: Checks = Checks()
    failures: Failures = Failures()
    limits: Limits = Limits()
    race: Race = Race()
    fuzz: Fuzz = Fuzz()
    tests: dict[str, PerTest] = {}

    @classmethod
    def read(cls, path: Path) -> Rubric:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise RubricError(f"{path}: {error.strerror}; RUBRIC must name a TOML file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RubricError(f"{path}: not TOML: {error}") from None
        try:
            rubric = msgspec.convert(raw, cls)
        except msgspec.ValidationError as error:
            raise RubricError(f"{path}: {error}") from None
        problem = rubric._problem()
        if problem:
            raise RubricError(f"{path}: {problem}")
        return rubric

    def _problem(self) -> str:
        for part, points in self.points.items():
            if part not in (*PARTS, OTHER):
                return f"points.{part}: the part must be one of {', '.join(PARTS)} or {OTHER}"
            if not 0 <= points < math.inf:
                return f"points.{part}: must be 0 or more, got {points:g}"
        each = [("", self.runs, self.pass_rate), *((f"tests.{n}.", t.runs, t.pass_rate) for n, t in self.tests.items())]
        for where, runs, pass_rate in each:
            if runs is not None and not 1 <= runs <= 10_000:
                return f"{where}runs: must be 1..10000, got {runs}"
            if pass_rate is not None and not 0 < pass_rate <= 1:
                return f"{where}pass_rate: must be above 0 and at most 1, got {pass_rate:g}"
        weights = {"public.weight": self.public.weight, "hidden.weight": self.hidden.weight}
        weights |= {f"tests.{name}.weight": test.weight for name, test in self.tests.items() if test.weight is not None}
        weights |= {f"tests.{name}.points": test.points for name, test in self.tests.items() if test.points is not None}
        for where, value in weights.items():
            if not 0 <= value < math.inf:
                return f"{where}: must be 0 or more, got {value:g}"
        for name, extra in (("race", self.race), ("fuzz", self.fuzz)):
            if not 0 <= extra.runs <= 10_000:
                return f"{name}.runs: must be 0..10000, got {extra.runs}"
            if not 0 <= extra.points < math.inf:
                return f"{name}.points: must be 0 or more, got {extra.points:g}"
            if extra.points and not extra.runs:
                return f"{name}.points: needs {name}.runs, the number of runs; set it"
        for name in Limits.__struct_fields__:
            if getattr(self.limits, name) < 1:
                return f"limits.{name}: must be at least 1, got {getattr(self.limits, name)}"
        for name in Failures.__struct_fields__:
            least = int(name.startswith("shrink_"))
            if getattr(self.failures, name) < least:
                return f"failures.{name}: must be at least {least}, got {getattr(self.failures, name)}"
        for name in ("undecodable", "safety_violation"):
            text = getattr(self.checks, name)
            if Checks.share(text) is None:
                legal = '"refuse", "allow", or "cap:60" for at most 60 % of the points'
                return f"checks.{name}: must be {legal}, got {text!r}"
        if self.files[:1] != ("raft.py",) or not _are_names(self.files):
            return 'files: must be raft.py and then other .py files, without folders, as in ["raft.py", "messages.py"]'
        if self.service_files[:2] != ("server.py", "client.py") or not _are_names(self.service_files):
            return (
                "service_files: must be server.py, client.py and then other .py files, without folders, as in "
                '["server.py", "client.py", "messages.py"]'
            )
        return ""

    def assign(
        self, public: Sequence[LabTest], hidden: Sequence[LabTest], phrase: str, fuzz_tests: Sequence[LabTest] = ()
    ) -> list[GradedTest]:
        """Points and seeds of each test, public tests first. `fuzz_tests` generate random runs."""
        tests = [(test, False) for test in public] + [(test, True) for test in hidden]
        names = [test.name for test, _ in tests]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RubricError(f"two tests are called {twice}; rename the hidden one")
        parts = {test.name: test.part or OTHER for test, _ in tests}
        tests = [(test, is_hidden) for test, is_hidden in tests if self.includes(test)]
        if not tests:
            raise RubricError("points: no test belongs to a part named here, so there is nothing to grade")
        self._check_tests(parts, [test.name for test, _ in tests])
        weight = {test.name: self._weight(test.name, is_hidden) for test, is_hidden in tests}
        shares: dict[str, float] = {}
        for part in dict.fromkeys(test.part or OTHER for test, _ in tests):
            names = [test.name for test, _ in tests if (test.part or OTHER) == part]
            divided = apportion(self.points.get(part, 0.0), [weight[name] for name in names])
            shares |= dict(zip(names, divided, strict=True))
        graded = []
        number = 0
        for test, is_hidden in tests:
            part = test.part or OTHER
            own = self.tests.get(test.name, PerTest())
            number += is_hidden
            show: Show = self.hidden.show if is_hidden else self.public.show
            points = shares[test.name] if own.points is None else own.points
            visibility = own.visibility or (self.hidden if is_hidden else self.public).visibility
            graded.append(
                GradedTest(
                    name=test.name,
                    part=part,
                    hidden=is_hidden,
                    points=points,
                    seeds=seeds(phrase, test.name, own.runs or self.runs),
                    pass_rate=own.pass_rate or self.pass_rate,
                    visibility=visibility,
                    show=show,
                    shown_name=f"hidden test {number} ({part.upper()})" if show == "nothing" else test.name,
                )
            )
        races = self._race_tests([test for test in graded if not test.hidden], phrase)
        everything = [*graded, *races, *self._fuzz_tests(fuzz_tests, {test.part for test in graded}, phrase)]
        of_all = {
            "unverified_share": Checks.share(self.checks.undecodable),
            "safety_share": Checks.share(self.checks.safety_violation),
            "skips_fail": self.checks.skipped == "fail",
        }
        return [msgspec.structs.replace(test, **of_all) for test in everything]

    def _fuzz_tests(self, fuzz_tests: Sequence[LabTest], parts: set[str], phrase: str) -> list[GradedTest]:
        if not self.fuzz.runs:
            return []
        chosen = [test for test in fuzz_tests if test.part in parts]
        if not chosen:
            raise RubricError("fuzz.runs: random runs belong to parts 2c and 2d, but no test of these is graded")
        return [
            GradedTest(
                name=test.name,
                part=FUZZ,
                hidden=False,
                points=points,
                seeds=seeds(phrase, test.name, self.fuzz.runs),
                pass_rate=1.0,
                visibility=self.public.visibility,
                show=self.public.show,
                shown_name=test.name,
            )
            for test, points in zip(chosen, apportion(self.fuzz.points, [1.0] * len(chosen)), strict=True)
        ]

    def _race_tests(self, public: Sequence[GradedTest], phrase: str) -> list[GradedTest]:
        if not self.race.runs:
            return []
        names = [test.name for test in public]
        unknown = next((name for name in self.race.tests if name not in names), None)
        if unknown is not None:
            near = get_close_matches(unknown, names, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise RubricError(f"race.tests: {unknown} is not a graded public test{hint}")
        chosen = [test for test in public if not self.race.tests or test.name in self.race.tests]
        return [
            msgspec.structs.replace(
                test,
                name=f"{test.name}{_RACES}",
                part=RACE,
                points=points,
                seeds=seeds(phrase, f"{test.name}{_RACES}", self.race.runs),
                pass_rate=1.0,
                visibility=self.public.visibility,
                shown_name=f"{test.name}{_RACES}",
                race=True,
            )
            for test, points in zip(chosen, apportion(self.race.points, [1.0] * len(chosen)), strict=True)
        ]

    def _check_tests(self, parts: dict[str, str], graded: Sequence[str]) -> None:
        """A table for a test that is not graded is a typo, in its name or in [points]. `parts`: of every test."""
        for name in self.tests:
            if name in graded:
                continue
            if name in parts:
                raise RubricError(
                    f"tests.{name}: this test is not graded, because [points] omits its part; add {parts[name]} "
                    f"there, or set tests.{name}.points, or remove [tests.{name}]"
                )
            near = get_close_matches(name, graded, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            extra = "" if self.public.extra else " (public.extra = false omits tests beyond MIT's)"
            raise RubricError(f"tests.{name}: not found among the {len(graded)} graded tests{extra}{hint}")

    def includes(self, test: LabTest) -> bool:
        """Whether [points] names its part, or it has points of its own."""
        return (test.part or OTHER) in self.points or self.tests.get(test.name, PerTest()).points is not None

    def _weight(self, name: str, is_hidden: bool) -> float:
        own = self.tests.get(name, PerTest())
        if own.points is not None:
            return 0.0  # its points are not part of the share
        if own.weight is not None:
            return own.weight
        return self.hidden.weight if is_hidden else self.public.weight

    def seed_phrase(self, hidden: Sequence[LabTest]) -> str:
        """The text from which the seeds are derived: the rubric's, else a digest of the hidden tests.

        "" if there is neither: then students could compute the seeds, so the grader must choose a text.
        """
        if self.seed:
            return self.seed
        if not hidden:
            return ""
        digest = hashlib.blake2b(digest_size=16)
        for file in sorted({test.file for test in hidden}):
            digest.update(file.read_bytes())
        return digest.hexdigest()


def apportion(total: float, weights: Sequence[float]) -> list[float]:
    """Divide points by weight into whole hundredths that add up to the total. The first get what is left over."""
    if not sum(weights):
        return [0.0] * len(weights)
    exact = [100 * total * weight / sum(weights) for weight in weights]
    cents = [int(share) for share in exact]
    largest = sorted(range(len(weights)), key=lambda i: cents[i] - exact[i])
    for i in largest[: round(100 * total) - sum(cents)]:
        cents[i] += 1
    return [number / 100 for number in cents]


def _are_names(files: Sequence[str]) -> bool:
    return all(Path(file).name == file and file.endswith(".py") for file in files)


def seeds(phrase: str, test: str, count: int) -> tuple[int, ...]:
    """The first `count` seeds of that test. A larger count keeps the earlier seeds."""
    return tuple(
        int.from_bytes(hashlib.blake2b(f"{phrase}\0{test}\0{i}".encode(), digest_size=4).digest(), "big") >> 1
        for i in range(count)
    )
