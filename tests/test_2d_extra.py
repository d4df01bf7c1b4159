"""More of part 2D: snapshots that arrive late, twice, over another log, in a new term, or during a crash."""

from labsim import random, time
from raftlab.harness.service import SNAPSHOT_INTERVAL

# A correct peer does not campaign so soon after a message from its leader: timeouts are about 150 ms or more.
QUIET_S = 0.090


def start_many(cfg, i, number):
    for _ in range(number):
        cfg.start(i, random.getrandbits(31))


def test_snapshot_slow_replies_2d(make_config):
    """A follower may get a snapshot of entries that it has. It must keep the later entries (Figure 13, step 6)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): snapshots and slow replies")
    for _ in range(6):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader = cfg.check_one_leader()
        quick, slow = random.sample(cfg.others(leader), 2)
        # The replies of one follower let the leader commit and trim its log; those of the other arrive later.
        cfg.link(quick, leader, latency_ms=(100, 150))
        cfg.link(slow, leader, latency_ms=(300, 500))
        for _ in range(3):
            start_many(cfg, leader, SNAPSHOT_INTERVAL // 2 + random.randrange(SNAPSHOT_INTERVAL))
            time.sleep(random.uniform(0, 1.0))
        cfg.link(quick, leader, latency_ms=(0, 0))
        cfg.link(slow, leader, latency_ms=(0, 0))
        cfg.one(random.getrandbits(31), 3, retry=True)


def test_snapshot_late_requests_2d(make_config):
    """A late or duplicate InstallSnapshot must not roll a peer back (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): late and duplicate InstallSnapshot")
    cfg.duplicates(0.8)
    cfg.one(random.getrandbits(31), 3, retry=True)
    for _ in range(10):
        leader = cfg.check_one_leader()
        away = cfg.others(leader)[0]
        cfg.disconnect(away)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        cfg.one(random.getrandbits(31), 2, retry=True)
        # It gets a snapshot, closely followed by more commands, in messages that may be reordered.
        cfg.latency(0, 250)
        cfg.connect(away)
        for _ in range(SNAPSHOT_INTERVAL):
            cfg.start(leader, random.getrandbits(31))
            time.sleep(random.uniform(0, 0.04))
        time.sleep(0.5)
        # Some peers cannot make progress if a round trip is longer than a heartbeat interval: use the default latency.
        cfg.latency()
        cfg.one(random.getrandbits(31), 3, retry=True)


def test_snapshot_over_another_log_2d(make_config):
    """A snapshot replaces a conflicting log completely (Figure 13, step 7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a snapshot replaces a conflicting log")
    for _ in range(5):
        cfg.one(random.getrandbits(31), 3, retry=True)
        isolated = cfg.check_one_leader()
        cfg.disconnect(isolated)
        # More commands than the others will commit, so that some are after their snapshot.
        start_many(cfg, isolated, 4 * SNAPSHOT_INTERVAL)
        second = cfg.check_one_leader()
        start_many(cfg, second, SNAPSHOT_INTERVAL + random.randrange(SNAPSHOT_INTERVAL))
        # The snapshot is the last thing sent: entries after it would truncate the other log.
        while cfg.one(random.getrandbits(31), 2, retry=True) % SNAPSHOT_INTERVAL != SNAPSHOT_INTERVAL - 1:
            pass

        # It reconnects, gets the snapshot, and may campaign next.
        cfg.connect(isolated)
        time.sleep(random.uniform(0, 1.0))
        cfg.crash1(second)
        cfg.check_one_leader()
        cfg.restart(second)


def test_snapshot_slow_disks_2d(make_config):
    """Saves take time, and clients and peers do not wait, so saving a snapshot without the lock causes failures."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): snapshots on slow disks")
    cfg.slow_disks(0, 10)
    for _ in range(4):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader = cfg.check_one_leader()
        away = cfg.others(leader)[0]
        cfg.disconnect(away)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        cfg.one(random.getrandbits(31), 2, retry=True)
        cfg.connect(away)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)


