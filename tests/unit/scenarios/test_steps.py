"""What each step does, and what a failed expectation says."""

from pathlib import Path

import pytest

from labsim.choices import SeededSource
from raft.raft import Raft
from raftlab.check.failure import Failure
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import ScriptError, parse_script
from raftlab.trace import events
from tests.mutants.tool.mutants import load_mutants

REFERENCE = InProcessLauncher(Raft)


def play(text, launcher=REFERENCE, seed=7, **options):
    """The run of a script, and the output of each `show`."""
    shown = []
    script = parse_script(text, "steps.scenario")
    run = run_test(make_lab_test(script, on_output=lambda step, out: shown.append(out)), launcher, seed, **options)
    return run, shown


def passes(text, launcher=REFERENCE, seed=7):
    run, shown = play(text, launcher, seed)
    assert run.error is None, run.error
    return run, shown


def fails(text, launcher=REFERENCE, **options):
    run, _ = play(text, launcher, **options)
    assert isinstance(run.error, Failure), run.error
    return run.error


def wrong(id_, tmp_path):
    mutant = next(mutant for mutant in load_mutants() if mutant.id == id_)
    return load_peer(mutant.write(tmp_path))


# ---- nothing happens by itself ---------------------------------------------------------------------------------


def test_nothing_happens_without_a_step():
    run, _ = passes("expect no leader\n" * 500)
    assert {event.kind for event in run.simulation.trace if event.node} <= {
        *(events.BOOT, events.RESTORE, events.CONNECT, events.FREEZE_CLOCK, events.UNFREEZE_CLOCK),
    }


def test_only_the_candidate_s_clock_runs():
    run, (shown,) = passes("campaign 0\nshow\n")
    senders = {event.node for event in run.simulation.trace if event.kind == events.SEND}
    assert senders == {"0"}
    assert "in flight:\n  0->1 vote 1  term 1, last entry 0 of term 0\n" in shown


def test_requests_and_replies_wait_for_delivery():
    _, (asked, answered, heard) = passes(
        "campaign 0\nshow\ndeliver 0->1 vote\nshow\ndeliver 1->0 vote reply\ndrop\nshow\n"
    )
    assert "1->0 vote reply" not in asked
    assert "  1->0 vote reply 1  term 1, granted" in answered
    assert "0     leader     1" not in answered
    assert "0     leader" in heard


def test_step_is_an_event_with_the_text_of_the_file():
    run, _ = passes("campaign 0\ndeliver 0->1 vote\n")
    steps = [event.detail for event in run.simulation.trace if event.kind == events.STEP]
    assert steps == ["campaign 0", "deliver 0->1 vote"]


@pytest.mark.parametrize("seed", range(5))
def test_show_does_not_depend_on_the_seed(seed):
    text = (
        "peers 5\nlogs 0: 1 2\nlogs 1: 1 2\nlogs 2: 1\nlogs 3: 1 3\nlogs 4: 1\ncommit 1\nshow\nelect 3 with 2 4\nshow\n"
    )
    assert passes(text, seed=seed)[1] == passes(text, seed=100)[1]


# ---- messages ----------------------------------------------------------------------------------------------------


def test_caller_of_a_dropped_request_returns_at_once():
    run, _ = passes("campaign 0\ndrop 0->1 vote\nexpect not in flight 0->1 vote 1\n")
    dropped = [event for event in run.simulation.trace if event.kind == events.DROP]
    assert [event.note for event in dropped] == [events.DropReason.LOST_REQUEST]


def test_a_duplicate_leaves_the_request_in_flight():
    run, _ = passes("campaign 0\nduplicate 0->1 vote\nexpect in flight 0->1 vote 1\ndeliver 0->1 vote\n")
    delivered = [event.message for event in run.simulation.trace if event.kind == events.DELIVER]
    assert len(delivered) == 2
    assert len(set(delivered)) == 1


def test_delivered_message_can_arrive_again():
    run, _ = passes("campaign 0\ndeliver 0->1 vote\ndeliver 1->0 vote reply\ndeliver 0->1 vote again\n")
    assert sum(event.kind == events.DUPLICATE for event in run.simulation.trace) == 1


def test_a_request_of_a_crashed_peer_can_still_arrive():
    passes("campaign 0\ncrash 0\ndeliver 0->1 vote\nexpect 1 voted 0\n")


def test_message_over_a_cut_link_is_lost():
    passes("cut 0->1\ncampaign 0\nexpect in flight 0->2 vote\nexpect not in flight 0->1 vote\n")


