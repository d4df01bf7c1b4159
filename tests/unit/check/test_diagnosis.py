"""Each diagnosis is found for a peer with its defect, and for no other peer."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from labsim import Event, TaskFailed, Wait, WaitKind, random, time
from raft.messages import RequestVoteArgs
from raftlab.check import harness_rules
from raftlab.check.cluster_snapshot import ClusterSnapshot, ReportedState
from raftlab.check.diagnosis import DIAGNOSES, diagnose, examine
from raftlab.check.diagnosis.registry import diagnosis
from raftlab.check.failure import Failure
from raftlab.check.rules import RULES
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import select
from tests.mutants.tool.mutants import load_mutants
from unit.check.trace_builder import TraceBuilder
from unit.students import ROOT, edited_reference

# ---- situations ----------------------------------------------------------------------------------------------


def lab(name):
    """One of the lab's own tests."""
    (test,) = select([name], sorted((ROOT / "tests").glob("test_2*.py")))
    return test


@collect
def elect(make_config):
    cfg = make_config(servers=3)
    cfg.check_one_leader()


@collect
def elect_over_a_slow_network(make_config):
    cfg = make_config(servers=3)
    cfg.network.latency(10, 10)
    cfg.check_one_leader()


@collect
def exactly_a_quorum_with_1_to_2_ms_latency(make_config):
    """A leader is lost, and its two followers cannot agree on another."""
    cfg = make_config(servers=3)
    cfg.network.latency(1, 2)
    cfg.crash1(0)
    cfg.check_one_leader()


@collect
def keep_the_leader_though_a_peer_is_gone(make_config):
    cfg = make_config(servers=3)
    leader = cfg.check_one_leader()
    gone = min(cfg.others(leader))  # the first one that a sequential sender calls
    cfg.disconnect(gone)
    (other,) = cfg.others(leader, gone)
    term = cfg.get_state(leader)[0]
    time.sleep(3.0)
    if cfg.get_state(other)[0] != term:
        cfg.fail(f"The term went from {term} to {cfg.get_state(other)[0]} although the leader never failed")


@collect
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


@collect
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
        cfg.fail(f"Peer {behind} needed {cfg.rpc_count(behind) - before} requests to catch up", costs=True)


@collect
def many_commands_at_once(make_config):
    cfg = make_config(servers=3)
    leader = cfg.check_one_leader()
    for step in range(300):
        cfg.start(leader, step)
    cfg.one("last", 3, retry=False)


@collect
def older_entry_on_a_majority(make_config):
    cfg, index = older_entry_stored(make_config)
    cfg.wait(index, 2)


@collect
def older_entry_and_another_failure(make_config):
    cfg, _ = older_entry_stored(make_config)
    time.sleep(10.0)
    cfg.fail("Something else is wrong")


def older_entry_stored(make_config):
    """Figure 8 (c) without a new command: an entry of an older term must wait."""
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
    return cfg, index


@collect
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


@collect
def many_starts_at_once(make_config):
    cfg = make_config(servers=3)
    cfg.one("first", 3, retry=True)
    leader = cfg.check_one_leader()
    before = cfg.rpc_total()
    for number in range(20):
        cfg.start(leader, number)
    cfg.one("last", 3, retry=True)
    if cfg.rpc_total() - before > 40:
        cfg.fail("Too many requests for 20 commands", costs=True)


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


SWALLOWED = """\
            try:
                last = self.last_log_index()
            except AttributeError:
                return
            args = RequestVoteArgs"""
SWALLOWED_TICK = """\
try:
                pause_s = self._tick()
            except Exception:
                pause_s = HEARTBEAT_S"""
ONE_VOTE_AT_A_TIME = (
    (
        "        for peer in range(len(self.peers)):\n            if peer != self.me and peer not in self.votes",
        "        todo = []\n"
        "        for peer in range(len(self.peers)):\n            if peer != self.me and peer not in self.votes",
    ),
    (
        "                self._spawn(self._request_vote_from, peer)\n",
        "                todo.append(peer)\n"
        "        self._spawn(lambda: [self._request_vote_from(one) for one in todo])\n",
    ),
)
ONE_SLOT = """\
        self.tick = Event(self._on_tick)
        self.slot: queue.Queue[Any] = queue.Queue()
"""
DRAWN_ONCE = """\
        self.timeout_s = random.uniform(0.40, 0.42)
        self._reset_election_timer()
        self._spawn(self._ticker)"""


class Defect:
    def __init__(
        self,
        diagnosis,
        test,
        *edits,
        mutant="",
        edits_of_mutant=(),
        words=(),
        not_words=(),
        seeds=range(7),
        checked=True,
    ):
        self.diagnosis = diagnosis
        self.test = test
        self.edits = edits
        self.mutant = mutant  # of the mutants, instead of the reference
        self.edits_of_mutant = edits_of_mutant
        self.words = words
        self.not_words = not_words
        self.seeds = seeds  # until one fails
        self.checked = checked  # False where a rule ends the run before there is a pattern to see

    def peer_class(self, tmp_path):
        if not self.mutant:
            return load_peer(edited_reference(tmp_path, *self.edits))
        (mutant,) = (mutant for mutant in load_mutants() if mutant.id == self.mutant)
        return load_peer(replace(mutant, edits=mutant.edits + self.edits_of_mutant).write(tmp_path))


