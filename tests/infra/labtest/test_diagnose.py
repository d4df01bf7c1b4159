"""The likely cause, in words: each diagnosis on a peer that has that defect, and on none that has not."""

from types import SimpleNamespace

import pytest

from infra.students import ROOT, edited_reference
from labsim import Event, Simulation, TaskFailed, random, time
from labtest.diagnoses import DIAGNOSES, diagnose, examine
from labtest.failure import Failure
from labtest.loading import load_peer_class
from labtest.running import run_test
from labtools.selecting import select

# ---- situations ----------------------------------------------------------------------------------------------


def lab(name):
    """One of the lab's own tests."""
    (test,) = select([name], sorted((ROOT / "tests").glob("test_2*.py")))
    return test.function


def elect(make_config):
    cfg = make_config(servers=3)
    cfg.check_one_leader()


def elect_over_a_slow_network(make_config):
    cfg = make_config(servers=3)
    cfg.network.latency(10, 10)
    cfg.check_one_leader()


def exactly_a_quorum_with_1_to_2_ms_latency(make_config):
    """A leader is lost, and its two followers cannot agree on another."""
    cfg = make_config(servers=3)
    cfg.network.latency(1, 2)
    cfg.crash1(0)
    cfg.check_one_leader()


def keep_the_leader_though_a_peer_is_gone(make_config):
    cfg = make_config(servers=3)
    leader = cfg.check_one_leader()
    gone = min(cfg.others(leader))  # the first to be served by whoever serves them in order
    cfg.disconnect(gone)
    (other,) = cfg.others(leader, gone)
    term = cfg.get_state(leader)[0]
    time.sleep(3.0)
    if cfg.get_state(other)[0] != term:
        cfg.fail(f"The term went from {term} to {cfg.get_state(other)[0]} although the leader never failed")


def figure8_with_one_eligible_peer(make_config):
    """What Figure 8 (unreliable) comes to in the end: of a bare majority only one can win, the rest are behind."""
    cfg = make_config(servers=7, unreliable=True)
    cfg.one("for all", 7, retry=True)
    leader = cfg.check_one_leader()
    able, *unable = cfg.others(leader)[:4]
    cfg.disconnect(*cfg.others(leader, able))
    for _ in range(20):
        cfg.start(leader, random.randrange(10_000))
    time.sleep(0.2)  # the follower has them too
    cfg.disconnect(leader)
    cfg.network.partition(*([str(i)] for i in unable))
    cfg.connect(*unable)
    cfg.one("x", 1, retry=True)


def back_up_a_long_way(make_config):
    cfg = make_config(servers=3)
    cfg.one("for all", 3, retry=True)
    behind = cfg.check_one_leader()
    cfg.disconnect(behind)
    for step in range(40):
        cfg.start(behind, f"lost {step}")
    second = cfg.check_one_leader()
    for step in range(40):
        cfg.one(f"kept {step}", 2, retry=True)
    # The third one knows nothing of the first one's log, and begins with the end of its own.
    cfg.disconnect(second)
    cfg.connect(behind)
    before = cfg.rpc_count(behind)
    cfg.one("for both", 2, retry=True)
    if cfg.rpc_count(behind) - before > 30:
        cfg.fail(f"Peer {behind} needed {cfg.rpc_count(behind) - before} requests to catch up")


def older_entry_on_a_majority(make_config):
    """Figure 8 (c), and nobody starts anything: an older term's entry must wait."""
    cfg = make_config(servers=3)
    cfg.one("for all", 3, retry=True)
    leader = cfg.check_one_leader()
    holder, other = cfg.others(leader)
    cfg.network.link(str(leader), str(other), cut=True)
    cfg.network.link(str(holder), str(leader), cut=True)
    index = cfg.start(leader, "stored, and not acknowledged")[0]
    time.sleep(0.2)
    cfg.crash1(leader)
    cfg.network.partition()
    cfg.wait(index, 2)


def vote_over_a_restart(make_config):
    """The two rivals never hear each other, so each campaigns in the term in which the other was elected."""
    cfg = make_config(servers=3)
    cfg.network.partition(["1"], ["2"])
    for _ in range(4):
        for i in range(3):
            cfg.crash1(i)
        cfg.restart(0, 1, 2)
        cfg.check_one_leader()
        cfg.crash1(0)
        cfg.restart(0)
        time.sleep(1.0)


# ---- defects: an edit of the reference each ------------------------------------------------------------------

