"""What a campaign has seen so far: counts per test; failures by cause, and the tests that show each.

Start at `Tally.add()`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from raftlab.harness.outcome import Ending, Outcome


@dataclass
class Count:
    """One test's runs."""

    passed: int = 0
    failed: int = 0
    unverified: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0  # in the worker, without the campaign's own cost

    @property
    def runs(self) -> int:
        return self.passed + self.failed + self.unverified


@dataclass
class Group:
    """Failures of one test for one cause: how many, and the two runs worth looking at."""

    test: str
    count: int
    smallest: Outcome
    shortest: Outcome  # fewest events

    def add(self, outcome: Outcome) -> None:
        self.count += 1
        if outcome.seed < self.smallest.seed:
            self.smallest = outcome
        if _length(outcome) < _length(self.shortest):
            self.shortest = outcome


@dataclass
class Cause:
    """What is taken for one mistake, in whatever tests."""

    number: int  # as they were found, from 1: it names a file that is there from then on
    groups: dict[str, Group] = field(default_factory=dict)  # by test, as they were found
    repeats: bool | None = None  # whether `shortest` failed again in a fresh process; None if nobody tried
    recipe: list[str] = field(default_factory=list)  # what `shortest` needs, in lines; none if nobody has shrunk it

    @property
    def shortest(self) -> Outcome:
        return min((group.shortest for group in self.groups.values()), key=_length)

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups.values())

    @property
    def headline(self) -> str:
        """For people."""
        run = self.shortest
        return f"{run.rule}: {run.cause}" if run.rule else run.cause

    def add(self, outcome: Outcome) -> None:
        group = self.groups.get(outcome.test)
        if group is None:
            self.groups[outcome.test] = Group(outcome.test, 1, outcome, outcome)
        else:
            group.add(outcome)


def _length(outcome: Outcome) -> tuple[bool, int, int]:
    """Shortest first; what its process did not survive has no length, and comes last."""
    return ended_its_process(outcome), outcome.events, outcome.seed


@dataclass
class Tally:
    """Everything a progress line or a summary is made of."""

    tests: list[str]
    seed_start: int
    counts: dict[str, Count] = field(init=False)
    found: dict[tuple[str, ...], Cause] = field(default_factory=dict)  # by Outcome.cause_key
    wanted: int | None = None  # runs per test, if that is known
    for_s: float | None = None  # or how long
    ended: str = ""  # why it ended before its time, if it did
    checks_off: dict[str, None] = field(default_factory=dict)  # which, and why, a line each
    unverified: dict[str, None] = field(default_factory=dict)  # what cannot be verified, and why, a line each
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    def __post_init__(self) -> None:
        self.counts = {test: Count() for test in self.tests}

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            count = self.counts[outcome.test]
            count.virtual_s += outcome.virtual_s
            count.real_s += outcome.real_s
            self.checks_off |= dict.fromkeys(outcome.checks_off)
            self.unverified |= dict.fromkeys(outcome.unverified)
            if outcome.ending in (Ending.PASSED, Ending.SKIPPED):
                count.passed += 1
                continue
            if outcome.ending is Ending.UNVERIFIED:
                count.unverified += 1
                continue
            count.failed += 1
            self.found.setdefault(outcome.cause_key, Cause(len(self.found) + 1)).add(outcome)

    @property
    def causes(self) -> list[Cause]:
        """As they were found."""
        return list(self.found.values())

    @property
    def total(self) -> Count:
        counts = self.counts.values()
        return Count(
            sum(c.passed for c in counts),
            sum(c.failed for c in counts),
            sum(c.unverified for c in counts),
            sum(c.virtual_s for c in counts),
            sum(c.real_s for c in counts),
        )

    @property
    def elapsed_s(self) -> float:
        return (self.ended_s or time.monotonic()) - self.began_s

    @property
    def left_s(self) -> float | None:
        """An estimate, once there is something to go by."""
        left = []
        if self.for_s is not None:
            left.append(max(0.0, self.for_s - self.elapsed_s))
        busy_s = self.total.real_s
        if self.wanted is not None and busy_s:
            # Tests differ a hundredfold in length: each has its own mean.
            ahead_s = sum(
                (self.wanted - c.runs) * (c.real_s / c.runs if c.runs else busy_s / self.total.runs)
                for c in self.counts.values()
            )
            left.append(max(0.0, ahead_s * self.elapsed_s / busy_s))
        return min(left) if left else None

    def in_order(self, cause: Cause) -> list[Group]:
        """The tests of a cause, in their order."""
        return [cause.groups[test] for test in self.tests if test in cause.groups]


def ended_its_process(outcome: Outcome) -> bool:
    return outcome.ending in (Ending.DIED, Ending.LATE)
