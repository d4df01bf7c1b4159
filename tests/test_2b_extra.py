"""More of part 2B: requests that come twice or late, replies from another time, and what going back costs."""

from itertools import permutations

from labsim import random, time

LEADER_S = 5.0  # in which a leader must be found, as in check_one_leader()


def test_alone_2b(make_config):
    """§5.2: a majority of one server is that server. It elects itself, and commits what it is given.

    Nothing in the paper asks for more than one. A peer that looks for a majority only when a reply comes never finds
    this one, and in a larger cluster it is the same code that overlooks the peer's own part.
    """
    cfg = make_config(servers=1)
    cfg.begin("Test (2B): a cluster of one")
    waited_s = 0.0
    while not cfg.get_state(0)[1]:
        if waited_s > LEADER_S:
            cfg.fail(
                f"The only server of a cluster has not come to lead in {LEADER_S:g} s. It votes for itself, and one "
                "vote of one is a majority: there is no reply to wait for (§5.2)"
            )
        time.sleep(0.050)
        waited_s += 0.050
    for command in range(1, 4):
        index, _, _ = cfg.start(0, command)
        time.sleep(1.0)
        if cfg.n_committed(index) != (1, command):
            cfg.fail(
                f"The only server of a cluster took {command} as index {index}, and after 1 s has not applied it. What "
                "it stores itself is stored on a majority, one of one: there is no reply to wait for (§5.3)"
            )


def test_even_cluster_2b(make_config):
    """Half of four servers is no majority: it elects nobody and commits nothing (§5.2, §5.3)."""
    cfg = make_config(servers=4)
    cfg.begin("Test (2B): a cluster of four, cut in halves")
    cfg.one(1, 4, retry=True)
    leader = cfg.check_one_leader()
    partner, *others = cfg.others(leader)
    halves = [leader, partner], others
    cfg.partition(*halves)
    index, _, _ = cfg.start(leader, 2)
    time.sleep(2.0)
    count, command = cfg.n_committed(index)
    if count:
        cfg.fail(f"{count} of 4 servers applied {command!r} at index {index}, and 2 of 4 are no majority (§5.3)")
    if any(cfg.get_state(i)[1] for i in others):
        cfg.fail("2 of 4 servers elected a leader, and the other 2 had one already: half is no majority (§5.2)")
    cfg.partition()
    cfg.one(3, 4, retry=True)


def test_repeated_requests_2b(make_config):
    """A request may come again after later ones: what was acknowledged since stays (Figure 2: AppendEntries 3)."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): repeated and late requests")
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
    """match_index only grows (Figure 2): the late answer to an old heartbeat does not make a leader send all again."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): a late reply does not make the leader repeat itself")
    cfg.one(1, 3, retry=False)
    leader = cfg.check_one_leader()
    follower = cfg.others(leader)[0]

    # The answers to a few heartbeats take 4 s.
    cfg.link(follower, leader, latency_ms=(4000, 4000))
    time.sleep(0.300)
    cfg.link(follower, leader, latency_ms=(0, 0))
    for _ in range(5):
        cfg.one(random.choice("abcdefghij") * 20_000, 3, retry=False)
    time.sleep(0.500)

    # Everything is agreed on; now they arrive.
    before = cfg.bytes_total()
    time.sleep(5.0)
    used = cfg.bytes_total() - before
    if used > 60_000:
        cfg.fail(
            f"{used} bytes on the wire in 5 s although nothing is left to send; at most 60000 are expected", costs=True
        )