DEFECTS = {
    "identical timers": Defect(
        "split_votes",
        elect_over_a_slow_network,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.6, 0.6)"),
        words=(
            "no peer became leader. In all of them two or more peers campaigned at the same instant",
            "round trip of a vote takes 20 ms",
        ),
        not_words=("the same seed",),
    ),
    "random seeded alike": Defect(
        "split_votes",
        elect,
        (
            "        self._reset_election_timer()\n        self._spawn(self._ticker)",
            "        random.seed(42)\n        self._reset_election_timer()\n        self._spawn(self._ticker)",
        ),
        words=("Each time, all 3 peers campaigned together", "the same seed"),
        not_words=("Widen", "drawn once"),
    ),
    "narrow timers": Defect(
        "split_votes",
        elect_over_a_slow_network,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.600, 0.603)"),
        words=("differ by less than a round trip. Widen the random range (§9.3)", "round trip of a vote takes 20 ms"),
        not_words=("drawn once",),
    ),
    "a timeout drawn once for each peer": Defect(
        "split_votes",
        lab("test_split_votes_are_rare_2c"),
        ("        self._reset_election_timer()\n        self._spawn(self._ticker)", DRAWN_ONCE),
        ("time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)", "time.monotonic() + self.timeout_s"),
        words=("tries again after the same time: peer ", "drawn once per peer"),
        not_words=("Widen",),
    ),
    "a timeout drawn at every look at the clock": Defect(
        "split_votes",
        lab("test_split_votes_are_rare_2c"),
        mutant="rerandomize-each-tick",
        words=("draw one timeout each time the timer is reset",),
        not_words=("drawn once per peer",),
    ),
    "timers of 5 to 9 ms, looked at every 10": Defect(
        "split_votes",
        exactly_a_quorum_with_1_to_2_ms_latency,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.005, 0.009)"),
        ("HEARTBEAT_S = 0.1", "HEARTBEAT_S = 0.010"),
        ("return left_s if self.role is Role.FOLLOWER else min(left_s, HEARTBEAT_S)", "return HEARTBEAT_S"),
        words=(
            "no peer became leader. In all of them two or more peers campaigned",
            "Candidates try again after 10 ms",
            "§5.6",
        ),
    ),
    "vote kept in a new term": Defect(
        "votes_denied_without_reason",
        lab("test_reelection_2a"),
        ("self.voted_for = None\n            self._persist()", "self._persist()"),
        words=("a peer that had not voted in the term denied its vote", "voted_for is not cleared"),
        checked=False,
    ),
    "equal logs refused": Defect(
        "votes_denied_without_reason",
        elect,
        ("(args.last_log_term, args.last_log_index) >= (", "(args.last_log_term, args.last_log_index) > ("),
        words=("its log is empty", "is up to date: compare with >="),
        checked=False,
    ),
    "every request is taken for an old one": Defect(
        "votes_denied_without_reason",
        elect,
        ("        return term == self.current_term\n", "        term == self.current_term\n"),
        words=("No peer has ever granted a vote", "treats a request of its own term like one of an earlier term"),
    ),
    "equal logs refused unless they are empty": Defect(
        "votes_denied_without_reason",
        lab("test_rejoin_2b"),
        (
            "(args.last_log_term, args.last_log_index) >= (self._term_at(last), last)",
            "not last or (args.last_log_term, args.last_log_index) > (self._term_at(last), last)",
        ),
        words=("is up to date: compare with >=",),
        not_words=("earlier term",),  # votes were granted before
        checked=False,
    ),
    "an election timeout in ms": Defect(
        "no_candidates",
        elect,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (400, 800)"),
        words=("Thread-1 (_ticker) of peer 0 waits for an event, in _ticker (peer.py:", "not milliseconds"),
        not_words=("is its thread started",),
    ),
    "a tick in ms": Defect(
        "no_candidates",
        elect,
        mutant="design-event-loop",
        edits_of_mutant=(("TICK_S = 0.010", "TICK_S = 10"),),
        words=("Thread-2 (_tick) of peer 0 sleeps, in _tick (", "not milliseconds"),
        not_words=("is its thread started",),
    ),
    "no election timer, and a thread that waits a minute for news": Defect(
        "no_candidates",
        elect,
        ("if time.monotonic() >= self.election_deadline:", "if False:"),
        ("return left_s if", "return 0.1 if"),
        ("self.committed.wait()", "self.committed.wait(60)"),
        words=("is its thread started",),
        not_words=("milliseconds",),
    ),
    "a leader calls itself": Defect(
        "leader_calls_itself",
        lab("test_initial_election_2a"),
        ("if peer != self.me and (idle or (", "if (idle or ("),
        words=("sent itself an AppendEntries at ", "Do not send to peers[me]"),
        not_words=("too rarely",),
    ),
    "get_state() compares an enum with a string": Defect(
        "leader_reports_false",
        elect,
        ("return self.current_term, self.role is Role.LEADER", 'return self.current_term, self.role == "leader"'),
        words=(
            " followed it. But get_state() on that peer, called at ",
            "returned is_leader=False",
            "get_state() is wrong",
        ),
    ),
    "an exception swallowed where heartbeats are sent": Defect(
        "heartbeats_too_slow",
        lab("test_initial_election_2a"),
        ("pause_s = self._tick()", SWALLOWED_TICK),
        ("self._replicate(heartbeat=True)", "self._replicate(hearbeat=True)"),
        words=("No leader has sent any peer a second AppendEntries.", "exception is swallowed"),
        not_words=("too rarely",),
    ),
    "index and term compared with and": Defect(
        "votes_denied_without_reason",
        lab("test_rejoin_2b"),
        (
            "(args.last_log_term, args.last_log_index) >= (self._term_at(last), last)",
            "args.last_log_term >= self._term_at(last) and args.last_log_index >= last",
        ),
        words=("Compare the terms of the last entries first",),
        not_words=("voted_for",),  # one has voted for two in two terms
    ),
    "an exception swallowed where votes are asked for": Defect(
        "no_candidates",
        elect,
        ("            last = self._last_log_index()\n            args = RequestVoteArgs", SWALLOWED),
        words=("terms have risen: peer 0 is in ", "the requests are not sent"),
        not_words=("is its thread started",),
    ),
    "pre-votes are refused": Defect(
        "no_candidates",
        elect,
        mutant="design-pre-vote",
        edits_of_mutant=(("PreVoteReply(self.current_term, granted)", "PreVoteReply(self.current_term, False)"),),
        words=("peers called Raft.pre_vote, which is not an RPC from the paper, ", "which peers reject Raft.pre_vote"),
        not_words=("is its thread started",),
    ),
    "a leader's heartbeats wait, and it had fetched as a follower": Defect(
        "heartbeats_too_slow",
        lab("test_initial_election_2a"),
        mutant="design-pull",
        edits_of_mutant=(("        self.changed.notify_all()  # the ticker sleeps until an election is due\n", ""),),
        words=("heartbeats come too rarely for these election timeouts",),
        not_words=("transfers leadership",),
    ),
    "leadership is handed over after every command": Defect(
        "leadership_transferred",
        lab("test_concurrent_starts_2b"),
        mutant="design-disk-thread",
        edits_of_mutant=(("SLOW_COMMITS = 8", "SLOW_COMMITS = 0"),),
        words=("which is not an RPC from the paper. ", "the leader must stay the same"),
        not_words=("reset the election timer",),
    ),
    "votes are asked for one after the other": Defect(
        "votes_one_after_another",
        lab("test_many_elections_2a"),
        *ONE_VOTE_AT_A_TIME,
        words=("got no answer, and never asked peers ", "each call in a separate thread"),
    ),
    "peer 0 treated as no vote": Defect(
        "vote_for_peer_0_forgotten",
        lab("test_reelection_2a"),
        (
            "self.voted_for in (None, args.candidate_id)",
            "(not self.voted_for or self.voted_for == args.candidate_id)",
        ),
        ("if self.voted_for is None:", "if not self.voted_for:"),
        words=("was for peer 0, but it voted again", "0 is treated as no vote"),
        not_words=("not checked",),
        seeds=range(1, 7),
    ),
    "a vote for peer 0 taken for none, where others are kept": Defect(
        "vote_for_peer_0_forgotten",
        lab("test_many_elections_2a"),
        (
            "self.voted_for in (None, args.candidate_id)",
            "(not self.voted_for or self.voted_for == args.candidate_id)",
        ),
        ("if self.voted_for is None:", "if not self.voted_for:"),
        words=("Votes for other peers are remembered: peer ",),
        not_words=("not checked", "not set", "for itself"),
        seeds=range(2, 3),  # with others peer 0 votes twice first
    ),
    "a candidate's own vote is not noted": Defect(
        "vote_for_peer_0_forgotten",
        lab("test_reelection_2a"),
        ("        self.voted_for = self.me\n", ""),
        words=("was for peer 0, but it voted again", "does not set voted_for to its own number"),
        not_words=("Votes for other peers",),
        seeds=range(1, 7),
    ),
    "calls in the thread that answers": Defect(
        "calls_in_the_thread_that_answers",
        lab("test_reelection_2a"),
        mutant="design-event-loop",
        edits_of_mutant=(
            (
                "        threading.Thread(target=self._call, args=call, daemon=True).start()\n",
                "        self._call(*call)\n",
            ),
        ),
        words=("has never made two calls at a time. From ", "make each call in a separate thread"),
        not_words=("lock", "election timer"),
        seeds=range(1, 7),
    ),
    "the ticker runs in the constructor": Defect(
        "call_waits_for_a_thread",
        elect,
        ("self._spawn(self._ticker)", "self._ticker()"),
        words=(
            "has not returned: it waits for an event, in __init__ > _ticker (",
            "__init__ runs a loop that never ends",
        ),
        not_words=("was never started or has ended",),
    ),
    "refusals counted": Defect(
        "denials_counted_as_votes",
        lab("test_reelection_2a"),
        ("if sum(self.votes.values()) > len(self.peers) // 2:", "if len(self.votes) > len(self.peers) // 2:"),
        words=(" denied them. The denial of peer ", "Count only those with vote_granted"),
        seeds=range(1, 7),
    ),
    "answers counted, not voters": Defect(
        "one_vote_counted_twice",
        lab("test_figure8_2c"),
        ("        self.votes[peer] = granted\n", "        self.yes += granted\n"),
        ("        if sum(self.votes.values()) > len", "        if self.yes > len"),
        ("        self.votes = {}\n        self._reset", "        self.yes = 0\n        self._reset"),
        words=("for its vote in term ", "more than once, and received it ", "Keep the voters in a set"),
        not_words=("earlier terms",),
    ),
    "votes of all campaigns in one dict": Defect(
        "earlier_votes_counted",
        lab("test_reelection_2a"),
        ("def _campaign(self) -> None:", "def _campaign(self, votes: dict[int, bool] = {}) -> None:"),
        ("        self.votes = {}\n        self._reset", "        self.votes = votes\n        self._reset"),
        words=(
            "no other peer voted for peer ",
            "In earlier terms other peers did: peer ",
            "a default argument (votes={})",
        ),
        seeds=range(1, 7),
    ),
    "votes of an earlier term's request": Defect(
        "earlier_votes_counted",
        lab("test_late_votes_2a"),
        mutant="stale-vote-counted",
        words=("In earlier terms other peers did: peer ", "compare the term of its request with current_term"),
        not_words=("default argument",),
    ),
    "a loop's variable seen too late": Defect(
        "all_requests_to_one_peer",
        lab("test_many_elections_2a"),
        mutant="design-event-loop",
        edits_of_mutant=(
            (
                'self._send(peer, "Raft.request_vote", args, self._on_vote)',
                "threading.Thread(\n"
                '                    target=lambda: self._call(peer, "Raft.request_vote", args, self._on_vote, 0)\n'
                "                ).start()",
            ),
        ),
        words=(" sent 6 RequestVotes of term ", "all of them to peer 6", "lambda peer=peer"),
    ),
    "one entry too many behind the snapshot": Defect(
        "unsaved_after_the_snapshot",
        lab("test_snapshot_basic_2d"),
        (
            "suffix = self.log[index - self.last_included_index + 1 :]",
            "suffix = self.log[index - self.last_included_index :]",
        ),
        words=("Then it saved its snapshot, which ends with entry 9", "assumes that it has these entries already"),
        seeds=range(1, 7),
    ),
    "one place for all answers": Defect(
        "answers_mixed_up",
        lab("test_paused_leader_2a"),
        mutant="design-event-loop",
        edits_of_mutant=(
            ("        self.tick = Event(self._on_tick)\n", ONE_SLOT),
            ("        slot: queue.Queue[Any] = queue.Queue()\n", "        slot = self.slot\n"),
        ),
        words=("Two requests were waiting at peer ", "Use a separate queue or variable for each call"),
        seeds=range(1, 7),
    ),
    "no election timer": Defect(
        "no_candidates",
        elect,
        ("if time.monotonic() >= self.election_deadline:", "if False:"),
        ("return left_s if", "return 0.1 if"),
        words=("No peer has ever sent a RequestVote.", "is its thread started"),
    ),
    "candidates try once": Defect(
        "no_candidates",
        elect_over_a_slow_network,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.6, 0.6)"),
        *NEVER_RETRIES,
        words=("The last campaign, by peers 0, 1 and 2 in term 1, got no majority.", "does not try again"),
    ),
    "votes counted wrongly": Defect(
        "winner_never_acts",
        elect,
        ("sum(self.votes.values()) > len(self.peers) // 2", "sum(self.votes.values()) > len(self.peers)"),
        words=("of 3 votes in term", "never sent AppendEntries", "Check how votes are counted"),
    ),
    "slow heartbeats": Defect(
        "heartbeats_too_slow",
        lab("test_initial_election_2a"),
        (
            "self._replicate(heartbeat=True)\n                return HEARTBEAT_S",
            "self._replicate(heartbeat=True)\n                return 1.5",
        ),
        words=("election timer expired", "heartbeats come too rarely"),
        not_words=("milliseconds",),
    ),
    "a heartbeat's pause in ms": Defect(
        "heartbeats_too_slow",
        lab("test_initial_election_2a"),
        ("HEARTBEAT_S = 0.1\n", "HEARTBEAT_S = 100\n"),
        words=("heartbeats come too rarely", "waits for an event, in _ticker (peer.py:", "for 100 s in all"),
        not_words=("swallowed",),
    ),
    "one sender for all followers": Defect(
        "heartbeats_too_slow",
        keep_the_leader_though_a_peer_is_gone,
        *ONE_SENDER_FOR_ALL,
        words=("was then waiting for peer", "Make each call in a separate thread"),
    ),
    "heartbeats do not reset the timer": Defect(
        "heartbeats_do_not_reset_the_timer",
        lab("test_initial_election_2a"),
        ("self._reset_election_timer()\n        return True", "return True"),
        words=(" AppendEntries in term", "at most 10", "does not reset the election timer"),
    ),
    "a denied vote resets the timer": Defect(
        "stale_candidates",
        figure8_with_one_eligible_peer,
        (TIMEOUT, "ELECTION_TIMEOUT_S = (0.8, 1.2)"),
        *RESETS_TIMER_AT_ANY_RPC,
        words=(
            "could win (its log ends with entry 21 of term",
            "never campaigned",
            "it denied ",
            "ends with entry 1 of term",
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
            "Step down on any higher term",
        ),
    ),
    "calls under the lock": Defect(
        "lock_held_while_waiting",
        lab("test_follower_failure_2b"),
        *CALLS_UNDER_LOCK,
        words=("answered nothing from", "which is disconnected or down", "the peer holds its lock during a call"),
        seeds=range(4, 7),  # before it start() is the first to be held up
    ),
    "calls under the lock, and start() waits": Defect(
        "start_waits_for_the_lock",
        lab("test_follower_failure_2b"),
        *CALLS_UNDER_LOCK,
        words=("held the lock and waited for the reply to a call, in _replicate_to (peer.py:", "during a call"),
        seeds=range(1, 7),
    ),
    "sleeps with the lock": Defect(
        "start_waits_for_the_lock",
        lab("test_rpc_bytes_2b"),
        ("return HEARTBEAT_S\n", "time.sleep(HEARTBEAT_S)\n                return 0.001\n"),
        words=("Thread-1 (_ticker) held the lock and slept, in _ticker > _tick (peer.py:", "while it sleeps"),
    ),
    "calls under the lock, some time ago": Defect(
        "answers_only_after_its_call",
        lab("test_follower_failure_2b"),
        *CALLS_UNDER_LOCK,
        words=("Then it answered all of them at once", "while it holds its lock, or in the thread that answers"),
        seeds=range(3, 4),  # with most others the lock is still kept in the end
    ),
    "a thread that does all the work feeds apply_ch": Defect(
        "waits_for_room_and_answers_nothing",
        lab("test_snapshot_basic_2d"),
        mutant="event-loop-applych-under-lock",
        words=("One of the peer's threads waits for room in apply_ch", "Put messages on apply_ch in a separate thread"),
        not_words=("lock",),
    ),
    "the thread that does all the work waits for itself": Defect(
        "inactive_peer",
        lab("test_basic_agree_2b"),
        mutant="channels-lock-taken-twice",
        words=("answered nothing from ", "It has sent nothing since then", "own threads calls get_state()"),
        not_words=("lock", "heartbeats"),
    ),
    "the thread that does all the work ends": Defect(
        "inactive_peer",
        lab("test_basic_agree_2b"),
        mutant="design-event-loop",
        edits_of_mutant=(
            (
                "            self._release(answers)\n            if ",
                "            self._release(answers)\n            if self.commit_index or ",
            ),
        ),
        words=("Its own threads: Thread-2 (_tick) sleeps", "the peer's main thread has ended, or waits"),
        not_words=("_own",),
    ),
    "a thread that calls what waits for it": Defect(
        "inactive_peer",
        lab("test_basic_agree_2b"),
        mutant="design-event-loop",
        edits_of_mutant=(
            (
                "        if self.role is not Role.LEADER:\n            return -1, self.current_term, False",
                "        if not self.get_state()[1]:\n            return -1, self.current_term, False",
            ),
        ),
        words=(" > _on_start > get_state > _ask (", "one of the peer's own threads calls get_state()"),
        not_words=("lock",),
    ),
    "a thread that serves all is not started": Defect(
        "call_waits_for_a_thread",
        elect,
        mutant="design-event-loop",
        edits_of_mutant=(
            (
                "for target in (self._own, self._tick, self._deliver):",
                "for target in (self._tick, self._deliver):",
            ),
        ),
        words=("Its own threads: Thread-1 (_tick) sleeps, in _tick (", "was never started"),
        not_words=("election timer",),
    ),
    "a lock that is not released": Defect(
        "lock_held_while_waiting",
        elect,
        (
            "        with self.mu:\n            return self.current_term, self.role",
            "        self.mu.acquire()\n        return self.current_term, self.role",
        ),
        words=("a lock whose holder has ended", "without release()"),
        not_words=("election timer",),
    ),
    "votes without the lock": Defect(
        "no_lock_during_a_save",
        lab("test_slow_disks_2c"),
        (
            "with self.mu:\n            if not self._observe_term(args.term):",
            "if True:\n            if not self._observe_term(args.term):",
        ),
        words=(
            "began a save",
            "Before the save ended, ",
            "Disks are slow",
            "the peer does not hold its lock during the save",
        ),
    ),
    "snapshots without the lock": Defect(
        "no_lock_during_a_save",
        lab("test_snapshot_slow_disks_2d"),
        (
            "with self.mu:\n            if index > self.last_applied:",
            "if True:\n            if index > self.last_applied:",
        ),
        words=("began a save", "before the first had ended", "the peer does not hold its lock during the save"),
    ),
    "apply_ch under the lock": Defect(
        "lock_held_while_waiting",
        lab("test_snapshot_overtaken_2d"),
        (
            "self.apply_ch.put(msg, timeout=HEARTBEAT_S)",
            "with self.mu:\n                        self.apply_ch.put(msg)",
        ),
        words=("until the end", "apply_ch", "Release the lock before the put()"),
    ),
    "lock taken twice": Defect(
        "lock_held_while_waiting",
        lab("test_basic_agree_2b"),
        (
            "            self._commit_through(majority_has)",
            "            self.get_state()\n            self._commit_through(majority_has)",
        ),
        words=("waits for a lock that this thread itself holds",),
    ),
    "next_index stays": Defect(
        "same_index_rejected",
        lab("test_rejoin_2b"),
        ("self.next_index[peer] = max(next_index, self.match_index[peer] + 1)", "pass"),
        words=(" AppendEntries with prev_log_index ", "rejected all of them", "next_index does not decrease"),
    ),
    "snapshot never sent": Defect(
        "same_index_rejected",
        lab("test_snapshot_install_2d"),
        ("if prev < base:", "prev = max(prev, base)\n        if prev < base:"),
        ("if args.prev_log_index != self.next_index[peer] - 1:", "if False:"),
        words=("and has sent no InstallSnapshot", "the leader must send its snapshot (§7)"),
    ),
    "back up one by one": Defect(
        "back_up_one_by_one",
        back_up_a_long_way,
        ("next_index = reply.conflict_index\n", "next_index = args.prev_log_index\n"),
        ("if reply.conflict_term > 0:", "if False:"),
        words=("one entry at a time", "with prev_log_index from 41 down to", "a whole term per rejection (§5.3"),
    ),
    "commit wants all": Defect(
        "commit_frozen",
        lab("test_follower_failure_2b"),
        ("sorted(self.match_index)[(len(self.peers) - 1) // 2]", "min(self.match_index)"),
        words=("Including the leader, 2 of 3 peers have that entry", "the leader still sends leader_commit"),
    ),
    "an unanswered call taken for a refusal": Defect(
        "no_answer_treated_as_rejection",
        lab("test_lost_replies_cost_nothing_2b"),
        mutant="timeout-as-reject",
        words=("has rejected nothing in that term", "a call that returns None as a rejection"),
    ),
    "all is sent again and again": Defect(
        "acknowledged_sent_again",
        lab("test_rpc_bytes_2b"),
        mutant="resend-acked-log",
        words=("had already acknowledged", "had acknowledged all entries up to "),
    ),
    "a late reply takes next_index back": Defect(
        "acknowledged_sent_again",
        lab("test_late_reply_costs_nothing_2b"),
        mutant="match-regresses",
        words=("match_index must never decrease",),
    ),
    "every start() sends all again": Defect(
        "sent_before_the_answer",
        many_starts_at_once,
        ("if peer != self.me and (idle or (heartbeat and self.sent_at[peer] < long_ago)):", "if peer != self.me:"),
        words=("with the same entries was in flight", "every start() sends all"),
    ),
    "a heartbeat every 5 ms": Defect(
        "heartbeats_too_often",
        lab("test_count_2b"),
        mutant="rpc-flood",
        words=("the same AppendEntries without entries", ": one every ", "One every 100 ms is enough"),
    ),
    "replies of an earlier term counted": Defect(
        "wrong_acknowledgements_counted",
        lab("test_reply_from_an_earlier_term_2b"),
        mutant="stale-ae-reply-used",
        words=(
            "for an AppendEntries that it had sent in term 1, at ",
            "the leader counts a reply to a request of an earlier term",
        ),
    ),
    "entries shared with the log": Defect(
        "wrong_acknowledgements_counted",
        lab("test_everything_at_once_2c"),
        mutant="shared-entry-alias",
        words=("to its log later, at ", "(or of a list that is not a copy)"),
    ),
    "len(log) taken for an index by start()": Defect(
        "off_by_the_snapshot",
        lab("test_snapshot_basic_2d"),
        ("return self.last_included_index + len(self.log) - 1", "return len(self.log) - 1"),
        words=("The difference is 9, the last index in its snapshot", "len(log) is not an index"),
        seeds=range(2, 7),  # with 1 an IndexError comes first
    ),
    "len(log) taken for an index by a follower": Defect(
        "commit_never_applied",
        lab("test_snapshot_basic_2d"),
        ("min(args.leader_commit, prev + len(args.entries))", "min(args.leader_commit, len(self.log) - 1)"),
        words=("a snapshot has replaced the beginning of the peer's log", "len(log) is not an index"),
        not_words=("heartbeats do not update commit_index",),
    ),
    "len(log) taken for an index by a leader": Defect(
        "commit_frozen",
        lab("test_snapshot_install_2d"),
        (
            "self.match_index[self.me] = self._last_log_index()\n            self._advance",
            "self.match_index[self.me] = len(self.log) - 1\n            self._advance",
        ),
        words=("a snapshot has replaced the beginning of the peer's log", "len(log) is not an index"),
    ),
    "the log is shorter than prev_log_index": Defect(
        "prev_beyond_the_log",
        lab("test_snapshot_in_new_term_2d"),
        (
            "and not self._has_entry(prev, args.prev_log_term):",
            "and self._term_at(prev) != args.prev_log_term:",
        ),
        words=("with prev_log_index ", "has never gone beyond entry ", "an entry that it does not have"),
        not_words=("last_included_index",),
    ),
    "heartbeats do not commit": Defect(
        "commit_never_applied",
        lab("test_basic_agree_2b"),
        ("self._commit_through(min(", "args.entries and self._commit_through(min("),
        words=(
            "with such a leader_commit contained entries",
            "heartbeats do not update commit_index",
            "has applied entries only up to 0",
        ),
    ),
    "applier not woken": Defect(
        "commit_never_applied",
        lab("test_basic_agree_2b"),
        ("self.commit_index = index\n            self.committed.notify()", "self.commit_index = index"),
        words=("No peer has ever put anything on apply_ch", "is not notified when commit_index rises"),
    ),
    "applier not started": Defect(
        "commit_never_applied",
        lab("test_basic_agree_2b"),
        ("        self._spawn(self._applier)\n", ""),
        words=("No peer has ever put anything on apply_ch", "own threads: Thread-1 (_ticker)", "was never started"),
        not_words=("commit_index is not updated",),
    ),
    "entries never sent": Defect(
        "start_never_sent",
        lab("test_basic_agree_2b"),
        ("entries = self.log[prev + 1 - base :]", "entries: list[LogEntry] = []"),
        ("return self.next_index[peer] <= self._last_log_index() or args", "return args"),
        words=("start(100) on peer", "no AppendEntries has contained entry 1.", " requests without it."),
    ),
    "entries go out one by one": Defect(
        "start_never_sent",
        many_commands_at_once,
        ("entries = self.log[prev + 1 - base :]", "entries = self.log[prev + 1 - base : prev + 2 - base]"),
        (
            "lacking = self._append_entries_answered(peer, args, reply)",
            "self._append_entries_answered(peer, args, reply)\n                    lacking = False",
        ),
        words=("entries 1 to ", "one entry per message.", "Send more entries per message"),
        not_words=(" requests without it.",),
    ),
    "start() does not notify": Defect(
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
        words=("start() does not notify the thread that sends",),
    ),
    "start() returns the wrong index": Defect(
        "start_never_sent",
        lab("test_basic_agree_2b"),
        ("return self._last_log_index(), self", "return self._last_log_index() + 1, self"),
        words=("the command was sent as entry 1.", "start() returns the wrong index"),
    ),
    "the snapshot again and again": Defect(
        "same_snapshot_again",
        lab("test_snapshot_install_2d"),
        (
            "self.next_index[peer] = max(self.next_index[peer], args.last_included_index + 1)\n        return True",
            "return False",
        ),
        words=("the snapshot through index", "next_index is not set to last_included_index + 1"),
    ),
    "a part of the snapshot again and again": Defect(
        "same_snapshot_again",
        lab("test_snapshot_crash_before_save_2d"),
        mutant="design-chunked",
        edits_of_mutant=(("            elif reply.expects == 0:\n                t.offset = 0\n", ""),),
        words=("sent peer ", "the part at offset ", "the first part again (Figure 13)"),
        not_words=("next_index is not set",),
    ),
    "index not translated": Defect(
        "index_error_after_snapshot",
        lab("test_snapshot_basic_2d"),
        ("entry = self.log[self.last_applied - self.last_included_index]", "entry = self.log[self.last_applied]"),
        words=("a snapshot has replaced the beginning of peer ", "subtract the snapshot's"),
    ),
    "term not saved": Defect(
        "term_lost_in_a_restart",
        lab("test_persist1_2c"),
        ("state.encode(self.current_term)", "state.encode(0)"),
        words=("crashed, restarted at", "are not saved, or not restored"),
    ),
    "vote not saved": Defect(
        "voted_again_after_restart",
        vote_over_a_restart,
        ("state.encode(self.voted_for)", "state.encode(None)"),
        words=("in the same term at", "does not contain that vote", "its vote did not survive the crash"),
    ),
    "a snapshot clears the vote": Defect(
        "voted_again_after_restart",
        lab("test_snapshot_in_new_term_2d"),
        mutant="snap-forgets-vote",
        words=(
            "may contain the first vote, but the state saved at ",
            "voted_for was cleared between these saves, without a new term",
        ),
        not_words=("did not survive",),
    ),
    "vote cleared without a new term": Defect(
        "voted_again_after_restart",
        lab("test_vote_survives_restart_2c"),
        mutant="votedfor-reset-same-term",
        words=("may contain that vote", "cleared without a new term"),
        not_words=("did not survive",),
    ),
}


