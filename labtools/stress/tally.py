"""What a campaign has seen so far: counts per test, failures grouped by cause. Start at `Tally.add()`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from labtools.stress.outcome import DIED, LATE, PASSED, Outcome


@dataclass
class Count:
    """One test's runs."""

    passed: int = 0
    failed: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0  # in the worker, without the campaign's own cost

    @property
    def runs(self) -> int:
        return self.passed + self.failed


@dataclass
class Group:
    """Failures of one test for one cause: how many, and the two runs worth looking at."""

    test: str
    cause: str
    where: str
    kind: str
    count: int
    smallest: Outcome
    shortest: Outcome  # fewest events
    repeats: bool | None = None  # whether `shortest` failed again in a fresh process; None if nobody tried

    @property
    def words(self) -> str:
        """The cause, for people."""
        return f"{self.cause}: {self.shortest.said}" if self.shortest.said else self.cause

    def add(self, outcome: Outcome) -> None:
        self.count += 1
        if outcome.seed < self.smallest.seed:
            self.smallest = outcome
        if (outcome.events, outcome.seed) < (self.shortest.events, self.shortest.seed):
            self.shortest = outcome


@dataclass
class Tally:
    """Everything a progress line or a summary is made of."""

    tests: list[str]
    seed_start: int
    counts: dict[str, Count] = field(init=False)
    groups: dict[tuple[str, str, str], Group] = field(default_factory=dict)
    wanted: int | None = None  # runs per test, if that is known
    for_s: float | None = None  # or how long
    ended: str = ""  # why it ended before its time, if it did
    checks_off: dict[str, None] = field(default_factory=dict)  # which, and why, a line each
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
            if outcome.kind == PASSED:
                count.passed += 1
                continue
            count.failed += 1
            key = (outcome.test, outcome.cause, outcome.where)
            if key in self.groups:
                self.groups[key].add(outcome)
            else:
                self.groups[key] = Group(*key, outcome.kind, 1, outcome, outcome)

    @property
    def total(self) -> Count:
        counts = self.counts.values()
        return Count(
            sum(c.passed for c in counts),
            sum(c.failed for c in counts),
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

    def in_order(self) -> list[Group]:
        """Groups as they are shown: by test, the frequent first."""
        place = {test: number for number, test in enumerate(self.tests)}
        return sorted(self.groups.values(), key=lambda g: (place[g.test], -g.count, g.smallest.seed))


def ended_its_process(group: Group) -> bool:
    return group.kind in (DIED, LATE)