TIMEOUT = "ELECTION_TIMEOUT_S = (0.4, 0.8)"
RESETS_TIMER_AT_ANY_RPC = (
    (
        "if not self._observe_term(args.term):\n                return RequestVoteReply",
        "self._reset_election_timer()\n"
        "            if not self._observe_term(args.term):\n                return RequestVoteReply",
    ),
    (
        "if not self._observe_term(term):\n            return False",
        "self._reset_election_timer()\n        if not self._observe_term(term):\n            return False",
    ),
)
NEVER_RETRIES = (
    (
        "if time.monotonic() >= self.election_deadline:",
        "if self.role is Role.FOLLOWER and time.monotonic() >= self.election_deadline:",
    ),
    ("min(left_s, HEARTBEAT_S)", "HEARTBEAT_S"),
)
CALLS_UNDER_LOCK = (
    (
        "            if isinstance(args, AppendEntriesArgs):\n"
        '                reply = self.peers[peer].call("Raft.append_entries", args)\n'
        "            else:\n"
        '                reply = self.peers[peer].call("Raft.install_snapshot", args)\n',
        "                if isinstance(args, AppendEntriesArgs):\n"
        '                    reply = self.peers[peer].call("Raft.append_entries", args)\n'
        "                else:\n"
        '                    reply = self.peers[peer].call("Raft.install_snapshot", args)\n',
    ),
)
ONE_SENDER_FOR_ALL = (
    (
        "        for peer in range(len(self.peers)):\n            idle",
        "        todo = []\n        for peer in range(len(self.peers)):\n            idle",
    ),
    (
        "                self._spawn(self._replicate_to, peer, sender)\n",
        "                todo.append((peer, sender))\n"
        "        self._spawn(lambda: [self._replicate_to(*one) for one in todo])\n",
    ),
)


class Defect:
    def __init__(self, diagnosis, test, *edits, words=(), seeds=(1, 2, 3, 4, 5, 6), checked=True):
        self.diagnosis = diagnosis
        self.test = test
        self.edits = edits
        self.words = words
        self.seeds = seeds  # until one fails
        self.checked = checked  # False where a rule ends the run before there is a pattern to see