def failed_run(tmp_path, defect):
    launcher = defect.peer_class(tmp_path)
    for seed in defect.seeds:
        run = run_test(defect.test, launcher, seed, checked=defect.checked)
        if run.error is not None:
            return run
    pytest.fail(f"the peer passes with all seeds {defect.seeds}")


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS.keys())
def test_defect_gets_exactly_its_diagnosis(tmp_path, defect):
    run = failed_run(tmp_path, defect)
    end_ns = run.simulation.now_ns
    found = [found.name for found in examine(run.simulation.trace, run.error, end_ns=end_ns)]
    assert found == [defect.diagnosis], str(run.error)
    told = diagnose(run.simulation.trace, run.error, end_ns=end_ns)[0].paragraph
    text = told.replace("\n", " ")
    assert [word for word in defect.words if word not in text] == [], text
    assert [word for word in defect.not_words if word in text] == [], text
    assert max(map(len, told.splitlines())) <= 110
    assert sum(line.startswith("Likely: ") for line in told.splitlines()) == 1


def test_every_diagnosis_has_a_peer_with_that_defect():
    tested = {defect.diagnosis for defect in DEFECTS.values()} | {"only_older_terms_stored"}
    assert tested == {one.name for one in DIAGNOSES}


def test_diagnoses_name_only_rules_that_exist():
    rules = {
        rule.name
        for rule in (
            *RULES,
            *(rule for rule in vars(harness_rules).values() if isinstance(rule, harness_rules.HarnessRule)),
        )
    }
    for one in DIAGNOSES:
        assert {*one.rules, *(one.every_rule_but or ())} <= rules, one.name