def test_cut_of_one_peer_cuts_all_its_links():
    passes("cut 0\ncampaign 0\nexpect not in flight 0->* vote\ncampaign 1\nexpect not in flight 1->0 vote\n")


@pytest.mark.parametrize("heal", ["heal 0", "heal 0 1", "heal 0->1", "heal"])
def test_heal_takes_links_as_cut_does(heal):
    lost = "" if heal in ("heal 0", "heal") else "not "
    passes(f"cut 0\n{heal}\ncampaign 0\nexpect in flight 0->1 vote\nexpect {lost}in flight 0->2 vote\n")


def test_run_until_send_ends_with_the_first_message():
    run, _ = passes("run until send\nexpect in flight *->* vote\n")
    assert len({event.node for event in run.simulation.trace if event.kind == events.SEND}) == 1


def test_run_until_send_needs_a_peer_that_runs():
    assert "No peer sent anything" in str(fails("crash 0\ncrash 1\ncrash 2\nrun until send\n"))


def test_deliver_alone_delivers_everything():
    passes("campaign 0\ndeliver\nexpect leader 0 term 1\nexpect 1 term 1\nexpect 2 term 1\n")


def test_selector_with_a_term_ignores_earlier_campaigns():
    passes("campaign 0\ncampaign 0\ndeliver 0->1 vote term 2\nexpect 1 term 2\nexpect in flight 0->1 vote term 1\n")


def test_oldest_matching_message_is_delivered():
    passes("campaign 0\ncampaign 0\ndeliver 0->1 vote\nexpect 1 term 1\n")


# ---- faults ------------------------------------------------------------------------------------------------------


def test_armed_crash_happens_at_the_next_save():
    run, _ = passes("campaign 0\ncrash 1 before save\ndeliver 0->1 vote\nexpect 1 down\nrestart 1\nexpect 1 term 0\n")
    kinds = [event.kind for event in run.simulation.trace if event.node == "1"]
    assert events.PERSIST not in kinds


def test_armed_crash_happens_during_a_snapshot():
    took = "snapshots\nelect 0 with 1\nstart 0 x\nupdate 0->1\ncrash 1 before save\nsnapshot 1 1\nexpect 1 down\n"
    run, _ = passes(f"{took}restart 1\n")
    assert [event.detail for event in run.simulation.trace if event.kind == events.RESTORE][-1] == 0


def test_messages_for_a_busy_service_wait_without_a_violation():
    handed = "elect 0 with 1\nstart 0 x\nbusy 1\nreplicate 0->1\nrun 3s\n"
    passes(f"{handed}expect 0 applied x at 1\nexpect 1 not applied x\nready 1\nexpect 1 applied x at 1\n")
    # A crash ends it.
    passes(f"{handed}crash 1\nrestart 1\nrun 1s\nexpect 1 applied x at 1\n")


@pytest.mark.parametrize("no_longer", ["ready 1", "crash 1\nrestart 1"])
def test_missing_apply_is_reported_once_the_service_is_ready(no_longer, tmp_path):
    peer = wrong("no-commit-on-heartbeat", tmp_path)
    handed = "elect 0 with 1\ncrash 2\nstart 0 x\nbusy 1\nrun 3s\n"
    passes(handed, peer)
    assert fails(f"{handed}{no_longer}\nrun 3s\n", peer).rule == "committed-gets-applied"


def test_reply_is_selected_by_its_request_s_command():
    given = "elect 0 with 1\ndeliver\nstart 0 x\ndeliver 0->1 append with x\nheartbeat 0\ndeliver 0->1 append 3\n"
    _, (shown,) = passes(f"{given}deliver 1->0 append reply with x\nshow\n")
    assert "1->0 append reply 2 " not in shown and "1->0 append reply 3 " in shown


def test_messages_to_a_paused_peer_wait():
    passes("campaign 0\npause 1\ndeliver 0->1 vote\nexpect not in flight 1->0 vote reply\nresume 1\nexpect 1 voted 0\n")


def test_run_without_a_peer_is_normal_operation():
    run, _ = passes("campaign 0\nrun 2s\nexpect leader 0\nrun 500ms\n")
    assert run.virtual_s > 2.5


def test_snapshots_are_taken_only_in_steps():
    text = "snapshots\nelect 0 with 1 2\n" + "".join(f"start 0 x{i}\n" for i in range(12)) + "update 0->1 2\n"
    run, _ = passes(f"{text}snapshot 0 5\n")
    saved = [event.node for event in run.simulation.trace if event.kind == events.PERSIST and event.detail.snapshot]
    assert saved == ["0"]


