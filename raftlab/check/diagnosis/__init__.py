"""Finds the likely cause of a failure by known patterns in the trace.

Promise: every number is from the trace, and from the time since the last fault. At most two diagnoses, the more
specific first. A pattern that might merely fit is not reported: a wrong hint costs more than none.

A diagnosis is a function of a `TraceAnalysis` that returns a `Finding` or None, decorated with `@diagnosis(...)`, in
any module of this package. Start at examine(), then registry.py and trace_analysis.py.
"""

from __future__ import annotations

import pkgutil
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from labsim import Deadlock, Event, SimulationError, TaskFailed
from raftlab.check.diagnosis.registry import Diagnosis, Finding, about_costs, in_order
from raftlab.check.diagnosis.trace_analysis import TraceAnalysis
from raftlab.check.failure import Failure, PeerProcessFailed
from raftlab.check.harness_rules import HARNESS_RULES
from raftlab.check.rules import RULES
from raftlab.check.rules.budgets import Budgets

__all__ = ["DIAGNOSES", "Finding", "NamedFinding", "diagnose", "examine"]

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

DIAGNOSES = in_order()
_ABOUT_COSTS = about_costs()

_OMISSIONS = {rule.name for rule in RULES if rule.is_omission} | {
    rule.name for rule in HARNESS_RULES if rule.is_omission
}

_AT_MOST = 2
_WIDTH = 110


class NamedFinding(NamedTuple):
    name: str
    finding: Finding

    @property
    def paragraph(self) -> str:
        """In lines that fit a terminal."""
        facts, likely = self.finding
        return "\n".join([*textwrap.wrap(facts, _WIDTH), *textwrap.wrap(f"Likely: {likely}", _WIDTH)])


def examine(events: Sequence[Event], error: BaseException, *, end_ns: int | None = None) -> list[NamedFinding]:
    """The diagnoses that fit, best first. `end_ns`: when the run ended, if that was later than its last event."""
    wanted = _candidates(error)
    if not wanted or not events:
        return []
    analysis = TraceAnalysis(events, error, end_ns)
    if not analysis.decodable:
        wanted = [diagnosis for diagnosis in wanted if diagnosis.any_fields]
    found: list[NamedFinding] = []
    for diagnosis in wanted:
        if found and diagnosis.last_resort:
            break
        finding = diagnosis.examine(analysis)
        if finding is not None:
            found.append(NamedFinding(diagnosis.name, finding))
            if len(found) == _AT_MOST or diagnosis.alone:
                break
    return found


def _candidates(error: BaseException) -> Sequence[Diagnosis]:
    if isinstance(error, TaskFailed) or (isinstance(error, PeerProcessFailed) and error.is_exception):
        # The exception says most itself.
        return [diagnosis for diagnosis in DIAGNOSES if diagnosis.exceptions]
    if isinstance(error, Deadlock):
        return [diagnosis for diagnosis in DIAGNOSES if diagnosis.deadlocks]
    if isinstance(error, SimulationError) or not isinstance(error, Exception):
        return ()
    if isinstance(error, Failure) and (error.costs or error.rule == Budgets.name):
        return _ABOUT_COSTS
    if isinstance(error, Failure) and error.rule is not None and error.rule not in _OMISSIONS:
        return [diagnosis for diagnosis in DIAGNOSES if diagnosis.explains(error.rule)]
    return [diagnosis for diagnosis in DIAGNOSES if diagnosis.order is not None]


def diagnose(events: Sequence[Event], error: BaseException, *, end_ns: int | None = None) -> list[NamedFinding]:
    """At most two likely causes, best first. `end_ns`: as for examine()."""
    try:
        return examine(events, error, end_ns=end_ns)
    except Exception:
        # A peer may put anything into Figure 2's fields, and the failure itself must still be reported.
        return []
