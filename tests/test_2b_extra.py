"""More of part 2B: duplicate and late requests, replies from earlier terms, and the cost of backing up."""

from itertools import permutations

from labsim import random, time

LEADER_S = 5.0  # the limit for an election, as in check_one_leader()


def test_alone_2b(make_config):
    """§5.2: in a cluster of one, the server is a majority. It elects itself, and commits its commands.

    A peer that checks for a majority only when a reply arrives fails here; in a larger cluster the same code may
    forget to count the peer itself.
    """
    cfg = make_config(servers=1)
    cfg.begin("Test (2B): a cluster of one")
    waited_s = 0.0
    while not cfg.get_state(0)[1]:
        if waited_s > LEADER_S:
            cfg.fail(
                f"The only server of a cluster did not become leader within {LEADER_S:g} s. Its own vote is a "
                "majority: there is no reply to wait for (§5.2)"
            )
        time.sleep(0.050)
        waited_s += 0.050
    for command in range(1, 4):
        index, _, _ = cfg.start(0, command)
        time.sleep(1.0)
        if cfg.n_committed(index) != (1, command):
            cfg.fail(
                f"The only server of a cluster accepted {command} as index {index}, but did not apply it within 1 s. "
                "Its own log is a majority: there is no reply to wait for (§5.3)"
            )


def test_even_cluster_2b(make_config):
    """Two of four servers are not a majority: they elect no leader and commit nothing (§5.2, §5.3)."""
    cfg = make_config(servers=4)
    cfg.begin("Test (2B): a cluster of four, partitioned into halves")
    cfg.one(1, 4, retry=True)
    leader = cfg.check_one_leader()
    partner, *others = cfg.others(leader)
    halves = [leader, partner], others
    cfg.partition(*halves)
    index, _, _ = cfg.start(leader, 2)
    time.sleep(2.0)
    count, command = cfg.n_committed(index)
    if count:
        cfg.fail(f"{count} of 4 servers applied {command!r} at index {index}, but 2 of 4 are not a majority (§5.3)")
    if any(cfg.get_state(i)[1] for i in others):
        cfg.fail("2 of 4 servers elected a leader while the other 2 had one: 2 of 4 are not a majority (§5.2)")
    cfg.partition()
    cfg.one(3, 4, retry=True)


def test_repeated_requests_2b(make_config):
    """A request may arrive again after later ones. Entries acknowledged since must stay (Figure 2: AppendEntries 3)."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): duplicate and late requests")
    cfg.duplicates(0.5)
    cfg.latency(0, 20)
    for step in range(20):
        if step % 5 == 0:
            leader = cfg.check_one_leader()
        for number in range(5):
            cfg.start(leader, 1000 * step + number)
            time.sleep(random.uniform(0, 0.060))
        cfg.one(1000 * step + 999, 3, retry=True)


def test_late_reply_costs_nothing_2b(make_config):
    """match_index only grows (Figure 2): a late reply to an old heartbeat must not make the leader resend entries."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): a late reply does not make the leader resend entries")
    cfg.one(1, 3, retry=False)
    leader = cfg.check_one_leader()
    follower = cfg.others(leader)[0]

    # The replies to a few heartbeats take 4 s.
    cfg.link(follower, leader, latency_ms=(4000, 4000))
    time.sleep(0.300)
    cfg.link(follower, leader, latency_ms=(0, 0))
    for _ in range(5):
        cfg.one(random.choice("abcdefghij") * 20_000, 3, retry=False)
    time.sleep(0.500)

    # Everything is committed; now the late replies arrive.
    before = cfg.bytes_total()
    time.sleep(5.0)
    used = cfg.bytes_total() - before
    if used > 60_000:
        cfg.fail(
            f"{used} bytes on the wire in 5 s although there is nothing new to send; expected at most 60000", costs=True
        )