def test_lost_replies_cost_nothing_2b(make_config):
    """A lost reply says nothing about a log, and is no reason to send again what was acknowledged before (§5.3)."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): lost replies do not make the leader repeat itself")
    for _ in range(20):
        cfg.one(random.choice("abcdefghij") * 5000, 3, retry=False)
    leader = cfg.check_one_leader()
    follower = cfg.others(leader)[0]

    # The follower hears everything, and nothing it says arrives.
    before = cfg.bytes_total()
    cfg.link(follower, leader, cut=True)
    time.sleep(15.0)
    cfg.link(follower, leader, cut=False)
    used = cfg.bytes_total() - before
    if used > 150_000:
        cfg.fail(f"{used} bytes on the wire in 15 s although nothing is new; at most 150000 are expected", costs=True)
    cfg.one(1, 3, retry=True)


def test_backup_costs_few_rpcs_2b(make_config):
    """§5.3: to find where two long logs part, a leader skips whole terms and does not go back entry by entry."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): few RPCs to find where logs part")
    common = cfg.one(1, 5, retry=False)

    # A new leader, alone from then on, collects 150 entries that are not to be, of a term that nobody else writes in.
    first = cfg.check_one_leader()
    cfg.disconnect(first)
    lonely = cfg.check_one_leader()
    cfg.connect(first)
    cfg.disconnect(lonely)
    for _ in range(150):
        cfg.start(lonely, random.getrandbits(31))

    # The others commit 150 of their own, and then elect a leader that knows nothing of the lonely one's log.
    second = cfg.check_one_leader()
    for _ in range(150):
        cfg.start(second, random.getrandbits(31))
    cfg.one(2, 4, retry=True)
    cfg.disconnect(second)
    last = cfg.one(3, 3, retry=True)

    # Until it applies the first entry that it lacks: then the place is found. How many messages bring the others is
    # the leader's business.
    before = cfg.rpc_count(lonely)
    cfg.connect(lonely)
    cfg.wait(common + 1, 5)
    used = cfg.rpc_count(lonely) - before
    if used > 60:
        cfg.fail(
            f"Peer {lonely} was sent {used} requests until it had the first entry that it lacked; at most 60 are "
            "expected (§5.3, last page)",
            costs=True,
        )
    cfg.wait(last, 4)
    cfg.connect(second)
    cfg.one(4, 5, retry=True)


def test_reply_from_an_earlier_term_2b(make_config):
    """§5.1: a leader elected again must not learn from answers to what it asked when it led before."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): replies from an earlier term")
    late_s = 20.0
    cfg.one(1, 5, retry=True)
    first = cfg.check_one_leader()
    term = cfg.check_terms()
    helper, ally, *others = cfg.others(first)

    # The first leader gives ten entries to one follower, whose answers will be very late, and to nobody else.
    cfg.partition([first, helper], [ally, *others])
    cfg.link(helper, first, latency_ms=(1000 * late_s, 1000 * late_s))
    for number in range(10):
        cfg.start(first, 100 + number)
    arrival_s = time.monotonic() + late_s
    time.sleep(0.200)

    # The helper is alone from here on. The rest agree on something else, and the first leader takes it over.
    cfg.partition([helper], [first], [ally, *others])
    cfg.link(helper, first, latency_ms=(0, 0))
    leader, term = cfg.wait_for_leader(term)
    cfg.start(leader, 2)
    time.sleep(0.200)
    cfg.partition([helper], [first, ally, *others])
    time.sleep(0.500)

    # The first leader is made leader again: whoever else leads is alone, and the others reach nobody but it.
    if leader != first:
        rivals = [i for i in (ally, *others) if i != leader]
        cfg.partition([helper], [leader], [first, *rivals])
        for i, j in permutations(rivals, 2):
            cfg.link(i, j, cut=True)
    while not cfg.get_state(first)[1]:
        if time.monotonic() > arrival_s - 2.0:
            return  # its turn never came; there is nothing to be seen in this run
        time.sleep(0.050)
    cfg.partition([helper], [first, ally, *others])
    time.sleep(0.200)

    # Now it has one follower only. With the helper's old answers it would believe that it has two.
    cfg.partition([first, ally], others, [helper])
    index, term, _ = cfg.start(first, 300)
    time.sleep(max(0.0, arrival_s - time.monotonic()) + 1.0)
    count, command = cfg.n_committed(index)
    if count and command == 300:
        cfg.fail(f"Index {index} was applied by {count} servers, but two of five are no majority")
    cfg.partition()
    cfg.one(3, 5, retry=True)


def test_denied_vote_does_not_delay_others_2b(make_config):
    """§5.2: denying a vote must not reset the election timer, or peers that cannot win keep back the one that can."""
    cfg = make_config(servers=7)
    cfg.begin("Test (2B): candidates that cannot win do not keep others from trying")
    cfg.no_delays()
    for step in range(3):
        cfg.one(100 + step, 7, retry=True)
        leader = cfg.check_one_leader()
        able, *unable = cfg.others(leader)[:4]

        # The leader and one follower get an entry that nobody else has.
        cfg.partition([leader, able], cfg.others(leader, able))
        cfg.start(leader, 200 + step)
        time.sleep(0.050)

        # Of four peers, a bare majority, only that follower can win. The other three do not hear each other.
        gone = [i for i in range(7) if i not in (able, *unable)]
        cfg.disconnect(*gone)
        cfg.partition(*([i] for i in unable))
        found, _ = cfg.wait_for_leader(cfg.get_state(able)[0])
        if found != able:
            cfg.fail(f"Peer {found} leads, but lacks an entry that peer {able} of its majority has (§5.4.1)")

        cfg.partition()
        cfg.connect(*gone)


def test_absent_follower_costs_nothing_2b(make_config):
    """§5.3: only a refusal says that the logs differ. A call without an answer says nothing, and next_index stays."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): a follower that was away is sent what it lacks")
    for number in range(20):
        cfg.one(f"{number} {'x' * 5000}", 5, retry=True)
    leader, term = cfg.wait_for_leader()
    away = cfg.others(leader)[0]
    # The next leader never hears from this follower, and calls it in vain for a long time.
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
            f"{sent} bytes were sent when a follower came back that lacked one command; at most {most} are expected. "
            "A call without an answer is no refusal (§5.3)",
            costs=True,
        )