def test_two_diagnoses_cannot_have_one_order():
    with pytest.raises(ValueError, match=f"also_first has the order 10 of {DIAGNOSES[0].name}; give it another"):

        @diagnosis(10)
        def also_first(builder):
            """Never registered."""


def test_entry_of_an_older_term_waits_correctly(tmp_path):
    """§5.4.2: the reference itself, and a test that expects too much."""
    run = run_test(older_entry_on_a_majority, load_peer(edited_reference(tmp_path)), 1)
    assert isinstance(run.error, Failure)
    told = diagnose(run.simulation.trace, run.error)[0].paragraph
    text = told.replace("\n", " ")
    assert "up to entry 2, which is of term 1" in text
    assert "Likely: the peer is correct here." in text
    assert "Do not remove the check of the entry's term." in text


# ---- what a diagnosis does not say where it cannot know -------------------------------------------------------


def test_correctly_waiting_leader_is_not_a_cause(tmp_path):
    """The same situation in a test that does not wait: "the peer is correct here" used to be reported."""

    run = run_test(older_entry_and_another_failure, load_peer(edited_reference(tmp_path)), 1)
    assert isinstance(run.error, Failure)
    assert diagnose(run.simulation.trace, run.error) == []


def test_lock_is_not_a_cause_if_none_is_held(tmp_path):
    """A handler that sleeps answers late. That used to be explained by a lock held during a call."""
    launcher = load_peer(
        edited_reference(
            tmp_path,
            ("with self.mu:\n            if not self._observe_term(args.term):", SLEEPS_WITHOUT_THE_LOCK),
        )
    )
    run = run_test(elect, launcher, 1)
    assert run.error is not None
    assert "lock_held_while_waiting" not in names(run)
    assert not any("lock" in told for told in run.causes)


