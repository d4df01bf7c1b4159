"""Part 2C, persistence (Figure 2: persistent state) and the hardest failures: Figure 8, churn, lossy networks."""

from labsim import random, threading, time

ELECTION_S = 1.0


def test_persist1_2c(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2C): basic persistence")
    cfg.one(11, 3, retry=True)

    # Crash all servers at once.
    for i in range(3):
        cfg.crash1(i)
    cfg.restart(0, 1, 2)
    cfg.one(12, 3, retry=True)

    # Crash the leader.
    leader = cfg.check_one_leader()
    cfg.crash1(leader)
    cfg.restart(leader)
    cfg.one(13, 3, retry=True)

    # Crash the leader, and let the others agree without it.
    leader = cfg.check_one_leader()
    cfg.crash1(leader)
    cfg.one(14, 2, retry=True)
    cfg.restart(leader)
    # Wait until all servers have everything before disconnecting one more.
    cfg.wait(4, 3)

    follower = (cfg.check_one_leader() + 1) % 3
    cfg.crash1(follower)
    cfg.one(15, 2, retry=True)
    cfg.restart(follower)
    cfg.one(16, 3, retry=True)


def test_persist2_2c(make_config):
    cfg = make_config(servers=5)
    cfg.begin("Test (2C): more persistence")
    index = 1
    for _ in range(5):
        cfg.one(10 + index, 5, retry=True)
        index += 1

        leader = cfg.check_one_leader()
        first, second, third, fourth = cfg.others(leader)
        cfg.crash1(first)
        cfg.crash1(second)
        cfg.one(10 + index, 3, retry=True)
        index += 1

        # Now the three that have it crash; the two without it restart together with one that has it.
        for i in (leader, third, fourth):
            cfg.crash1(i)
        cfg.restart(first, second)
        time.sleep(ELECTION_S)
        cfg.restart(third)
        cfg.one(10 + index, 3, retry=True)
        index += 1

        cfg.restart(fourth, leader)
    cfg.one(1000, 5, retry=True)


def test_persist3_2c(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2C): partitioned leader and one follower crash, leader restarts")
    cfg.one(101, 3, retry=True)

    leader = cfg.check_one_leader()
    cfg.disconnect((leader + 2) % 3)
    cfg.one(102, 2, retry=True)

    cfg.crash1(leader)
    cfg.crash1((leader + 1) % 3)
    cfg.connect((leader + 2) % 3)
    cfg.restart(leader)
    cfg.one(103, 2, retry=True)

    cfg.restart((leader + 1) % 3)
    cfg.one(104, 3, retry=True)


def test_figure8_2c(make_config):
    """Figure 8: leaders crash after sending entries to few peers; an old entry on a majority is not committed."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2C): Figure 8")
    cfg.one(random.getrandbits(31), 1, retry=True)

    up = 5
    for _ in range(1000):
        leader = None
        for i in range(5):
            if cfg.is_up(i) and cfg.start(i, random.getrandbits(31))[2]:
                leader = i
        # Usually crash the leader within milliseconds of the command, sometimes later.
        if random.random() < 0.1:
            time.sleep(random.uniform(0, ELECTION_S / 2))
        else:
            time.sleep(random.uniform(0, 0.013))
        if leader is not None:
            cfg.crash1(leader)
            up -= 1
        if up < 3:
            down = random.choice([i for i in range(5) if not cfg.is_up(i)])
            cfg.restart(down)
            up += 1

    cfg.restart(*(i for i in range(5) if not cfg.is_up(i)))
    cfg.one(random.getrandbits(31), 5, retry=True)


def test_unreliable_agree_2c(make_config):
    cfg = make_config(servers=5, unreliable=True)
    cfg.begin("Test (2C): unreliable agreement")

    def agree(command):
        cfg.one(command, 1, retry=True)

    threads = []
    for step in range(1, 50):
        for j in range(4):
            threads.append(threading.Thread(target=agree, args=(100 * step + j,)))
            threads[-1].start()
        cfg.one(step, 1, retry=True)
    cfg.set_unreliable(False)
    for thread in threads:
        thread.join()
    cfg.one(100, 5, retry=True)


def test_figure8_unreliable_2c(make_config):
    """Figure 8 with disconnects instead of crashes, on a network with loss, delays and reordering."""
    cfg = make_config(servers=5, unreliable=True)
    cfg.begin("Test (2C): Figure 8 (unreliable)")
    cfg.one(random.randrange(10_000), 1, retry=True)

    up = 5
    for step in range(1000):
        if step == 200:
            cfg.set_long_reordering(True)
        leader = None
        for i in range(5):
            if cfg.start(i, random.randrange(10_000))[2] and cfg.connected(i):
                leader = i
        if random.random() < 0.1:
            time.sleep(random.uniform(0, ELECTION_S / 2))
        else:
            time.sleep(random.uniform(0, 0.013))
        if leader is not None and random.random() < 0.5:
            cfg.disconnect(leader)
            up -= 1
        if up < 3:
            cfg.connect(random.choice([i for i in range(5) if not cfg.connected(i)]))
            up += 1

    cfg.connect(*(i for i in range(5) if not cfg.connected(i)))
    cfg.one(random.randrange(10_000), 5, retry=True)


def test_reliable_churn_2c(make_config):
    churn(make_config(servers=5), "Test (2C): churn")


def test_unreliable_churn_2c(make_config):
    churn(make_config(servers=5, unreliable=True), "Test (2C): unreliable churn")


def churn(cfg, description):
    """Clients submit while servers crash and restart. All commands that a client saw applied must remain."""
    cfg.begin(description)
    stop = threading.Event()
    kept = []

    def client(me):
        number = 0
        while not stop.is_set():
            command = me * 1_000_000 + number
            number += 1
            index = None
            for i in range(5):
                # Ask all servers; the last one that accepts counts, because old leaders accept commands too.
                if cfg.is_up(i):
                    its_index, _, accepted = cfg.start(i, command)
                    if accepted:
                        index = its_index
            if index is None:
                time.sleep(0.079 + me * 0.017)
                continue
            # Agreement may take no virtual time. Without a pause the log would grow to tens of thousands of entries,
            # and so would every save.
            time.sleep(0.060)
            for pause_s in (0.010, 0.020, 0.050, 0.100, 0.200):
                time.sleep(pause_s)
                count, found = cfg.n_committed(index)
                if count:
                    if found == command:
                        kept.append(command)
                    break

    clients = [threading.Thread(target=client, args=(me,)) for me in range(3)]
    for thread in clients:
        thread.start()

    for _ in range(20):
        if random.random() < 0.2:
            cfg.disconnect(random.randrange(5))
        if random.random() < 0.5:
            i = random.randrange(5)
            if not cfg.is_up(i):
                cfg.start1(i)
            cfg.connect(i)
        if random.random() < 0.2:
            i = random.randrange(5)
            if cfg.is_up(i):
                cfg.crash1(i)
        # A little less than an election takes, so that many elections start and few finish.
        time.sleep(0.7 * ELECTION_S)

    time.sleep(ELECTION_S)
    cfg.set_unreliable(False)
    for i in range(5):
        if not cfg.is_up(i):
            cfg.start1(i)
        cfg.connect(i)
    stop.set()
    for thread in clients:
        thread.join()

    time.sleep(ELECTION_S)
    last = cfg.one(random.getrandbits(31), 5, retry=True)
    applied = {cfg.wait(index, 5) for index in range(1, last + 1)}
    for command in kept:
        if command not in applied:
            cfg.fail(f"Command {command} was applied earlier, but is lost now")
