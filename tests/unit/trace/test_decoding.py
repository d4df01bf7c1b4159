"""What is decoded, and what rules conclude and report about undecodable messages."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from labgob import encode
from labrpc import Message
from raft.messages import AppendEntriesArgs, AppendEntriesReply, LogEntry, RequestVoteArgs, RequestVoteReply
from raftlab.check.rules.budgets import RPCS_PER_LINK_PER_S
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.tools.selection import load_tests
from unit.check.trace_builder import TraceBuilder
from unit.students import ROOT, edited_reference, renamed_package

pytestmark = pytest.mark.usefixtures("raft_package_restored")

LACKING = [
    ("last_log_term", "Raft.request_vote is not checked: its arguments have no field 'last_log_term'"),
    (
        "vote_granted",
        "Replies to Raft.request_vote are not checked: they have no field 'vote_granted' (its requests are checked)",
    ),
    ("prev_log_index", "Raft.append_entries is not checked: its arguments have no field 'prev_log_index'"),
    ("leader_commit", "Raft.append_entries is not checked: its arguments have no field 'leader_commit'"),
    (
        "entries",
        "The entries of Raft.append_entries are not checked: its arguments have no field 'entries' "
        "(its other fields are checked when sent)",
    ),
    (
        "success",
        "Replies to Raft.append_entries are not checked: they have no field 'success' (its requests are checked)",
    ),
    (
        "last_included_index",
        "Raft.install_snapshot is not checked: its arguments have no field 'last_included_index'",
    ),
]
SENT = "(its other fields are checked when sent)"
BEST = (
    "Such a message may contain anything, so these rules assume the best for its receiver: earned-leadership, "
    "votes-for-the-first, success-means-match, honest-candidate, up-to-date-vote, earned-commit, "
    "applies-only-committed, saved-before-reply, saved-before-counting"
)
BEST_OF_VOTES = f"{BEST.partition(': ')[0]}: earned-leadership, votes-for-the-first, saved-before-reply"
TESTS = ("test_reelection_2a", "test_rejoin_2b", "test_persist3_2c", "test_snapshot_install_2d")


@pytest.mark.parametrize(("name", "line"), LACKING, ids=[name for name, _ in LACKING])
def test_peer_with_renamed_fields_is_tested(tmp_path, name, line):
    launcher = load_peer(renamed_package(tmp_path, **{name: f"{name}_"}))
    tests = [test for part in "abcd" for test in load_tests(ROOT / f"tests/test_2{part}.py") if test.name in TESTS]
    assert len(tests) == len(TESTS)
    runs = [run_test(test, launcher, seed) for test in tests for seed in (1, 2)]
    assert [run.error for run in runs] == [None] * len(runs)
    best = BEST_OF_VOTES if name == "vote_granted" else BEST
    assert {line for run in runs for line in run.checks_off} == {line, best}


def test_paper_fields_are_all_checked(tmp_path):
    run = run_test(load_tests(ROOT / "tests/test_2b.py")[0], load_peer(edited_reference(tmp_path)), 1)
    assert run.checks_off == []


@dataclass
class OfPairs:
    term: int
    prev_log_index: int
    prev_log_term: int
    entries: list[tuple[int, Any]]
    leader_commit: int


@dataclass
class OfMaybes:
    term: int
    prev_log_index: int | None
    prev_log_term: int | None
    entries: list[LogEntry]
    leader_commit: int


@dataclass
class MaybeEntry:
    term: int | None  # None: as the next one's
    command: Any


@dataclass
class OfRuns:
    term: int
    prev_log_index: int
    prev_log_term: int
    entries: list[MaybeEntry]
    leader_commit: int


@dataclass(frozen=True)
class OfATuple:
    term: int
    prev_log_index: int
    prev_log_term: int
    entries: tuple[LogEntry, ...]
    leader_commit: int


def test_entries_may_be_a_tuple():
    builder = TraceBuilder()
    builder.elect("0", 1)
    for index, command in ((1, 10), (2, 20)):
        builder.start("0", index, 1, command)
        message = OfATuple(1, index - 1, index // 2, (LogEntry(1, command),), 0)
        for follower in "12":
            request = builder.deliver(builder.send("0", follower, message, "Raft.append_entries"))
            builder.save(follower)
            builder.answer(request, AppendEntriesReply(1, True))
    builder.apply("0", 1, 10)
    builder.apply("0", 2, 20)
    assert (builder.broken_rule(), builder.checker.undecodable_notes) == (None, [])


@dataclass
class OtherReply:
    term: int
    granted: bool


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (
            OfPairs(1, 0, 0, [(1, 10)], 0),
            f"The entries of Raft.append_entries are not checked: they have no field 'term' {SENT}",
        ),
        (
            OfMaybes(1, None, None, [LogEntry(1, 10)], 0),
            "Raft.append_entries is not checked: its arguments have no int in 'prev_log_index'",
        ),
        (
            OfRuns(1, 0, 0, [MaybeEntry(None, 10), MaybeEntry(1, 20)], 0),
            f"The entries of Raft.append_entries are not checked: they have no int in 'term' {SENT}",
        ),
    ],
)
def test_fields_of_another_type_are_undecodable(args, what):
    builder = TraceBuilder()
    builder.elect("0", 1)
    message = builder.deliver(builder.send("0", "1", args, "Raft.append_entries"))
    builder.answer(message, AppendEntriesReply(1, True))
    builder.apply("1", 1, 10)
    assert builder.broken_rule() == "only-started"  # which needs no message
    assert builder.checker.undecodable_notes == [what, BEST]


def test_requests_with_undecodable_replies_are_checked():
    """The arguments of a RequestVote are checked even if its reply is undecodable."""
    builder = TraceBuilder()
    builder.save("1")
    builder.answer(builder.deliver(builder.send("1", "2", RequestVoteArgs(2, 1, 0, 0))), OtherReply(2, True))
    builder.now_ms += 200
    builder.send("1", "0", RequestVoteArgs(1, 1, 0, 0))
    assert builder.broken_rule() == "speaks-in-its-term"
    assert (
        "Replies to Raft.request_vote are not checked: they have no field 'vote_granted' (its requests"
        in builder.checker.undecodable_notes[0]
    )


def test_the_budget_needs_no_field():
    builder = TraceBuilder()
    builder.now_ms = 1000
    for _ in range(RPCS_PER_LINK_PER_S + 1):
        builder.now_ms = 1000
        builder.send("0", "1", RequestVoteArgs(1, 0, 0, 0), "Raft.ask")
    assert builder.broken_rule() == "rpc-budget"


@pytest.mark.parametrize("word", [7, "all of yours up to 7 is saved", [1, "an entry perhaps"]])
def test_undecodable_message_excuses_only_its_receiver(word):
    """A number may acknowledge, a string may bring an entry. Other peers are still checked."""

    def run_case(builder, to):
        message = Message(1000, "0", to, "Raft.hello", encode(word), type(word))
        for kind, node in (("send", "0"), ("deliver", to)):
            builder.emit(kind, node, message, message.id)
        builder.elect("0", 1)
        builder.append("0", "1", 1, entries=[(1, 10)], saved=False)

    to_it, to_another = TraceBuilder(), TraceBuilder()
    run_case(to_it, "1")
    run_case(to_another, "2")
    assert (to_it.broken_rule(), to_another.broken_rule()) == (None, "saved-before-reply")
    unread = ["Raft.hello is not checked: it is not an RPC from the paper", BEST]
    assert to_it.checker.undecodable_notes == to_another.checker.undecodable_notes == unread


def test_acknowledgement_in_an_added_field_counts():
    @dataclass
    class Reply:
        term: int
        success: bool
        saved_index: int = 0

    def run_case(builder, saved_index):
        builder.elect("0", 1)
        builder.start("0", 1, 1, 10)
        builder.append("0", "1", 1, entries=[(1, 10)], success=False)
        heartbeat = builder.deliver(builder.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [], 0)))
        builder.answer(heartbeat, Reply(1, True, saved_index))
        builder.apply("0", 1, 10)

    told, silent = TraceBuilder(), TraceBuilder()
    run_case(told, 1)
    run_case(silent, 0)
    assert (told.broken_rule(), silent.broken_rule()) == (None, "earned-commit")


def test_flagged_request_vote_is_not_a_campaign():
    """Pre-vote as a flag of RequestVote: the peer begins no term and grants no vote."""

    @dataclass
    class Args:
        term: int
        candidate_id: int
        last_log_index: int
        last_log_term: int
        pre_vote: bool = False

    def run_case(builder, pre_vote):
        builder.save("1", "2")
        request = builder.deliver(builder.send("1", "2", Args(1, 1, 0, 0, pre_vote), "Raft.request_vote"))
        builder.save("2")
        builder.answer(request, RequestVoteReply(0 if pre_vote else 1, pre_vote))
        builder.save("0")
        builder.vote("0", "1", 1)
        builder.now_ms = 200  # by now it would have asked itself
        builder.save("2")
        builder.vote("2", "0", 2)

    flagged, plain = TraceBuilder(), TraceBuilder()
    run_case(flagged, True)
    run_case(plain, False)
    assert (flagged.broken_rule(), plain.broken_rule()) == (None, "one-vote")
    assert flagged.checker.undecodable_notes[0] == "Raft.request_vote with 'pre_vote' set is not checked"


@dataclass
class WordyArgs:
    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int
    kind: str = "vote"
    checks_logs: bool = True


@pytest.mark.parametrize(("kind", "broken"), [("pre", None), ("vote", "one-vote")])
def test_flag_is_a_string_or_true_unlike_its_default(kind, broken):
    builder = TraceBuilder()
    for candidate in "01":
        builder.save(candidate)
        args = WordyArgs(1, int(candidate), 0, 0, kind)
        request = builder.deliver(builder.send(candidate, "2", args, "Raft.request_vote"))
        builder.save("2")
        builder.answer(request, RequestVoteReply(1, True))
    assert builder.broken_rule() == broken


def test_undecodable_campaign_may_hide_commands():
    @dataclass
    class Args:
        term: int
        candidate_id: int
        last_log_index: int
        last_log_term: int
        transfer: bool = False

    builder = TraceBuilder()
    builder.save("0")
    for voter in "12":
        request = builder.deliver(builder.send("0", voter, Args(1, 0, 0, 0, True), "Raft.request_vote"))
        builder.save(voter)
        builder.answer(request, RequestVoteReply(1, True))
    builder.append("0", "1", 1)
    builder.emit("start", "0", 10)
    builder.save("0")
    builder.crash("0")
    builder.save("0")
    builder.send("0", "1", RequestVoteArgs(2, 0, 1, 1))
    assert builder.broken_rule() is None


def test_entries_in_an_added_field_of_a_snapshot_may_have_arrived():
    @dataclass
    class Args:
        term: int
        leader_id: int
        last_included_index: int
        last_included_term: int
        data: bytes
        entries: list[LogEntry] = field(default_factory=list)

    @dataclass
    class Reply:
        term: int
        match_index: int = 0

    def run_case(builder, entries):
        builder.elect("0", 1)
        for index in (1, 2):
            builder.start("0", index, 1, 10 * index)
        request = builder.deliver(builder.send("0", "1", Args(1, 0, 1, 1, b"", entries), "Raft.install_snapshot"))
        builder.save("1")
        builder.answer(request, Reply(1, 1 + len(entries)))
        builder.append("0", "1", 1, prev=(2, 1))
        builder.apply("0", 1, 10)
        builder.apply("0", 2, 20)

    with_entries, without = TraceBuilder(), TraceBuilder()
    run_case(with_entries, [LogEntry(1, 20)])
    run_case(without, [])
    assert (with_entries.broken_rule(), without.broken_rule()) == (None, "success-means-match")


def test_pre_vote_does_not_excuse_a_false_log():
    """It has RequestVote's fields, so it neither adds nor removes entries."""

    @dataclass
    class PreVote:
        term: int
        candidate_id: int
        last_log_index: int
        last_log_term: int

    @dataclass
    class Anything:
        entries: list[int]

    def run_case(builder, args):
        builder.elect("0", 1)
        builder.append("0", "1", 1, entries=[(1, 10)])
        request = builder.deliver(builder.send("2", "1", args, "Raft.pre_vote"))
        builder.answer(request, RequestVoteReply(1, False))
        builder.save("1")
        builder.send("1", "2", RequestVoteArgs(2, 1, 0, 0))

    pre_vote, anything = TraceBuilder(), TraceBuilder()
    run_case(pre_vote, PreVote(2, 2, 0, 0))
    run_case(anything, Anything([1]))
    assert (pre_vote.broken_rule(), anything.broken_rule()) == ("honest-candidate", None)


