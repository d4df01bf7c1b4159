"""Each rule: a trace that breaks it, and a similar trace that does not."""

import pytest

from labgob import Encoder
from raft.messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    LogEntry,
    RequestVoteArgs,
    RequestVoteReply,
)
from raftlab.check.rules.budgets import RPCS_PER_LINK_PER_S
from raftlab.check.rules.checker import RULES
from raftlab.check.rules.rule import Rule
from raftlab.trace import events
from unit.check.trace_builder import TraceBuilder, build_agreement

# Each takes a story from before the mistake, makes it (wrong) or just does not, and is of one rule.


def one_leader(builder, wrong):
    builder.elect("0", 1, voters="01")
    builder.append("0", "1", 1)
    builder.save("2")
    builder.send("2", "1", RequestVoteArgs(2 - wrong, 2, 0, 0))
    builder.deliver(builder.send("1", "2", RequestVoteArgs(0, 1, 0, 0), "Raft.own"))  # which may have been a vote
    builder.append("2", "1", 2 - wrong)


def one_vote(builder, wrong):
    builder.save("0", "1")
    builder.vote("0", "2", 1)
    builder.vote("1", "2", 2 - wrong)


def earned_leadership(builder, wrong):
    builder.save("0")
    builder.vote("0", "1", 1, granted=not wrong, reply_term=1)
    builder.append("0", "1", 1)


def terms_never_fall(builder, wrong):
    builder.elect("0", 3, voters="01")
    builder.save("2")
    builder.vote("2", "1", 2, granted=False, reply_term=2 if wrong else 3)


def higher_term_wins(builder, wrong):
    builder.save("0")
    builder.vote("0", "1", 3, granted=not wrong, reply_term=2 if wrong else 3)


def followers_follow(builder, wrong):
    builder.elect("0", 1, voters="02")
    builder.append("0", "1", 1)
    builder.save("1")
    # At once it may be a request that was made before.
    builder.send("1", "2", RequestVoteArgs(1, 1, 0, 0))
    builder.now_ms += 200
    builder.send("1", "2", RequestVoteArgs(2 - wrong, 1, 0, 0))


def votes_for_the_first(builder, wrong):
    builder.save("0")
    builder.vote("0", "1", 1, granted=not wrong)
    builder.now_ms += 200
    builder.save("2")
    builder.send("2", "0", RequestVoteArgs(2, 2, 0, 0))


def entry_before_exists(builder, wrong):
    builder.elect("0", 1)
    builder.append("0", "1", 1, prev=(-1 if wrong else 0, 0), success=False)


def entry_before_the_first_has_no_term(builder, wrong):
    builder.elect("0", 1)
    builder.append("0", "1", 1, prev=(0, 1 if wrong else -1), success=False)  # some say -1 for none


def log_matching(builder, wrong):
    builder.elect("0", 1)
    for follower in "12":
        builder.append("0", follower, 1, entries=[(1, 10)])
    builder.elect("2", 2, last=(1, 1), voters="12")
    builder.append("2", "1", 2, entries=[(1, 11 if wrong else 10), (2, 20)])


def leader_append_only(builder, wrong):
    builder.elect("0", 2)
    builder.append("0", "1", 2, entries=[(1, 10)])
    builder.append("0", "2", 2, prev=(1, 2 if wrong else 1), success=False)


def entry_of_no_term(builder, wrong):
    """The placeholder in many logs before the first entry."""
    builder.elect("0", 2)
    builder.append("0", "1", 2, entries=[(0 if wrong else 1, None)])


def entry_of_a_later_term_than_its_leader(builder, wrong):
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    builder.append("0", "1", 1, entries=[(2 if wrong else 1, 10)])


def vote_in_a_past_term(builder, wrong):
    """Whatever its vote in that term: it must reject the request."""
    builder.save("0")
    builder.vote("0", "2", 1)
    builder.save("0")
    builder.vote("0", "2", 2)
    builder.save("1")
    builder.vote("1", "2", 1, granted=wrong, reply_term=2)


def entry_terms(builder, wrong):
    builder.elect("0", 2)
    builder.append("0", "1", 2, entries=[(2, 10), (1 if wrong else 2, 20)])


def success_means_match(builder, wrong):
    builder.elect("0", 1)
    if not wrong:
        builder.append("0", "1", 1, entries=[(1, 10)])
    builder.append("0", "1", 1, prev=(1, 1), entries=[(1, 20)])


def acknowledged_stay(builder, wrong):
    builder.elect("0", 1)
    builder.append("0", "1", 1, entries=[(1, 10)])
    builder.append("0", "1", 1, prev=(1 if wrong else 2, 1), success=False)


def honest_candidate(builder, wrong):
    builder.elect("0", 1)
    builder.append("0", "1", 1, entries=[(1, 10)])
    builder.save("1")
    builder.send("1", "2", RequestVoteArgs(2, 1, *((0, 0) if wrong else (1, 1))))


def claims_what_it_never_had(builder, wrong):
    """The index that it once had, with the term of the entry before it."""
    builder.elect("0", 1)
    builder.append("0", "2", 1, entries=[(1, 10), (1, 11), (1, 12)])
    builder.elect("1", 2, voters="01")
    builder.append("1", "2", 2, entries=[(2, 20)])
    builder.save("2")
    builder.send("2", "1", RequestVoteArgs(3, 2, *((3, 2) if wrong else (1, 2))))


def up_to_date_vote(builder, wrong):
    builder.elect("0", 1)
    builder.append("0", "1", 1, entries=[(1, 10)])
    builder.save("2")
    builder.vote("2", "1", 2, granted=wrong)


