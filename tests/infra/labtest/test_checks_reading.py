"""What the checks can read, and what they say and leave alone when they cannot."""

from dataclasses import dataclass
from typing import Any

import pytest

from infra.labtest.story import Story
from infra.students import ROOT, edited_reference, renamed_package
from labgob import encode
from labrpc import Message
from labtest.checks.budgets import RPCS_PER_LINK_PER_S
from labtest.loading import load_peer_class
from labtest.running import run_test
from labtools.selecting import load_tests
from raft.messages import AppendEntriesReply, LogEntry, RequestVoteArgs

pytestmark = pytest.mark.usefixtures("raft_package_restored")

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
