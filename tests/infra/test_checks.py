"""The checks, one by one: what each must see, told event by event, and the like of it that it must let pass."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from students import ROOT, edited_reference, renamed_package

from labgob import encode
from labrpc import Message
from labsim import Event, Simulation, time
from labtest.checks import CheckedTrace
from labtest.checks.budgets import RPCS_PER_LINK_PER_S
from labtest.checks.checker import _HANDFUL, RULES
from labtest.determinism import Recorder
from labtest.failure import Failure
from labtest.loading import load_peer_class
from labtest.running import run_test
from labtools.selecting import load_tests
from raft.messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    ApplyMsg,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    LogEntry,
    RequestVoteArgs,
    RequestVoteReply,
)

pytestmark = pytest.mark.usefixtures("raft_package_restored")

METHODS = {
    RequestVoteArgs: "Raft.request_vote",
    AppendEntriesArgs: "Raft.append_entries",
    InstallSnapshotArgs: "Raft.install_snapshot",
}


class Story:
    """A run told by its events. Nothing happens but what is said here; every step takes a millisecond."""

    def __init__(self, servers=3):
        self.simulation = SimpleNamespace(now_ns=0)
        self.trace = CheckedTrace(self.simulation)
        self.now_ms = 0
        self.lives = {}
        self.messages = 0
        self.tell("cluster", "", servers)

    def tell(self, kind, node="", detail=None, message=0):
        self.now_ms += 1
        event = Event(self.now_ms * 1_000_000, kind, node, self.lives.get(node, 1), message, detail)
        list.append(self.trace, event)

    def broken(self):
        """The name of the first rule that is broken, or None."""
        try:
            self.trace.look()
        except Failure as failure:
            return failure.rule
        return None

    # ---- a message's steps -------------------------------------------------------------------------------------

    def send(self, source, target, args, method=""):
        self.messages += 1
        message = Message(self.messages, source, target, method or METHODS[type(args)], encode(args), type(args))
        self.tell("send", source, message, message.id)
        return message

    def deliver(self, message):
        self.tell("deliver", message.target, message, message.id)
        return message

    def answer(self, message, reply, *, arrives=True):
        message.reply, message.reply_type = encode(reply), type(reply)
        self.tell("answer", message.target, message, message.id)
        if arrives:
            self.tell("reply", message.source, message, message.id)

    def save(self, *nodes, snapshot=b""):
        for node in nodes:
            self.tell("persist", node, (b"state", snapshot))

    def crash(self, node):
        self.tell("crash", node)
        self.lives[node] = self.lives.get(node, 1) + 1
        self.tell("restore", node, 0)

    # ---- whole exchanges, right unless told otherwise --------------------------------------------------------------

    def vote(self, source, target, term, *, last=(0, 0), granted=True, saved=True, reply_term=None):
        """`last` is (index, term), as everywhere here."""
        message = self.deliver(self.send(source, target, RequestVoteArgs(term, int(source), *last)))
        if saved:
            self.save(target)
        self.answer(message, RequestVoteReply(term if reply_term is None else reply_term, granted))

    def elect(self, leader, term, *, last=(0, 0), voters="012"):
        self.save(leader)
        for voter in voters:
            if voter != leader:
                self.vote(leader, voter, term, last=last)

    def append(
        self, leader, follower, term, prev=(0, 0), entries=(), commit=0, *, success=True, saved=True, reply_term=None
    ):
        """`entries` are (term, command)."""
        args = AppendEntriesArgs(term, int(leader), *prev, [LogEntry(*entry) for entry in entries], commit)
        message = self.deliver(self.send(leader, follower, args))
        if saved:
            self.save(follower)
        self.answer(message, AppendEntriesReply(term if reply_term is None else reply_term, success))

    def install(self, leader, follower, term, last, *, reply_term=None):
        message = self.deliver(self.send(leader, follower, InstallSnapshotArgs(term, int(leader), *last, b"")))
        self.save(follower)
        self.answer(message, InstallSnapshotReply(term if reply_term is None else reply_term))

    def start(self, node, index, term, command):
        self.tell("start", node, command)
        self.save(node)
        self.tell("started", node, (command, index, term, True))

    def apply(self, node, index, command):
        self.tell("apply", node, ApplyMsg(True, command, index))

    def agree(self, leader, term, index, command, *, prev_term=None, followers="012", commit=0):
        """One command, started, and sent to the followers, who say yes."""
        self.start(leader, index, term, command)
        prev = (index - 1, (term if index > 1 else 0) if prev_term is None else prev_term)
        for follower in followers:
            if follower != leader:
                self.append(leader, follower, term, prev, [(term, command)], commit)


def story_of_agreement():
    """Peer 0 leads term 1 and has committed command 10; all have applied it."""
    story = Story()
    story.elect("0", 1)
    story.agree("0", 1, 1, 10)
    for follower in "12":
        story.append("0", follower, 1, prev=(1, 1), commit=1)
    for node in "012":
        story.apply(node, 1, 10)
    return story


# Each takes a story from before the mistake, makes it (wrong) or just does not, and is of one rule.


def one_leader(story, wrong):
    story.elect("0", 1)
    story.append("0", "1", 1)
    if not wrong:
        story.elect("2", 2, voters="12")
    story.append("2", "1", 2 - wrong)


def one_vote(story, wrong):
    story.save("0", "1")
    story.vote("0", "2", 1)
    story.vote("1", "2", 2 - wrong)


def earned_leadership(story, wrong):
    story.save("0")
    story.vote("0", "1", 1, granted=not wrong, reply_term=1)
    story.append("0", "1", 1)


def terms_never_fall(story, wrong):
    story.elect("0", 3, voters="01")
    story.save("2")
    story.vote("2", "1", 2, granted=False, reply_term=2 if wrong else 3)


def higher_term_wins(story, wrong):
    story.save("0")
    story.vote("0", "1", 3, granted=not wrong, reply_term=2 if wrong else 3)


def followers_follow(story, wrong):
    story.elect("0", 1, voters="02")
    story.append("0", "1", 1)
    story.save("1")
    story.send("1", "2", RequestVoteArgs(2 - wrong, 1, 0, 0))


def votes_for_the_first(story, wrong):
    story.save("0")
    story.vote("0", "1", 1, granted=not wrong)
    story.now_ms += 200
    story.save("2")
    story.send("2", "0", RequestVoteArgs(2, 2, 0, 0))


def log_matching(story, wrong):
    story.elect("0", 1)
    story.append("0", "1", 1, entries=[(1, 10)])
    story.elect("2", 2, last=(1, 1), voters="12")
    story.append("2", "1", 2, entries=[(1, 11 if wrong else 10), (2, 20)])


def leader_append_only(story, wrong):
    story.elect("0", 2)
    story.append("0", "1", 2, entries=[(1, 10)])
    story.append("0", "2", 2, prev=(1, 2 if wrong else 1), success=False)


def entry_terms(story, wrong):
    story.elect("0", 2)
    story.append("0", "1", 2, entries=[(2, 10), (1 if wrong else 2, 20)])


def success_means_match(story, wrong):
    story.elect("0", 1)
    if not wrong:
        story.append("0", "1", 1, entries=[(1, 10)])
    story.append("0", "1", 1, prev=(1, 1), entries=[(1, 20)])


def acknowledged_stay(story, wrong):
    story.elect("0", 1)
    story.append("0", "1", 1, entries=[(1, 10)])
    story.append("0", "1", 1, prev=(1 if wrong else 2, 1), success=False)


def honest_candidate(story, wrong):
    story.elect("0", 1)
    story.append("0", "1", 1, entries=[(1, 10)])
    story.save("1")
    story.send("1", "2", RequestVoteArgs(2, 1, *((0, 0) if wrong else (1, 1))))


def up_to_date_vote(story, wrong):
    story.elect("0", 1)
    story.append("0", "1", 1, entries=[(1, 10)])
    story.save("2")
    story.vote("2", "1", 2, granted=wrong)


def leader_completeness(story, wrong):
    story.elect("0", 1)
    story.save("2")
    # It reaches peer 1 before the entry does, and is answered after it.
    request = story.deliver(story.send("2", "1", RequestVoteArgs(2, 2, 0, 0)))
    story.agree("0", 1, 1, 10, followers="01")
    story.append("0", "1", 1, prev=(1, 1), commit=1)
    story.save("1")
    story.answer(request, RequestVoteReply(2, True))
    story.append("2", "0", 2, entries=[(2, 20) if wrong else (1, 10)])


def earned_commit(story, wrong):
    story.elect("0", 1)
    story.start("0", 1, 1, 10)
    story.append("0", "1", 1, entries=[(1, 10)], success=not wrong)
    story.append("0", "2", 1, entries=[(1, 10)], commit=1)


def earned_commit_of_an_older_term(story, wrong):
    """Figure 8: copies of an older entry are counted, and it is called committed without one of the leader's own."""
    story.elect("0", 1)
    story.append("0", "1", 1, entries=[(1, 10)])
    story.elect("1", 2, last=(1, 1), voters="12")
    story.append("1", "2", 2, entries=[(1, 10), *([] if wrong else [(2, 20)])])
    story.append("1", "2", 2, prev=(1, 1), commit=1)


