"""A failure as a value: what two of them must share to be told as one."""

from pathlib import Path

import pytest

from labsim import Deadlock, TaskFailed, Wait, WaitKind
from labsim.stacks import CodeLocation, short_path
from raftlab.check.failure import Failure
from raftlab.harness.loader import load_peer
from raftlab.harness.outcome import Ending, outcome_of, without_numbers
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from unit.students import agree, elect, peer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("one(9000): no agreement in 10 s (virtual)", "one(12): no agreement in 10 s (virtual)"),
        ("peer 2 applied 'kqzv...", "peer 11 applied 'a b c'"),
        ("servers [0, 1, 2] and 0x7f3a", "servers [4, 1] and 0x1"),
        ("committed -17 at 3.25 s", "committed -1 at 10 s"),
    ],
)
def test_numbers_and_values_do_not_tell_causes_apart(one, other):
    assert without_numbers(one) == without_numbers(other)


def test_rules_sections_and_words_do_tell_causes_apart():
    assert without_numbers("State machine safety (§5.4.3), Figure 8: peer 1") == (
        "State machine safety (§5.4.3), Figure 8: peer #"
    )
    assert without_numbers("no leader") != without_numbers("two leaders")
    assert without_numbers("test_2a and term7") == "test_2a and term7".replace("_2", "_#")


def test_the_mistake_of_a_failure_is_its_rule_where_it_has_one(tmp_path):
    failure = Failure("Peer 3 voted twice in term 7\nmore", rule="one-vote-per-term")
    outcome = outcome_of(failure, tmp_path, tmp_path)
    assert (outcome.ending, outcome.name, outcome.where) == (Ending.RULE, "one-vote-per-term", "")
    assert outcome.mistake == "rule | one-vote-per-term"


def test_where_is_the_innermost_line_of_the_peer_not_of_the_library_below_it(tmp_path):
    peer = tmp_path / "raft.py"
    peer.write_text("import json\n\ndef inner():\n    json.loads('{')\n\ndef outer():\n    inner()\n")
    names = {}
    exec(compile(peer.read_text(), str(peer), "exec"), names)
    with pytest.raises(ValueError, match="property name") as raised:
        names["outer"]()
    failed = TaskFailed("long text", task="ticker", node="1")
    failed.__cause__ = raised.value
    outcome = outcome_of(failed, peer, Path(__file__))
    assert without_numbers(outcome.text) == (
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line # column # (char #)"
    )
    assert outcome.where == f"{peer}:4 in inner"


def test_a_deadlock_is_placed_by_the_lines_it_names():
    wait = Wait("ticker", "1", WaitKind.LOCK, 0, "ticker waits", (CodeLocation(__file__, 41, "_tick"),))
    deadlock = Deadlock("Deadlock at 1.5 s: every task waits.\n  ticker waits", waits=[wait])
    outcome = outcome_of(deadlock, Path(__file__), Path("tests/test_2a.py"))
    assert without_numbers(outcome.text) == "Deadlock at # s: every task waits."
    assert outcome.where == f"{short_path(__file__)}:41 in _tick"
    assert outcome.mistake == f"simulation | Deadlock | {outcome.where}"


def test_words_are_never_cut():
    """The fix stands at the end of a sentence."""
    text = " ".join(["and"] * 100 + ["that is the fix"])
    assert without_numbers(text) == text


# ---- one mistake, whatever the test --------------------------------------------------------------------------------


def mistake(path, test, seed=7):
    return run_test(test, load_peer(path), seed).outcome(path, Path(__file__)).mistake


def test_an_expectation_of_two_tests_is_one_mistake(tmp_path):
    path = peer(tmp_path)  # never leads

    @collect
    def elect_again(make_config):
        make_config(servers=5).check_one_leader()

    assert mistake(path, elect) == mistake(path, elect_again) != mistake(path, agree)


def test_one_line_of_the_peer_is_one_mistake_and_another_line_another(tmp_path):
    state = "self.nothing if len(self.peers) < 5 else [][self.me]"
    path = peer(tmp_path, start="self.nothing", state=state)

    @collect
    def elect_with_five(make_config):
        make_config(servers=5).check_one_leader()

    assert mistake(path, elect) == mistake(path, elect, seed=8)
    assert len({mistake(path, test) for test in (elect, agree, elect_with_five)}) == 3
