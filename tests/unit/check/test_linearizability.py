"""The linearizability checker: classical cases, comparison with brute force, and speed.

The long version: RAFTLAB_HISTORIES=10000 .venv/bin/pytest tests/unit/check/test_linearizability.py -n 0
"""

import os
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlab.check.linearizability import CheckResult, History, OperationKind, by_value, check, draw, search
from unit.check.histories import by_brute_force, made, small, spoiled

HISTORIES = int(os.environ.get("RAFTLAB_HISTORIES", "1500"))


def history_of(*steps):
    """A history from its calls and returns, in order: "a put x 1" calls, "a" returns, "a 1" returns 1 from a get."""
    history = History()
    history.now = lambda: history._count / 1000
    open_ = {}
    for step in steps:
        client, *rest = step.split()
        if client in open_:
            history.returns(open_.pop(client), *rest)
        else:
            kind = OperationKind(rest[0])
            open_[client] = history.call(client, kind, *rest[1:])
            if kind is OperationKind.GET:
                open_[client].value = ""
    return history.operations


RIGHT = {
    "nothing": [],
    "a read of nothing": ["a get x", "a"],
    "concurrent, the read sees it": ["a put x 1", "b get x", "b 1", "a"],
    "concurrent, the read does not": ["a put x 1", "b get x", "b", "a"],
    "unanswered, and seen": ["a put x 1", "b get x", "b 1"],
    "unanswered, and seen late": ["a put x 1", "b get x", "b", "b get x", "b 1"],
    "appends in either order": ["a append x 1;", "b append x 2;", "a", "b", "a get x", "a 2;1;"],
    "a read between two appends": ["a append x 1;", "a", "a append x 2;", "b get x", "b 1;", "a"],
    "an append that a put wiped out": ["a append x 1;", "b put x 2;", "a", "b", "a get x", "a 2;"],
    "two keys, each in an order of its own": ["a put x 1", "a", "b get y", "b", "a get x", "a 1"],
}
WRONG = {
    "a value from nowhere": (["a get x", "a 1"], "a read '1' for 'x', but no operation wrote '1'"),
    "a stale read": (
        ["a put x 1", "a", "a put x 2", "a", "b get x", "b 1"],
        "b read '1' for 'x', but put('x', '2') by a had replaced that value: put('x', '2') by a had returned "
        "before b called get('x')",
    ),
    "the first value after a write": (
        ["a put x 1", "a", "b get x", "b"],
        "b read nothing for 'x', although put('x', '1') by a had returned before b called get('x')",
    ),
    "a read that goes back": (
        ["a append x 1;", "b get x", "b 1;", "c get x", "c"],
        "b read '1;' for 'x', and a get that was called later returned an older value: c read nothing for 'x'",
    ),
    "an append that is seen later, and not now": (
        ["a put x 1;", "a", "b append x 2;", "b", "a get x", "c get x", "a 1;", "c 1;2;"],
        "a read '1;' for 'x', although append('x', '2;') by b had returned before a called get('x'); later "
        "c read '1;2;' for 'x'",
    ),
    "an append that is lost": (
        ["a put x 1;", "a", "b append x 2;", "b", "a get x", "a 1;"],
        "append('x', '2;') by b had returned, but what it wrote is lost: a read '1;' for 'x'",
    ),
    "an append twice": (
        ["a append x 1;", "a", "b get x", "b 1;1;"],
        "append('x', '1;') by a took effect twice: b read it twice in one value",
    ),
    "a put twice": (
        ["a put x 1;", "a", "b append x 3;", "c put x 2;", "c", "b", "b get x", "b 2;", "c get x", "c 1;"],
        "c read '1;' for 'x', but put('x', '2;') by c had replaced that value: put('x', '2;') by c had returned "
        "before c called get('x')",
    ),
    "an append again, on another put": (
        ["a append x 1;", "a", "b get x", "b 1;", "b put x 2;", "b", "b get x", "b 2;1;"],
        "append('x', '1;') by a took effect twice: b read it and, after another put, b read it",
    ),
    "two orders of two appends": (
        ["a append x 1;", "b append x 2;", "a", "b", "c get x", "c 1;2;", "c get x", "c 2;1;"],
        "c read '2;1;' for 'x', and c read '1;2;' for 'x': in these values, different appends follow the same "
        "beginning",
    ),
    "appends against the clock": (
        ["a append x 1;", "a", "b append x 2;", "b", "c get x", "c 2;1;"],
        "append('x', '1;') by a had returned before append('x', '2;') by b was called, but c read '2;1;' for 'x'",
    ),
    "a read of the future": (
        ["a append x 0;", "a", "b get x", "b 0;1;", "a append x 1;", "a"],
        "b read '0;1;' for 'x' before append('x', '1;') by a was called",
    ),
    "a put that did not replace": (
        ["a put x 1;", "a", "a put x 2;", "a", "b get x", "b 1;2;", "b append x 3;", "b"],
        "put('x', '2;') by a must replace the old value, but b read '1;2;' for 'x'",
    ),
    "a put between, and yet not": (
        ["a put x 1;", "a", "b put x 2;", "b", "a append x 3;", "a", "c get x", "c 1;3;"],
        "c read '1;3;' for 'x', but put('x', '2;') by b had replaced that value: put('x', '2;') by b had returned "
        "before c called get('x')",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_linearizable_history_is_accepted(name):
    operations = history_of(*RIGHT[name])
    assert by_brute_force(operations)
    assert check(operations).result is CheckResult.OK


@pytest.mark.parametrize("name", WRONG)
def test_violation_is_explained(name):
    steps, text = WRONG[name]
    operations = history_of(*steps)
    assert not by_brute_force(operations)
    verdict = check(operations)
    assert verdict.result is CheckResult.VIOLATION
    assert verdict.violation.text == text
    assert by_value.can_tell([one for one in operations if one.key == "x"])


@pytest.mark.parametrize("name", WRONG)
def test_violation_has_few_operations(name):
    violation = check(history_of(*WRONG[name][0])).violation
    assert 1 <= len(violation.operations) <= 5
    assert len(set(violation.operations)) == len(violation.operations)


@given(st.integers(0, 2**48))
@settings(max_examples=HISTORIES, deadline=None)
def test_it_agrees_with_trying_everything(seed):
    history = small(seed)
    expected = by_brute_force(history)
    verdict = check(history)
    assert verdict.result is (CheckResult.OK if expected else CheckResult.VIOLATION)
    # The search must agree too, where it is not asked because the values tell.
    for key in dict.fromkeys(one.key for one in history):
        operations = [
            one for one in history if one.key == key and (one.kind is not OperationKind.GET or not one.pending)
        ]
        found = search.check(key, operations, steps=1_000_000)
        assert found.result is (CheckResult.OK if by_brute_force(operations) else CheckResult.VIOLATION)
        if found.violation is not None:
            assert found.violation.operations
            assert not any(one not in operations for one in found.violation.operations)


def test_random_histories_have_both_results():
    right = sum(by_brute_force(small(seed)) for seed in range(1000))
    by_search = sum(
        not by_value.can_tell([one for one in small(seed) if one.kind is not OperationKind.GET]) for seed in range(1000)
    )
    assert 250 < right < 750
    assert by_search > 150


def test_operations_of_a_violation_are_a_violation():
    """The operations of a violation must be one by themselves: no order explains them."""
    found = 0
    for seed in range(400):
        history = spoiled(made(random.Random(seed), clients=4, operations=30, keys=1), random.Random(seed))
        verdict = check(history)
        if verdict.violation is not None:
            found += 1
            assert len(verdict.violation.operations) <= 9
            values = " ".join(one.value for one in verdict.violation.operations if one.kind is OperationKind.GET)
            # Others may have written other parts of a long value; they can only help.
            needed = [one for one in history if one in verdict.violation.operations or one.value in values]
            assert not by_brute_force_quickly(needed)
    assert found > 100


def by_brute_force_quickly(operations):
    found = search.check(operations[0].key, operations, steps=1_000_000)
    assert found.result is not CheckResult.UNKNOWN
    return found.result is CheckResult.OK


@pytest.mark.parametrize("keys", [1, 10])
@pytest.mark.parametrize("appends", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("wrong", [False, True])
def test_ten_thousand_operations_take_seconds(keys, appends, wrong):
    """20 clients. The limit is 5 s of processor time; here a machine may be slow."""
    chance = random.Random(f"{keys} {appends} {wrong}")
    history = made(chance, clients=20, operations=10_000, keys=keys, appends=appends, gets=0.5, lost=0.001)
    if wrong:
        get = max(
            (one for one in history if one.kind is OperationKind.GET and not one.pending), key=lambda one: one.called
        )
        get.value = next(one.value for one in history if one.key == get.key and one.kind is not OperationKind.GET)
    began_s = time.process_time()
    verdict = check(history)
    took_s = time.process_time() - began_s
    assert verdict.result is (CheckResult.VIOLATION if wrong else CheckResult.OK)
    assert took_s < 5


def test_equal_values_are_searched_and_most_often_found_quickly():
    chance = random.Random(1)
    history = made(chance, clients=10, operations=1000, written=lambda _: chance.choice("abcdefgh"), appends=0)
    verdict = check(history)
    assert verdict.result is CheckResult.OK
    assert 0 < verdict.steps < 100_000


def test_exhausted_search_is_unknown_and_deterministic():
    chance = random.Random(2)
    history = made(chance, clients=12, operations=60, written=lambda _: chance.choice("ab"), appends=1, gets=0.1)
    gets = [one for one in history if one.kind is OperationKind.GET]
    gets[-1].value += "c"
    verdicts = [check(history, steps=500) for _ in range(2)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].result is CheckResult.UNKNOWN
    assert verdicts[0].key == "k0"
    assert verdicts[0].violation is None
    assert verdicts[0].steps == 500


def test_violation_of_one_key_beats_unknown_of_another():
    chance = random.Random(2)
    history = made(chance, clients=12, operations=60, written=lambda _: chance.choice("ab"), appends=1, gets=0.1)
    [one for one in history if one.kind is OperationKind.GET][-1].value += "c"
    wrong = history_of("z get other", "z 1")
    assert check([*history, *wrong], steps=500).result is CheckResult.VIOLATION


def test_violation_found_by_search_has_few_operations():
    operations = history_of(
        *("a put x 1", "a", "b put x 1", "b", "b get x", "b 1"),
        *("a put x 2", "a", "c put x 1", "c", "a put x 2", "a", "d get x", "d 1"),
    )
    assert not by_value.can_tell(operations)
    violation = check(operations).violation
    assert violation.text == "no order of these operations explains that d read '1' for 'x'"
    assert len(violation.operations) <= 5


def test_a_time_line_is_drawn():
    operations = history_of("a put x 1", "b put x 2", "a", "b", "c get x", "d append x 3", "c 1")
    assert draw(operations) == [
        "  a  put('x', '1')     ├───────┤",
        "  b  put('x', '2')         ├───────┤",
        "  c  get('x') -> '1'                   ├───────┤",
        "  d  append('x', '3')                      ├───────  no answer",
        "                       0.001   0.003   0.005   0.007 s",
    ]