def applies_only_committed(story, wrong):
    story.elect("0", 1)
    story.agree("0", 1, 1, 10)
    if not wrong:
        story.append("0", "1", 1, prev=(1, 1), commit=1)
    story.apply("1", 1, 10)


def applies_only_earned(story, wrong):
    """The same of a leader, whom nobody tells."""
    story.elect("0", 1)
    story.agree("0", 1, 1, 10, followers="0" if wrong else "01")
    story.apply("0", 1, 10)


def only_started(story, wrong):
    story.elect("0", 1)
    story.agree("0", 1, 1, 10)
    story.apply("0", 1, 11 if wrong else 10)


def consecutive_indexes(story, wrong):
    story.elect("0", 1)
    story.start("0", 1, 1, 10)
    story.start("0", 3 if wrong else 2, 1, 20)


def committed_gets_applied(story, wrong):
    story.elect("0", 1)
    story.agree("0", 1, 1, 10)
    story.append("0", "1", 1, prev=(1, 1), commit=1)
    if not wrong:
        story.apply("1", 1, 10)
    story.now_ms += 1001
    story.append("0", "1", 1, prev=(1, 1), commit=1)


def start_tells_the_index(story, wrong):
    story.elect("0", 1)
    story.start("0", 1, 1, 10)
    story.append("0", "1", 1, entries=[(1, 11 if wrong else 10)])


