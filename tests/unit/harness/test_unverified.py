"""Leadership and commits must be proved by messages; if these cannot be decoded, the outcome is unverified."""

import re
from dataclasses import dataclass

import pytest

from raft.messages import RequestVoteReply
from raftlab.harness.loader import load_peer
from raftlab.harness.outcome import Ending
from raftlab.harness.run import run_test
from raftlab.sandbox.loader import launcher_for
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import load_tests
from tests.mutants.tool.mutants import PEERS
from unit.check.trace_builder import TraceBuilder
from unit.students import ROOT, agree, edited_reference, peer, renamed_package, report_of, written

pytestmark = pytest.mark.usefixtures("raft_package_restored")

TESTS = {test.name: test for part in "ab" for test in load_tests(ROOT / f"tests/test_2{part}.py")}
ELECTION = TESTS["test_initial_election_2a"]
AGREEMENT = TESTS["test_basic_agree_2b"]

# They acknowledge in RPCs of their own, "relay" only relayed entries
# (docs/instructor/grading.md).
UNDECODABLE = {"added_ack", "pull"}

WRONG_QUORUM = (
    "if sum(self.votes.values()) > len(self.peers) // 2:",
    "if sum(self.votes.values()) >= len(self.peers) // 2:",
)

BULLY = """
from dataclasses import dataclass
from labsim import threading, time

@dataclass
class Ping:
    source: int

@dataclass
class Pong:
    source: int

class Raft:
    def __init__(self, peers, me, persister, apply_ch):
        self.peers, self.me, self.dead, self.seen = peers, me, False, {}
        for i in range(len(peers)):
            if i != me:
                threading.Thread(target=self.watch, args=(i,), daemon=True).start()

    def watch(self, i):
        while not self.dead:
            if self.peers[i].call("Raft.ping", Ping(self.me)) is not None:
                self.seen[i] = time.time()
            time.sleep(0.05)

    def ping(self, args: Ping) -> Pong:
        return Pong(self.me)

    def get_state(self):
        alive = [i for i, at in self.seen.items() if time.time() - at < 0.3]
        return 1, 2 * (len(alive) + 1) > len(self.peers) and max([*alive, self.me]) == self.me

    def start(self, command):
        return -1, 1, False

    def kill(self):
        self.dead = True
"""


def run_once(test, launcher, seed=1):
    run = run_test(test, launcher, seed)
    return run.outcome(), run


def rule_of(test, launcher):
    outcome, _ = run_once(test, launcher)
    return outcome.ending, outcome.name


@pytest.mark.parametrize("isolated", [False, True])
def test_leading_without_votes_breaks_a_rule(tmp_path, isolated):
    constant = peer(tmp_path, state="1, self.me == 0")
    assert rule_of(ELECTION, launcher_for(constant, isolated=isolated)) == (Ending.RULE, "earned-leadership")


def test_claim_is_reported_with_its_peer(tmp_path):
    text = report_of(peer(tmp_path, state="1, self.me == 0"))
    assert "Peer 0 leads term 1 with 1 of 3 votes: its own" in text
    assert "get_state() on peer 0 reports that it leads term 1" in text


def test_accepting_a_command_is_a_claim(tmp_path):
    taker = peer(tmp_path, start="1, 1, self.me == 0")
    text = report_of(taker, agree)
    assert "A leader needs votes from a majority (§5.2)" in text
    assert "start() on peer 0 reports that it leads term 1" in text


def test_a_single_server_leads_without_messages(tmp_path):
    def alone(make_config):
        assert make_config(servers=1).check_one_leader() == 0

    assert run_once(collect(alone), load_peer(peer(tmp_path, state="1, True")))[0].ending is Ending.PASSED


def test_leading_by_pings_is_unverified(tmp_path):
    outcome, run = run_once(ELECTION, load_peer(written(tmp_path, BULLY)))
    assert outcome.ending is Ending.UNVERIFIED
    (line,) = run.unverified
    assert "Leadership cannot be verified" in line and "Raft.ping" in line
    assert "RequestVoteArgs: term, candidate_id" in line and "raft/messages.py" in line


def test_on_real_threads_a_leader_must_have_sent_something(tmp_path):
    text = report_of(peer(tmp_path, state="1, self.me == 0"), realtime=True)
    assert "leads term 1, but no peer has sent anything" in text


@pytest.mark.parametrize(
    ("fields", "in_2a", "in_2b"),
    [
        ({"vote_granted": "yes"}, {"Leadership"}, {"Leadership"}),
        ({"last_log_term": "at"}, {"Leadership"}, {"Leadership"}),
        ({"success": "matches"}, set(), {"Commits"}),
        ({"entries": "items"}, set(), {"Commits"}),
        ({"vote_granted": "yes", "success": "matches"}, {"Leadership"}, {"Leadership", "Commits"}),
    ],
)
def test_renamed_fields_make_tests_unverified(tmp_path, fields, in_2a, in_2b):
    launcher = load_peer(renamed_package(tmp_path, **fields))
    for test, expected in ((ELECTION, in_2a), (AGREEMENT, in_2b)):
        outcome, run = run_once(test, launcher)
        assert {line.partition(" cannot be verified")[0] for line in run.unverified} == expected
        assert outcome.ending is (Ending.UNVERIFIED if expected else Ending.PASSED)


