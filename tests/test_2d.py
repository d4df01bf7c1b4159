"""Part 2D, log compaction (§7): snapshots cut the log, and reach followers that need what was cut."""

from labsim import random, time
from raftlab.harness.config import MAX_LOG_SIZE
from raftlab.harness.service import SNAPSHOT_INTERVAL

ELECTION_S = 1.0


def test_snapshot_basic_2d(make_config):
    snapshots(make_config(servers=3, snapshot=True), "Test (2D): snapshots basic")


def test_snapshot_install_2d(make_config):
    snapshots(make_config(servers=3, snapshot=True), "Test (2D): install snapshots (disconnect)", disconnect=True)


def test_snapshot_install_unreliable_2d(make_config):
    snapshots(
        make_config(servers=3, unreliable=True, snapshot=True),
        "Test (2D): install snapshots (disconnect+unreliable)",
        disconnect=True,
    )


def test_snapshot_install_crash_2d(make_config):
    snapshots(make_config(servers=3, snapshot=True), "Test (2D): install snapshots (crash)", crash=True)


def test_snapshot_install_unreliable_crash_2d(make_config):
    snapshots(
        make_config(servers=3, unreliable=True, snapshot=True),
        "Test (2D): install snapshots (unreliable+crash)",
        crash=True,
    )


def snapshots(cfg, description, *, disconnect=False, crash=False):
    """Agree through thirty rounds while a server is away long enough to need a snapshot."""
    cfg.begin(description)
    cfg.one(random.getrandbits(31), 3, retry=True)
    leader = cfg.check_one_leader()

    for round_ in range(30):
        victim, sender = (leader + 1) % 3, leader
        if round_ % 3 == 1:
            victim, sender = leader, (leader + 1) % 3
        if disconnect:
            cfg.disconnect(victim)
            cfg.one(random.getrandbits(31), 2, retry=True)
        if crash:
            cfg.crash1(victim)
            cfg.one(random.getrandbits(31), 2, retry=True)

        # Perhaps enough for a snapshot, perhaps not.
        for _ in range(SNAPSHOT_INTERVAL // 2 + random.randrange(SNAPSHOT_INTERVAL)):
            cfg.start(sender, random.getrandbits(31))

        # Let the rest of them catch up, so that whoever leads next has everything.
        if not disconnect and not crash:
            cfg.one(random.getrandbits(31), 3, retry=True)
        else:
            cfg.one(random.getrandbits(31), 2, retry=True)

        check_log_size(cfg)
        if disconnect:
            cfg.connect(victim)
            cfg.one(random.getrandbits(31), 3, retry=True)
            leader = cfg.check_one_leader()
        if crash:
            cfg.restart(victim)
            cfg.one(random.getrandbits(31), 3, retry=True)
            leader = cfg.check_one_leader()


def check_log_size(cfg):
    size = cfg.log_size()
    if size >= MAX_LOG_SIZE:
        cfg.fail(f"A saved Raft state has {size} bytes; a peer that cuts its log stays under {MAX_LOG_SIZE} (§7)")


def test_snapshot_all_crash_2d(make_config):
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): crash and restart all servers")
    cfg.one(random.getrandbits(31), 3, retry=True)

    for _ in range(5):
        for _ in range(SNAPSHOT_INTERVAL // 2 + random.randrange(SNAPSHOT_INTERVAL)):
            cfg.one(random.getrandbits(31), 3, retry=True)
        before = cfg.one(random.getrandbits(31), 3, retry=True)

        for i in range(3):
            cfg.crash1(i)
        cfg.restart(0, 1, 2)

        after = cfg.one(random.getrandbits(31), 3, retry=True)
        if after < before + 1:
            cfg.fail(f"The index went back from {before} to {after} over a restart of all servers")


def test_snapshot_init_2d(make_config):
    """A peer restarted from a snapshot keeps it in memory too, for when it is the one to save or send it next."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): snapshot initialization after crash")
    cfg.one(random.getrandbits(31), 3, retry=True)
    for _ in range(SNAPSHOT_INTERVAL + 1):
        cfg.one(random.getrandbits(31), 3, retry=True)

    restart_all(cfg)
    cfg.one(random.getrandbits(31), 3, retry=True)  # saved again, without a new snapshot
    restart_all(cfg)
    cfg.one(random.getrandbits(31), 3, retry=True)
    time.sleep(ELECTION_S / 10)


def restart_all(cfg):
    for i in range(3):
        cfg.crash1(i)
    cfg.restart(0, 1, 2)