def saved_vote(story, wrong):
    story.save("0")
    story.vote("0", "1", 1, saved=not wrong)


def saved_entries(story, wrong):
    story.elect("0", 1)
    story.append("0", "1", 1, entries=[(1, 10)], saved=not wrong)


def saved_term(story, wrong):
    story.elect("0", 1)
    story.append("0", "1", 1)
    story.save("2")
    story.vote("2", "1", 2, granted=False, saved=not wrong)


def saved_before_campaign(story, wrong):
    story.elect("0", 1)
    story.append("0", "1", 1, saved=False)
    if not wrong:
        story.save("1")
    story.send("1", "2", RequestVoteArgs(2, 1, 0, 0))


def rpc_budget(story, wrong):
    story.elect("0", 1)
    story.now_ms = 1000
    for number in range(RPCS_PER_LINK_PER_S + wrong):
        story.now_ms = 1000
        story.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [], 0))
        story.now_ms = 1000
        story.send("0", "2", AppendEntriesArgs(1, 0, 0, 0, [], 0)) if number % 2 else None


CASES = [
    ("one-leader", one_leader),
    ("one-vote", one_vote),
    ("earned-leadership", earned_leadership),
    ("terms-never-fall", terms_never_fall),
    ("higher-term-wins", higher_term_wins),
    ("followers-follow", followers_follow),
    ("votes-for-the-first", votes_for_the_first),
    ("log-matching", log_matching),
    ("leader-append-only", leader_append_only),
    ("entry-terms", entry_terms),
    ("success-means-match", success_means_match),
    ("acknowledged-stay", acknowledged_stay),
    ("honest-candidate", honest_candidate),
    ("up-to-date-vote", up_to_date_vote),
    ("leader-completeness", leader_completeness),
    ("earned-commit", earned_commit),
    ("earned-commit", earned_commit_of_an_older_term),
    ("applies-only-committed", applies_only_committed),
    ("applies-only-committed", applies_only_earned),
    ("only-started", only_started),
    ("only-started", consecutive_indexes),
    ("committed-gets-applied", committed_gets_applied),
    ("start-tells-index", start_tells_the_index),
    ("saved-before-reply", saved_vote),
    ("saved-before-reply", saved_entries),
    ("saved-before-reply", saved_term),
    ("saved-before-campaign", saved_before_campaign),
    ("rpc-budget", rpc_budget),
]


