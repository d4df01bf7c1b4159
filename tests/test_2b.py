"""Part 2B, log replication (§5.3, §5.4): agreement despite failures of followers and leaders, with few RPCs."""

from labsim import random, threading, time

ELECTION_S = 1.0


def test_basic_agree_2b(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): basic agreement")
    for index in range(1, 4):
        count, _ = cfg.n_committed(index)
        if count:
            cfg.fail(f"Index {index} was applied by {count} servers before any start()")
        got = cfg.one(index * 100, 3, retry=False)
        if got != index:
            cfg.fail(f"The command got index {got}, but it is number {index} (indexes start at 1)")


def test_rpc_bytes_2b(make_config):
    """Each command is sent to each peer once."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): RPC byte count")
    cfg.one(99, 3, retry=False)
    before = cfg.bytes_total()
    sent = 0
    for index in range(2, 12):
        command = random.choice("abcdefghij") * 5000
        got = cfg.one(command, 3, retry=False)
        if got != index:
            cfg.fail(f"The command got index {got}, but it is number {index}")
        sent += len(command)
    used = cfg.bytes_total() - before
    allowed = 3 * sent + 50_000
    if used > allowed:
        cfg.fail(f"Too many bytes on the wire for {sent} bytes of commands: {used}, at most {allowed}", costs=True)


def test_follower_failure_2b(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): test progressive failure of followers")
    cfg.one(101, 3, retry=False)

    # Without one follower, the other two still agree.
    leader = cfg.check_one_leader()
    cfg.disconnect((leader + 1) % 3)
    cfg.one(102, 2, retry=False)
    time.sleep(ELECTION_S)
    cfg.one(103, 2, retry=False)

    # Without both, the leader must not commit alone.
    leader = cfg.check_one_leader()
    cfg.disconnect((leader + 1) % 3, (leader + 2) % 3)
    expect_no_commit(cfg, leader, 104, index=4)


def test_leader_failure_2b(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): test failure of leaders")
    cfg.one(101, 3, retry=False)

    first = cfg.check_one_leader()
    cfg.disconnect(first)
    cfg.one(102, 2, retry=False)
    time.sleep(ELECTION_S)
    cfg.one(103, 2, retry=False)

    # Disconnect the second leader too: no server can commit.
    second = cfg.check_one_leader()
    cfg.disconnect(second)
    for i in range(3):
        cfg.start(i, 104)
    time.sleep(2 * ELECTION_S)
    count, _ = cfg.n_committed(4)
    if count:
        cfg.fail(f"Index 4 was applied by {count} servers, but no majority is connected")


def test_fail_agree_2b(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): agreement after follower reconnects")
    cfg.one(101, 3, retry=False)

    leader = cfg.check_one_leader()
    away = (leader + 1) % 3
    cfg.disconnect(away)
    cfg.one(102, 2, retry=False)
    cfg.one(103, 2, retry=False)
    time.sleep(ELECTION_S)
    cfg.one(104, 2, retry=False)
    cfg.one(105, 2, retry=False)

    # It comes back, perhaps with a higher term, and catches up.
    cfg.connect(away)
    cfg.one(106, 3, retry=True)
    time.sleep(ELECTION_S)
    cfg.one(107, 3, retry=True)


def test_fail_no_agree_2b(make_config):
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): no agreement if too many followers disconnect")
    cfg.one(10, 5, retry=False)

    leader = cfg.check_one_leader()
    away = [(leader + k) % 5 for k in (1, 2, 3)]
    cfg.disconnect(*away)
    expect_no_commit(cfg, leader, 20, index=2)

    # The three may have elected another leader, which then overwrites index 2.
    cfg.connect(*away)
    leader = cfg.check_one_leader()
    index, _, accepted = cfg.start(leader, 30)
    if not accepted:
        cfg.fail(f"Peer {leader}, which was the leader just before, refused start(30)")
    if not 2 <= index <= 3:
        cfg.fail(f"start(30) gave index {index}; expected 2 or 3")
    cfg.one(1000, 5, retry=True)


def expect_no_commit(cfg, leader, command, *, index):
    """Start a command at a leader without a majority: it must be accepted, and must not be applied."""
    got, _, accepted = cfg.start(leader, command)
    if not accepted:
        cfg.fail(f"Peer {leader}, which was the leader just before, refused start({command})")
    if got != index:
        cfg.fail(f"start({command}) gave index {got}; expected {index}")
    time.sleep(2 * ELECTION_S)
    count, _ = cfg.n_committed(index)
    if count:
        cfg.fail(f"Index {index} was applied by {count} servers, but no majority is connected")


def test_concurrent_starts_2b(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): concurrent start()s")
    for _ in range(5):
        leader = cfg.check_one_leader()
        _, term, accepted = cfg.start(leader, 1)
        if not accepted:
            continue  # it lost its leadership meanwhile

        indexes = []

        def submit(number, leader=leader, term=term, indexes=indexes):
            index, its_term, accepted = cfg.start(leader, 100 + number)
            if accepted and its_term == term:
                indexes.append(index)

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if any(cfg.get_state(i)[0] != term for i in range(3)):
            continue  # a new term: this attempt proves nothing

        applied = [cfg.wait(index, 3, term) for index in sorted(indexes)]
        if None in applied:
            continue
        for number in range(5):
            if 100 + number not in applied:
                cfg.fail(f"Command {100 + number} was started but not applied; applied: {sorted(applied)}")
        return
    cfg.fail("The term changed in each of five attempts, although nothing failed")


def test_rejoin_2b(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): rejoin of partitioned leader")
    cfg.one(101, 3, retry=True)

    # A leader alone accepts commands that must never be applied.
    first = cfg.check_one_leader()
    cfg.disconnect(first)
    for command in (102, 103, 104):
        cfg.start(first, command)
    cfg.one(103, 2, retry=True)

    # Disconnect the next leader, and reconnect the first.
    second = cfg.check_one_leader()
    cfg.disconnect(second)
    cfg.connect(first)
    cfg.one(104, 2, retry=True)

    cfg.connect(second)
    cfg.one(105, 3, retry=True)


def test_backup_2b(make_config):
    """Leaders must back up quickly over many conflicting entries (§5.3)."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): leader backs up quickly over incorrect follower logs")
    cfg.one(random.getrandbits(32), 5, retry=True)

    # A leader with one follower collects 50 commands that cannot be committed.
    first = cfg.check_one_leader()
    isolated = (first + 1) % 5
    majority = [(first + k) % 5 for k in (2, 3, 4)]
    cfg.disconnect(*majority)
    start_many(cfg, first, 50)
    time.sleep(ELECTION_S / 2)

    # The other three commit 50 other commands.
    cfg.disconnect(first, isolated)
    cfg.connect(*majority)
    agree_many(cfg, 50, servers=3)

    # Then their leader, left with one of them, collects 50 that cannot be committed either.
    second = cfg.check_one_leader()
    other = next(i for i in majority if i != second)
    cfg.disconnect(other)
    start_many(cfg, second, 50)
    time.sleep(ELECTION_S / 2)

    # The first pair comes back with the third of that majority, and must take over its log.
    cfg.disconnect(*range(5))
    cfg.connect(first, isolated, other)
    agree_many(cfg, 50, servers=3)

    cfg.connect(*range(5))
    cfg.one(random.getrandbits(32), 5, retry=True)


