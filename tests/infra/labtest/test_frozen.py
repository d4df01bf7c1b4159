"""Names that a seed, a choice file, a trace or a rubric depends on. They stay as they are."""

import pytest

from labsim.deciding import ChoiceKind
from labtest import events
from labtest.checks.checker import RULES
from labtest.checks.kept import KEPT_RULES

CHOICE_KINDS = """
    crash fault node preempt preempt·relock preempt·unlocked reply reply·to·duplicate request no·reply save tester
"""
EVENT_KINDS = """
    answer apply boot busy caught_up cluster connect crash crash_at deliver disconnect drop duplicate duplicates
    freeze_clock invoke latency link log long_delays long_reordering partition pause persist phase preempt reliable
    reply restart restore resume return saving send service slow_disks slow_snapshots snapshot start started step stop
    unfreeze_clock
"""
RULE_IDS = """
    acknowledged-stay answers-requests applies-only-committed apply-order calls-return committed-gets-applied
    earned-commit earned-leadership entry-before-exists entry-terms followers-follow higher-term-wins
    honest-candidate leader-append-only leader-completeness linearizability log-matching one-leader one-vote
    only-started quiet-death race rpc-budget saved-before-campaign saved-before-counting saved-before-reply
    saves-in-order service-listens snapshot-forward snapshot-of-applied snapshot-saved snapshot-stays
    speaks-in-its-term start-returns-at-once start-tells-index starts-in-order state-machine-safety
    success-means-match terms-never-fall up-to-date-vote votes-for-the-first
"""
FROZEN = {
    "kinds of choices": (
        CHOICE_KINDS,
        {str(kind).replace(" ", "·") for kind in ChoiceKind},
        "seeds mean other runs, and choice files and recorded digests no longer fit (raise choicefile.VERSION)",
    ),
    "kinds of events": (
        EVENT_KINDS,
        {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)},
        "digests are others though the runs are not, and trace files no longer fit (raise tracefile.VERSION)",
    ),
    "ids of rules": (
        RULE_IDS,
        {rule.name for rule in (*RULES, *KEPT_RULES)},
        "rubrics, records, mutants and results of other years name a rule that is not there",
    ),
}


@pytest.mark.parametrize("what", FROZEN)
def test_frozen_names_are_unchanged(what):
    table, now, breaks = FROZEN[what]
    frozen = set(table.split())
    gone, added = sorted(frozen - now), sorted(now - frozen)
    assert not gone, f"{what}: {gone} changed or went away: {breaks}"
    assert not added, f"{what}: {added} is new: add it to the table here; from then on it is frozen"