SLEEPS_WITHOUT_THE_LOCK = """\
time.sleep(3.0)
        if True:
            if not self._observe_term(args.term):"""


def test_sleeping_start_is_not_explained_by_a_lock(tmp_path):
    sleeps = (
        "            self._replicate()\n            return self",
        "            time.sleep(0.1)\n            return self",
    )
    run = run_test(lab("test_basic_agree_2b"), load_peer(edited_reference(tmp_path, sleeps)), 1)
    assert run.error.rule == "start-returns-at-once"
    assert run.causes == []


def test_get_state_that_sleeps_waits_for_no_thread(tmp_path):
    sleeps = ("        with self.mu:\n            return self.current_term, self.role", ASLEEP)
    run = run_test(elect, load_peer(edited_reference(tmp_path, sleeps)), 1)
    assert run.error.rule == "calls-return"
    assert "call_waits_for_a_thread" not in names(run)


ASLEEP = """\
        time.sleep(60)
        with self.mu:
            return self.current_term, self.role"""


def test_timer_that_waits_for_a_lock_is_not_a_cause(tmp_path):
    run = failed_run(tmp_path, DEFECTS["no election timer"])

    def diagnosed(kind):
        wait = Wait("Thread-1 (_ticker)", "0", kind, 3_000_000_000, "")
        error = Failure("no leader", snapshot=ClusterSnapshot(threads=(wait,)))
        return [found.name for found in examine(run.simulation.trace, error, end_ns=run.simulation.now_ns)]

    assert diagnosed(WaitKind.EVENT) == ["no_candidates"]
    assert diagnosed(WaitKind.LOCK) == []


