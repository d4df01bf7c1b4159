"""More of part 3B: what a snapshot must contain besides the data, and crashes around snapshots."""

from labsim import random, time
from raftlab.harness.workload import ELECTION_S, check_sizes, read_all, restart_all, written

MAX_RAFT_STATE = 1000


def silence(cfg, client, *, lost):
    """Lose all replies to this client, or none."""
    for i in range(cfg.n):
        cfg.network.link(str(i), client.name, loss=1.0 if lost else 0.0)


def fill(cfg, client, count, of):
    """Make enough writes for one or two snapshots."""
    for number in range(count):
        client.put("fill", written("fill", of, number))


def test_seen_requests_outlive_the_log_3b(make_kv_config):
    """A client retries a request that is only in a snapshot: the request must take effect only once."""
    cfg = make_kv_config(servers=3, max_raft_state=MAX_RAFT_STATE)
    cfg.begin("Test (3B): a request is retried after a snapshot")
    client, other = cfg.make_client(), cfg.make_client()
    for number in range(3):
        client.append("x", written("first", number))
        silence(cfg, client, lost=True)
        at = cfg.spawn([client], lambda me, client, number=number: client.append("x", written(number)))
        time.sleep(0.3)
        fill(cfg, other, 40, number)
        restart_all(cfg)
        other.get("x")
        silence(cfg, client, lost=False)
        at.finish()
        other.get("x")


def test_snapshot_brings_the_seen_requests_3b(make_kv_config):
    """A server that knows a request only from a snapshot becomes leader, and the client retries the request."""
    cfg = make_kv_config(servers=3, max_raft_state=MAX_RAFT_STATE)
    cfg.begin("Test (3B): a request is retried at a server with a snapshot")
    client, other = cfg.make_client(), cfg.make_client()
    client.append("x", written("first"))
    for number in range(3):
        leader, _ = cfg.wait_for_leader()
        away = cfg.others(leader)[0]
        cfg.partition([away], cfg.others(away))
        # A disconnected server would block the writes.
        for one in (client, other):
            cfg.connect_client(one, cfg.others(away))
        silence(cfg, client, lost=True)
        at = cfg.spawn([client], lambda me, client, number=number: client.append("x", written(number)))
        time.sleep(0.3)
        fill(cfg, other, 40, number)
        cfg.partition()
        time.sleep(ELECTION_S / 2)
        # Only this server is connected to both others, so it becomes leader sometimes.
        cfg.crash1(leader)
        cfg.connect_client(client, range(3))
        cfg.connect_client(other, range(3))
        other.get("x")
        silence(cfg, client, lost=False)
        at.finish()
        other.get("x")
        cfg.restart(leader)
    check_sizes(cfg, MAX_RAFT_STATE)


def test_snapshot_crash_anywhere_3b(make_kv_config):
    """Servers crash before and after saves of snapshots."""
    cfg = make_kv_config(servers=3, max_raft_state=400)
    cfg.begin("Test (3B): crashes around snapshots")

    def work(me, client):
        for number in range(40):
            client.append(str(me), written(me, number))
            time.sleep(random.uniform(0, 0.2))

    at = cfg.spawn_clients(3, work)
    for moment in ("before save", "after save", "after reply") * 2:
        i = random.randrange(3)
        cfg.crash_at(i, moment, nth=random.randint(1, 8))
        time.sleep(0.6)
        cfg.crash_at(i, None)
        time.sleep(random.uniform(0, ELECTION_S / 2))
        if not cfg.is_up(i):
            cfg.restart(i)
    at.finish()
    read_all(cfg, 3)
    check_sizes(cfg, 400)
