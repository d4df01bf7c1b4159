"""Scenarios in pytest: a file is a test, and make_scenario is the same in Python."""

import pytest

from unit.students import edited_reference, pytest_run_here

pytest_plugins = ["pytester"]

STEPS = """
def test_vote(make_scenario):
    s = make_scenario(peers=3)
    s.campaign(0)
    s.deliver("0->1 vote")
    s.expect_vote(1, 0)
    s.deliver("1->0 vote reply")
    s.expect_leader(0, term=1)

def test_not_met(make_scenario):
    s = make_scenario()
    s.expect_leader(1)
"""


@pytest.fixture
def raft(pytester):
    return edited_reference(pytester.path)


def test_steps_can_be_called_from_python(pytester, raft):
    file = pytester.path / "test_steps.py"
    file.write_text(STEPS)
    text = pytest_run_here(pytester, file, "--raft", raft, "--seed", "3", code=1)
    assert "FAILED test_not_met  seed 3: Expected peer 1 as the leader; get_state() says: term 0, not leader" in text
    assert "s.expect_leader(1)" in text
    assert "1 failed, 1 passed" in text


def test_scenario_file_is_a_test_with_seeds(pytester, raft):
    file = pytester.path / "first_vote.scenario"
    file.write_text("# A first vote\ncampaign 0\ndeliver 0->1 vote\nexpect 1 voted 0\n")
    text = pytest_run_here(pytester, file, "--raft", raft, "--seed", "3", "--runs", "2", code=0)
    assert "Scenario: A first vote ...\n  ... Passed -- " in text
    assert "1 passed" in text


def test_failed_scenario_names_its_line_and_replay_command(pytester, raft):
    file = pytester.path / "no_leader.scenario"
    file.write_text("campaign 0\nexpect leader 0\n")
    text = pytest_run_here(pytester, file, "--raft", raft, "--seed", "3", code=1)
    assert "no_leader.scenario:2 in <module>" in text
    assert "expect leader 0\n" in text
    assert f"make scenario FILE=no_leader.scenario SEED=3 RAFT={raft}" in text


def test_invalid_scenario_file_is_a_collection_error(pytester, raft):
    file = pytester.path / "broken.scenario"
    file.write_text("campaing 0\n")
    text = pytest_run_here(pytester, file, "--raft", raft, code=2)
    assert "broken.scenario:1: there is no step 'campaing'; did you mean 'campaign'?" in text
    assert "Traceback" not in text