def test_long_wait_of_the_leader_rules_out_an_exception(tmp_path):
    run = failed_run(tmp_path, DEFECTS["an exception swallowed where heartbeats are sent"])

    def diagnosed(left_ns):
        threads = tuple(Wait("Thread-1 (_ticker)", peer, WaitKind.SLEEP, 0, "", left_ns=left_ns) for peer in "012")
        error = Failure("no leader", snapshot=ClusterSnapshot(threads=threads))
        text = diagnose(run.simulation.trace, error, end_ns=run.simulation.now_ns)[0].paragraph
        return "swallowed" in text.replace("\n", " "), "too rarely" in text.replace("\n", " ")

    assert diagnosed(left_ns=100_000_000) == (True, False)
    assert diagnosed(left_ns=2_000_000_000) == (False, True)


def test_get_state_is_right_before_the_election(tmp_path):
    @collect
    def elect_and_wait(make_config):
        cfg = make_config(servers=3)
        cfg.check_one_leader()
        time.sleep(2.0)

    run = run_test(elect_and_wait, load_peer(edited_reference(tmp_path)), 1)
    spoken = [
        event for event in run.simulation.trace if event.kind == "send" and "append" in event.detail.service_method
    ]
    first = spoken[0]

    def diagnosed(asked_ns, is_leader):
        states = {first.node: ReportedState(first.detail.decode_args().term, is_leader, asked_ns)}
        error = Failure("no leader", snapshot=ClusterSnapshot(states=states))
        return [found.name for found in examine(run.simulation.trace, error, end_ns=run.simulation.now_ns)]

    assert diagnosed(spoken[-1].at_ns, False) == ["leader_reports_false"]
    assert diagnosed(spoken[-1].at_ns, True) == []
    assert diagnosed(first.at_ns - 1, False) == []