def up_to_date_vote_after_a_snapshot(builder, wrong):
    through_2 = Encoder()
    through_2.encode(2)
    builder.elect("0", 1)
    request = builder.deliver(builder.send("0", "1", InstallSnapshotArgs(1, 0, 2, 1, b"")))
    builder.save("1", snapshot=through_2.bytes())
    builder.answer(request, InstallSnapshotReply(1))
    builder.save("2")
    request = builder.deliver(builder.send("2", "1", RequestVoteArgs(2, 2, 0, 0)))
    builder.save("1", snapshot=through_2.bytes())
    builder.answer(request, RequestVoteReply(2, wrong))


def leader_completeness(builder, wrong):
    builder.elect("0", 1)
    builder.save("2")
    # It reaches peer 1 before the entry does, and is answered after it.
    request = builder.deliver(builder.send("2", "1", RequestVoteArgs(2, 2, 0, 0)))
    builder.agree("0", 1, 1, 10, followers="01")
    builder.append("0", "1", 1, prev=(1, 1), commit=1)
    builder.save("1")
    builder.answer(request, RequestVoteReply(2, True))
    builder.append("2", "0", 2, entries=[(2, 20) if wrong else (1, 10)])


def earned_commit(builder, wrong):
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    builder.append("0", "1", 1, entries=[(1, 10)], success=not wrong)
    builder.append("0", "2", 1, entries=[(1, 10)], commit=1)


def earned_commit_of_an_older_term(builder, wrong):
    """Figure 8: the leader counts replicas of an older entry, without an entry of its own term."""
    builder.elect("0", 1)
    builder.append("0", "1", 1, entries=[(1, 10)])
    builder.elect("1", 2, last=(1, 1), voters="12")
    builder.append("1", "2", 2, entries=[(1, 10), *([] if wrong else [(2, 20)])])
    builder.append("1", "2", 2, prev=(1, 1), commit=1)


def applies_only_committed(builder, wrong):
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10)
    if not wrong:
        builder.append("0", "1", 1, prev=(1, 1), commit=1)
    builder.apply("1", 1, 10)


def applies_only_earned(builder, wrong):
    """The same for a leader, which receives no leader_commit."""
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10, followers="0" if wrong else "01")
    builder.apply("0", 1, 10)


def applies_an_older_entry_before_it_speaks(builder, wrong):
    """Figure 8, with the apply before the first AppendEntries of the term."""
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10)
    builder.elect("1", 2, last=(1, 1), voters="12")
    if not wrong:
        builder.append("1", "2", 2, prev=(1, 1), entries=[(2, 20)])
    builder.apply("1", 1, 10)


def applies_what_it_counted_when_it_led(builder, wrong):
    """It learns of a later term between its incorrect count and the apply."""
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10, followers="0" if wrong else "01")
    builder.save("2")
    builder.deliver(builder.send("2", "0", RequestVoteArgs(2, 2, 0, 0)))
    builder.apply("0", 1, 10)


def only_started(builder, wrong):
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10)
    builder.apply("0", 1, 11 if wrong else 10)


def speaks_in_its_term(builder, wrong):
    builder.elect("0", 1, voters="02")
    builder.append("0", "1", 1)
    builder.elect("1", 2, voters="12")
    builder.vote("1", "0", 2, granted=False)
    # At once it may be a request that was made before.
    builder.send("0", "2", AppendEntriesArgs(1, 0, 0, 0, [], 0))
    builder.now_ms += 200
    builder.send(
        "0", "2", AppendEntriesArgs(1 if wrong else 2, 0, 0, 0, [], 0) if wrong else RequestVoteArgs(2, 0, 0, 0)
    )


def speaks_in_its_term_after_a_crash(builder, wrong):
    builder.elect("0", 2)
    builder.crash("0")
    builder.save("0")
    builder.send("0", "2", RequestVoteArgs(1 if wrong else 3, 0, 0, 0))


def consecutive_indexes(builder, wrong):
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    builder.start("0", 3 if wrong else 2, 1, 20)


def falling_indexes(builder, wrong):
    """Overlapping calls may return in any order; a later call gets a later index."""
    builder.elect("0", 1)
    builder.save("0")
    builder.emit("start", "0", 10)
    if not wrong:
        builder.emit("start", "0", 20)
    builder.emit("started", "0", events.StartResult(20, 2, 1, True))
    if wrong:
        builder.emit("start", "0", 10)
    builder.emit("started", "0", events.StartResult(10, 1, 1, True))


def saved_before_counting(builder, wrong):
    """Dissertation §10.2.1: a leader may send before saving, but must not count itself."""
    builder.elect("0", 1)
    builder.emit("start", "0", 10)
    builder.emit("started", "0", events.StartResult(10, 1, 1, True))
    builder.append("0", "1", 1, entries=[(1, 10)])
    if not wrong:
        builder.save("0")
    builder.append("0", "2", 1, entries=[(1, 10)], commit=1)


def saves_in_order(builder, wrong):
    for number in (2, 1) if wrong else (1, 2):
        builder.emit("persist", "0", events.PersistedState(b"state %d" % number, b"", number))


def snapshot_stays(builder, wrong):
    builder.save("0", snapshot=b"a snapshot")
    builder.save("0", snapshot=b"" if wrong else b"a snapshot")


def applied_on_majority(builder, wrong):
    """No message can be read; only who saved what, and who can know it."""
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    copy = builder.deliver(builder.send("0", "1", 7, method="Raft.copy"))
    if not wrong:
        builder.save("1")
    builder.answer(copy, 7)
    builder.apply("0", 1, 10)