def test_leads_again_2b(make_config):
    """Figure 2: next_index and match_index begin anew with every election. What was replicated in an earlier office
    may have been replaced since."""
    cfg = make_config(servers=5)
    cfg.begin("Test (2B): a leader that leads again counts anew")
    cfg.one(1, 5, retry=True)
    first, term = cfg.wait_for_leader()
    friend, *others = cfg.others(first)
    cfg.partition([first, friend], others)
    for number in range(10):  # its friend acknowledges them, and nobody else
        cfg.start(first, f"lost {number}")
    time.sleep(1.0)
    cfg.wait_for_leader(term)
    cfg.partition()
    cfg.one(2, 5, retry=True)  # and now they are gone

    leader, term = cfg.wait_for_leader()
    for _ in range(60):
        if leader == first:
            break
        cfg.disconnect(leader)
        another, term = cfg.wait_for_leader(term)
        cfg.connect(leader)
        leader = another
    else:
        return  # it does not come to lead again, and owes that to nobody
    # Two of five are no majority, whatever the third has once said.
    cfg.disconnect(friend, *others[1:])
    index, _, leads = cfg.start(first, 3)
    time.sleep(1.0)
    applied, _ = cfg.n_committed(index)
    if leads and applied:
        cfg.fail(
            f"Peer {first} leads again and has committed index {index} with peer {others[0]} alone, of five. What a "
            "follower acknowledged in an earlier term may be gone: match_index begins at 0 (Figure 2)"
        )
    cfg.connect(friend, *others[1:])
    cfg.one(4, 5, retry=True)


def test_big_command_2b(make_config):
    """A command is as large as it is: whoever fills messages up to a size sends one that is larger all the same."""
    cfg = make_config(servers=3)
    cfg.begin("Test (2B): a big command among small ones")
    for size in (1, 200_000, 1, 2_000_000, 1):
        cfg.one(f"{size} {random.getrandbits(31)} " + size * "x", 3, retry=True)
