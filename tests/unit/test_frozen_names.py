"""Names that a seed, a choice file, a trace or a rubric depends on. They stay as they are."""

import re

import pytest

from labsim.choices import ChoiceKind
from raftlab.check.harness_rules import HARNESS_RULES
from raftlab.check.rules.checker import RULES
from raftlab.trace import events
from unit.students import ROOT

CHOICE_KINDS = """
    crash fault node preempt preempt·relock preempt·unlocked reply reply·to·duplicate request no·reply save tester
"""


def listed(page, section):
    """The names in the first column of a section's tables: these lists are what is frozen."""
    text = (
        (ROOT / "docs" / "student" / page)
        .read_text(encoding="utf-8")
        .partition(f"\n## {section}\n")[2]
        .partition("\n## ")[0]
    )
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}


FROZEN = {
    "kinds of choices": (
        set(CHOICE_KINDS.split()),
        {str(kind).replace(" ", "·") for kind in ChoiceKind},
        "seeds mean other runs, and choice files and recorded digests no longer fit (raise choicefile.VERSION)",
    ),
    "kinds of events": (
        listed("trace.md", "The events"),
        {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)} | events.ACTS,
        "digests are others though the runs are not, and trace files no longer fit (raise tracefile.VERSION)",
    ),
    "ids of rules": (
        listed("rules.md", "The rules"),
        {rule.name for rule in (*RULES, *HARNESS_RULES)},
        "rubrics, records, mutants and results of other years name a rule that is not there",
    ),
}


@pytest.mark.parametrize("what", FROZEN)
def test_frozen_names_are_unchanged(what):
    frozen, now, breaks = FROZEN[what]
    gone, added = sorted(frozen - now), sorted(now - frozen)
    assert not gone, f"{what}: {gone} changed or went away: {breaks}"
    assert not added, f"{what}: {added} is new: add it to the table; from then on it is frozen"