def test_a_leader_may_call_itself_if_it_goes_on_leading(tmp_path):
    edits = (
        ("if peer != self.me and (idle or (", "if (idle or ("),
        ("        if not self._observe_term(term):\n            return False", UNMOVED),
    )

    @collect
    def wait(make_config):
        cfg = make_config(servers=3)
        cfg.check_one_leader()
        time.sleep(2.0)
        cfg.fail("for no reason")

    run = run_test(wait, load_peer(edited_reference(tmp_path, *edits)), 1)
    assert run.error.rule is None
    assert any(event.kind == "deliver" and event.detail.source == event.node for event in run.simulation.trace)
    assert names(run) == []


UNMOVED = """\
        if term == self.current_term and self.role is Role.LEADER:
            return True
        if not self._observe_term(term):
            return False"""


def test_two_threads_that_put_on_apply_ch_are_named(tmp_path):
    edits = (
        ("        self._spawn(self._applier)\n", "        self._spawn(self._applier)\n" * 2),
        (
            "            # Without the lock: the service",
            "            time.sleep(random.uniform(0, 0.01))\n            # Without the lock: the service",
        ),
    )

    def diagnosed(seed, *edits):
        run = run_test(lab("test_concurrent_starts_2b"), load_peer(edited_reference(tmp_path, *edits)), seed)
        assert run.error.rule == "apply-order"
        return run.error

    error = diagnosed(0, *edits)
    # Mostly the other one still has the message that is missing.
    assert re.search(
        r"(Thread-\d) \(_applier\) put index 2 on apply_ch, (?!\1)Thread-\d \(_applier\) has yet", error.text
    )
    alone = diagnosed(0, ("self.last_applied += 1\n            entry", "self.last_applied = 1\n            entry"))
    assert "put index" not in alone.text


def test_a_message_that_was_given_up_is_named(tmp_path):
    """apply_ch is full while the service makes a snapshot."""

    def diagnosed(edit):
        path = edited_reference(tmp_path, ("except queue.Full:\n                    continue", edit))
        return run_test(lab("test_snapshot_overtaken_2d"), load_peer(path), 1).error

    error = diagnosed("except queue.Full:\n                    break")
    assert error.rule == "apply-order"
    assert re.search(
        r"Thread-\d+ \(_applier\) tried to put \d+ on apply_ch, which was full, and gave up at", error.text
    )
    assert diagnosed("except queue.Full:\n                    continue") is None


def test_unnecessary_sends_are_reported_only_for_costs(tmp_path):
    """Right peers send some things twice. That is no cause of anything else."""
    every_start_sends = DEFECTS["every start() sends all again"]

    def diagnosed(costs):
        @collect
        def test(make_config):
            cfg = make_config(servers=3)
            leader = cfg.check_one_leader()
            for number in range(20):
                cfg.start(leader, number)
            time.sleep(0.1)
            cfg.fail("for no reason", costs=costs)

        return names(run_test(test, every_start_sends.peer_class(tmp_path), 1))

    assert (diagnosed(costs=True), diagnosed(costs=False)) == (["sent_before_the_answer"], [])


def names(run):
    return [found.name for found in examine(run.simulation.trace, run.error, end_ns=run.simulation.now_ns)]


def test_disregarded_candidate_does_not_inform_of_its_term():
    """§6: a leader that answers in its own term keeps leading. It used to be reported."""

    def diagnosed(reply_term):
        builder = TraceBuilder()
        for node in "012":
            builder.emit("boot", node)
            builder.emit("connect", node)
        builder.elect("0", 1)
        builder.append("0", "1", 1)
        builder.save("2")
        builder.vote("2", "0", 2, granted=False, reply_term=reply_term)
        builder.now_ms += 100
        builder.append("0", "1", 1)
        return [found.name for found in examine(builder.trace, Failure("broken", rule="higher-term-wins"))]

    assert diagnosed(reply_term=2) == ["no_step_down"]
    assert diagnosed(reply_term=1) == []


