"""A server that crashes during a call of the tester, or during a save."""

import pytest

from labsim import threading, time
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect


def test_calls_of_a_crashing_server_return_no_leader():
    said = []

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()

        def client(ask):
            if cfg.is_up(leader):
                said.append(ask())

        # The crash happens after both calls and before their replies.
        for ask in (lambda: cfg.start(leader, 5), lambda: cfg.get_state(leader)):
            threading.Thread(target=client, args=(ask,)).start()
        crash = threading.Thread(target=cfg.crash1, args=(leader,))
        crash.start()
        crash.join()
        time.sleep(1.0)
        cfg.check_one_leader()

    outcomes = set()
    for seed in range(40):
        said.clear()
        run = run_test(test, load_peer(DEFAULT), seed)
        assert run.error is None, run.error
        outcomes.update(said)
    # In some runs the answer came first, in some the crash.
    assert {(-1, 0, False), (0, False)} <= outcomes
    assert any(len(outcome) == 3 and outcome[2] for outcome in outcomes)


def test_leader_that_crashes_during_the_poll_is_not_returned():
    found = []

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()
        threading.Thread(target=cfg.crash1, args=(leader,)).start()
        found.append(cfg.leader_now())

    for seed in range(30):
        run = run_test(test, load_peer(DEFAULT), seed)
        assert run.error is None, run.error
    assert set(found) == {None}


def test_slow_save_takes_effect_at_its_end_or_never():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.one(1, 3, retry=True)
        leader = cfg.check_one_leader()
        cfg.slow_disks(100, 100)
        began_s = time.monotonic()
        assert cfg.start(leader, 2) == (2, 1, True)
        assert time.monotonic() - began_s == pytest.approx(0.1)
        size = cfg._slots[leader].persister.raft_state_size()
        threading.Thread(target=cfg.start, args=(leader, 3)).start()
        time.sleep(0.099)
        assert cfg._slots[leader].persister.raft_state_size() == size
        cfg.crash1(leader)
        cfg.slow_disks(0, 0)
        cfg.restart(leader)
        assert cfg._slots[leader].persister.raft_state_size() == size
        with pytest.raises(ValueError, match=r"slow_disks\(\): need 0 <= min_ms <= max_ms, got 5 and 1"):
            cfg.slow_disks(5, 1)

    run = run_test(test, load_peer(DEFAULT), 4)
    assert run.error is None, run.error
    saves = [event for event in run.simulation.trace if event.kind in ("saving", "persist")]
    begun = next(i for i, event in enumerate(saves) if event.kind == "saving")
    assert (saves[begun + 1].kind, saves[begun + 1].at_ns) == ("persist", saves[begun].at_ns + 100_000_000)


def test_slow_snapshot_delays_the_service_and_not_the_peer():
    @collect
    def test(make_config):
        cfg = make_config(servers=3, snapshot=True)
        leader = cfg.check_one_leader()
        slow = cfg.others(leader)[0]
        cfg.slow_snapshots(slow, 500)
        for command in range(1, 31):
            cfg.start(leader, command)
        time.sleep(0.200)
        assert [cfg.n_committed(index)[0] for index in (9, 10, 30)] == [3, 2, 2]
        time.sleep(0.500)
        assert [cfg.n_committed(index)[0] for index in (19, 20, 30)] == [3, 2, 2]
        cfg.crash1(slow)
        with pytest.raises(ValueError, match=rf"slow_snapshots\(\): server {slow} is down"):
            cfg.slow_snapshots(slow, 500)

    run = run_test(test, load_peer(DEFAULT), 4)
    assert run.error is None, run.error


def test_long_command_is_shortened_in_a_failed_agreement():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.disconnect(cfg.others(cfg.check_one_leader())[0])
        cfg.one("j" * 5000, 3, retry=False)

    run = run_test(test, load_peer(DEFAULT), 1)
    assert "2 s later 2 servers had applied 'jjj" in str(run.error)
    assert len(str(run.error)) < 400