def test_every_rule_has_a_case():
    assert {name for name, _ in CASES} == {rule.name for rule in RULES}


@pytest.mark.parametrize(("rule", "tell"), CASES, ids=[tell.__name__ for _, tell in CASES])
def test_a_rule_is_broken_by_this_and_not_by_the_like_of_it(rule, tell):
    right, wrong = Story(), Story()
    tell(right, False)
    tell(wrong, True)
    assert (right.broken(), wrong.broken()) == (None, rule)


def test_an_agreement_breaks_nothing():
    assert story_of_agreement().broken() is None


def test_a_repeated_heartbeat_is_looked_at_again_when_there_is_news_of_its_leader_s_log():
    def tell(story, news):
        story.elect("0", 2)
        for _ in range(3):
            story.append("0", "1", 2, prev=(1, 1), success=False)
        if news:
            story.start("0", 1, 2, 10)  # so what stands at 1 is not of term 1
        story.append("0", "1", 2, prev=(1, 1), success=False)

    same, other = Story(), Story()
    tell(same, news=False)
    tell(other, news=True)
    assert (same.broken(), other.broken()) == (None, "leader-append-only")


def test_the_next_cluster_of_a_test_begins_with_nothing():
    story = story_of_agreement()
    story.tell("cluster", "", 3)
    story.elect("1", 1)
    story.agree("1", 1, 1, 20)
    assert story.broken() is None


def test_peers_told_to_stop_owe_nothing():
    story = story_of_agreement()
    story.tell("stop")
    story.append("0", "1", 1, prev=(1, 1), success=False)
    assert story.broken() is None


# ---- a handful at a time ---------------------------------------------------------------------------------------


def test_a_broken_rule_is_told_as_of_its_own_event():
    story = story_of_agreement()
    story.elect("1", 2, last=(1, 1), voters="12")
    story.vote("0", "2", 2, last=(1, 1))
    broken_by = story.trace[-2]  # the answer, before the reply
    for _ in range(_HANDFUL * 2):
        story.append("1", "2", 2, prev=(1, 1))
    assert story.broken() == "one-vote"
    assert story.trace[-1] is broken_by
    assert story.simulation.now_ns == broken_by.at_ns


def applies_what_nobody_started(tmp_path):
    """Only a check can see this: all three services are told the same."""
    old = "        self.apply_ch = apply_ch\n"
    new = f"{old}        threading.Thread(target=lambda: apply_ch.put(ApplyMsg(True, 77, 1)), daemon=True).start()\n"
    return load_peer_class(edited_reference(tmp_path, (old, new)))


def test_what_happens_last_in_a_run_is_looked_at(tmp_path):
    peer_class = applies_what_nobody_started(tmp_path)

    def test(make_config):
        make_config(servers=3)
        time.sleep(0.01)

    run = run_test(test, peer_class, 1)
    events = run.simulation.trace
    assert run.error.rule == "applies-only-committed"
    assert 0 < len(events) < _HANDFUL
    assert events[-1].kind == "apply" and run.virtual_s == events[-1].at_ns / 1e9


def test_a_rule_that_was_broken_comes_before_what_ended_the_run(tmp_path):
    peer_class = applies_what_nobody_started(tmp_path)

    def test(make_config):
        make_config(servers=3)
        time.sleep(0.01)
        raise ZeroDivisionError

    run = run_test(test, peer_class, 1)
    assert run.error.rule == "applies-only-committed"