DEFECTS = {
    "identical timers": Defect(
        "split_votes",
        elect_over_a_slow_network,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.6, 0.6)"),
        words=("no leader. In all of them two or more peers campaigned at the same instant", "20 ms to come back"),
    ),
    "narrow timers": Defect(
        "split_votes",
        elect_over_a_slow_network,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.600, 0.603)"),
        words=("differ by less than a round trip; widen the random range (§9.3)", "20 ms to come back"),
    ),
    "timers of 5 to 9 ms, looked at every 10": Defect(
        "split_votes",
        exactly_a_quorum_with_1_to_2_ms_latency,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.005, 0.009)"),
        ("HEARTBEAT_S = 0.1", "HEARTBEAT_S = 0.010"),
        ("return left_s if self.role is Role.FOLLOWER else min(left_s, HEARTBEAT_S)", "return HEARTBEAT_S"),
        words=("no leader. In all of them two or more peers campaigned", "Candidates try again after 10 ms", "§5.6"),
    ),
    "vote kept in a new term": Defect(
        "votes_denied_for_nothing",
        lab("test_reelection_2a"),
        ("self.voted_for = None\n            self._persist()", "self._persist()"),
        words=("denied by a peer that had voted for nobody", "voted_for is not cleared"),
        checked=False,
    ),
    "equal logs refused": Defect(
        "votes_denied_for_nothing",
        elect,
        ("(args.last_log_term, args.last_log_index) >= (", "(args.last_log_term, args.last_log_index) > ("),
        words=("its log is empty", "equal logs are up to date: compare with >="),
        checked=False,
    ),
    "no election timer": Defect(
        "nobody_campaigns",
        elect,
        ("if time.monotonic() >= self.election_deadline:", "if False:"),
        ("return left_s if", "return 0.1 if"),
        words=("No peer has ever sent a RequestVote.", "is its thread started"),
    ),
    "candidates try once": Defect(
        "nobody_campaigns",
        elect_over_a_slow_network,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.6, 0.6)"),
        *NEVER_RETRIES,
        words=("The last to try: peers 0, 1 and 2, in term 1, without a majority.", "does not try again"),
    ),
    "votes counted wrongly": Defect(
        "won_and_never_acted",
        elect,
        ("sum(self.votes.values()) > len(self.peers) // 2", "sum(self.votes.values()) > len(self.peers)"),
        words=("of 3 votes in term", "never sent an AppendEntries", "check how votes are counted"),
    ),
    "slow heartbeats": Defect(
        "heartbeats_too_slow",
        lab("test_initial_election_2a"),
        (
            "self._replicate(heartbeat=True)\n                return HEARTBEAT_S",
            "self._replicate(heartbeat=True)\n                return 1.5",
        ),
        words=("election timer ran out", "heartbeats are too slow"),
    ),
    "one sender for all followers": Defect(
        "heartbeats_too_slow",
        keep_the_leader_though_a_peer_is_gone,
        *ONE_SENDER_FOR_ALL,
        words=("was then waiting for peer", "give each call a thread of its own"),
    ),
    "heartbeats do not reset the timer": Defect(
        "heartbeats_do_not_reset_the_timer",
        lab("test_initial_election_2a"),
        ("self._reset_election_timer()\n        return True", "return True"),
        words=("of them in term", "never more than 10", "does not reset the election timer"),
    ),
    "a denied vote resets the timer": Defect(
        "stale_candidates",
        figure8_with_one_eligible_peer,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.8, 1.2)"),
        *RESETS_TIMER_AT_ANY_RPC,
        words=(
            "could win (its log ends at 21 of term",
            "never campaigned",
            "votes that it denied",
            "ends at 1 of term",
        ),
    ),
    "replies' terms ignored": Defect(
        "no_step_down",
        lab("test_many_elections_2a"),
        ("if reply is None or not self._observe_term(reply.term):", "if reply is None:"),
        ("if reply is None or not self._observe_term(reply.term) or args", "if reply is None or args"),
        words=(
            "reply to its ",
            "later it still sends ",
            "step down on any higher term",
        ),
    ),
    "calls under the lock": Defect(
        "lock_held_while_waiting",
        lab("test_follower_failure_2b"),
        *CALLS_UNDER_LOCK,
        words=("answered nothing from", "which is cut off or down", "it holds its lock during a call"),
    ),
    "votes without the lock": Defect(
        "went_on_during_a_save",
        lab("test_slow_disks_2c"),
        (
            "with self.mu:\n            if not self._observe_term(args.term):",
            "if True:\n            if not self._observe_term(args.term):",
        ),
        words=("began a save", "before it ended it was asked by peer", "Disks are slow", "it holds no lock there"),
    ),
    "snapshots without the lock": Defect(
        "went_on_during_a_save",
        lab("test_snapshot_slow_disks_2d"),
        (
            "with self.mu:\n            if index > self.last_applied:",
            "if True:\n            if index > self.last_applied:",
        ),
        words=("began a save", "before that had ended", "it holds no lock there"),
    ),
    "apply_ch under the lock": Defect(
        "lock_held_while_waiting",
        lab("test_snapshot_overtaken_2d"),
        (
            "self.apply_ch.put(msg, timeout=HEARTBEAT_S)",
            "with self.mu:\n                        self.apply_ch.put(msg)",
        ),
        words=("until the end", "apply_ch", "release it before the put()"),
    ),
    "lock taken twice": Defect(
        "lock_held_while_waiting",
        lab("test_basic_agree_2b"),
        (
            "            self._commit_through(majority_has)",
            "            self.get_state()\n            self._commit_through(majority_has)",
        ),
        words=("waits for a lock that it holds itself",),
    ),
    "next_index stays": Defect(
        "same_place_rejected",
        lab("test_rejoin_2b"),
        ("self.next_index[peer] = max(next_index, self.match_index[peer] + 1)", "pass"),
        words=("times to append behind index", "refused every time", "next_index does not move back"),
    ),
    "snapshot never sent": Defect(
        "same_place_rejected",
        lab("test_snapshot_install_2d"),
        ("if prev < base:", "prev = max(prev, base)\n        if prev < base:"),
        ("if args.prev_log_index != self.next_index[peer] - 1:", "if False:"),
        words=("and has sent no InstallSnapshot", "then its snapshot must be sent (§7)"),
    ),
    "back up one by one": Defect(
        "back_up_one_by_one",
        back_up_a_long_way,
        ("next_index = reply.conflict_index\n", "next_index = args.prev_log_index\n"),
        ("if reply.conflict_term > 0:", "if False:"),
        words=("one entry at a time", "at prev_log_index 41 down to", "a whole term per rejection (§5.3"),
    ),
    "commit wants all": Defect(
        "commit_frozen",
        lab("test_follower_failure_2b"),
        ("sorted(self.match_index)[(len(self.peers) - 1) // 2]", "min(self.match_index)"),
        words=("which is of its own term: with itself 2 of 3", "the leader_commit it sends is still"),
    ),
    "heartbeats do not commit": Defect(
        "commit_never_applied",
        lab("test_basic_agree_2b"),
        ("self._commit_through(min(", "args.entries and self._commit_through(min("),
        words=("came without entries", "heartbeats do not raise commit_index", "its service is still at 0"),
    ),
    "applier not woken": Defect(
        "commit_never_applied",
        lab("test_basic_agree_2b"),
        ("self.commit_index = index\n            self.committed.notify()", "self.commit_index = index"),
        words=("the thread that applies is not woken",),
    ),
    "entries never sent": Defect(
        "start_never_sent",
        lab("test_basic_agree_2b"),
        ("entries = self.log[prev + 1 - base :]", "entries: list[LogEntry] = []"),
        ("return self.next_index[peer] <= self._last_log_index() or args", "return args"),
        words=("start(100) of peer", "no AppendEntries has carried entry 1.", "have gone out without it"),
    ),
    "start() wakes nobody": Defect(
        "start_never_sent",
        lab("test_basic_agree_2b"),
        (
            "            self._replicate()\n            return self._last_log_index()",
            "            return self._last_log_index()",
        ),
        ("self._replicate(heartbeat=True)\n", "self._replicate(heartbeat=self._last_log_index() == 0)\n"),
        (
            "if peer != self.me and (idle or",
            "if peer != self.me and (idle and self._last_log_index() == 0 or",
        ),
        (TIMEOUT, "ELECTION_TIMEOUT_S = (3.0, 4.0)"),
        words=("the thread that sends is not woken by start()",),
    ),
    "start() returns the wrong index": Defect(
        "start_never_sent",
        lab("test_basic_agree_2b"),
        ("return self._last_log_index(), self", "return self._last_log_index() + 1, self"),
        words=("the command went out as entry 1.", "start() returns the wrong index"),
    ),
    "the snapshot again and again": Defect(
        "same_snapshot_again",
        lab("test_snapshot_install_2d"),
        (
            "self.next_index[peer] = max(self.next_index[peer], args.last_included_index + 1)\n        return True",
            "return False",
        ),
        words=("the snapshot through index", "next_index is not moved on to last_included_index + 1"),
    ),
    "index not translated": Defect(
        "index_error_after_snapshot",
        lab("test_snapshot_basic_2d"),
        ("entry = self.log[self.last_applied - self.last_included_index]", "entry = self.log[self.last_applied]"),
        words=("has kept a snapshot instead of the beginning of its log since", "subtract the snapshot's"),
    ),
    "term not saved": Defect(
        "forgot_over_a_restart",
        lab("test_persist1_2c"),
        ("state.encode(self.current_term)", "state.encode(0)"),
        words=("crashed, was started again at", "is not saved, or not read back"),
    ),
    "vote not saved": Defect(
        "voted_again_after_restart",
        vote_over_a_restart,
        ("state.encode(self.voted_for)", "state.encode(None)"),
        words=("in the same term at", "its vote did not survive the crash"),
    ),
}


