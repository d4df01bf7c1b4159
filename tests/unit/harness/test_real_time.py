"""Peers on real threads: they pass, their exceptions fail the test, and no thread remains."""

import threading
import time

import pytest

from raftlab.harness import servers
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from unit.students import ROOT, agree, elect, line_of, peer, report_of, squeezed


@pytest.fixture(autouse=True)
def _nothing_stays_behind():
    hook, before = threading.excepthook, set(threading.enumerate())
    yield
    assert threading.excepthook is hook
    # A peer of these tests sleeps 0.1 s at a time, the reference waits as long for room in apply_ch.
    until_s = time.monotonic() + 60
    while (left := leftover(before)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert left == []


def leftover(before):
    """Threads of the lab and of the reference. The small peers of these tests never end theirs."""
    return [t.name for t in threading.enumerate() if t not in before and "(ticker)" not in t.name]


def test_reference_agrees_restarts_and_stops():
    @collect
    def crash_and_agree(make_config):
        cfg = make_config(servers=3)
        cfg.begin("Test: real threads")
        cfg.one("x", 3, retry=True)
        cfg.crash1(0)
        cfg.one("y", 2, retry=True)
        cfg.restart(0)
        cfg.one("z", 3, retry=True)

    run = run_test(crash_and_agree, load_peer(ROOT / "raft" / "raft.py"), 7, realtime=True)
    if run.error is not None:
        raise run.error
    assert run.simulation is None and run.digest == ""


def test_an_exception_in_a_thread_fails_the_test(tmp_path):
    path = peer(tmp_path, tick="self.next_index[0] = 1")
    text = report_of(path, realtime=True)
    assert text.startswith("AttributeError: 'Raft' object has no attribute 'next_index'\nIn Thread-")
    assert squeezed(text).endswith(f"{line_of(path, 'self.next_index')} in ticker self.next_index[0] = 1")


def test_an_exception_in_a_handler_fails_the_test(tmp_path):
    path = peer(tmp_path, tick="self.ask_next()", vote="raise KeyError('voted_for')")
    text = report_of(path, realtime=True)
    assert text.startswith("KeyError: 'voted_for'\nIn Raft.request_vote ")
    assert line_of(path, "raise KeyError") in text


def test_exception_in_init_stops_earlier_peers(tmp_path):
    text = report_of(peer(tmp_path, init="if me == 1: raise ValueError('no')"), elect, realtime=True)
    assert text.startswith("ValueError: no\nIn Raft():")


def test_a_call_that_does_not_return_fails_the_test(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "_CALL_LIMIT_S", 0.3)
    path = peer(tmp_path, start="time.sleep(1)")
    text = report_of(path, agree, realtime=True)
    assert text.splitlines()[1] == "start() of peer 1 has not returned for 0.3 s"
    assert f"{line_of(path, 'time.sleep(1)')} in start return time.sleep(1)" in squeezed(text)