# ---- expectations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expect leader 0", "Expected peer 0 as the leader; get_state() says: term 0, not leader"),
        (
            "elect 0 with 1\nexpect leader 0 term 2",
            "Expected peer 0 as the leader of term 2; get_state() says: term 1,",
        ),
        ("elect 0 with 1\nexpect no leader", "Expected no leader, but peer 0 leads in term 1"),
        ("elect 0 with 1\nexpect 0 not leader", "Expected peer 0 not to lead; get_state() says: term 1, leader"),
        ("expect 1 term 4", "Expected peer 1 in term 4; get_state() says 0"),
        ("expect 1 voted 0", "Expected peer 1 to vote for peer 0, but it has not replied yet"),
        (
            "campaign 0\ndeliver 0->1 vote\nexpect 1 refused 0",
            "Expected peer 1 to refuse peer 0 in term 1, but it voted",
        ),
        ("expect 1 accepted 0", "Expected peer 1 to accept an AppendEntries of peer 0, but it has not replied yet"),
        (
            "elect 0 with 1\nreplicate 0->1\nexpect 1 rejected 0",
            "Expected peer 1 to reject the last AppendEntries of peer 0, but it",
        ),
        (
            "elect 0 with 1\nstart 0 x\nexpect 0 applied x",
            "Expected peer 0 to have applied 'x'; it has applied nothing",
        ),
        (
            "elect 0 with 1\nstart 0 x\nreplicate 0->1\nexpect 0 applied y at 1",
            "Expected peer 0 to have applied 'y' at 1; it has applied x at 1",
        ),
        (
            "elect 0 with 1\nstart 0 x\nreplicate 0->1\nexpect 0 applied x\nexpect 0 not applied x",
            "Expected peer 0 not to have applied 'x', but it has",
        ),
        ("expect 0 applied up to 1", "Expected peer 0 to have applied up to 1; it has applied nothing"),
        ("expect in flight 0->1 append", "No message in flight matches 0->1 append, and peer 0 sent none in 200 ms"),
        (
            "campaign 0\nexpect not in flight 0->1 vote",
            "Expected no message in flight that matches 0->1 vote, but there is: 0->1",
        ),
        ("expect 0 down", "Expected peer 0 to be down, but it is up"),
        ("elect 0 with 1\nexpect 1 log 1", "Expected log of peer 1 to be 1; it is empty"),
        ("expect 0 commit_index 3", "Expected commit_index of peer 0 to be 3; it is 0"),
        ("expect 0 voted_for 1", "Expected voted_for of peer 0 to be 1; it is none"),
        ("start 0 x", "Peer 0 refused 'x': start() says that it is not the leader (term 0)"),
        ("elect 0 with 1\nstart 0 x refused", "Peer 0, leader of term 1, accepted 'x'; expected it to refuse"),
        ("deliver 0->1 vote again", "No delivered message matches 0->1 vote, so none can arrive again"),
        ("strict\ndeliver 0->1 append", "No message in flight matches 0->1 append, and no clock runs in a strict"),
        ("crash 0\ndeliver 0->1 vote", "No message in flight matches 0->1 vote, and peer 0 is down"),
        ("crash 1\ndeliver 0->1 vote", "No message in flight matches 0->1 vote, and peer 1 is down"),
    ],
)
def test_failed_expectation_says_what_was_found(text, said):
    error = fails(text)
    assert error.text.startswith(said)
    last = len(text.splitlines())
    assert f"steps.scenario:{last} in " in error.evidence[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("crash 0\ncrash 0", "steps.scenario:2: crash 0: peer 0 is down; restart it first"),
        ("restart 1", "steps.scenario:1: restart 1: peer 1 is not down; crash it first"),
        ("pause 0\nstart 0 x", "steps.scenario:2: start 0 x: peer 0 is paused; resume it first"),
        ("resume 0", "steps.scenario:1: resume 0: peer 0 is not paused"),
        (
            "elect 0 with 1\ncampaign 0",
            "steps.scenario:2: campaign 0: peer 0 is the leader, so it does not campaign; restart",
        ),
        ("heartbeat 1", "steps.scenario:1: heartbeat 1: peer 1 is not the leader, so it sends no AppendEntries"),
        ("elect 0 with 1\nreplicate 0->0", "replicate 0->0: peer 0 cannot replicate to itself; name other peers"),
        ("elect 0 with 0 1", "elect 0 with 0 1: peer 0 always votes for itself"),
        ("deliver 0->0 vote", "messages from peer 0 to itself are never in flight"),
        ("campaign 0\ndeliver 0->1 vote\ncrash 1\ndeliver 0->1 vote again", "peer 1 is down; restart it first"),
        (
            "campaign 0\ncampaign 0 term 1",
            "steps.scenario:2: campaign 0 term 1: peer 0 has already campaigned in term 1",
        ),
        ("snapshots\nsnapshot 0 1", "server 0 has applied up to 0, so it has no state at index 1"),
        ("campaign 0\ndeliver 0->1 vote\nduplicate 1->0 vote reply", "only requests can be duplicated"),
    ],
)
def test_impossible_step_is_reported_with_its_line(text, said):
    run, _ = play(text)
    assert said in str(run.error)