def failed_run(tmp_path, defect):
    peer_class = load_peer_class(edited_reference(tmp_path, *defect.edits))
    for seed in defect.seeds:
        run = run_test(defect.test, peer_class, seed, simulation=None if defect.checked else Simulation(seed))
        if run.error is not None:
            return run
    pytest.fail(f"the peer passes with all seeds {defect.seeds}")


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS.keys())
def test_a_defect_gets_its_own_diagnosis_and_no_other(tmp_path, defect):
    run = failed_run(tmp_path, defect)
    end_ns = run.simulation.now_ns
    found = [found.name for found in examine(run.simulation.trace, run.error, end_ns=end_ns)]
    assert found == [defect.diagnosis], str(run.error)
    (told,) = diagnose(run.simulation.trace, run.error, end_ns=end_ns)
    text = told.replace("\n", " ")
    assert [word for word in defect.words if word not in text] == [], text
    assert max(map(len, told.splitlines())) <= 110
    assert sum(line.startswith("Likely: ") for line in told.splitlines()) == 1


def test_every_diagnosis_has_a_peer_with_that_defect():
    tested = {defect.diagnosis for defect in DEFECTS.values()} | {"only_older_terms_stored"}
    assert tested == {diagnosis.__name__ for diagnosis in DIAGNOSES}


