"""More of part 2D: snapshots that arrive late, twice, over another log, in a new term, or in the middle of a crash."""

from labsim import random, time
from raftlab.harness.service import SNAPSHOT_INTERVAL

# So soon after its leader was heard no right peer campaigns: timeouts are 150 ms and more, give or take a tick.
QUIET_S = 0.090


def start_many(cfg, i, number):
    for _ in range(number):
        cfg.start(i, random.getrandbits(31))


def test_snapshot_slow_replies_2d(make_config):
    """A follower may be sent a snapshot of what it has. What follows, acknowledged already, stays (Figure 13, 6)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): snapshots and slow replies")
    for _ in range(6):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader = cfg.check_one_leader()
        quick, slow = random.sample(cfg.others(leader), 2)
        # The leader hears from one of them in time to commit and to cut its log, from the other only then.
        cfg.link(quick, leader, latency_ms=(100, 150))
        cfg.link(slow, leader, latency_ms=(300, 500))
        for _ in range(3):
            start_many(cfg, leader, SNAPSHOT_INTERVAL // 2 + random.randrange(SNAPSHOT_INTERVAL))
            time.sleep(random.uniform(0, 1.0))
        cfg.link(quick, leader, latency_ms=(0, 0))
        cfg.link(slow, leader, latency_ms=(0, 0))
        cfg.one(random.getrandbits(31), 3, retry=True)


def test_snapshot_late_requests_2d(make_config):
    """An InstallSnapshot that comes late or again must not take a peer back (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): late and repeated InstallSnapshot")
    cfg.duplicates(0.8)
    cfg.one(random.getrandbits(31), 3, retry=True)
    for _ in range(10):
        leader = cfg.check_one_leader()
        away = cfg.others(leader)[0]
        cfg.disconnect(away)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        cfg.one(random.getrandbits(31), 2, retry=True)
        # What it lacks comes as a snapshot, with more commands close behind, each message by its own way.
        cfg.latency(0, 250)
        cfg.connect(away)
        for _ in range(SNAPSHOT_INTERVAL):
            cfg.start(leader, random.getrandbits(31))
            time.sleep(random.uniform(0, 0.04))
        time.sleep(0.5)
        # Whoever does not wait for a round trip longer than its heartbeats is asked for progress on the usual network.
        cfg.latency()
        cfg.one(random.getrandbits(31), 3, retry=True)


