"""Part 3B: the same service with snapshots, so that the log stays short (§7).

MIT's tests, with their numbers.
"""

from labsim import time
from raftlab.harness.workload import ELECTION_S, LOG_SIZE_MAX, at_work, check_sizes, written


def test_snapshot_rpc_3b(make_kv_config):
    """A server that was disconnected while the others trimmed their logs gets their snapshot, and continues from it."""
    max_raft_state = 1000
    cfg = make_kv_config(servers=3, max_raft_state=max_raft_state)
    cfg.begin("Test (3B): InstallSnapshot RPC")
    client = cfg.make_client()
    client.put("a", written("A"))
    client.get("a")

    cfg.partition([0, 1], [2])
    with_two = cfg.make_client([0, 1])
    for number in range(50):
        with_two.put(str(number), written(number))
    time.sleep(ELECTION_S)
    with_two.put("b", written("B"))
    if cfg.log_size() > LOG_SIZE_MAX * max_raft_state:
        check_sizes(cfg, max_raft_state)

    # Now a majority needs server 2, which lacks entries that only a snapshot has.
    cfg.partition([0, 2], [1])
    with_latest = cfg.make_client([0, 2])
    with_latest.put("c", written("C"))
    with_latest.put("d", written("D"))
    for key in ("a", "b", "1", "49", "c"):
        with_latest.get(key)

    cfg.partition()
    client.put("e", written("E"))
    for key in ("c", "e", "1"):
        client.get(key)


def test_snapshot_size_3b(make_kv_config):
    max_raft_state, max_snapshot_state = 1000, 500
    cfg = make_kv_config(servers=3, max_raft_state=max_raft_state)
    cfg.begin("Test (3B): snapshot size is reasonable")
    client = cfg.make_client()
    for number in range(120):
        client.put("x", written(number, 0))
        client.get("x")
        client.put("x", written(number, 1))
        client.get("x")
    check_sizes(cfg, max_raft_state)
    if cfg.snapshot_size() > max_snapshot_state:
        cfg.fail(
            f"A snapshot has {cfg.snapshot_size()} B; expected at most {max_snapshot_state} B for one key with a short "
            "value and one client. It must contain only the current state"
        )
    cfg.make_client().get("x")


def test_speed_3b(make_kv_config):
    cfg = make_kv_config(servers=3, max_raft_state=1000)
    cfg.begin("Test (3B): operations complete fast enough")
    cfg.no_delays()
    client = cfg.make_client()
    client.put("x", written("first"))
    count, began_s = 300, time.time()
    for number in range(count):
        client.put("x", written(number))
    each_ms = 1000 * (time.time() - began_s) / count
    cfg.make_client().get("x")
    if each_ms > 100 / 3:
        cfg.fail(f"A sequential operation takes {each_ms:.1f} ms; expected at most 33.3 ms", costs=True)


def test_snapshot_recover_3b(make_kv_config):
    at_work(make_kv_config, "3B", clients=1, crash=True, max_raft_state=1000)


def test_snapshot_recover_many_clients_3b(make_kv_config):
    at_work(make_kv_config, "3B", clients=20, operations=8, crash=True, max_raft_state=1000)


def test_snapshot_unreliable_3b(make_kv_config):
    at_work(make_kv_config, "3B", clients=5, unreliable=True, max_raft_state=1000)


def test_snapshot_unreliable_recover_3b(make_kv_config):
    at_work(make_kv_config, "3B", clients=5, unreliable=True, crash=True, max_raft_state=1000)


def test_snapshot_unreliable_recover_concurrent_partition_3b(make_kv_config):
    at_work(
        make_kv_config,
        "3B",
        clients=5,
        unreliable=True,
        crash=True,
        partitions=True,
        max_raft_state=1000,
        pause_s=0.15,
    )


def test_snapshot_unreliable_recover_concurrent_partition_linearizable_3b(make_kv_config):
    at_work(
        make_kv_config,
        "3B",
        clients=15,
        servers=7,
        operations=9,
        unreliable=True,
        crash=True,
        partitions=True,
        max_raft_state=1000,
        random_keys=True,
        pause_s=0.3,
    )
