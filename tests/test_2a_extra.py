"""More of part 2A: elections on networks with latency, duplicate requests and delayed votes."""

from labsim import random, time


def test_quiet_network_keeps_its_leader_2a(make_config):
    """Latency and duplicate requests are not failures, and must not cause an election."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2A): no needless elections on a slow network")
    cfg.latency(5, 40)
    cfg.duplicates(0.2)
    cfg.check_one_leader()
    time.sleep(1.0)
    leader, term = cfg.wait_for_leader()
    time.sleep(10.0)
    if cfg.get_state(leader) != (term, True):
        later = max(cfg.get_state(i)[0] for i in range(5))
        cfg.fail(f"Peer {leader} led in term {term}; the term is {later} now, although nothing failed (§5.2)")


def test_new_leader_speaks_at_once_2a(make_config):
    """§5.2: a new leader sends heartbeats immediately, to prevent new elections."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2A): a new leader sends heartbeats at once")
    cfg.no_delays()
    cfg.latency(10, 10)
    term, away = 0, None
    for _ in range(5):
        # A leader that was elected earlier may have sent heartbeats before the count starts.
        in_office = any(cfg.connected(i) and leads(cfg, i, term) for i in range(3))
        leader, term = cfg.wait_for_leader(term)
        followers = [i for i in cfg.others(leader) if cfg.connected(i)]
        heard = sum(cfg.rpc_count(i) for i in followers)
        # 10 ms for the network; the rest for a peer that checks its state periodically.
        time.sleep(0.050)
        if sum(cfg.rpc_count(i) for i in followers) == heard and not in_office:
            cfg.fail(f"Peer {leader} leads term {term}, but 50 ms later no peer has received a heartbeat (§5.2)")
        cfg.disconnect(leader)
        if away is not None:
            cfg.connect(away)
        away = leader


def leads(cfg, i, after_term):
    term, leads = cfg.get_state(i)
    return leads and term > after_term


def test_short_cut_keeps_its_leader_2a(make_config):
    """A follower that is disconnected for less than an election timeout must not campaign.

    A call sent meanwhile may get no reply for seconds; heartbeats must not wait for it (§5.2).
    """
    cfg = make_config(servers=3)
    cfg.begin("Test (2A): a short disconnect causes no election")
    cuts, disturbed = 12, 0
    for _ in range(cuts):
        leader, term = cfg.wait_for_leader()
        time.sleep(0.5)
        follower = cfg.others(leader)[0]
        cfg.disconnect(follower)
        time.sleep(0.110)  # one heartbeat interval: one heartbeat is lost
        cfg.connect(follower)
        time.sleep(1.0)
        disturbed += cfg.get_state(leader) != (term, True)
    # Allow some elections: the paper's timeouts (150 ms and more) may be shorter than two heartbeat intervals.
    if disturbed > 9:
        cfg.fail(f"{disturbed} of {cuts} disconnects of one follower for 110 ms caused an election (§5.2)")


def test_late_votes_2a(make_config):
    """Votes that arrive in a later campaign must not be counted (§5.2)."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2A): votes arrive late")
    # All receive peer 0's requests at once, and their replies arrive in its next campaign. The others are not connected
    # to each other.
    cfg.partition([1], [2])
    for voter in (1, 2):
        cfg.link(voter, 0, latency_ms=(500, 1500))
    time.sleep(20.0)  # a peer may or may not be elected meanwhile
    cfg.partition()
    for voter in (1, 2):
        cfg.link(voter, 0, latency_ms=(0, 0))
    time.sleep(2.0)
    cfg.check_one_leader()


def test_stale_leader_delays_nobody_2a(make_config):
    """§5.2: only the current leader resets the election timer, not a message of an older term (AppendEntries 1)."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2A): the leader of an older term does not prevent an election")
    span_s = 6.0
    leader = cfg.check_one_leader()
    isolated = cfg.others(leader)[0]

    # While this peer is isolated, it campaigns repeatedly, in later and later terms.
    cfg.partition([isolated], cfg.others(isolated))
    time.sleep(2.0)
    before = cfg.get_state(isolated)[0]
    time.sleep(span_s)
    alone = cfg.get_state(isolated)[0] - before

    # Now the peer gets messages from the leader, whose term is old; its own are lost. It must continue to campaign.
    cfg.link(leader, isolated, cut=False)
    time.sleep(1.0)
    heard, before = cfg.rpc_count(isolated), cfg.get_state(isolated)[0]
    time.sleep(span_s)
    spoken_to = cfg.get_state(isolated)[0] - before
    heard = cfg.rpc_count(isolated) - heard
    # A peer that does not campaign alone (pre-vote) is not tested.
    if alone > 3 and spoken_to == 0 and before > cfg.get_state(leader)[0]:
        cfg.fail(
            f"Peer {isolated}, disconnected, advanced by {alone} terms in {span_s:g} s. Then it received {heard} "
            f"requests of an older term in {span_s:g} s, and did not campaign. Requests that a peer refuses must not "
            "reset its election timer (§5.2, Figure 2: AppendEntries 1)"
        )
    cfg.partition()
    cfg.check_one_leader()


def test_paused_leader_2a(make_config):
    """A leader that is paused and resumed finds a new leader, and becomes a follower (§5.1)."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2A): a leader is paused and resumed")
    for _ in range(6):
        sleeper, term = cfg.wait_for_leader()
        cfg.pause(sleeper)
        cfg.wait_for_leader(term)
        time.sleep(random.uniform(0, 1.0))
        cfg.resume(sleeper)
        time.sleep(1.0)
        cfg.check_one_leader()


def test_two_quiet_minutes_2a(make_config):
    """Nothing may grow with every round of heartbeats, such as a recursion or the number of threads."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2A): two quiet minutes")
    cfg.check_one_leader()
    time.sleep(115.0)
    cfg.check_one_leader()