def test_snapshot_over_another_log_2d(make_config):
    """A snapshot replaces a log that went another way, all of it (Figure 13, 7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a snapshot replaces a log that has gone another way")
    for _ in range(5):
        cfg.one(random.getrandbits(31), 3, retry=True)
        lonely = cfg.check_one_leader()
        cfg.disconnect(lonely)
        # More than the others will agree on, so that some of it lies behind their snapshot.
        start_many(cfg, lonely, 4 * SNAPSHOT_INTERVAL)
        second = cfg.check_one_leader()
        start_many(cfg, second, SNAPSHOT_INTERVAL + random.randrange(SNAPSHOT_INTERVAL))
        # Nothing lies behind the last snapshot: what came after it would cut the other log.
        while cfg.one(random.getrandbits(31), 2, retry=True) % SNAPSHOT_INTERVAL != SNAPSHOT_INTERVAL - 1:
            pass

        # It comes back, gets the snapshot, and may be the next to campaign.
        cfg.connect(lonely)
        time.sleep(random.uniform(0, 1.0))
        cfg.crash1(second)
        cfg.check_one_leader()
        cfg.restart(second)


def test_snapshot_slow_disks_2d(make_config):
    """Saving takes a while, and nobody else waits for it: a peer without its lock is found with half a snapshot."""
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
    """While a service makes its snapshot, a later one may come from the leader; its own is old news then (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a snapshot is overtaken by a later one")
    for _ in range(4):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader = cfg.check_one_leader()
        slow = cfg.others(leader)[0]
        cfg.slow_snapshots(slow, 600)
        start_many(cfg, leader, SNAPSHOT_INTERVAL)
        time.sleep(0.150)  # some tell what is committed with the next heartbeat only
        # It is busy with a snapshot now. The others go on, and theirs replace what it lacks.
        cfg.disconnect(slow)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        time.sleep(0.100)
        cfg.slow_snapshots(slow, 0)
        cfg.connect(slow)
        time.sleep(2.0)


def test_snapshot_of_what_it_has_2d(make_config):
    """InstallSnapshot of what a follower has committed or applied takes back neither its log nor its service (§7).

    Its own snapshot of the same commands is still in the making, so only its commit index tells that it has them.
    """
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a snapshot of what the follower has already")
    cfg.duplicates(0.5)
    for _ in range(5):
        index = cfg.one(random.getrandbits(31), 3, retry=True)
        leader = cfg.check_one_leader()
        slow = random.choice(cfg.others(leader))
        # The leader cuts its log when the follower has been told of the commit, and before it hears from it.
        cfg.slow_snapshots(leader, 250)
        cfg.slow_snapshots(slow, 800)
        cfg.link(slow, leader, latency_ms=(600, 900))
        # Enough for one snapshot, and some that follow it.
        start_many(cfg, leader, (SNAPSHOT_INTERVAL - 1 - index) % SNAPSHOT_INTERVAL + random.randint(2, 8))
        time.sleep(random.uniform(0.7, 1.5))
        cfg.link(slow, leader, latency_ms=(0, 0))
        cfg.slow_snapshots(leader, 0)
        cfg.slow_snapshots(slow, 0)
        cfg.one(random.getrandbits(31), 3, retry=True)
        # What it has applied since is on its disk, or comes again.
        cfg.crash1(slow)
        cfg.restart(slow)


def test_snapshot_puts_election_off_2d(make_config):
    """A follower that hears its leader does not campaign (§5.2), even if all it hears are snapshots (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): InstallSnapshot puts an election off")
    trials, disturbed = 4, 0
    for _ in range(trials):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader, term = cfg.wait_for_leader()
        behind = cfg.others(leader)[0]
        cfg.crash1(behind)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        cfg.one(random.getrandbits(31), 2, retry=True)

        # It hears the leader, and nothing it says arrives: the leader sends the same snapshot again.
        for i in cfg.others(behind):
            cfg.link(behind, i, cut=True)
        cfg.restart(behind)
        disturbed += campaigns_though_it_hears(cfg, behind, leader, term)
        cfg.partition()
    # Once may be bad luck with a message that was on its way.
    if disturbed >= trials - 1:
        cfg.fail(
            f"In {disturbed} of {trials} trials a follower that needed a snapshot campaigned, and less than "
            f"{QUIET_S * 1000:g} ms before a request of its leader had reached it. InstallSnapshot is a word of the "
            "leader too, and resets the election timer (§5.2, §7)"
        )


def campaigns_though_it_hears(cfg, i, leader, term):
    """Whether in 2 s server i goes into a later term just after it has heard its leader."""
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
    """Who first hears of a term, or of its leader, by InstallSnapshot keeps term and vote like anybody (Figure 2)."""
    cfg = make_config(servers=5, snapshot=True)
    cfg.begin("Test (2D): InstallSnapshot, new terms and votes")
    for _ in range(6):
        cfg.one(random.getrandbits(31), 5, retry=True)
        leader, term = cfg.wait_for_leader()
        behind, rival, *_ = cfg.others(leader)
        if random.random() < 0.5:
            # It misses more than a snapshot holds, or nothing but an election.
            cfg.crash1(behind)
            start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        cfg.one(random.getrandbits(31), 4, retry=True)
        if cfg.is_up(behind):
            cfg.crash1(behind)

        # A new leader, of whom the rival does not hear. The other may be there to vote for it, or come later.
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

        # Back from its disk, it may be asked by the rival for a vote in that very term.
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
    """§7: a snapshot and the log cut for it go to the disk in one save. Between two saves, a crash finds half of it."""
    cfg.begin(description)
    for _ in range(8):
        index = cfg.one(random.getrandbits(31), 3, retry=True)
        leader, _ = cfg.wait_for_leader()
        away, other = random.sample(cfg.others(leader), 2)
        cfg.crash1(away)
        start_many(cfg, leader, (SNAPSHOT_INTERVAL - 2 - index) % SNAPSHOT_INTERVAL)
        time.sleep(0.300)
        # One crashes while it makes a snapshot; then the one that was away, while it is sent one.
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
        # It has the entries, but its leader does not know that yet, and sends it a snapshot of them.
        cfg.link(quick, leader, latency_ms=(150, 200))
        cfg.link(slow, leader, latency_ms=(500, 600))
        cfg.crash_at(slow, when, nth=random.randint(1, 4))
        start_many(cfg, leader, SNAPSHOT_INTERVAL)
        time.sleep(0.500)
        cfg.link(quick, leader, latency_ms=(0, 0))
        cfg.link(slow, leader, latency_ms=(0, 0))
        cfg.crash1(leader)  # the next one finds that it has the entries, and sends no snapshot
        restart_crashed(cfg)
    cfg.one(random.getrandbits(31), 3, retry=True)


def restart_crashed(cfg):
    for i in range(cfg.n):
        cfg.crash_at(i, None)
        if not cfg.is_up(i):
            cfg.restart(i)


def test_snapshot_paused_follower_2d(make_config):
    """A follower is stopped with messages on its desk, and continues when its leader has cut its log (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a follower is stopped through a snapshot")
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
    """A follower may have applied and cut more of its log than its leader has heard of. What that sends is behind the
    snapshot then, and has to be answered so that it gets on (§7)."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): a follower has cut its log where its leader still looks")
    for _ in range(4):
        cfg.one(random.getrandbits(31), 3, retry=True)
        leader, term = cfg.wait_for_leader()
        follower, other = random.sample(cfg.others(leader), 2)
        cfg.busy_service(leader, True)  # so that it makes no snapshot, and has all its entries to send
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
                    f"5 s after its leader could hear it again peer {follower} has not applied index {index}, and peer "
                    f"{other} has. What it has cut off its log is committed, and so the leader has it: let it say that "
                    "this matches, or where to go on (§7)",
                    awaited=index,
                )
        cfg.busy_service(leader, False)
    cfg.one(random.getrandbits(31), 3, retry=True)
