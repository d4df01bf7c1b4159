"""Part 2A, leader election (§5.2): one leader, a new one when it fails, none without a majority."""

from labsim import random, time

# MIT's RaftElectionTimeout: longer than any reasonable election takes.
ELECTION_S = 1.0


def test_initial_election_2a(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2A): initial election")

    cfg.check_one_leader()

    # Let all servers learn of the election before comparing terms.
    time.sleep(0.050)
    term = cfg.check_terms()
    assert term >= 1, f"the term is {term} after an election, but must be at least 1"

    # Nothing fails, so there must be no other election.
    time.sleep(2 * ELECTION_S)
    later = cfg.check_terms()
    if later != term:
        cfg.fail(f"The term went from {term} to {later} although nothing failed (§5.2)")
    cfg.check_one_leader()


def test_reelection_2a(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2A): election after network failure")

    leader = cfg.check_one_leader()
    cfg.disconnect(leader)
    second = cfg.check_one_leader()

    # The old leader comes back and must follow.
    cfg.connect(leader)
    second = cfg.check_one_leader()

    # Without a quorum there is no leader, not even the disconnected one.
    other = (second + 1) % 3
    cfg.disconnect(second, other)
    time.sleep(2 * ELECTION_S)
    cfg.check_no_leader()

    cfg.connect(other)
    cfg.check_one_leader()

    # The last server that reconnects must not disturb the leader.
    cfg.connect(second)
    cfg.check_one_leader()


def test_many_elections_2a(make_config):
    cfg = make_config(servers=7)
    cfg.begin("Test (2A): multiple elections")

    cfg.check_one_leader()
    for _ in range(10):
        away = random.sample(range(7), 3)
        cfg.disconnect(*away)
        # Four of seven remain: either the leader is among them, or they elect one.
        cfg.check_one_leader()
        cfg.connect(*away)
    cfg.check_one_leader()
