"""More of part 3A: deposed leaders, duplicate requests, and crashes between two steps."""

from labsim import random, time
from raftlab.harness.workload import ELECTION_S, at_work, read_all, written


def test_paused_leader_3a(make_kv_config):
    """A leader that is paused and resumed must not answer a read with an old value (§8)."""
    cfg = make_kv_config(servers=3)
    cfg.begin("Test (3A): a paused leader is resumed")
    writer, reader = cfg.make_client(), cfg.make_client()
    writer.put("x", written("first"))
    for number in range(4):
        leader, term = cfg.wait_for_leader()
        cfg.connect_client(reader, [leader])
        reader.get("x")
        cfg.pause(leader)
        cfg.connect_client(writer, cfg.others(leader))
        cfg.wait_for_leader(after_term=term)
        writer.put("x", written(number))
        # When the leader resumes, this request and all messages of the other servers are waiting.
        at = cfg.spawn([reader], lambda me, client: client.get("x"))
        time.sleep(0.05)
        cfg.resume(leader)
        time.sleep(0.2)
        cfg.connect_client(reader, range(3))
        cfg.connect_client(writer, range(3))
        at.finish()


def test_deposed_leader_3a(make_kv_config):
    """A disconnected leader does not know that it was deposed, and must not answer reads by itself (§8)."""
    cfg = make_kv_config(servers=5)
    cfg.begin("Test (3A): reads from a deposed leader")
    writer = cfg.make_client()
    writer.put("x", written("first"))
    for number in range(3):
        leader, _ = cfg.wait_for_leader()
        reader = cfg.make_client([leader])
        reader.get("x")
        cfg.partition([leader], cfg.others(leader))
        cfg.connect_client(writer, cfg.others(leader))
        time.sleep(ELECTION_S)
        writer.put("x", written(number))
        at = cfg.spawn([reader], lambda me, client: client.get("x"))
        time.sleep(random.uniform(0, 0.3))
        cfg.partition()
        cfg.connect_client(reader, range(5))
        cfg.connect_client(writer, range(5))
        at.finish()


def test_followers_do_not_answer_reads_3a(make_kv_config):
    """A client that reads from one server after the other never gets an older value than before."""
    cfg = make_kv_config(servers=3)
    cfg.begin("Test (3A): reads from every server in turn")
    writer, reader = cfg.make_client(), cfg.make_client()
    leader, _ = cfg.wait_for_leader()
    slow = cfg.others(leader)[0]
    cfg.link(leader, slow, latency_ms=(40, 80))
    for number in range(15):
        writer.put("x", written(number))
        cfg.connect_client(reader, [number % 3])
        at = cfg.spawn([reader], lambda me, client: client.get("x"))
        time.sleep(0.05)
        cfg.connect_client(reader, range(3))
        at.finish()


def test_own_answer_3a(make_kv_config):
    """Another client's request may be committed at an index: each client must get the reply to its own request."""
    cfg = make_kv_config(servers=5)
    cfg.begin("Test (3A): another request is committed at an index")
    others_client = cfg.make_client()
    for number in range(4):
        others_client.append("x", written("before", number))
        leader, _ = cfg.wait_for_leader()
        alone = cfg.make_client([leader])
        rest = cfg.others(leader)
        cfg.partition([leader], rest)
        cfg.connect_client(others_client, rest)
        # The old leader accepts this request, but cannot commit it.
        at = cfg.spawn([alone], lambda me, client, number=number: client.append("x", written("alone", number)))
        for more in range(3):
            others_client.append("x", written("others", number, more))
        cfg.partition()
        cfg.connect_client(others_client, range(5))
        time.sleep(random.uniform(0, 0.2))
        cfg.connect_client(alone, range(5))
        at.finish()
        others_client.get("x")


def test_duplicated_requests_3a(make_kv_config):
    """A request whose duplicate arrives up to 200 ms later takes effect only once (§8)."""
    cfg = make_kv_config(servers=3)
    cfg.begin("Test (3A): duplicate requests")
    cfg.duplicates(0.5)

    def work(me, client):
        for number in range(12):
            client.append("x", written(me, number))
            time.sleep(random.uniform(0, 0.06))

    cfg.run_clients(4, work)
    cfg.make_client().get("x")


def test_lost_replies_3a(make_kv_config):
    """A request whose reply is lost was executed, and its client retries it later at another server."""
    cfg = make_kv_config(servers=3)
    cfg.begin("Test (3A): lost replies and changing leaders")
    client = cfg.make_client()
    for number in range(6):
        client.append("x", written("first", number))
        leader, _ = cfg.wait_for_leader()
        for i in range(3):
            cfg.network.link(str(i), client.name, loss=1.0)
        at = cfg.spawn([client], lambda me, client, number=number: client.append("x", written(number)))
        time.sleep(0.15)  # by now it is committed
        cfg.crash1(leader)
        time.sleep(ELECTION_S)
        for i in range(3):
            cfg.network.link(str(i), client.name, loss=0.0)
        cfg.restart(leader)
        at.finish()
    client.get("x")
    cfg.make_client().get("x")


def test_late_replies_3a(make_kv_config):
    cfg = make_kv_config(servers=3)
    cfg.begin("Test (3A): late and reordered replies")
    cfg.set_long_reordering(True)

    def work(me, client):
        for number in range(5):
            client.append("x", written(me, number))
            client.get("x")

    cfg.spawn_clients(3, work).finish(limit_s=60)


def test_crash_anywhere_3a(make_kv_config):
    """The leader crashes between two steps: before a save, after a save, or after a reply."""
    cfg = make_kv_config(servers=3)
    cfg.begin("Test (3A): crashes before and after saves and replies")

    def work(me, client):
        for number in range(40):
            client.append("x" if number % 2 else str(me), written(me, number))
            time.sleep(random.uniform(0, 0.25))

    at = cfg.spawn_clients(3, work)
    for moment in ("before save", "after save", "after reply") * 2:
        leader, _ = cfg.wait_for_leader()
        cfg.crash_at(leader, moment, nth=random.randint(1, 5))
        time.sleep(0.5)
        cfg.crash_at(leader, None)
        time.sleep(random.uniform(0.2, ELECTION_S))
        if not cfg.is_up(leader):
            cfg.restart(leader)
    at.finish()
    read_all(cfg, 3)
    cfg.make_client().get("x")


def test_slow_disks_3a(make_kv_config):
    cfg = make_kv_config(servers=3)
    cfg.begin("Test (3A): slow disks")
    cfg.slow_disks(2, 15)

    def work(me, client):
        for number in range(8):
            client.append("x", written(me, number))
            client.get("x")

    cfg.spawn_clients(4, work).finish(limit_s=60)


def test_one_server_3a(make_kv_config):
    at_work(make_kv_config, "3A", clients=3, servers=1, operations=15, rounds=2, crash=True)