def test_term_of_a_pre_vote_may_be_saved_then():
    @dataclass
    class PreVote:
        term: int
        candidate_id: int
        last_log_index: int
        last_log_term: int

    def run_case(builder, pre_vote):
        builder.elect("0", 1)
        if pre_vote:
            request = builder.deliver(builder.send("1", "2", PreVote(2, 1, 0, 0), "Raft.pre_vote"))
            builder.answer(request, RequestVoteReply(2, False))
        builder.save("1")
        builder.append("0", "1", 1, saved=False)
        builder.elect("2", 2, voters="02")
        builder.append("2", "1", 2, saved=False)

    told, not_told = TraceBuilder(), TraceBuilder()
    run_case(told, pre_vote=True)
    run_case(not_told, pre_vote=False)
    assert (told.broken_rule(), not_told.broken_rule()) == (None, "saved-before-reply")


@dataclass
class InvitedArgs:
    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int
    invited: bool = False


@pytest.mark.parametrize("method", ["Raft.request_vote", "Raft.invited_vote"])
@pytest.mark.parametrize(("asks", "broken"), [(True, None), (False, "saved-before-reply")])
def test_undecodable_candidate_may_have_saved_its_term(method, asks, broken):
    """Its leader asked it to campaign, and its request has a flag (dissertation §3.10)."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.append("0", "1", 1)
    if asks:
        builder.save("1")
        builder.send("1", "0", InvitedArgs(2, 1, 0, 0, True), method)
    else:
        builder.append("0", "1", 1, saved=False)  # so that it has spoken since its last save
    builder.save("2")
    builder.vote("2", "1", 2, granted=False, saved=False)
    assert builder.broken_rule() == broken


@pytest.mark.parametrize(("known", "broken"), [(1, None), (0, "earned-commit")])
def test_leader_may_learn_a_commit_from_an_added_field(known, broken):
    @dataclass
    class Reply:
        term: int
        success: bool
        committed: int = 0

    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10)
    builder.append("0", "2", 1, prev=(1, 1), commit=1)
    builder.elect("1", 2, last=(1, 1), voters="12")
    heartbeat = builder.deliver(builder.send("1", "2", AppendEntriesArgs(2, 1, 1, 1, [], 0)))
    builder.answer(heartbeat, Reply(2, True, known))
    builder.apply("1", 1, 10)
    assert builder.broken_rule() == broken


@pytest.mark.parametrize(("known", "committed"), [(1, True), (0, True), (1, False)])
def test_voter_may_learn_a_commit_from_an_added_field(known, committed):
    @dataclass
    class Args:
        term: int
        candidate_id: int
        last_log_index: int
        last_log_term: int
        committed: int = 0

    builder = TraceBuilder(servers=5)
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    builder.append("0", "1", 1, entries=[(1, 10)])
    if committed:
        builder.append("0", "2", 1, entries=[(1, 10)])
        builder.append("0", "2", 1, prev=(1, 1), commit=1)
    builder.save("0")
    request = builder.deliver(builder.send("0", "1", Args(2, 0, 1, 1, known), "Raft.request_vote"))
    builder.save("1")
    builder.answer(request, RequestVoteReply(2, True))
    builder.apply("1", 1, 10)
    assert builder.broken_rule() == (None if known and committed else "applies-only-committed")


@pytest.mark.parametrize(
    ("fetched", "committed", "broken"),
    [(True, True, None), (True, False, "earned-commit"), (False, True, "earned-commit")],
)
def test_deposed_leader_may_learn_a_commit_undecodably(fetched, committed, broken):
    """Followers fetch entries, and a former leader learns of the later term and its commits only from that."""

    @dataclass
    class Fetched:
        entries: list

    builder = TraceBuilder(servers=5)
    builder.elect("0", 1, voters="012")
    builder.start("0", 1, 1, 10)
    builder.elect("1", 2, voters="123")
    builder.start("1", 1, 2, 20)
    if committed:
        for follower in "23":
            builder.append("1", follower, 2, entries=[(2, 20)])
        builder.apply("1", 1, 20)
    if fetched:
        request = builder.deliver(builder.send("0", "1", InvitedArgs(1, 0, 1, 1), "Raft.fetch"))
        builder.answer(request, Fetched([20]))
    builder.apply("0", 1, 20)
    assert builder.broken_rule() == broken


@pytest.mark.parametrize(
    ("passed_on", "told", "broken"),
    [
        (True, "by an RPC", None),
        (True, "in a field", None),
        (True, "", "earned-commit"),
        (False, "in a field", "earned-commit"),
    ],
)
def test_follower_may_forward_entries_and_acknowledgements(passed_on, told, broken):
    """By RPCs that are not from the paper: of five peers, one hears from the leader, and another from that one."""

    @dataclass
    class Reply:
        term: int
        success: bool
        acknowledged: int = 0

    @dataclass
    class Word:
        entries: list

    builder = TraceBuilder(servers=5)
    builder.elect("0", 1, voters="012")
    builder.start("0", 1, 1, 10)
    builder.append("0", "1", 1, entries=[(1, 10)])
    if passed_on:
        passed = builder.deliver(builder.send("1", "2", Word([10]), "Raft.pass_on"))
        builder.save("2")
        builder.answer(passed, Word([]))
    if told == "by an RPC":
        builder.answer(builder.deliver(builder.send("1", "0", Word([1, 2]), "Raft.relayed")), Word([]))
    if told == "in a field":
        heartbeat = builder.deliver(builder.send("0", "1", AppendEntriesArgs(1, 0, 1, 1, [], 0)))
        builder.answer(heartbeat, Reply(1, True, 1))
    builder.apply("0", 1, 10)
    assert builder.broken_rule() == broken


def test_notes_about_unknown_methods_are_limited():
    builder = TraceBuilder()
    for number in range(1000):
        builder.send("0", "1", RequestVoteArgs(1, 0, 0, 0), f"Raft.{'x' * 100} {number}")
    assert builder.broken_rule() is None
    assert len(builder.checker.undecodable_notes) <= 11 and max(map(len, builder.checker.undecodable_notes[:-1])) < 160
    assert builder.checker.undecodable_notes[0].startswith("Raft.xxx")
