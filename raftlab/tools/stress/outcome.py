"""One run of a campaign as it travels from a worker: passed, or failed and why."""

from __future__ import annotations

import msgspec

from raftlab.harness.verdict import Ending, Verdict, without_numbers

PASSED = "passed"
UNVERIFIED = "unverified"  # not failed, and what it rests on cannot be decoded
FAILED = "failed"
DIED = "died"  # with its process
LATE = "late"  # took longer than the limit, and was ended with its process


class Outcome(msgspec.Struct, omit_defaults=True):
    """What came of one run. seed_worker.py writes the same fields for a worker that cannot any more."""

    test: str
    seed: int
    kind: str = PASSED
    digest: str = ""
    virtual_s: float = 0.0
    real_s: float = 0.0
    events: int = 0
    mistake: str = ""  # the verdict's: failures that share it are one cause, whatever the test
    cause: str = ""  # the name of the rule, or what was wrong, mostly with its numbers taken out
    where: str = ""  # the student's innermost line
    said: str = ""  # where the cause is the name of a rule: what was wrong, in words
    report: str = ""
    checks_off: list[str] = []
    unverified: list[str] = []  # what it rests on that cannot be verified, why, and what to change
    skipped: bool = False  # by itself, which a campaign counts as passed
    cpu_s: float = 0.0

    def take(self, verdict: Verdict) -> None:
        self.kind = FAILED
        self.mistake, self.where = verdict.mistake, verdict.where
        # What the simulation says has the fix in it, in quotes.
        words = verdict.text if verdict.ending is Ending.SIMULATION else without_numbers(verdict.text)
        self.cause, self.said = (verdict.name, words) if verdict.ending is Ending.RULE else (words, "")