def answers_requests(builder, wrong):
    builder.elect("0", 1)
    request = builder.deliver(builder.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [], 0)))
    if not wrong:
        builder.answer(request, AppendEntriesReply(1, True))
    builder.now_ms += 3000
    builder.append("0", "2", 1)


def committed_gets_applied(builder, wrong):
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10)
    builder.append("0", "1", 1, prev=(1, 1), commit=1)
    if not wrong:
        builder.apply("1", 1, 10)
    builder.now_ms += 1151
    builder.append("0", "1", 1, prev=(1, 1), commit=1)


def start_tells_the_index(builder, wrong):
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    builder.start("0", 2, 1, 11)
    # What nobody has started may be the command in the peer's own wrapping.
    builder.append("0", "2", 1, entries=[(1, ["wrapped", 10])], success=False)
    builder.append("0", "1", 1, entries=[(1, ["wrapped", 10]), (1, 10 if wrong else 11)])


def saved_vote(builder, wrong):
    builder.save("0")
    builder.vote("0", "1", 1, saved=not wrong)


def saved_entries(builder, wrong):
    builder.elect("0", 1)
    builder.append("0", "1", 1, entries=[(1, 10)], saved=not wrong)


def saved_term(builder, wrong):
    builder.elect("0", 1)
    builder.append("0", "1", 1)
    builder.save("2")
    builder.vote("2", "1", 2, granted=False, saved=not wrong)


def saved_entries_on_a_slow_disk(builder, wrong):
    """A save that began before they arrived does not contain them."""
    builder.elect("0", 1)
    if wrong:
        builder.begin_save("1", 1)
    request = builder.deliver(builder.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [LogEntry(1, 10)], 0)))
    if not wrong:
        builder.begin_save("1", 1)
    builder.save("1", number=1)
    builder.answer(request, AppendEntriesReply(1, True))


def leader_append_only_in_a_snapshot(builder, wrong):
    """InstallSnapshot with the leader's term instead of the entry's."""
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10)
    builder.elect("0", 2, last=(1, 1))
    builder.append("0", "1", 2, prev=(1, 1))
    builder.install("0", "2", 2, (1, 2 if wrong else 1))


def saved_before_campaign(builder, wrong):
    builder.elect("0", 1)
    builder.append("0", "1", 1, saved=False)
    if not wrong:
        builder.save("1")
    builder.send("1", "2", RequestVoteArgs(2, 1, 0, 0))


def rpc_budget(builder, wrong):
    builder.elect("0", 1)
    builder.now_ms = 1000
    for number in range(RPCS_PER_LINK_PER_S + wrong):
        builder.now_ms = 1000
        builder.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [], 0))
        builder.now_ms = 1000
        if number % 2:
            builder.send("0", "2", AppendEntriesArgs(1, 0, 0, 0, [], 0))


CASES = [
    ("one-leader", one_leader),
    ("one-vote", one_vote),
    ("earned-leadership", earned_leadership),
    ("terms-never-fall", terms_never_fall),
    ("speaks-in-its-term", speaks_in_its_term),
    ("speaks-in-its-term", speaks_in_its_term_after_a_crash),
    ("higher-term-wins", higher_term_wins),
    ("higher-term-wins", vote_in_a_past_term),
    ("followers-follow", followers_follow),
    ("votes-for-the-first", votes_for_the_first),
    ("entry-before-exists", entry_before_exists),
    ("entry-before-exists", entry_before_the_first_has_no_term),
    ("log-matching", log_matching),
    ("leader-append-only", leader_append_only),
    ("entry-terms", entry_terms),
    ("entry-terms", entry_of_no_term),
    ("entry-terms", entry_of_a_later_term_than_its_leader),
    ("success-means-match", success_means_match),
    ("acknowledged-stay", acknowledged_stay),
    ("honest-candidate", honest_candidate),
    ("honest-candidate", claims_what_it_never_had),
    ("up-to-date-vote", up_to_date_vote),
    ("up-to-date-vote", up_to_date_vote_after_a_snapshot),
    ("leader-completeness", leader_completeness),
    ("earned-commit", earned_commit),
    ("earned-commit", earned_commit_of_an_older_term),
    ("applies-only-committed", applies_only_committed),
    ("earned-commit", applies_only_earned),
    ("earned-commit", applies_an_older_entry_before_it_speaks),
    ("earned-commit", applies_what_it_counted_when_it_led),
    ("only-started", only_started),
    ("starts-in-order", consecutive_indexes),
    ("starts-in-order", falling_indexes),
    ("committed-gets-applied", committed_gets_applied),
    ("start-tells-index", start_tells_the_index),
    ("saved-before-reply", saved_vote),
    ("saved-before-reply", saved_entries),
    ("saved-before-reply", saved_term),
    ("saved-before-reply", saved_entries_on_a_slow_disk),
    ("leader-append-only", leader_append_only_in_a_snapshot),
    ("saved-before-campaign", saved_before_campaign),
    ("saved-before-counting", saved_before_counting),
    ("saves-in-order", saves_in_order),
    ("snapshot-stays", snapshot_stays),
    ("applied-on-majority", applied_on_majority),
    ("answers-requests", answers_requests),
    ("rpc-budget", rpc_budget),
]


def test_every_rule_has_a_case():
    assert {name for name, _ in CASES} == {rule.name for rule in RULES}


@pytest.mark.parametrize(("rule", "build"), CASES, ids=[build.__name__ for _, build in CASES])
def test_rule_is_broken_only_by_the_mistake(rule, build):
    right, wrong = TraceBuilder(), TraceBuilder()
    build(right, False)
    build(wrong, True)
    assert (right.broken_rule(), wrong.broken_rule()) == (None, rule)


