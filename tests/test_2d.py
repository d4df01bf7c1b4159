"""Part 2D, log compaction (§7): snapshots shorten the log, and are sent to followers that need discarded entries."""

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
    """Agree in thirty rounds; in each, one server is unavailable for long enough to need a snapshot."""
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

        # This may or may not be enough for a snapshot.
        for _ in range(SNAPSHOT_INTERVAL // 2 + random.randrange(SNAPSHOT_INTERVAL)):
            cfg.start(sender, random.getrandbits(31))

        # Let the other servers catch up, so that the next leader has everything.
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
        cfg.fail(f"A saved Raft state has {size} bytes; if the log is trimmed it has at most {MAX_LOG_SIZE} (§7)")


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
            cfg.fail(f"The index went back from {before} to {after} when all servers were restarted")


def test_snapshot_init_2d(make_config):
    """A peer that restarts must load its snapshot, because it may have to save the snapshot again or send it."""
    cfg = make_config(servers=3, snapshot=True)
    cfg.begin("Test (2D): snapshot initialization after crash")
    cfg.one(random.getrandbits(31), 3, retry=True)
    for _ in range(SNAPSHOT_INTERVAL + 1):
        cfg.one(random.getrandbits(31), 3, retry=True)

    restart_all(cfg)
    cfg.one(random.getrandbits(31), 3, retry=True)  # the state is saved again, without a new snapshot
    restart_all(cfg)
    cfg.one(random.getrandbits(31), 3, retry=True)
    time.sleep(ELECTION_S / 10)


def restart_all(cfg):
    for i in range(3):
        cfg.crash1(i)
    cfg.restart(0, 1, 2)