def test_lines_of_the_peer_do_not_change_where_a_run_ends(tmp_path):
    many_elections = load_tests(ROOT / "tests/test_2a.py")[-1].function
    runs = []
    for lines in ("", "log('vote', 'asked')", "for _ in range(100): log('vote', 'asked')"):
        votes_twice = (
            "            granted = up_to_date and self.voted_for in (None, args.candidate_id)\n",
            f"            {lines}\n            granted = up_to_date\n",
        )
        imports = ("from labsim import ", "from labsim import log, ")
        runs.append(run_test(many_elections, load_peer_class(edited_reference(tmp_path, votes_twice, imports)), 1))
    assert {run.error.rule for run in runs} == {"one-vote"}
    assert len({run.digest for run in runs}) == len({run.virtual_s for run in runs}) == 1
    assert len({len(run.simulation.trace) for run in runs}) == 3


def test_a_record_of_events_ends_with_the_broken_rule(tmp_path):
    many_elections = load_tests(ROOT / "tests/test_2a.py")[-1].function
    votes_twice = ("up_to_date and self.voted_for in (None, args.candidate_id)", "up_to_date")
    peer_class = load_peer_class(edited_reference(tmp_path, votes_twice))
    simulation = Simulation(1)
    recorder = simulation.trace = Recorder(simulation)
    assert run_test(many_elections, peer_class, 1, simulation=simulation).error.rule == "one-vote"
    assert len(recorder.lines) == len(recorder) > 0
    assert recorder.lines[-1][0] == recorder[-1].at_ns


# ---- what a peer may do to what it is given ----------------------------------------------------------------------


def test_a_command_that_its_peer_changes_is_not_what_was_started(tmp_path):
    old = "            self.log.append(LogEntry(self.current_term, command))\n"
    path = edited_reference(tmp_path, (old, f"            command['term'] = self.current_term\n{old}"))

    def test(make_config):
        cfg = make_config(servers=3)
        cfg.start(cfg.check_one_leader(), {"put": "x"})
        time.sleep(1)

    assert run_test(test, load_peer_class(path), 1).error.rule == "start-tells-index"


def test_a_command_that_the_test_changes_is_what_it_was(tmp_path):
    def test(make_config):
        cfg = make_config(servers=3)
        command = {"put": "x"}
        cfg.start(cfg.check_one_leader(), command)
        command["put"] = "y"
        time.sleep(1)

    assert run_test(test, load_peer_class(edited_reference(tmp_path)), 1).error is None


def test_a_message_that_its_peer_changes_after_it_was_applied_is_what_it_was(tmp_path):
    old = "                    self.apply_ch.put(msg, timeout=HEARTBEAT_S)\n"
    later = "                    time.sleep(0.001)\n                    msg.command_index = 1_000_000\n"
    path = edited_reference(tmp_path, (old, old + later))

    def test(make_config):
        cfg = make_config(servers=3)
        cfg.one(10, 3, retry=True)
        time.sleep(1)

    run = run_test(test, load_peer_class(path), 1)
    assert run.error is None
    assert {event.detail.command_index for event in run.simulation.trace if event.kind == "apply"} == {1}


# ---- messages that cannot be read --------------------------------------------------------------------------------

LACKING = [
    ("last_log_term", "The checks of Raft.request_vote are off: its arguments have no field 'last_log_term'"),
    ("vote_granted", "The checks of Raft.request_vote are off: its reply has no field 'vote_granted'"),
    ("prev_log_index", "The checks of Raft.append_entries are off: its arguments have no field 'prev_log_index'"),
    ("leader_commit", "The checks of Raft.append_entries are off: its arguments have no field 'leader_commit'"),
    ("entries", "The checks of Raft.append_entries are off: its arguments have no field 'entries'"),
    ("success", "The checks of Raft.append_entries are off: its reply has no field 'success'"),
    (
        "last_included_index",
        "The checks of Raft.install_snapshot are off: its arguments have no field 'last_included_index'",
    ),
    *(
        (
            method,
            f"No check looks at Raft.{method}_: they know Raft.request_vote, Raft.append_entries and "
            "Raft.install_snapshot",
        )
        for method in ("request_vote", "append_entries", "install_snapshot")
    ),
]
TESTS = ("test_reelection_2a", "test_rejoin_2b", "test_persist3_2c", "test_snapshot_install_2d")