def test_first_rule_in_the_list_has_precedence():
    """A follower applies what a leader incorrectly committed, before that leader sends it."""

    def run_case(later_ms):
        builder = TraceBuilder(servers=5)
        builder.elect("0", 1, voters="012")
        builder.start("0", 1, 1, 10)
        builder.append("0", "1", 1, entries=[(1, 10)])
        builder.apply("1", 1, 10)
        builder.now_ms += later_ms - 1
        builder.send("0", "2", AppendEntriesArgs(1, 0, 1, 1, [], 1))
        builder.send("0", "3", AppendEntriesArgs(1, 0, 1, 1, [], 1))
        return builder, builder.broken_rule()

    (together, first), (apart, earlier) = run_case(0), run_case(1)
    assert (first, earlier) == ("earned-commit", "applies-only-committed")
    # It ends with the event that broke the rule that is reported.
    last, last_apart = (builder.trace[builder.checker.violation.events - 1] for builder in (together, apart))
    assert (last.kind, last.detail.target) == ("send", "2")
    assert last_apart.kind == "apply"


def test_an_agreement_breaks_nothing():
    assert build_agreement().broken_rule() is None


def test_repeated_heartbeat_is_checked_after_new_entries():
    def run_case(builder, news):
        builder.elect("0", 2)
        for _ in range(3):
            builder.append("0", "1", 2, prev=(1, 1), success=False)
        if news:
            builder.start("0", 1, 2, 10)  # so what stands at 1 is not of term 1
        builder.append("0", "1", 2, prev=(1, 1), success=False)

    same, other = TraceBuilder(), TraceBuilder()
    run_case(same, news=False)
    run_case(other, news=True)
    assert (same.broken_rule(), other.broken_rule()) == (None, "leader-append-only")


def test_the_next_cluster_of_a_test_begins_with_nothing():
    builder = build_agreement()
    builder.emit("cluster", "", 3)
    builder.elect("1", 1)
    builder.agree("1", 1, 1, 20)
    assert builder.broken_rule() is None


def test_stopped_peers_are_not_checked():
    builder = build_agreement()
    builder.emit("stop")
    builder.append("0", "1", 1, prev=(1, 1), success=False)
    assert builder.broken_rule() is None


def test_unknown_event_method_of_a_rule_is_an_error():
    """A typo in a method's name used to disable the rule."""
    with pytest.raises(TypeError, match=r"Slip.on_anser_vote\(\): .* did you mean on_answer_vote\?"):

        class Slip(Rule):
            def on_anser_vote(self) -> None: ...


def test_commit_of_one_leader_with_match_of_a_later_one():
    """§5.4.3: the second leader has what the first one committed."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10, followers="02")
    builder.append("0", "1", 1, prev=(0, 0), commit=1)
    builder.elect("2", 2, last=(1, 1), voters="12")
    builder.append("2", "1", 2, entries=[(1, 10)])
    builder.apply("1", 1, 10)
    assert builder.broken_rule() is None


def test_request_prepared_before_the_election_is_allowed():
    """The arguments were correct when it was prepared; when it leaves, the peer leads and has new entries."""
    builder = TraceBuilder()
    builder.elect("0", 1, voters="01")
    builder.start("0", 1, 1, 10)
    builder.send("0", "2", RequestVoteArgs(1, 0, 0, 0))
    assert builder.broken_rule() is None


def test_answer_in_the_campaigns_term_is_not_a_lower_term():
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.append("0", "1", 1)
    builder.save("1")  # term 2, and its own vote
    builder.save("2")
    builder.vote("2", "1", 2, granted=False, saved=False)
    builder.send("1", "0", RequestVoteArgs(2, 1, 0, 0))
    assert builder.broken_rule() is None


def test_answer_may_leave_after_the_save_of_a_later_term():
    """One save for a denial in term 1 and the campaign of term 2; the requests leave a little later."""

    def run_case(builder, saved):
        builder.elect("0", 1)
        request = builder.deliver(builder.send("0", "1", AppendEntriesArgs(1, 0, 5, 1, [], 0)))
        if saved:
            builder.save("1")
        builder.answer(request, AppendEntriesReply(1, False, 0, 1))
        builder.send("1", "2", RequestVoteArgs(2, 1, 0, 0))

    one_for_both, none = TraceBuilder(), TraceBuilder()
    run_case(one_for_both, saved=True)
    run_case(none, saved=False)
    assert (one_for_both.broken_rule(), none.broken_rule()) == (None, "saved-before-campaign")


def test_save_before_start_does_not_contain_its_command():
    def run_case(builder, before):
        builder.elect("0", 1)
        if before:
            builder.begin_save("0", 1)
        builder.emit("start", "0", 10)
        if not before:
            builder.begin_save("0", 1)
        builder.save("0", number=1)
        builder.emit("started", "0", events.StartResult(10, 1, 1, True))
        builder.crash("0")
        builder.save("0")
        builder.send("0", "1", RequestVoteArgs(2, 0, 0, 0))

    earlier, its_own = TraceBuilder(), TraceBuilder()
    run_case(earlier, before=True)
    run_case(its_own, before=False)
    assert (earlier.broken_rule(), its_own.broken_rule()) == (None, "honest-candidate")


def test_concurrent_saves_contain_the_state_at_their_begin():
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.begin_save("1", 1)
    request = builder.deliver(builder.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [LogEntry(1, 10)], 0)))
    builder.begin_save("1", 2)
    builder.save("1", number=1)
    builder.save("1", number=2)
    builder.answer(request, AppendEntriesReply(1, True))
    assert builder.broken_rule() is None


def test_a_crash_takes_back_what_was_started_and_never_saved():
    def run_case(builder, saved):
        builder.elect("0", 1)
        builder.emit("start", "0", 10)
        builder.emit("started", "0", events.StartResult(10, 1, 1, True))
        if saved:
            builder.save("0")
        builder.crash("0")
        builder.save("0")
        builder.send("0", "1", RequestVoteArgs(2, 0, 0, 0))

    forgotten, kept = TraceBuilder(), TraceBuilder()
    run_case(forgotten, saved=False)
    run_case(kept, saved=True)
    assert (forgotten.broken_rule(), kept.broken_rule()) == (None, "honest-candidate")


@pytest.mark.parametrize(("taken", "broken"), [(True, None), (False, "applies-only-committed")])
def test_paused_deposed_leader_may_apply_what_it_counted(taken, broken):
    """Its followers acknowledge in an added field, so messages do not show what it counts."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    for follower in "12":
        args = AppendEntriesArgs(1, 0, 0, 0, [LogEntry(1, 10)], 0)
        request = builder.deliver(builder.send("0", follower, args))
        builder.save(follower)
        builder.answer(request, AppendEntriesReply(1, False, 0, 1))
    builder.save("1")
    builder.vote("1", "0", 2, last=(1, 1), granted=False)
    if taken:
        builder.emit(events.PAUSE, "0")
    builder.now_ms += 5000
    if taken:
        builder.emit(events.RESUME, "0")
    builder.apply("0", 1, 10)
    assert builder.broken_rule() == broken