def test_entries_that_others_applied_were_sent():
    def diagnosed(applied):
        builder = TraceBuilder()
        for node in "012":
            builder.emit("boot", node)
            builder.emit("connect", node)
        builder.elect("0", 1)
        builder.start("0", 1, 1, 10)
        if applied:
            builder.apply("1", 1, 10)
        for _ in range(8):
            builder.now_ms += 100
            builder.append("0", "1", 1)
        return [found.name for found in examine(builder.trace, Failure("no agreement", awaited=1))]

    assert ("start_never_sent" in diagnosed(applied=False), "start_never_sent" in diagnosed(applied=True)) == (
        True,
        False,
    )


def run_summary(builder, rule, peer):
    return [found.name for found in examine(builder.trace, Failure("broken", rule=rule, peer=peer))]


def test_vote_for_peer_0_needs_a_remembered_vote():
    def diagnosed(refuses, first="0"):
        builder = TraceBuilder(servers=4)
        builder.save("0", "1", "2")
        if refuses:
            builder.vote("1", "3", 1)
            builder.vote("2", "3", 1, granted=False)
        builder.vote(first, "3", 2)
        builder.vote("2", "3", 2)
        found = diagnose(builder.trace, Failure("broken", rule="one-vote", peer="3"))
        causes = [finding.paragraph for finding in found]
        return [cause.replace("\n", " ") for cause in causes]

    (sure,), (unsure,) = diagnosed(refuses=True), diagnosed(refuses=False)
    assert (
        "Votes for other peers are remembered: peer 3 had voted for peer 1 in term 1" in sure
        and "not checked" not in sure
    )
    assert "Votes for other peers" not in unsure and "voted_for is not checked" in unsure
    assert diagnosed(refuses=True, first="1") == []


def test_denial_long_before_leadership_is_not_a_cause():
    def diagnosed(later_ms):
        builder = TraceBuilder()
        builder.save("0")
        builder.vote("0", "1", 1, granted=False)
        builder.now_ms += later_ms
        builder.append("0", "1", 1)
        return run_summary(builder, "earned-leadership", "0")

    assert (diagnosed(0), diagnosed(100)) == (["denials_counted_as_votes"], [])


def test_earlier_votes_need_a_campaign_of_the_leader():
    """Then it may be an office that was kept."""

    def diagnosed(heard, restarted=False):
        builder = TraceBuilder()
        builder.elect("0", 1)
        builder.append("0", "1", 1)
        if heard:
            builder.save("2")
            builder.vote("2", "0", 2, granted=False)
        if restarted:
            builder.emit("restart", "0")
        builder.append("0", "1", 2)
        return run_summary(builder, "earned-leadership", "0")

    assert (diagnosed(heard=False), diagnosed(heard=True)) == (["earlier_votes_counted"], [])
    assert diagnosed(heard=False, restarted=True) == []


def test_repeated_requests_to_one_peer_are_not_a_loop_bug():
    def diagnosed(step_ms):
        builder = TraceBuilder()
        for node in "012":
            builder.emit("boot", node)
            builder.emit("connect", node)
        for term in range(1, 4):
            for _ in range(2):
                builder.now_ms += step_ms - 1
                builder.send("0", "2", RequestVoteArgs(term, 0, 0, 0))
            builder.now_ms += 500
        return "all_requests_to_one_peer" in [found.name for found in examine(builder.trace, Failure("no leader"))]

    assert (diagnosed(0), diagnosed(100)) == (True, False)


def test_snapshot_is_not_a_cause_without_earlier_saves():
    def diagnosed(saved_before, saved_after=False):
        builder = TraceBuilder()
        builder.elect("0", 1)
        builder.append("0", "1", 1, entries=[(1, 10)], saved=saved_before)
        builder.save("1")
        builder.save("1", snapshot=b"a snapshot")
        if saved_after:
            builder.save("1", snapshot=b"a snapshot")
        builder.append("0", "1", 1, prev=(1, 1), entries=[(1, 20)], saved=False)
        del builder.trace[-1]  # the run ends with the answer
        return run_summary(builder, "saved-before-reply", "1")

    assert (diagnosed(True), diagnosed(False), diagnosed(True, True)) == (["unsaved_after_the_snapshot"], [], [])


def test_mixed_up_answers_need_another_waiting_request(tmp_path):
    """A handler that returns the wrong class, whatever else is asked."""
    launcher = load_peer(
        edited_reference(
            tmp_path,
            ("return AppendEntriesReply(self.current_term, True)", "return RequestVoteReply(self.current_term, True)"),
        )
    )
    run = run_test(elect, launcher, 1)
    assert isinstance(run.error, TaskFailed) and "returned a RequestVoteReply" in str(run.error.__cause__)
    assert names(run) == []


# ---- nothing is better than something wrong ------------------------------------------------------------------

QUICK = ["2a", "2b", "test_persist?_2c", "test_figure8_2c", "test_snapshot_*", "test_slow_disks_2c"]


@pytest.mark.parametrize("test", select(QUICK, sorted((ROOT / "tests").glob("test_2*.py"))), ids=lambda test: test.name)
def test_the_reference_is_never_diagnosed(tmp_path, test):
    run = run_test(test, load_peer(edited_reference(tmp_path)), 3)
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
    ids=lambda situation: situation.name,
)
def test_reference_passes_all_situations(tmp_path, situation):
    run = run_test(situation, load_peer(edited_reference(tmp_path)), 1)
    assert run.error is None
    no_reason = Failure("a test that fails for no reason")
    assert examine(run.simulation.trace, no_reason, end_ns=run.simulation.now_ns) == []


def test_a_broken_rule_that_explains_itself_gets_no_diagnosis(tmp_path):
    launcher = load_peer(
        edited_reference(tmp_path, ("up_to_date and self.voted_for in (None, args.candidate_id)", "up_to_date"))
    )
    run = run_test(lab("test_many_elections_2a"), launcher, 2)
    assert run.error.rule == "one-vote"
    assert diagnose(run.simulation.trace, run.error) == []


def test_exception_without_a_snapshot_gets_no_diagnosis(tmp_path):
    launcher = load_peer(edited_reference(tmp_path, ("up_to_date = (", "up_to_date = [][1] or (")))
    run = run_test(elect, launcher, 1)
    assert isinstance(run.error, TaskFailed)
    assert diagnose(run.simulation.trace, run.error) == []


def test_only_the_last_cluster_of_a_test_counts(tmp_path):
    """The first one never had a leader for want of a majority; the second does well."""

    @collect
    def two(make_config):
        cfg = make_config(servers=3)
        cfg.network.partition(["0"], ["1"], ["2"])
        time.sleep(5.0)
        cfg = make_config(servers=3)
        cfg.check_one_leader()
        cfg.fail("for no reason")

    run = run_test(two, load_peer(edited_reference(tmp_path)), 1)
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
def test_undecodable_messages_are_skipped(args, reply):
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