def test_lost_replies_cost_nothing_2b(make_config):
    """A lost reply says nothing about the follower's log: the leader must not resend acknowledged entries (§5.3)."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): lost replies do not make the leader resend entries")
    for _ in range(20):
        cfg.one(random.choice("abcdefghij") * 5000, 3, retry=False)
    leader = cfg.check_one_leader()
    follower = cfg.others(leader)[0]

    # The follower receives everything, and all its replies are lost.
    before = cfg.bytes_total()
    cfg.link(follower, leader, cut=True)
    time.sleep(15.0)
    cfg.link(follower, leader, cut=False)
    used = cfg.bytes_total() - before
    if used > 150_000:
        cfg.fail(f"{used} bytes on the wire in 15 s although nothing is new; expected at most 150000", costs=True)
    cfg.one(1, 3, retry=True)


def test_backup_costs_few_rpcs_2b(make_config):
    """§5.3: to find where two long logs diverge, a leader skips whole terms instead of single entries."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): few RPCs to find where logs diverge")
    common = cfg.one(1, 5, retry=False)

    # A new leader, disconnected from then on, collects 150 uncommitted entries, in a term without other entries.
    first = cfg.check_one_leader()
    cfg.disconnect(first)
    isolated = cfg.check_one_leader()
    cfg.connect(first)
    cfg.disconnect(isolated)
    for _ in range(150):
        cfg.start(isolated, random.getrandbits(31))

    # The others commit 150 other entries, then elect a leader that knows nothing about the disconnected peer's log.
    second = cfg.check_one_leader()
    for _ in range(150):
        cfg.start(second, random.getrandbits(31))
    cfg.one(2, 4, retry=True)
    cfg.disconnect(second)
    last = cfg.one(3, 3, retry=True)

    # Count until it applies the first entry that it lacks: then the leader has found the place. It may send the other
    # entries in any number of messages.
    before = cfg.rpc_count(isolated)
    cfg.connect(isolated)
    cfg.wait(common + 1, 5)
    used = cfg.rpc_count(isolated) - before
    if used > 60:
        cfg.fail(
            f"Peer {isolated} received {used} requests until it had the first entry it lacked; expected at most 60 "
            "(§5.3, last page)",
            costs=True,
        )
    cfg.wait(last, 4)
    cfg.connect(second)
    cfg.one(4, 5, retry=True)