def test_voter_with_a_recent_leader_may_disregard_candidates():
    """§6. Without a message from a leader for a second it must not."""

    def run_case(builder, later_ms):
        builder.elect("0", 1)
        builder.append("0", "1", 1)
        builder.now_ms += later_ms
        builder.save("2")
        builder.vote("2", "1", 2, granted=False, reply_term=1)

    lately, long_ago = TraceBuilder(), TraceBuilder()
    run_case(lately, 100)
    run_case(long_ago, 1100)
    assert (lately.broken_rule(), long_ago.broken_rule()) == (None, "higher-term-wins")


def test_save_is_known_over_any_chain_of_messages():
    """Peer 1 saves and tells peer 2, which tells the leader; and a disk keeps what its server knew over a crash."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    builder.answer(builder.deliver(builder.send("0", "1", 7, method="Raft.copy")), 7, arrives=False)
    builder.save("1")
    builder.crash("1")
    builder.answer(builder.deliver(builder.send("1", "2", 7, method="Raft.gossip")), 7)
    builder.answer(builder.deliver(builder.send("2", "0", 7, method="Raft.gossip")), 7)
    builder.apply("0", 1, 10)
    assert builder.broken_rule() is None


def test_crash_forgets_what_was_heard_and_not_saved():
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    builder.answer(builder.deliver(builder.send("0", "1", 7, method="Raft.copy")), 7)
    builder.crash("1")
    builder.save("1")
    builder.answer(builder.deliver(builder.send("0", "1", 8, method="Raft.ask")), 8)
    builder.apply("0", 1, 10)
    assert builder.broken_rule() == "applied-on-majority"


def test_entry_is_applied_though_its_start_has_not_returned():
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.start("0", 1, 1, 10)
    builder.elect("1", 2, voters="12")
    builder.emit("start", "1", 10)
    builder.answer(builder.deliver(builder.send("1", "2", 7, method="Raft.copy")), 7)
    builder.apply("1", 1, 10)
    assert builder.broken_rule() is None


def test_undecodable_heartbeat_lets_a_voter_disregard_candidates():
    """§6. Where the leader's heartbeats are an RPC of its own, the paper's RPCs may be silent for long."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.append("0", "1", 1)
    builder.now_ms += 1100
    builder.deliver(builder.send("0", "1", 7, method="Raft.beat"))
    builder.save("2")
    builder.vote("2", "1", 2, granted=False, reply_term=1)
    assert builder.broken_rule() is None


@pytest.mark.parametrize(("later_ms", "broken"), [(20, None), (400, "saved-before-reply")])
def test_heartbeat_prepared_before_a_save_is_not_news(later_ms, broken):
    """A leader without a majority saves the next term, a heartbeat of the old one leaves, and it answers in the new."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.append("0", "1", 1)
    builder.save("0")
    builder.now_ms += later_ms
    builder.send("0", "2", AppendEntriesArgs(1, 0, 0, 0, [], 0))
    builder.save("1")
    builder.vote("1", "0", 2, granted=False, saved=False)
    assert builder.broken_rule() == broken


@pytest.mark.parametrize(("informant", "broken"), [("1", None), ("2", "saved-before-reply")])
def test_vote_may_be_saved_when_a_refusal_brings_its_term(informant, broken):
    builder = TraceBuilder()
    builder.save("0")
    builder.vote("0", informant, 1, granted=False, reply_term=2)
    builder.save("0")  # the new term, and perhaps a vote for whoever refused
    builder.save("1")
    builder.vote("1", "0", 2, saved=False)
    assert builder.broken_rule() == broken


@pytest.mark.parametrize(("saved", "broken"), [(True, None), (False, "votes-for-the-first")])
def test_candidate_may_hold_its_requests_back(saved, broken):
    builder = TraceBuilder()
    if saved:
        builder.save("1")  # its term and its vote for itself
    builder.save("0")
    builder.vote("0", "1", 1, granted=False, saved=not saved)
    builder.now_ms += 300
    builder.send("1", "2", RequestVoteArgs(1 if saved else 2, 1, 0, 0))
    assert builder.broken_rule() == broken


@pytest.mark.parametrize(("later_ms", "broken"), [(10, "higher-term-wins"), (500, None)])
def test_reply_that_came_too_late_may_be_unread(later_ms, broken):
    """§5.5: the caller may have given up and asked again."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    request = builder.deliver(builder.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [], 0)))
    builder.save("1")
    builder.now_ms += later_ms
    builder.answer(request, AppendEntriesReply(2, False))
    builder.now_ms += 200
    builder.send("0", "2", AppendEntriesArgs(1, 0, 0, 0, [], 0))
    assert builder.broken_rule() == broken


