"""Blocked tasks: one that blocks others comes first, and one that waits for work is not listed."""

import pytest

from labsim import WaitKind, time
from raftlab.check.failure import Failure
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from unit.check.test_diagnosis import CALLS_UNDER_LOCK, lab
from unit.students import edited_reference

HANDLERS = ("append_entries", "request_vote", "install_snapshot")


def blocked_in(tmp_path, test, *edits, seed=1):
    run = run_test(test, load_peer(edited_reference(tmp_path, *edits)), seed)
    assert run.error is not None
    return list(run.error.snapshot.blocked)


@collect
def idle(make_config):
    cfg = make_config(servers=3, snapshot=True)
    for number in range(30):
        cfg.one(number, 3, retry=True)
    time.sleep(5.0)
    cfg.fail("for no reason")


@collect
def elect_and_wait(make_config):
    cfg = make_config(servers=3)
    time.sleep(5.0)
    cfg.fail("for no reason")


@collect
def thirty_commands(make_config):
    cfg = make_config(servers=3, snapshot=True)
    for number in range(30):
        cfg.start(cfg.wait_for_leader()[0], number)
    time.sleep(5.0)
    cfg.fail("for no reason")


def functions(blocked):
    return [wait.where.function for wait in blocked]


def test_waiting_for_work_is_not_blocked(tmp_path):
    """Tickers sleep, appliers wait for a notification, services for a message."""
    assert blocked_in(tmp_path, idle) == []


def test_call_in_progress_is_not_blocked(tmp_path):
    """On slow disks start() takes a while; it used to be listed when anything else failed meanwhile."""
    applies_twice = (
        "self.last_applied += 1\n            entry",
        "self.last_applied = max(self.last_applied, 1)\n            entry",
    )
    assert blocked_in(tmp_path, started_on_a_slow_disk, applies_twice) == []


@collect
def started_on_a_slow_disk(make_config):
    cfg = make_config(servers=3)
    cfg.one(0, 3, retry=True)
    leader = cfg.check_one_leader()
    cfg.slow_disks(20, 20)
    for number in range(1, 50):
        cfg.start(leader, number)


def test_lock_holder_is_listed_before_its_waiters(tmp_path):
    """Four are listed. These used to be four waiters, and never the holder of the lock."""
    under_lock = (
        "self.apply_ch.put(msg, timeout=HEARTBEAT_S)",
        "with self.mu:\n                        self.apply_ch.put(msg)",
    )
    blocked = blocked_in(tmp_path, lab("test_snapshot_overtaken_2d"), under_lock)
    assert (blocked[0].kind, blocked[0].where.function) == (WaitKind.SPACE, "_applier")
    others = [wait for wait in blocked[1:] if wait.node == blocked[0].node]
    assert {wait.kind for wait in others} == {WaitKind.LOCK}
    # Threads of the peer's own, then calls from outside: the service's snapshot(), the tester's, handlers.
    calls = (*HANDLERS, "snapshot", "start", "get_state")
    outside = [function in calls for function in functions(others)]
    assert outside == sorted(outside)
    assert "snapshot" in functions(others)


def test_waits_are_never_negative(tmp_path):
    """The checks look at many events at a time: a run ends a little before the moment at which they look."""
    path = edited_reference(tmp_path, *CALLS_UNDER_LOCK)
    waited = []
    for name in ("test_many_elections_2a", "test_new_leader_speaks_at_once_2a", "test_late_votes_2a"):
        for seed in range(1, 6):
            error = run_test(lab(name), load_peer(path), seed).error
            waited += [wait.waited_ns for wait in error.snapshot.blocked] if isinstance(error, Failure) else []
    assert len(waited) > 20
    assert min(waited) >= 0


def test_call_under_a_lock_is_listed(tmp_path):
    blocked = blocked_in(tmp_path, lab("test_follower_failure_2b"), *CALLS_UNDER_LOCK, seed=4)
    assert blocked[0].kind is WaitKind.REPLY


NEVER = """\
            reply = RequestVoteReply(self.current_term, granted)
        if not granted:
            threading.Event().wait()
        return reply"""


def test_handlers_blocked_at_one_line_are_listed_once(tmp_path):
    never = ("            return RequestVoteReply(self.current_term, granted)", NEVER)
    blocked = blocked_in(tmp_path, lab("test_many_elections_2a"), never, seed=0)
    places = [(wait.node, wait.where) for wait in blocked]
    assert set(functions(blocked)) == {"request_vote"}
    assert len(places) == len(set(places))


@pytest.mark.parametrize(
    ("wait", "kind"),
    [("threading.Event().wait()", WaitKind.EVENT), ("time.sleep(60)", WaitKind.SLEEP)],
    ids=["an event", "a sleep"],
)
def test_blocked_snapshot_call_is_listed(tmp_path, wait, kind):
    """The service calls it, whose own thread is idle otherwise."""
    line = "            if index > self.last_applied:\n"
    blocked = blocked_in(
        tmp_path, thirty_commands, (f"        with self.mu:\n{line}", f"        {wait}\n        if True:\n{line}")
    )
    assert ("snapshot", kind) in [(wait.where.function, wait.kind) for wait in blocked]