def test_peer_that_never_campaigns_fails(tmp_path):
    source = Path(Raft.__init__.__code__.co_filename).read_text(encoding="utf-8")
    campaigning = "        self.role = Role.CANDIDATE\n"
    assert campaigning in source
    instead = "        self._reset_election_timer()\n        return\n"
    (tmp_path / "raft.py").write_text(source.replace(campaigning, instead + campaigning), encoding="utf-8")
    error = fails("campaign 0\n", load_peer(tmp_path / "raft.py"))
    assert error.text == "Peer 0 did not request votes within 10 s on its own clock (§5.2)"


def test_single_peer_can_campaign():
    passes("peers 1\ncampaign 0\nexpect leader 0 term 1\nstart 0 x\nexpect 0 applied x at 1\n")


def test_armed_crash_may_happen_in_a_campaign():
    passes("crash 0 after save\ncampaign 0\nexpect 0 down\n")


def test_armed_crash_may_happen_in_a_snapshot():
    begin = "snapshots\nelect 0 with 1\nstart 0 x\nreplicate 0->1\n"
    passes(f"{begin}crash 0 before save\nsnapshot 0 1\nexpect 0 down\n")


def test_armed_crash_may_happen_while_a_step_waits():
    """It campaigns and saves while a step waits for its leadership."""
    told = set()
    for before_ms in range(0, 700, 100):
        run, _ = play(f"run 0 {before_ms}ms\ncrash 0 before save\nheartbeat 0\n")
        assert isinstance(run.error, ScriptError), run.error
        told.add(str(run.error))
    assert "steps.scenario:3: heartbeat 0: peer 0 is down; restart it first" in told


# ---- progress -------------------------------------------------------------------------------------------------


def test_expect_progress_repairs_all_faults_first():
    run, (shown,) = passes(
        "elect 0 with 1\nbusy 0\ncrash 1 after reply\ncrash 2\npause 0\npartition 0 | 1 2\nexpect progress\nshow\n"
    )
    config = run.configs[0]
    assert all("progress" in config.applied(i).values() for i in range(3))
    assert "down" not in shown and "paused" not in shown
    # Afterwards nothing happens by itself again.
    kinds = [event.kind for event in run.simulation.trace]
    last_step = len(kinds) - 1 - kinds[::-1].index(events.STEP)
    assert events.SEND not in kinds[last_step : kinds.index(events.STOP)]


def test_stalled_peer_fails_expect_progress(tmp_path):
    error = fails("expect progress\n", wrong("identical-timers", tmp_path))
    assert error.text.startswith("Expected one leader among the connected servers, but there was none for 5 s")


def test_drop_with_star_drops_all_matching_messages():
    passes("campaign 0\ndrop *->* vote\nexpect not in flight 0->1 vote 1\nexpect not in flight 0->2 vote 1\n")


@pytest.mark.parametrize("seed", range(3))
def test_logs_step_commits_no_more_than_requested(seed):
    """Two entries are started one after the other: the reply to the first must not be delivered either."""
    text = "logs 0: 1 1 1\nlogs 1: 1 1 1\ncommit 1\nexpect 1 applied up to 1\n"
    passes(text, seed=seed)
    passes("logs 0: 1 1 1\nlogs 1: 1 1 1\nexpect 0 applied up to 0\nexpect 1 applied up to 0\n", seed=seed)