def test_a_vote_may_be_granted_again_when_its_request_comes_twice():
    builder = TraceBuilder()
    builder.elect("0", 1, voters="01")
    builder.append("0", "1", 1, entries=[(1, 10)])
    builder.vote("0", "1", 1)
    assert builder.broken_rule() is None


@pytest.mark.parametrize(
    ("earlier", "hears_leader", "saves", "broken"),
    [
        (True, True, True, None),
        (False, True, True, "saved-before-reply"),  # never asked before: there was no vote to keep
        (True, False, True, "saved-before-reply"),  # another candidate's term, in which the vote may elect somebody
        (True, True, False, "saved-before-reply"),
    ],
)
def test_vote_kept_under_a_leader_is_already_saved(earlier, hears_leader, saves, broken):
    builder = TraceBuilder(servers=5)
    if earlier:
        builder.save("0")
        builder.vote("0", "1", 1)
    builder.save("0")
    asks = builder.send("0", "1", RequestVoteArgs(2, 0, 0, 0))
    builder.elect("2", 2, voters="234")
    if hears_leader:
        told = builder.send("2", "1", AppendEntriesArgs(2, 2, 0, 0, [], 0))
    else:
        told = builder.send("2", "1", RequestVoteArgs(2, 2, 0, 0))
    builder.deliver(told)
    if saves:
        builder.save("1")
    builder.deliver(asks)
    builder.answer(asks, RequestVoteReply(2, True))
    assert builder.broken_rule() == broken


# ---- a peer that calls itself like any other ---------------------------------------------------------------------


def test_a_candidate_may_ask_itself_for_its_vote():
    """It saved the vote in its campaign. That used to be reported as an unsaved vote."""
    builder = TraceBuilder()
    builder.save("0")
    builder.vote("0", "0", 1, saved=False)
    builder.vote("0", "1", 1)
    builder.append("0", "1", 1, entries=[(1, 10)])
    builder.vote("0", "0", 1, saved=False)  # however long its log is by then
    assert builder.broken_rule() is None


def test_a_candidate_may_refuse_itself_what_it_has_already():
    builder = TraceBuilder()
    builder.save("0")
    builder.vote("0", "0", 1, granted=False, saved=False)
    builder.now_ms += 200
    builder.save("1")
    builder.send("1", "2", RequestVoteArgs(2, 1, 0, 0))
    assert builder.broken_rule() is None


def test_peer_that_asks_itself_votes_when_it_answers():
    """Until then it may vote for another; then its own vote does not count, and both must not be."""

    def run_case(voters, own=False):
        builder = TraceBuilder()
        builder.save("0", "2")
        builder.vote("2", "0", 1)
        to_itself = builder.deliver(builder.send("0", "0", RequestVoteArgs(1, 0, 0, 0)))
        builder.answer(to_itself, RequestVoteReply(1, own))
        for voter in voters:
            builder.vote("0", voter, 1)
        builder.append("0", "1", 1)
        return builder.broken_rule()

    assert (run_case("1"), run_case("1", own=True)) == ("earned-leadership", "one-vote")


def test_candidate_may_be_about_to_ask_itself():
    """Its request to itself may leave a little later. Without one, it has voted for itself."""

    def run_case(asks_itself_ms=None, *, then=lambda builder: builder.vote("1", "2", 2, saved=True)):
        builder = TraceBuilder()
        builder.save("0", "1", "2")
        builder.send("0", "1", RequestVoteArgs(1, 0, 0, 0))
        builder.vote("2", "0", 1)
        if asks_itself_ms is not None:
            builder.now_ms = asks_itself_ms
            builder.send("0", "0", RequestVoteArgs(1, 0, 0, 0))
        builder.now_ms = max(builder.now_ms, 200)
        then(builder)
        return builder.broken_rule()

    def crash_and_vote(builder):
        builder.crash("0")
        builder.vote("2", "0", 1)

    def meanwhile(builder):
        builder.now_ms = 20
        builder.append("2", "1", 2)  # elected by nobody

    assert [run_case(100), run_case(190), run_case()] == [None, "one-vote", "one-vote"]
    assert run_case(then=meanwhile) == "one-vote"
    # A crash is no excuse for a vote that was given before it.
    assert (run_case(100, then=crash_and_vote), run_case(then=crash_and_vote)) == (None, "one-vote")


def test_candidates_granted_vote_counts_when_it_asks_itself():
    builder = TraceBuilder()
    builder.save("0", "2")
    builder.send("0", "1", RequestVoteArgs(1, 0, 0, 0))
    builder.vote("2", "0", 1)
    builder.answer(builder.deliver(builder.send("0", "0", RequestVoteArgs(1, 0, 0, 0))), RequestVoteReply(1, True))
    assert builder.broken_rule() == "one-vote"