def test_snapshot_overtaken_2d(make_config):
    """While a service makes a snapshot, a later one may arrive from the leader and outdate it (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a snapshot is overtaken by a later one")
    for _ in range(4):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader = cfg.check_one_leader()
        slow = cfg.others(leader)[0]
        cfg.slow_snapshots(slow, 600)
        start_many(cfg, leader, SNAPSHOT_INTERVAL)
        time.sleep(0.150)  # some leaders send the commit index with the next heartbeat only
        # It is making a snapshot now. The others continue, and their snapshot replaces the entries that it lacks.
        cfg.disconnect(slow)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        time.sleep(0.100)
        cfg.slow_snapshots(slow, 0)
        cfg.connect(slow)
        time.sleep(2.0)


def test_snapshot_of_what_it_has_2d(make_config):
    """InstallSnapshot of entries that a follower has committed must roll back neither its log nor its service (§7).

    The follower's own snapshot of these commands is not finished, so only its commit index shows that it has them.
    """
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a snapshot of entries that the follower has")
    cfg.duplicates(0.5)
    for _ in range(5):
        index = cfg.one(random.getrandbits(31), 3, retry=True)
        leader = cfg.check_one_leader()
        slow = random.choice(cfg.others(leader))
        # The leader trims its log after sending its commit index to the follower, and before the reply.
        cfg.slow_snapshots(leader, 250)
        cfg.slow_snapshots(slow, 800)
        cfg.link(slow, leader, latency_ms=(600, 900))
        # Enough commands for one snapshot, and some after it.
        start_many(cfg, leader, (SNAPSHOT_INTERVAL - 1 - index) % SNAPSHOT_INTERVAL + random.randint(2, 8))
        time.sleep(random.uniform(0.7, 1.5))
        cfg.link(slow, leader, latency_ms=(0, 0))
        cfg.slow_snapshots(leader, 0)
        cfg.slow_snapshots(slow, 0)
        cfg.one(random.getrandbits(31), 3, retry=True)
        # Commands that the slow server has applied since are on its disk, or are sent again.
        cfg.crash1(slow)
        cfg.restart(slow)


def test_snapshot_puts_election_off_2d(make_config):
    """A follower that receives InstallSnapshot from its leader does not campaign (§5.2, §7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): InstallSnapshot resets the election timer")
    trials, disturbed = 4, 0
    for _ in range(trials):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader, term = cfg.wait_for_leader()
        behind = cfg.others(leader)[0]
        cfg.crash1(behind)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        cfg.one(random.getrandbits(31), 2, retry=True)

        # It receives the leader's messages, but its replies are lost: the leader sends the same snapshot again.
        for i in cfg.others(behind):
            cfg.link(behind, i, cut=True)
        cfg.restart(behind)
        disturbed += campaigns_though_it_hears(cfg, behind, leader, term)
        cfg.partition()
    # One campaign proves nothing: it may be due to a message in flight.
    if disturbed >= trials - 1:
        cfg.fail(
            f"In {disturbed} of {trials} trials a follower that needed a snapshot campaigned less than "
            f"{QUIET_S * 1000:g} ms after a request of its leader. InstallSnapshot comes from the leader too, and "
            "must reset the election timer (§5.2, §7)"
        )


def campaigns_though_it_hears(cfg, i, leader, term):
    """Return whether server i enters a later term within 2 s, just after a message from its leader."""
    requests, heard_s = cfg.rpc_count(i), None
    for _ in range(200):
        time.sleep(0.010)
        if cfg.rpc_count(i) > requests:
            requests, heard_s = cfg.rpc_count(i), time.monotonic()
        if cfg.get_state(i)[0] > term:
            just_heard = heard_s is not None and time.monotonic() - heard_s < QUIET_S
            return just_heard and cfg.get_state(leader) == (term, True)
    return False


def test_snapshot_in_new_term_2d(make_config):
    """A peer that learns of a term from InstallSnapshot saves term and vote as usual (Figure 2)."""
    cfg = make_config(servers=5, snapshot=True)
    cfg.begin("Test (2D): InstallSnapshot, new terms and votes")
    for _ in range(6):
        cfg.one(random.getrandbits(31), 5, retry=True)
        leader, term = cfg.wait_for_leader()
        behind, rival, *_ = cfg.others(leader)
        if random.random() < 0.5:
            # The server misses entries that only a snapshot has; otherwise it misses only an election.
            cfg.crash1(behind)
            start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        cfg.one(random.getrandbits(31), 4, retry=True)
        if cfg.is_up(behind):
            cfg.crash1(behind)

        # A new leader, unknown to the rival. The other server may vote for it, or connect later.
        cfg.crash1(rival)
        cfg.crash1(leader)
        cfg.restart(leader)
        if random.random() < 0.5:
            cfg.restart(behind)
        cfg.wait_for_leader(term)
        if not cfg.is_up(behind):
            cfg.restart(behind)
        cfg.crash_at(behind, "after reply", nth=random.randint(1, 4))
        time.sleep(random.uniform(0.2, 0.4))

        # After a restart it may get a RequestVote of the rival in the same term.
        cfg.partition([behind, rival], cfg.others(behind, rival))
        if cfg.is_up(behind):
            cfg.crash1(behind)
        cfg.restart(rival)
        time.sleep(random.uniform(0, 0.3))
        cfg.restart(behind)
        time.sleep(1.0)
        cfg.partition()