def test_expectation_checks_the_reply_to_the_last_request(tmp_path):
    """A correct peer may refuse later; an earlier acceptance does not count."""
    source = Path(Raft.__init__.__code__.co_filename).read_text(encoding="utf-8")
    handler = '        """AppendEntries RPC, receiver (Figure 2, steps 1 to 5)."""\n'
    assert handler in source
    (tmp_path / "raft.py").write_text(source.replace(handler, f"{handler}        time.sleep(0.03)\n"), encoding="utf-8")
    late = load_peer(tmp_path / "raft.py")
    text = "elect 0 with 1\nreplicate 0->1\nelect 1 with 2\nheartbeat 0\n"
    passes(f"{text}elect 2 term 3 with 1\ndeliver 0->1 append\nexpect 1 rejected 0\n", late)


# ---- rules, and other peers --------------------------------------------------------------------------------------


def test_violated_rule_is_reported_at_its_step(tmp_path):
    text = "campaign 0\ncampaign 1\ndeliver 0->2 vote\ndeliver 1->2 vote\nexpect 2 term 1\n"
    error = fails(text, wrong("double-vote", tmp_path))
    assert error.rule == "one-vote"


def test_scenario_can_expect_a_violation(tmp_path):
    text = "campaign 0\ncampaign 1\ndeliver 0->2 vote\ndeliver 1->2 vote\nexpect rule one-vote broken\n"
    passes(text, wrong("double-vote", tmp_path))
    assert fails(text).text == "Expected a violation of one-vote, but there was none"


def test_each_campaign_before_a_term_has_its_own_time_limit():
    run, _ = play("campaign 0 term 30\nexpect 0 term 30\n")
    assert run.error is None


def pre_vote_peer():
    return load_peer(next(m for m in load_mutants() if m.id == "design-pre-vote").write())


def test_pre_votes_are_answered_in_a_campaign():
    run, _ = play("elect 0 with 1\ndeliver 0->1 append\nelect 2 with 1\nexpect leader 2 term 2\n", pre_vote_peer())
    assert run.error is None
    # Nor of a term in a request of an earlier step.
    run, _ = play("run 0 400ms\ncampaign 2\nexpect in flight 0->1 pre_vote\n", pre_vote_peer())
    assert run.error is None


def test_pre_votes_go_first_to_peers_with_the_lowest_term():
    run, _ = play("peers 5\ncampaign 0\ndeliver 0->1 vote\ncampaign 2\nexpect 2 term 1\n", pre_vote_peer())
    assert run.error is None


def test_strict_scenario_answers_no_pre_votes():
    assert "did not request votes" in fails("strict\ncampaign 0\n", pre_vote_peer()).text


# Peer 2 lacks an entry, so no peer would vote for it.
REFUSED_BEFOREHAND = "elect 0 with 1 2\nstart 0 x\nreplicate 0->1\ncampaign 2\n"


def test_peer_without_plain_votes_is_skipped_if_the_file_says_so():
    run, _ = play(f"needs plain votes\n{REFUSED_BEFOREHAND}", pre_vote_peer())
    assert str(run.error) == "the scenario needs plain votes, but a peer calls Raft.pre_vote before it campaigns"
    assert "did not request votes" in fails(REFUSED_BEFOREHAND, pre_vote_peer()).text


def test_peer_with_its_own_rpcs_is_skipped_at_a_failed_step():
    pull = load_peer(next(m for m in load_mutants() if m.id == "design-pull").write())
    run, _ = play("elect 0 with 1 2\nstart 0 a\nreplicate 0->1\n", pull)
    assert str(run.error) == "the scenario needs the paper's RPCs, but these cannot be decoded: Raft.fetch"
    run, _ = play("elect 0 with 1 2\nexpect progress\n", pull)
    assert run.error is None


def test_leader_may_send_a_snapshot_after_a_reply_only():
    letters = load_peer(next(m for m in load_mutants() if m.id == "design-letters").write())
    behind = "snapshots\nelect 0 with 1 2\nstart 0 a\nreplicate 0->1\nexpect 0 applied a at 1\nsnapshot 0 1\ndrop\n"
    run, _ = play(f"{behind}deliver 0->2 snapshot\nexpect 2 applied up to 1\n", letters)
    assert run.error is None
    assert "No message in flight matches 0->2 snapshot" in fails(f"strict\n{behind}deliver 0->2 snapshot\n").text


def test_failed_step_of_a_plain_peer_is_not_skipped():
    fails("needs plain votes\nexpect leader 0\n")


def test_scenario_run_can_be_replayed_and_recorded():
    text = "campaign 0\ndeliver\nstart 0 x\nrun 1s\nexpect 1 applied x at 1\n"
    one, other = play(text)[0], play(text, choice_source=SeededSource(7))[0]
    assert one.digest == other.digest
    assert one.digest != play(text, seed=8)[0].digest