def start_many(cfg, leader, count):
    for _ in range(count):
        cfg.start(leader, random.getrandbits(32))


def agree_many(cfg, count, *, servers):
    for _ in range(count):
        cfg.one(random.getrandbits(32), servers, retry=True)


def test_count_2b(make_config):
    """Elections, agreement and idle time need few RPCs."""
    servers = 3
    cfg = make_config(servers=servers)
    cfg.begin("Test (2B): RPC counts aren't too high")

    cfg.check_one_leader()
    used = cfg.rpc_total()
    if not 1 <= used <= 30:
        cfg.fail(f"Electing the first leader took {used} RPCs; expected 1 to 30", costs=True)

    for _ in range(5):
        if count_agreement(cfg, servers):
            break
    else:
        cfg.fail("The term changed in each of five attempts, although nothing failed")

    before = cfg.rpc_total()
    time.sleep(1.0)
    used = cfg.rpc_total() - before
    if used > 3 * 20:
        cfg.fail(f"{used} RPCs in one idle second of 3 servers; expected at most 60", costs=True)


def count_agreement(cfg, servers, iterations=10):
    """Make one attempt. Return False if the term changed meanwhile, because the attempt then proves nothing."""
    leader = cfg.check_one_leader()
    before = cfg.rpc_total()
    first_index, term, accepted = cfg.start(leader, 1)
    if not accepted:
        return False
    commands = []
    for i in range(1, iterations + 2):
        command = random.getrandbits(31)
        index, its_term, accepted = cfg.start(leader, command)
        if its_term != term or not accepted:
            return False
        if index != first_index + i:
            cfg.fail(f"start() gave index {index} for the command after {first_index + i - 1}")
        commands.append(command)
    for i in range(1, iterations + 1):
        applied = cfg.wait(first_index + i, servers, term)
        if applied is None:
            return False
        if applied != commands[i - 1]:
            cfg.fail(f"Index {first_index + i} holds {applied!r}; {commands[i - 1]!r} was started there")
    if any(cfg.get_state(i)[0] != term for i in range(servers)):
        return False
    used = cfg.rpc_total() - before
    allowed = (iterations + 1 + 3) * 3
    if used > allowed:
        cfg.fail(f"{used} RPCs for agreement on {iterations} commands; expected at most {allowed}", costs=True)
    return True
