"""Logs with given terms: possible logs get a history that produces them, and others are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlab.scenarios.logs import IllegalLogs, plan_history

FIGURE_7 = [
    [1, 1, 1, 4, 4, 5, 5, 6, 6, 6],
    [1, 1, 1, 4, 4, 5, 5, 6, 6],
    [1, 1, 1, 4],
    [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    [1, 1, 1, 4, 4, 4, 4],
    [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
]


def outcome(history, peers):
    """The logs and the commit index that this history produces. Asserts that each election can be won."""
    logs, committed = [[] for _ in range(peers)], 0
    for plan in history:
        leader = logs[plan.leader]
        end = (leader[-1] if leader else 0, len(leader))
        voters = [log for log in logs if (log[-1] if log else 0, len(log)) <= end]
        assert 2 * len(voters) > peers, f"nobody can win term {plan.term}"
        assert len(leader) == plan.first - 1
        leader += [plan.term] * (plan.last - plan.first + 1)
        for follower, length in plan.replicated.items():
            assert leader[:length][: len(logs[follower])] == logs[follower][:length] or not logs[follower]
            logs[follower] = leader[:length]
        if plan.committed:
            holders = [log for log in logs if log[: plan.committed] == leader[: plan.committed]]
            assert 2 * len(holders) > peers
            assert leader[plan.committed - 1] == plan.term
            committed = plan.committed
    return logs, committed


def test_figure_7():
    assert outcome(plan_history(FIGURE_7, 9), 7) == (FIGURE_7, 9)


def test_entries_are_replicated_as_late_as_necessary():
    """If peer 2 had its first entry when peer 0 led term 3, it would not have voted for it."""
    logs = [[1, 3], [2, 4], [2, 4]]
    assert outcome(plan_history(logs), 3) == (logs, 0)


def test_empty_logs_need_no_history():
    assert plan_history([[], [], []]) == []


@pytest.mark.parametrize(
    ("logs", "commit", "said"),
    [
        ([[2, 1], [], []], 0, "peer 0 has term 1 at index 2 after term 2: terms never decrease"),
        ([[0], [], []], 0, "peer 0 has term 0 at index 1; terms begin with 1"),
        ([[1, 2], [2], []], 0, "peers 0 and 1 both have entries of term 2, but different entries before them"),
        (
            [[1, 3], [2], [2, 2]],
            0,
            "the leader of term 3 had 1 entry, the last of term 1; by then the logs of peers 1, 2",
        ),
        ([[1, 1], [1], [1]], 2, "index 2 cannot be committed: only 1 of 3 peers have the same entry"),
        ([[1], [1], [2]], 1, "the leader of term 2 had 0 entries, the last of term 0; by then the logs of peers 0, 1"),
        (FIGURE_7, 10, "index 10 cannot be committed: only 3 of 7 peers have the same entry"),
    ],
)
def test_impossible_logs_are_refused_with_the_term(logs, commit, said):
    with pytest.raises(IllegalLogs) as caught:
        plan_history(logs, commit)
    assert str(caught.value).startswith(said)


@st.composite
def legal_logs(draw):
    """Random logs that a cluster can produce, with truncations. Leaders send all they have, and
    may be lost at any time."""
    peers = draw(st.sampled_from([3, 5]))
    logs = [[] for _ in range(peers)]
    for term in range(1, draw(st.integers(1, 6)) + 1):
        leader = draw(st.integers(0, peers - 1))
        log = logs[leader]
        end = (log[-1] if log else 0, len(log))
        voters = [other for other in logs if (other[-1] if other else 0, len(other)) <= end]
        if 2 * len(voters) <= peers:
            continue  # it loses
        before = len(log)
        log += [term] * draw(st.integers(0, 3))
        for follower in range(peers):
            if follower != leader and draw(st.booleans()):
                sent = log[: draw(st.integers(before, len(log)))]
                mine = logs[follower]
                if mine[: len(sent)] != sent:
                    logs[follower] = sent.copy()
    return logs


@settings(max_examples=100, deadline=None)
@given(legal_logs())
def test_possible_logs_have_a_history(logs):
    assert outcome(plan_history(logs), len(logs)) == (logs, 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(1, 4), max_size=4).map(sorted), min_size=3, max_size=3), st.integers(0, 3))
def test_accepted_logs_are_possible(logs, commit):
    try:
        history = plan_history(logs, commit)
    except IllegalLogs:
        return
    assert outcome(history, 3) == (logs, commit)
