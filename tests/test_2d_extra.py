"""More of part 2D: snapshots that arrive late, twice, or over a log that has gone another way."""

from labsim import random, time
from labtest.service import SNAPSHOT_INTERVAL


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
        cfg.one(random.getrandbits(31), 2, retry=True)

        # It comes back, gets the snapshot, and may be the next to campaign.
        cfg.connect(lonely)
        time.sleep(random.uniform(0, 0.3))
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
        time.sleep(0.050)
        # It is busy with a snapshot now. The others go on, and theirs replace what it lacks.
        cfg.disconnect(slow)
        start_many(cfg, leader, 2 * SNAPSHOT_INTERVAL)
        time.sleep(0.100)
        cfg.slow_snapshots(slow, 0)
        cfg.connect(slow)
        time.sleep(1.0)