def test_a_leader_that_acknowledges_its_own_entries_counts_once():
    def run_case(*followers):
        builder = TraceBuilder(servers=5)
        builder.elect("0", 1, voters="012")
        builder.start("0", 1, 1, 10)
        for follower in followers:
            builder.append("0", follower, 1, entries=[(1, 10)], saved=follower != "0")
        builder.append("0", "3", 1, entries=[(1, 10)], commit=1)
        return builder.broken_rule()

    assert (run_case("0", "1"), run_case("0", "1", "2")) == ("earned-commit", None)


def test_leader_that_receives_its_own_append_keeps_leading():
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.append("0", "0", 1, saved=False)
    builder.now_ms += 200
    builder.send("0", "2", RequestVoteArgs(1, 0, 0, 0))  # its answer was lost, and it asks until it has one
    assert builder.broken_rule() is None


def test_peer_learns_no_commit_from_its_own_requests():
    """A request from before its restart may arrive later, and it accepts: it knows that log."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10)
    for _ in range(2):
        builder.append("0", "0", 1, prev=(1, 1), commit=1, saved=False)
        builder.now_ms += 1151
    assert builder.broken_rule() is None


def test_leader_with_itself_and_one_peer_has_no_majority():
    """§6: to disregard a candidate it must have heard from a majority recently."""

    def run_case(*followers):
        builder = TraceBuilder(servers=4)
        builder.elect("0", 1, voters="0123")
        builder.append("0", "1", 1)
        builder.now_ms += 1100
        builder.vote("0", "0", 1, saved=False)  # asked again, and answered when it leads
        for follower in followers:
            builder.append("0", follower, 1)
        builder.save("3")
        builder.vote("3", "0", 2, granted=False, reply_term=1)
        return builder.broken_rule()

    assert (run_case("1"), run_case("1", "2")) == ("higher-term-wins", None)


@pytest.mark.parametrize(("voters", "broken"), [("012", None), ("01", "higher-term-wins")])
def test_new_leader_may_disregard_before_its_first_message(voters, broken):
    """§6, in the instant in which its last needed vote arrives."""
    builder = TraceBuilder(servers=5)
    builder.elect("0", 1, voters=voters)
    builder.save("3")
    builder.vote("3", "0", 2, granted=False, reply_term=1)
    assert builder.broken_rule() == broken


def test_leader_that_voted_for_another_has_no_votes():
    builder = TraceBuilder()
    builder.save("1")
    builder.vote("1", "0", 1)
    builder.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [], 0))
    assert "leads term 1 with 0 of 3 votes; it gave its own to another" in builder.failure().text


@pytest.mark.parametrize(("later_ms", "broken"), [(900, None), (1100, "higher-term-wins")])
def test_disregard_counts_from_the_last_vote(later_ms, broken):
    """§6: it heard from a majority when its last vote arrived, even if the first was over a second old."""
    builder = TraceBuilder(servers=5)
    builder.elect("0", 1, voters="01")
    builder.now_ms += 1100
    builder.vote("0", "2", 1)
    builder.send("0", "1", AppendEntriesArgs(1, 0, 0, 0, [], 0))
    builder.now_ms += later_ms
    builder.save("3")
    builder.vote("3", "0", 2, granted=False, reply_term=1)
    if broken is None:
        assert builder.broken_rule() is None
        return
    failure = builder.failure()
    assert failure.rule == broken
    assert "not heard from a majority for a second (§6)" in failure.text


@pytest.mark.parametrize(("first", "broken"), [(True, None), (False, "terms-never-fall")])
def test_leader_may_disregard_before_it_learns_the_term(first, broken):
    """§6. Its answers leave together, and another one contains the later term first."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.append("0", "1", 1)
    request = builder.send("1", "0", RequestVoteArgs(2, 1, 0, 0))
    if first:
        builder.deliver(request)
    builder.vote("2", "0", 2, granted=False)
    if not first:
        builder.deliver(request)
    builder.answer(request, RequestVoteReply(1, False))
    assert builder.broken_rule() == broken


@pytest.mark.parametrize(
    ("told", "later_ms", "broken"),
    [(True, 10, None), (True, 1100, "votes-for-the-first"), (False, 10, "votes-for-the-first")],
)
def test_voter_may_disregard_in_a_term_learned_otherwise(told, later_ms, broken):
    """§6. A candidate's request does not inform a peer that recently heard from its leader; an answer informs one
    that has been a candidate."""
    builder = TraceBuilder()
    builder.save("2")
    asked = builder.send("2", "1", RequestVoteArgs(1, 2, 0, 0))
    builder.elect("0", 1, voters="01")
    builder.append("0", "2", 1)
    builder.now_ms += later_ms
    builder.save("1")
    if told:
        builder.deliver(asked)
        builder.answer(asked, RequestVoteReply(2, False))
    builder.vote("1", "2", 2, granted=False)
    builder.now_ms += 200
    builder.save("0")
    builder.send("0", "1", RequestVoteArgs(3, 0, 0, 0))
    assert builder.broken_rule() == broken


# ---- words and evidence ----------------------------------------------------------------------------------------


def failure_of(build, servers=3):
    builder = TraceBuilder(servers)
    build(builder)
    return builder.failure()


def test_half_of_four_is_not_a_majority():
    def elected_by_half(builder):
        builder.save("0")
        builder.vote("0", "1", 1)
        builder.append("0", "1", 1)

    def stored_by(*followers):
        def run_case(builder):
            builder.elect("0", 1, voters="0123")
            builder.start("0", 1, 1, 10)
            for follower in followers:
                builder.append("0", follower, 1, entries=[(1, 10)])
            builder.append("0", "3", 1, entries=[(1, 10)], commit=1)

        return run_case

    assert "with 2 of 4 votes: its own and peer 1's; half is not a majority" in failure_of(elected_by_half, 4).text
    text = failure_of(stored_by("1"), 4).text
    assert (
        "but only peer 1 has acknowledged it: including the leader, that is 2 of 4 peers; half is not a majority"
        in text
    )
    assert (
        "but no follower has acknowledged it: including the leader, that is 1 of 5 peers"
        in failure_of(stored_by(), 5).text
    )
    assert "only peers 1 and 2 have acknowledged it: including the leader, that is 3 of 7 peers" in (
        failure_of(stored_by("1", "2"), 7).text
    )


