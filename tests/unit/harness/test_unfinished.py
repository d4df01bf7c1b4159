"""An unfinished peer is tested only on the requirements of its part, and the report names what is missing."""

import pytest

from raftlab.check.failure import Failure
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from unit.students import ROOT, agree, edited_reference, elect, pytest_run, written

pytestmark = pytest.mark.usefixtures("raft_package_restored")


# ---- parts 2A and 2B come before persistence -----------------------------------------------------------------------

SAVE = "        self.persister.save(state.bytes(), snapshot)\n"


@collect
def crash(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test: a crash")
    cfg.one("x", 3, retry=True)
    cfg.crash1(0)


@collect
def two_clusters(make_config):
    elect.function(make_config)
    elect.function(make_config)


def error_of(path, test, seed=7):
    return run_test(test, load_peer(path), seed).error


@pytest.mark.parametrize("test", [elect, agree, two_clusters], ids=lambda test: test.name)
def test_peer_that_never_saves_passes_tests_without_crashes(tmp_path, test):
    path = edited_reference(tmp_path, (SAVE, "        pass\n"))
    assert error_of(path, test) is None


def test_peer_that_never_saves_fails_at_the_first_crash(tmp_path):
    error = error_of(edited_reference(tmp_path, (SAVE, "        pass\n")), crash)
    assert isinstance(error, Failure)
    assert error.rule == "saved-before-reply"
    assert "replied before it saved its vote for" in error.text


def test_incomplete_save_is_reported_with_what_is_missing(tmp_path):
    """It saves granted votes, but not its own campaign."""
    campaign = "        self.voted_for = self.me\n"
    path = edited_reference(tmp_path, (f"{campaign}        self._persist()\n", campaign))
    error = error_of(path, elect)
    assert isinstance(error, Failure)
    assert error.rule == "saved-before-campaign"
    assert "campaigns in term 1 before it has saved that term" in error.text


def test_candidate_may_refuse_before_its_requests_leave(tmp_path):
    """Two peers that poll campaign in one instant: each votes for itself before it receives the other's request."""
    path = edited_reference(tmp_path, ("random.uniform(*ELECTION_TIMEOUT_S)", "random.choice((0.4, 0.5, 0.6))"))
    launcher = load_peer(path)
    errors = [run_test(elect, launcher, seed).error for seed in range(20)]
    assert [str(error) for error in errors if error is not None] == []


# ---- unfinished methods --------------------------------------------------------------------------------------------

HOLLOW = """\
from labsim import threading


class Raft:
    def __init__(self, peers, me, persister, apply_ch):
        threading.Thread(target=self.ticker).start()

    def ticker(self):
        raise NotImplementedError("2A: ticker, §5.2")

    def start(self, command): ...
    def get_state(self): ...
    def kill(self): ...
"""


def test_unfinished_method_is_reported_once_for_all_tests(tmp_path):
    path = written(tmp_path, HOLLOW)
    out = pytest_run(ROOT / "tests" / "test_2a.py", "-q", "-n0", "--seed=7", "--raft", path, cwd=tmp_path, code=1)
    told = "  NotImplementedError: 2A: ticker, §5.2"
    assert out.count(f"{told}\n  In peer 0, Thread-1 (ticker):\n      peer.py:9 in ticker") == 1
    assert out.count(told.strip()) == 2  # while it ran, and in the report
    assert out.count("  The same failure in:\n") == out.count("  replay ") == 1


def test_two_unfinished_methods_with_one_text_are_both_reported(tmp_path):
    """Only the test with seven peers reaches the second one."""
    path = written(tmp_path, HOLLOW.replace("        raise", "        raise NotImplementedError\n        raise"))
    path.write_text(
        path.read_text().replace(
            "        threading", "        if len(peers) == 7:\n            raise NotImplementedError\n        threading"
        )
    )
    out = pytest_run(ROOT / "tests" / "test_2a.py", "-v", "-n0", "--seed=7", "--raft", path, cwd=tmp_path, code=1)
    assert out.count("peer.py:11 in ticker") == 1
    assert out.count("peer.py:7 in __init__") == 1
    assert out.count("  The same failure in:\n") == 1