def test_reply_from_an_earlier_term_2b(make_config):
    """§5.1: a leader that is elected again must ignore replies to requests of its earlier terms."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): replies from an earlier term")
    late_s = 20.0
    cfg.one(1, 5, retry=True)
    first = cfg.check_one_leader()
    term = cfg.check_terms()
    helper, ally, *others = cfg.others(first)

    # The first leader sends ten entries to one follower only, whose replies will be very late.
    cfg.partition([first, helper], [ally, *others])
    cfg.link(helper, first, latency_ms=(1000 * late_s, 1000 * late_s))
    for number in range(10):
        cfg.start(first, 100 + number)
    arrival_s = time.monotonic() + late_s
    time.sleep(0.200)

    # The helper is disconnected from here on. The others commit other entries, and the first leader adopts them.
    cfg.partition([helper], [first], [ally, *others])
    cfg.link(helper, first, latency_ms=(0, 0))
    leader, term = cfg.wait_for_leader(term)
    cfg.start(leader, 2)
    time.sleep(0.200)
    cfg.partition([helper], [first, ally, *others])
    time.sleep(0.500)

    # Make the first leader lead again: disconnect any other leader, and connect the other peers only to the first.
    if leader != first:
        rivals = [i for i in (ally, *others) if i != leader]
        cfg.partition([helper], [leader], [first, *rivals])
        for i, j in permutations(rivals, 2):
            cfg.link(i, j, cut=True)
    while not cfg.get_state(first)[1]:
        if time.monotonic() > arrival_s - 2.0:
            return  # it was not elected again, so this run proves nothing
        time.sleep(0.050)
    cfg.partition([helper], [first, ally, *others])
    time.sleep(0.200)

    # Now it has only one follower. If it counted the helper's old replies, it would have two.
    cfg.partition([first, ally], others, [helper])
    index, term, _ = cfg.start(first, 300)
    time.sleep(max(0.0, arrival_s - time.monotonic()) + 1.0)
    count, command = cfg.n_committed(index)
    if count and command == 300:
        cfg.fail(f"Index {index} was applied by {count} servers, but two of five are not a majority")
    cfg.partition()
    cfg.one(3, 5, retry=True)


def test_denied_vote_does_not_delay_others_2b(make_config):
    """§5.2: denying a vote must not reset the timer; otherwise candidates that cannot win block one that can."""
    cfg = make_config(servers=7)
    cfg.begin("Test (2B): candidates that cannot win do not block others")
    cfg.no_delays()
    for step in range(3):
        cfg.one(100 + step, 7, retry=True)
        leader = cfg.check_one_leader()
        able, *unable = cfg.others(leader)[:4]

        # Only the leader and one follower get an entry.
        cfg.partition([leader, able], cfg.others(leader, able))
        cfg.start(leader, 200 + step)
        time.sleep(0.050)

        # Of four peers, only that follower can win. The other three are not connected to each other.
        gone = [i for i in range(7) if i not in (able, *unable)]
        cfg.disconnect(*gone)
        cfg.partition(*([i] for i in unable))
        found, _ = cfg.wait_for_leader(cfg.get_state(able)[0])
        if found != able:
            cfg.fail(f"Peer {found} leads, but lacks an entry that peer {able} of its majority has (§5.4.1)")

        cfg.partition()
        cfg.connect(*gone)


def test_absent_follower_costs_nothing_2b(make_config):
    """§5.3: only a refusal means that the logs differ. A call without a reply must not change next_index."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): a reconnected follower is sent only what it lacks")
    for number in range(20):
        cfg.one(f"{number} {'x' * 5000}", 5, retry=True)
    leader, term = cfg.wait_for_leader()
    away = cfg.others(leader)[0]
    # The next leader sends requests to this follower for a long time without a reply.
    cfg.disconnect(leader, away)
    cfg.wait_for_leader(term)
    time.sleep(10.0)
    cfg.connect(away)
    before = cfg.bytes_total()
    cfg.one(1, 4, retry=True)
    time.sleep(1.0)
    sent, most = cfg.bytes_total() - before, 60_000
    if sent > most:
        cfg.fail(
            f"{sent} bytes were sent to a reconnected follower that lacked one command; expected at most {most}. "
            "A call without a reply is not a refusal (§5.3)",
            costs=True,
        )


def test_leads_again_2b(make_config):
    """Figure 2: next_index and match_index are reset after every election. Entries that followers acknowledged in an
    earlier term may have been replaced."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): a re-elected leader resets match_index")
    cfg.one(1, 5, retry=True)
    first, term = cfg.wait_for_leader()
    friend, *others = cfg.others(first)
    cfg.partition([first, friend], others)
    for number in range(10):  # only one follower acknowledges them
        cfg.start(first, f"lost {number}")
    time.sleep(1.0)
    cfg.wait_for_leader(term)
    cfg.partition()
    cfg.one(2, 5, retry=True)  # now they are replaced

    leader, term = cfg.wait_for_leader()
    for _ in range(60):
        if leader == first:
            break
        cfg.disconnect(leader)
        another, term = cfg.wait_for_leader(term)
        cfg.connect(leader)
        leader = another
    else:
        return  # it was not elected again, so this run proves nothing
    # Two of five are not a majority, whatever a third peer acknowledged in an earlier term.
    cfg.disconnect(friend, *others[1:])
    index, _, leads = cfg.start(first, 3)
    time.sleep(1.0)
    applied, _ = cfg.n_committed(index)
    if leads and applied:
        cfg.fail(
            f"Peer {first} leads again and committed index {index} with only peer {others[0]}, of five. Entries that "
            "a follower acknowledged in an earlier term may be gone: match_index begins at 0 (Figure 2)"
        )
    cfg.connect(friend, *others[1:])
    cfg.one(4, 5, retry=True)


def test_big_command_2b(make_config):
    """A leader that limits the size of messages must still send a command that is larger than the limit."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): a big command among small ones")
    for size in (1, 200_000, 1, 2_000_000, 1):
        cfg.one(f"{size} {random.getrandbits(31)} " + size * "x", 3, retry=True)