def test_too_early_apply_is_reported_with_the_term():
    def run_case(builder):
        builder.elect("0", 1)
        builder.agree("0", 1, 1, 10)
        builder.elect("1", 2, last=(1, 1), voters="12")
        builder.apply("1", 1, 10)

    failure = failure_of(run_case)
    assert "Peer 1, leader of term 2, " in failure.text and failure.peer == "1"
    assert failure.evidence[-1].endswith("peer 1 applies entry 1")


def test_late_report_of_a_missing_save_says_so():
    def at_once(builder):
        builder.save("1")
        builder.elect("0", 1)
        builder.append("0", "1", 1, saved=False)
        builder.send("1", "2", RequestVoteArgs(2, 1, 0, 0))

    def later(builder):
        builder.send("1", "2", RequestVoteArgs(1, 1, 0, 0))
        builder.now_ms += 500
        builder.crash("0")

    told, late = failure_of(at_once), failure_of(later)
    assert "reported only now" not in told.text and "its last answer in a lower term, at " in told.text
    assert "its last save before that" in told.evidence[0]
    assert (
        "reported only now because this rule is not checked until a peer crashes: peer 0 has just crashed" in late.text
    )
    assert "its last answer" not in late.text  # it has answered nothing
    assert late.evidence[0] == "  peer 1 had saved nothing before that"
    assert (told.peer, late.peer) == ("1", "1")


def test_snapshot_between_success_and_rejection_is_explained():
    def run_case(installed, *, back_ms=0):
        def story_of(builder):
            builder.elect("0", 1)
            builder.append("0", "1", 1, entries=[(1, 10), (1, 20)])
            if installed:
                builder.now_ms -= back_ms
                builder.install("0", "1", 1, (1, 1))
            builder.append("0", "1", 1, prev=(2, 1), success=False)

        return failure_of(story_of)

    with_it, without, at_once = run_case(True), run_case(False), run_case(True, back_ms=5)
    assert (
        "Between the two answers it received a snapshot" in with_it.text and "install_snapshot" in with_it.evidence[1]
    )
    assert "begins before the snapshot" in at_once.text and "begins before the snapshot" not in with_it.text
    assert "snapshot" not in without.text and len(without.evidence) == 2


def test_term_lost_at_the_end_of_the_snapshot_is_explained():
    def run_case(taken):
        def story_of(builder):
            builder.elect("0", 1)
            builder.agree("0", 1, 1, 10)
            if taken:
                snapshot = Encoder()
                snapshot.encode(1)
                builder.save("0", snapshot=snapshot.bytes())
            builder.append("0", "1", 1, prev=(1, 0), success=False)

        return failure_of(story_of)

    assert "The leader's snapshot ends with entry 1" in run_case(True).text
    assert "snapshot" not in run_case(False).text


def test_impossible_entry_term_is_explained():
    def run_case(*entry):
        def story_of(builder):
            builder.elect("0", 1)
            builder.start("0", 1, 1, 100)
            builder.append("0", "1", 1, entries=[entry])

        return failure_of(story_of).text

    assert "100 is a command passed to start(): term and command are swapped" in run_case(100, 1)
    assert "changed places" not in run_case(100, 2) + run_case(99, 1) + run_case(0, 1)
    assert "the placeholder before the first entry" in run_case(0, None)


def test_impossible_prev_entry_is_explained():
    def run_case(*prev):
        def story_of(builder):
            builder.elect("0", 1)
            builder.append("0", "1", 1, prev=prev, success=False)

        return failure_of(story_of).text

    below, of_a_term = run_case(-1, 0), run_case(0, 1)
    assert "next_index must not be less than 1" in below and "prev_log_term is" not in below
    assert "prev_log_term is the term of the entry at prev_log_index" in of_a_term and "next_index" not in of_a_term


def test_second_vote_in_a_later_term_is_explained():
    """It had not sent anything in that later term before."""

    def run_case(reply_term):
        def story_of(builder):
            builder.save("0", "1")
            builder.vote("0", "2", 1)
            builder.vote("1", "2", 1, reply_term=reply_term)

        return failure_of(story_of).text

    assert "Its answer is in term 2: a peer must reject" in run_case(2)
    assert run_case(1).endswith("Peer 2 voted twice in term 1, for peers 0 and 1")


def test_swapped_results_of_overlapping_starts_are_explained():
    def run_case(*steps):
        def story_of(builder):
            builder.elect("0", 1)
            builder.save("0")
            for command, index in steps:
                builder.emit(
                    *(
                        ("started", "0", events.StartResult(command, index, 1, True))
                        if index
                        else ("start", "0", command)
                    )
                )
            builder.append("0", "1", 1, entries=[(1, 10), (1, 11)])

        failure = failure_of(story_of)
        assert failure.rule == "start-tells-index"
        return failure.text

    mixed_up = "the calls overlap"
    assert mixed_up in run_case((10, 0), (11, 0), (11, 1), (10, 2))
    assert mixed_up in run_case((10, 0), (11, 0), (11, 1))
    assert mixed_up not in run_case((11, 0), (11, 1), (10, 0), (10, 2))
