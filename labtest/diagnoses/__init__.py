"""The likely cause of a failure, in plain words, where a known pattern fits the trace.

Promise: every number is read off the trace, and only the stretch in which the test waited in vain is looked at. Two
diagnoses at most, the more telling first. Not promised: that there is one. A pattern that merely might fit says
nothing, because a wrong hint costs its reader more than none.

A diagnosis is one function of a `Story` that returns a `Finding` or None. Start at examine(), then `story.py`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from labsim import Deadlock, Event, SimulationError, TaskFailed
from labtest.checks.budgets import Budgets
from labtest.diagnoses import elections, peers, replication, votes
from labtest.diagnoses.diagnosis import Diagnosis, Finding
from labtest.diagnoses.story import Story
from labtest.failure import Failure, GuestFailed

__all__ = ["DIAGNOSES", "Finding", "Found", "diagnose", "examine"]

# The more telling first: what one peer visibly did wrong, then what nobody did, then what was merely slow.
DIAGNOSES: tuple[Diagnosis, ...] = (
    peers.went_on_during_a_save,
    peers.prev_beyond_the_log,
    peers.index_error_after_snapshot,
    peers.start_waits_for_the_lock,
    peers.lock_held_while_waiting,
    peers.waits_for_room_and_answers_nothing,
    peers.answers_only_after_its_call,
    peers.calls_in_the_thread_that_answers,
    peers.call_waits_for_a_thread,
    peers.does_nothing_any_more,
    peers.forgot_over_a_restart,
    peers.voted_again_after_restart,
    elections.leader_calls_itself,
    elections.leads_and_denies_it,
    votes.zero_taken_for_nobody,
    votes.one_vote_counted_twice,
    votes.no_counted_as_a_vote,
    votes.earlier_votes_counted,
    votes.asks_one_for_all,
    elections.no_step_down,
    elections.won_and_never_acted,
    elections.votes_denied_for_nothing,
    elections.leadership_is_handed_over,
    elections.heartbeats_do_not_reset_the_timer,
    elections.heartbeats_too_slow,
    elections.stale_candidates,
    elections.votes_one_after_another,
    elections.split_votes,
    elections.nobody_campaigns,
    replication.answers_mixed_up,
    replication.off_by_the_snapshot,
    replication.taken_for_known_since_the_snapshot,
    replication.start_never_sent,
    replication.same_place_rejected,
    replication.same_snapshot_again,
    replication.commit_frozen,
    replication.commit_never_applied,
    replication.back_up_one_by_one,
    replication.only_older_terms_stored,
    replication.counted_too_much,
    replication.unanswered_taken_as_refusal,
    replication.acknowledged_sent_again,
    replication.sent_before_the_answer,
    replication.heartbeats_too_often,
)

# A rule that was seen to be broken has said what is wrong; these can say why.
_BY_RULE: dict[str, tuple[Diagnosis, ...]] = {
    "one-vote": (peers.forgot_over_a_restart, peers.voted_again_after_restart, votes.zero_taken_for_nobody),
    "earned-leadership": (
        peers.forgot_over_a_restart,
        votes.one_vote_counted_twice,
        votes.no_counted_as_a_vote,
        votes.earlier_votes_counted,
    ),
    "one-leader": (peers.forgot_over_a_restart, peers.voted_again_after_restart),
    "higher-term-wins": (
        peers.lock_held_while_waiting,
        peers.answers_only_after_its_call,
        elections.no_step_down,
    ),
    "speaks-in-its-term": (peers.forgot_over_a_restart, elections.no_step_down),
    "saved-before-reply": (peers.forgot_over_a_restart, replication.taken_for_known_since_the_snapshot),
    "starts-in-order": (replication.off_by_the_snapshot,),
    "honest-candidate": (peers.forgot_over_a_restart, replication.off_by_the_snapshot),
    "start-returns-at-once": (peers.start_waits_for_the_lock,),
    "earned-commit": (peers.forgot_over_a_restart, replication.counted_too_much),
}

# Rules about what a peer leaves undone say less about why than the usual patterns do.
_UNDONE = frozenset(("answers-requests", "calls-return", "committed-gets-applied", "votes-for-the-first"))

# Whatever else is to be seen follows from it.
_ALONE = frozenset(
    (
        peers.went_on_during_a_save,
        peers.forgot_over_a_restart,
        peers.voted_again_after_restart,
        peers.start_waits_for_the_lock,
        peers.lock_held_while_waiting,
        peers.waits_for_room_and_answers_nothing,
        peers.answers_only_after_its_call,
        peers.calls_in_the_thread_that_answers,
        peers.call_waits_for_a_thread,
        peers.does_nothing_any_more,
        elections.leader_calls_itself,
        votes.one_vote_counted_twice,
        votes.no_counted_as_a_vote,
        votes.asks_one_for_all,
        elections.votes_one_after_another,
    )
)

# These hold whatever words the peers use.
_FOR_ANY_WORDS = frozenset(
    (
        peers.went_on_during_a_save,
        peers.index_error_after_snapshot,
        peers.start_waits_for_the_lock,
        peers.lock_held_while_waiting,
        peers.waits_for_room_and_answers_nothing,
        peers.answers_only_after_its_call,
        peers.call_waits_for_a_thread,
        peers.does_nothing_any_more,
    )
)

# To be told that all is well helps only where nothing else was found.
_LAST_RESORT = frozenset((replication.only_older_terms_stored,))

# What is sent needlessly does no harm, and right peers do some of it: the cause only of a failure about costs.
_NEEDLESS = (
    replication.unanswered_taken_as_refusal,
    replication.acknowledged_sent_again,
    replication.sent_before_the_answer,
    replication.heartbeats_too_often,
)
_ABOUT_COSTS = (
    replication.back_up_one_by_one,
    replication.same_place_rejected,
    replication.same_snapshot_again,
    *_NEEDLESS,
)

_AT_MOST = 2
_WIDTH = 110


class Found(NamedTuple):
    name: str
    finding: Finding


def examine(events: Sequence[Event], error: BaseException, *, end_ns: int | None = None) -> list[Found]:
    """The diagnoses that fit, best first. `end_ns`: when the run ended, if that was later than its last event."""
    wanted = _candidates(error)
    if not wanted or not events:
        return []
    story = Story(events, error, end_ns)
    if not story.readable:
        wanted = [diagnosis for diagnosis in wanted if diagnosis in _FOR_ANY_WORDS]
    found: list[Found] = []
    for diagnosis in wanted:
        if found and diagnosis in _LAST_RESORT:
            break
        finding = diagnosis(story)
        if finding is not None:
            found.append(Found(diagnosis.__name__, finding))
            if len(found) == _AT_MOST or diagnosis in _ALONE:
                break
    return found


def _candidates(error: BaseException) -> Sequence[Diagnosis]:
    if isinstance(error, TaskFailed) or (isinstance(error, GuestFailed) and error.is_exception):
        # The exception itself is the news.
        return (
            peers.went_on_during_a_save,
            peers.prev_beyond_the_log,
            peers.index_error_after_snapshot,
            replication.answers_mixed_up,
        )
    if isinstance(error, Deadlock):
        return (peers.lock_held_while_waiting,)
    if isinstance(error, SimulationError) or not isinstance(error, Exception):
        return ()
    if isinstance(error, Failure) and (error.costs or error.rule == Budgets.name):
        return _ABOUT_COSTS
    if isinstance(error, Failure) and error.rule is not None and error.rule not in _UNDONE:
        return (peers.went_on_during_a_save, *_BY_RULE.get(error.rule, (peers.forgot_over_a_restart,)))
    return [diagnosis for diagnosis in DIAGNOSES if diagnosis not in _NEEDLESS]


def diagnose(events: Sequence[Event], error: BaseException, *, end_ns: int | None = None) -> list[str]:
    """At most two likely causes, each a paragraph of lines that fit a terminal. `end_ns`: as for examine()."""
    try:
        found = examine(events, error, end_ns=end_ns)
    except Exception:
        # A peer may put anything into Figure 2's fields. The failure itself must be told all the same.
        return []
    return [_paragraph(one.finding) for one in found]


def _paragraph(finding: Finding) -> str:
    lines = [*textwrap.wrap(finding.facts, _WIDTH), *textwrap.wrap(f"Likely: {finding.likely}", _WIDTH)]
    return "\n".join(lines)