def test_snapshot_crash_before_save_2d(make_config):
    crash_while_snapshotting(
        make_config(servers=3, snapshot=True), "Test (2D): crashes just before a save of a snapshot", "before save"
    )


def test_snapshot_crash_after_save_2d(make_config):
    crash_while_snapshotting(
        make_config(servers=3, snapshot=True), "Test (2D): crashes just after a save of a snapshot", "after save"
    )


def crash_while_snapshotting(cfg, description, when):
    """§7: save a snapshot together with the trimmed log. With two saves, a crash between them loses one."""
    cfg.begin(description)
    for _ in range(8):
        index = cfg.one(random.getrandbits(31), 3, retry=True)
        leader, _ = cfg.wait_for_leader()
        away, other = random.sample(cfg.others(leader), 2)
        cfg.crash1(away)
        start_many(cfg, leader, (SNAPSHOT_INTERVAL - 2 - index) % SNAPSHOT_INTERVAL)
        time.sleep(0.300)
        # One server crashes while it makes a snapshot; then the one that was away, while it receives one.
        cfg.crash_at(random.choice((leader, other)), when, nth=random.randint(1, 4))
        cfg.start(leader, random.getrandbits(31))
        time.sleep(0.300)
        restart_crashed(cfg)
        cfg.crash_at(away, when, nth=random.randint(1, 4))
        time.sleep(1.0)
        restart_crashed(cfg)
    for _ in range(6):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader, _ = cfg.wait_for_leader()
        quick, slow = random.sample(cfg.others(leader), 2)
        # It has the entries, but its leader does not know that yet, and sends a snapshot of them.
        cfg.link(quick, leader, latency_ms=(150, 200))
        cfg.link(slow, leader, latency_ms=(500, 600))
        cfg.crash_at(slow, when, nth=random.randint(1, 4))
        start_many(cfg, leader, SNAPSHOT_INTERVAL)
        time.sleep(0.500)
        cfg.link(quick, leader, latency_ms=(0, 0))
        cfg.link(slow, leader, latency_ms=(0, 0))
        cfg.crash1(leader)  # the next leader finds that it has the entries, and sends no snapshot
        restart_crashed(cfg)
    cfg.one(random.getrandbits(31), 3, retry=True)


def restart_crashed(cfg):
    for i in range(cfg.n):
        cfg.crash_at(i, None)
        if not cfg.is_up(i):
            cfg.restart(i)


def test_snapshot_paused_follower_2d(make_config):
    """A follower is paused with messages waiting, and resumed when its leader has trimmed its log (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a follower is paused during a snapshot")
    for _ in range(6):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader = cfg.check_one_leader()
        sleeper = random.choice(cfg.others(leader))
        start_many(cfg, leader, random.randrange(SNAPSHOT_INTERVAL))
        time.sleep(random.uniform(0, 0.006))
        cfg.pause(sleeper)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        cfg.one(random.getrandbits(31), 2, retry=True)
        time.sleep(random.uniform(0, 2.0))
        cfg.resume(sleeper)
        cfg.one(random.getrandbits(31), 3, retry=True)


def test_snapshot_ahead_of_its_leader_2d(make_config):
    """A follower may have trimmed entries that it has not acknowledged. The leader then sends entries before the
    follower's snapshot, and needs a reply that lets it continue (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a follower has trimmed entries that its leader sends")
    for _ in range(4):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader, term = cfg.wait_for_leader()
        follower, other = random.sample(cfg.others(leader), 2)
        cfg.busy_service(leader, True)  # so that it makes no snapshot, and can send all its entries
        cfg.link(follower, leader, cut=True)
        start_many(cfg, leader, SNAPSHOT_INTERVAL)
        time.sleep(1.0)
        cfg.link(follower, leader, cut=False)
        index, _, _ = cfg.start(leader, random.getrandbits(31))
        for _ in range(50):
            time.sleep(0.100)
            if index in cfg.applied(follower):
                break
        else:
            if index in cfg.applied(other) and cfg.get_state(leader) == (term, True):
                cfg.fail(
                    f"5 s after its replies reach the leader again, peer {follower} has not applied index {index}, but "
                    f"peer {other} has. The entries that it trimmed are committed, so the leader has them too: reply "
                    "that they match, or where to continue (§7)",
                    awaited=index,
                )
        cfg.busy_service(leader, False)
    cfg.one(random.getrandbits(31), 3, retry=True)