def test_an_older_terms_entry_waits_and_rightly_so(tmp_path):
    """§5.4.2: the reference itself, and a test that expects too much."""
    run = run_test(older_entry_on_a_majority, load_peer_class(edited_reference(tmp_path)), 1)
    assert isinstance(run.error, Failure)
    (told,) = diagnose(run.simulation.trace, run.error)
    text = told.replace("\n", " ")
    assert "A majority stores its log through index 2, but that entry is of term 1" in text
    assert "Likely: nothing is wrong with that." in text
    assert "Do not remove the check." in text


# ---- nothing is better than something wrong ------------------------------------------------------------------

QUICK = ["2a", "2b", "test_persist?_2c", "test_figure8_2c", "test_snapshot_*", "test_slow_disks_2c"]


@pytest.mark.parametrize("test", select(QUICK, sorted((ROOT / "tests").glob("test_2*.py"))), ids=lambda test: test.name)
def test_the_reference_is_never_diagnosed(tmp_path, test):
    run = run_test(test.function, load_peer_class(edited_reference(tmp_path)), 3)
    assert run.error is None
    no_reason = Failure("a test that fails for no reason")
    assert examine(run.simulation.trace, no_reason, end_ns=run.simulation.now_ns) == []


@pytest.mark.parametrize(
    "situation",
    [
        elect_over_a_slow_network,
        keep_the_leader_though_a_peer_is_gone,
        figure8_with_one_eligible_peer,
        back_up_a_long_way,
    ],
    ids=lambda situation: situation.__name__,
)
def test_the_situations_are_none_to_the_reference(tmp_path, situation):
    run = run_test(situation, load_peer_class(edited_reference(tmp_path)), 1)
    assert run.error is None
    no_reason = Failure("a test that fails for no reason")
    assert examine(run.simulation.trace, no_reason, end_ns=run.simulation.now_ns) == []


def test_a_broken_rule_that_explains_itself_gets_no_diagnosis(tmp_path):
    peer_class = load_peer_class(
        edited_reference(tmp_path, ("up_to_date and self.voted_for in (None, args.candidate_id)", "up_to_date"))
    )
    for seed in range(1, 20):
        run = run_test(lab("test_many_elections_2a"), peer_class, seed)
        if run.error is not None:
            break
    assert run.error.rule == "one-vote"
    assert diagnose(run.simulation.trace, run.error) == []


def test_an_exception_without_a_snapshot_is_its_own_diagnosis(tmp_path):
    peer_class = load_peer_class(edited_reference(tmp_path, ("up_to_date = (", "up_to_date = [][1] or (")))
    run = run_test(elect, peer_class, 1)
    assert isinstance(run.error, TaskFailed)
    assert diagnose(run.simulation.trace, run.error) == []


def test_only_the_last_cluster_of_a_test_counts(tmp_path):
    """The first one never had a leader for want of a majority; the second does well."""

    def two(make_config):
        cfg = make_config(servers=3)
        cfg.network.partition(["0"], ["1"], ["2"])
        time.sleep(5.0)
        cfg = make_config(servers=3)
        cfg.check_one_leader()
        cfg.fail("for no reason")

    run = run_test(two, load_peer_class(edited_reference(tmp_path)), 1)
    assert diagnose(run.simulation.trace, run.error) == []


def test_no_trace_no_diagnosis():
    assert diagnose([], Failure("no agreement")) == []


@pytest.mark.parametrize(
    ("args", "reply"),
    [
        ({"turn": 1}, {"yes": True}),
        (
            {"term": "one", "candidate_id": 0, "last_log_index": None, "last_log_term": []},
            {"term": 1, "vote_granted": True},
        ),
    ],
    ids=["other fields", "other types"],
)
def test_messages_unlike_the_papers_are_passed_over(args, reply):
    events = [Event(0, "cluster", "", 0, 0, 3)]
    events += [Event(0, kind, name, 1, 0, None) for name in "012" for kind in ("boot", "connect")]
    for number in range(1, 21):
        message = SimpleNamespace(
            id=number,
            source="0",
            target="1",
            service_method="Raft.request_vote",
            decode_args=lambda: SimpleNamespace(**args),
            decode_reply=lambda: SimpleNamespace(**reply),
        )
        for kind, node in (("send", "0"), ("deliver", "1"), ("answer", "1"), ("reply", "0")):
            events.append(Event(number * 300_000_000, kind, node, 1, number, message))
    assert diagnose(events, Failure("no agreement")) == []