RENAMED_METHODS = {"request_vote": "ask", "append_entries": "tell", "install_snapshot": "ship"}


@pytest.mark.parametrize("isolated", [False, True])
def test_paper_s_types_are_decoded_under_any_method(tmp_path, isolated):
    launcher = launcher_for(renamed_package(tmp_path, **RENAMED_METHODS), isolated=isolated)
    assert launcher.renamed_rpcs == {f"Raft.{new}": f"Raft.{old}" for old, new in RENAMED_METHODS.items()}
    outcome, run = run_once(AGREEMENT, launcher)
    assert (outcome.ending, run.unverified, run.checks_off) == (Ending.PASSED, [], [])
    assert run.digest == run_once(AGREEMENT, launcher_for(ROOT / "raft/raft.py", isolated=isolated))[1].digest


def hidden(folder, source, way):
    """This raft.py with other names, or with bytes for messages."""
    messages = (ROOT / "raft/messages.py").read_text(encoding="utf-8")
    names = {"fields": {"vote_granted": "yes", "success": "matches"}, "methods": RENAMED_METHODS}.get(way, {})
    for old, new in names.items():
        source, messages = (re.sub(rf"\b{old}\b", new, text) for text in (source, messages))
    (folder / "messages.py").write_text(messages, encoding="utf-8")
    (folder / "raft.py").write_text(source + (IN_BYTES if way == "bytes" else ""), encoding="utf-8")
    return load_peer(folder)


IN_BYTES = """

import labgob
from raft import messages

_TYPES = {
    "request_vote": (messages.RequestVoteArgs, messages.RequestVoteReply),
    "append_entries": (messages.AppendEntriesArgs, messages.AppendEntriesReply),
}


class _End:
    def __init__(self, end):
        self.end = end

    def call(self, method, args):
        reply = self.end.call(method, labgob.encode(args))
        return None if reply is None else labgob.decode(reply, _TYPES[method.partition(".")[2]][1])


class _Typed(Raft):
    pass


class Raft(_Typed):
    def __init__(self, peers, me, persister, apply_ch):
        super().__init__([_End(peer) for peer in peers], me, persister, apply_ch)

    def request_vote(self, args: bytes) -> bytes:
        return labgob.encode(super().request_vote(labgob.decode(args, _TYPES["request_vote"][0])))

    def append_entries(self, args: bytes) -> bytes:
        return labgob.encode(super().append_entries(labgob.decode(args, _TYPES["append_entries"][0])))
"""


@pytest.mark.parametrize(
    ("way", "ending"), [("fields", "rule"), ("bytes", "unverified"), ("methods", "rule"), ("", "rule")]
)
def test_hidden_wrong_quorum_does_not_pass(tmp_path, way, ending):
    source = edited_reference(tmp_path, WRONG_QUORUM).read_text(encoding="utf-8")
    assert run_once(ELECTION, hidden(tmp_path, source, way))[0].ending == ending


PRE_VOTE = """

class _Votes(Raft):
    pass


class Raft(_Votes):
    def may_i(self, args: RequestVoteArgs) -> RequestVoteReply:
        return RequestVoteReply(args.term, True)
"""


@pytest.mark.parametrize(("method", "renamed"), [("request_vote", False), ("ask", True)])
def test_type_used_by_two_methods_needs_the_paper_s_name(tmp_path, method, renamed):
    """A pre-vote may use RequestVoteArgs: of two renamed methods it is unknown which one is the vote."""
    folder = renamed_package(tmp_path, request_vote=method)
    with (folder / "raft.py").open("a", encoding="utf-8") as file:
        file.write(PRE_VOTE)
    launcher = load_peer(folder)
    assert launcher.renamed_rpcs == {}
    assert run_once(ELECTION, launcher)[0].ending is (Ending.UNVERIFIED if renamed else Ending.PASSED)


@pytest.mark.parametrize("name", sorted(path.name for path in PEERS.iterdir() if (path / "raft.py").exists()))
def test_correct_peers_of_other_designs_are_verified(name):
    outcome, run = run_once(AGREEMENT, load_peer(PEERS / name))
    assert run.error is None
    assert outcome.ending is (Ending.UNVERIFIED if name in UNDECODABLE else Ending.PASSED)


@dataclass
class InvitedArgs:
    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int
    invited: bool = False


@pytest.mark.parametrize(
    ("led_before", "voters", "expected"),
    [(True, "0", []), (True, "", ["earned-leadership"]), (False, "0", ["Leadership"])],
)
def test_leadership_transfer_is_verified_by_flagged_votes(led_before, voters, expected):
    """A peer that its leader asked to campaign may set a flag in RequestVote (dissertation 3.10)."""
    builder = TraceBuilder()
    if led_before:
        builder.elect("0", 1)
        builder.append("0", "1", 1)
    for voter in voters:
        request = builder.deliver(builder.send("1", voter, InvitedArgs(2, 1, 0, 0, True), "Raft.request_vote"))
        builder.answer(request, RequestVoteReply(2, True))
    builder.append("1", "2", 2)
    broken = builder.broken_rule()
    found = [broken] if broken else [line.partition(" cannot")[0] for line in builder.checker.unverified]
    assert found == expected