@pytest.mark.parametrize(("name", "line"), LACKING, ids=[name for name, _ in LACKING])
def test_a_peer_with_other_names_is_tested_and_told_which_checks_are_off(tmp_path, name, line):
    peer_class = load_peer_class(renamed_package(tmp_path, **{name: f"{name}_"}))
    tests = [test for part in "abcd" for test in load_tests(ROOT / f"tests/test_2{part}.py") if test.name in TESTS]
    assert len(tests) == len(TESTS)
    runs = [run_test(test.function, peer_class, seed) for test in tests for seed in (1, 2)]
    assert [run.error for run in runs] == [None] * len(runs)
    assert {line for run in runs for line in run.checks_off} == {line}


def test_nothing_is_off_for_the_paper_s_names(tmp_path):
    run = run_test(load_tests(ROOT / "tests/test_2b.py")[0].function, load_peer_class(edited_reference(tmp_path)), 1)
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
    story = Story()
    story.elect("0", 1)
    for index, command in ((1, 10), (2, 20)):
        story.start("0", index, 1, command)
        message = OfATuple(1, index - 1, index // 2, (LogEntry(1, command),), 0)
        for follower in "12":
            request = story.deliver(story.send("0", follower, message, "Raft.append_entries"))
            story.save(follower)
            story.answer(request, AppendEntriesReply(1, True))
    story.apply("0", 1, 10)
    story.apply("0", 2, 20)
    assert (story.broken(), story.trace.off) == (None, [])


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (OfPairs(1, 0, 0, [(1, 10)], 0), "entries have no field 'term'"),
        (OfMaybes(1, None, None, [LogEntry(1, 10)], 0), "arguments have no int in 'prev_log_index'"),
        (OfRuns(1, 0, 0, [MaybeEntry(None, 10), MaybeEntry(1, 20)], 0), "entries have no int in 'term'"),
    ],
)
def test_fields_of_another_kind_cannot_be_read_either(args, what):
    story = Story()
    story.elect("0", 1)
    message = story.deliver(story.send("0", "1", args, "Raft.append_entries"))
    story.answer(message, AppendEntriesReply(1, True))
    story.apply("1", 1, 10)
    assert story.broken() == "only-started"  # which needs no message
    assert story.trace.off == [f"The checks of Raft.append_entries are off: its {what}"]


def test_the_budget_needs_no_field():
    story = Story()
    story.now_ms = 1000
    for _ in range(RPCS_PER_LINK_PER_S + 1):
        story.now_ms = 1000
        story.send("0", "1", RequestVoteArgs(1, 0, 0, 0), "Raft.ask")
    assert story.broken() == "rpc-budget"


def test_a_word_between_peers_switches_nothing_off():
    def tell(story, greeting):
        story.messages += 1
        message = Message(story.messages, "0", "1", "Raft.hello", encode(greeting), type(greeting))
        story.tell("send", "0", message, message.id)
        story.elect("0", 1)
        story.append("0", "1", 1, entries=[(1, 10)], saved=False)

    word, list_ = Story(), Story()
    tell(word, "hello")
    tell(list_, [1, "an entry perhaps"])
    assert (word.broken(), word.trace.off) == ("saved-before-reply", [])
    assert (list_.broken(), len(list_.trace.off)) == (None, 1)


def test_a_peer_that_makes_up_methods_is_not_listed_at_length():
    story = Story()
    for number in range(1000):
        story.send("0", "1", RequestVoteArgs(1, 0, 0, 0), f"Raft.{'x' * 100} {number}")
    assert story.broken() is None
    assert len(story.trace.off) <= 10 and max(map(len, story.trace.off)) < 160
    assert story.trace.off[0].startswith("No check looks at Raft.xxx")
