"""Part 3A: a linearizable key/value service (§8).

MIT's tests, with their numbers. At the end of each test the history of client operations is checked for
linearizability.
"""

from labsim import time
from raftlab.harness.workload import ELECTION_S, at_work, written


def test_basic_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=1, operations=60)


def test_speed_3a(make_kv_config):
    speed(make_kv_config(servers=3), "Test (3A): operations complete fast enough")


def speed(cfg, description):
    """A client that waits for each reply must complete more than one operation per heartbeat."""
    cfg.begin(description)
    cfg.no_delays()
    client = cfg.make_client()
    client.append("x", written("first"))  # now there is a leader
    count, began_s = 300, time.time()
    for number in range(count):
        client.append("x", written(number))
    each_ms = 1000 * (time.time() - began_s) / count
    cfg.make_client().get("x")  # a new client: one that wrote everything could answer without a server
    # As in MIT's lab: three operations per heartbeat, with ten heartbeats per second.
    if each_ms > 100 / 3:
        cfg.fail(
            f"A sequential operation takes {each_ms:.1f} ms; expected at most 33.3 ms. The leader must send a new "
            "entry at once, and not wait for its next heartbeat",
            costs=True,
        )


def test_concurrent_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=5)


def test_unreliable_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=5, unreliable=True)


def test_unreliable_one_key_3a(make_kv_config):
    cfg = make_kv_config(servers=3, unreliable=True)
    cfg.begin("Test (3A): concurrent append to same key, unreliable")
    first = cfg.make_client()
    first.put("k", written("first"))

    def work(me, client):
        for number in range(10):
            client.append("k", written(me, number))

    cfg.run_clients(5, work)
    first.get("k")


def test_one_partition_3a(make_kv_config):
    """Clients of the minority get no replies. Clients of the majority get replies without uncommitted values."""
    cfg = make_kv_config(servers=5)
    cfg.begin("Test (3A): progress in majority")
    everywhere = cfg.make_client()
    everywhere.put("1", written(13))
    leader, _ = cfg.wait_for_leader()
    minority = [leader, cfg.others(leader)[0]]
    majority = cfg.others(*minority)
    cfg.partition(majority, minority)
    with_majority = cfg.make_client(majority)
    with_majority.put("1", written(14))
    with_majority.get("1")
    cfg.end()

    cfg = make_kv_config(servers=5)
    cfg.begin("Test (3A): no progress in minority")
    everywhere = cfg.make_client()
    everywhere.put("1", written(13))
    leader, _ = cfg.wait_for_leader()
    minority = [leader, cfg.others(leader)[0]]
    majority = cfg.others(*minority)
    cfg.partition(majority, minority)
    with_majority = cfg.make_client(majority)
    with_majority.put("1", written(14))
    done = []

    def put(me, client):
        cfg.connect_client(client, minority)
        client.put("1", written(15))
        done.append("put")

    def get(me, client):
        cfg.connect_client(client, minority)
        client.get("1")
        done.append("get")

    puts, gets = cfg.spawn_clients(1, put), cfg.spawn_clients(1, get)
    time.sleep(ELECTION_S)
    if done:
        cfg.fail(f"A {done[0]} in the minority got a reply, but nothing can be committed there (§8)")
    with_majority.get("1")
    with_majority.put("1", written(16))
    with_majority.get("1")

    cfg.begin("Test (3A): completion after heal")
    cfg.partition()
    for at in (puts, gets):
        cfg.connect_client(at.clients[0], range(5))
        at.finish(limit_s=ELECTION_S * 3)
    everywhere.get("1")


def test_many_partitions_one_client_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=1, partitions=True, pause_s=0.15)


def test_many_partitions_many_clients_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=5, partitions=True, pause_s=0.15)


def test_persist_one_client_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=1, crash=True)


def test_persist_concurrent_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=5, crash=True)


def test_persist_concurrent_unreliable_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=5, crash=True, unreliable=True)


def test_persist_partition_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=5, crash=True, partitions=True, pause_s=0.15)


def test_persist_partition_unreliable_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=5, crash=True, partitions=True, unreliable=True, pause_s=0.15)


def test_persist_partition_unreliable_linearizable_3a(make_kv_config):
    at_work(
        make_kv_config,
        "3A",
        clients=15,
        servers=7,
        operations=9,
        crash=True,
        partitions=True,
        unreliable=True,
        random_keys=True,
        pause_s=0.3,
    )
