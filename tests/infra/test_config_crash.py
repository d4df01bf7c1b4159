"""A server that goes down while a client is talking to it."""

from labsim import threading, time
from labtest.loading import DEFAULT, load_peer_class
from labtest.running import run_test


def test_a_server_crashed_under_start_takes_nothing_and_leads_nothing():
    said = []

    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()

        def client(ask):
            if cfg.is_up(leader):
                said.append(ask())

        # Both have put their question, and neither has been answered, when the power goes.
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
        run = run_test(test, load_peer_class(DEFAULT), seed)
        assert run.error is None, run.error
        outcomes.update(said)
    # In some runs the answer came first, in some the crash.
    assert {(-1, 0, False), (0, False)} <= outcomes
    assert any(len(outcome) == 3 and outcome[2] for outcome in outcomes)
