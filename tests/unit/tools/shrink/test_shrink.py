"""`lab shrink`: minimizes failing runs and writes reproduction steps, a choice file and a scenario."""

import json
import subprocess
import time

import pytest

from labrpc.conditions import Transit
from labsim.choices import Choices, SeededSource
from raftlab.harness.lab_test import LabTest, LabTestKind
from raftlab.harness.loader import load_peer
from raftlab.harness.outcome import Ending, Outcome
from raftlab.harness.records import place_of_peer
from raftlab.harness.run import Run, run_test
from raftlab.scenarios.recorded_schedule import ScheduleRecording, make_schedule_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import parse_script
from raftlab.tools.selection import load_tests, select
from raftlab.tools.shrink import shrinker
from raftlab.tools.shrink.attempts import Attempt, Attempts, RunPlan
from raftlab.tools.shrink.plan_edits import shift_acts
from raftlab.tools.shrink.report import render
from raftlab.tools.shrink.reproduction_steps import reproduction_header, reproduction_steps
from raftlab.tools.shrink.scenario_writer import ScenarioWriter, breaks_rule
from raftlab.tools.shrink.shrinker import NothingToShrink, ShrinkResult, shrink, write
from raftlab.trace.choice_file import read_choices, write_choices
from raftlab.trace.events import STEP
from raftlab.trace.operations import RecordedSchedule, ScheduledOperation
from tests.mutants.tool.mutants import load_mutants
from unit.tools.peers import ROOT, lab, lab_command

pytestmark = pytest.mark.usefixtures("raft_package_restored")

FIGURE_8 = "test_figure8_2c"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Mutants are edits of what lies in the working directory, and files go there."""
    monkeypatch.chdir(tmp_path)
    for name in ("tests", "raft", "kv"):
        (tmp_path / name).symlink_to(ROOT / name)


def wrong_peer(name):
    (mutant,) = [each for each in load_mutants() if each.id == name]
    return mutant.write()


def shrunk(path, name, seed=0, **how):
    (test,) = select([name])
    return shrink(test, load_peer(path), seed, place_of_peer(path), **how)


def test_shrinking_a_broken_rule_is_repeatable():
    path, test = wrong_peer("append-not-persisted"), "test_persist1_2c"
    left, again = (shrunk(path, test, scenario=False) for _ in range(2))
    assert (left.rule, left.best.outcome.name) == ("saved-before-reply", "saved-before-reply")
    assert left.best.events * 3 < left.original.events
    assert left.header == "To reproduce the failure with 2 servers"
    assert [line.partition("s  ")[2] for line in left.reproduction_steps] == ["peer 0 is given the command 1"]
    assert (again.best.run.digest, again.reproduction_steps) == (left.best.run.digest, left.reproduction_steps)


def test_result_replays_elsewhere_and_correct_peer_passes(tmp_path):
    path = wrong_peer("no-persist-votedfor")
    test = "test_vote_survives_restart_2c"
    left = shrunk(path, test)
    files = write(left, select([test])[0], 0, tmp_path / "out", raft=str(path))
    done = subprocess.run(lab_command("replay", files.choices), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert f"Same run as recorded (digest {left.best.run.digest})." in done.stdout
    assert "-- FAILED: " in files.timeline.read_text()
    assert len(files.trace.read_text().splitlines()) == left.best.events + 1
    (steps,) = load_tests(files.scenario)
    assert run_test(steps, load_peer(path), 1).error.rule == "one-vote"
    assert run_test(steps, load_peer(ROOT / "raft" / "raft.py"), 1).error is None


def test_correct_peer_can_make_the_last_step():
    """This leader sends a snapshot where a right one sends entries."""
    wrong, right = load_peer(wrong_peer("snap-term-not-saved")), load_peer(ROOT / "raft" / "raft.py")
    steps = ["elect 2 with 0", "start 2 1", "deliver", "snapshot 1 1", "elect 1 with 0", "deliver 1->2 snapshot"]
    short = ScenarioWriter(wrong, breaks_rule("saved-before-reply"), limit_s=60).shorten(["snapshots"], steps)
    assert short == [*steps[:-1], "replicate 1->2"]
    scenario = make_lab_test(parse_script("\n".join(["snapshots", *short]), "x.scenario"))
    assert run_test(scenario, right, 1).error is None


def test_fuzzing_finds_a_scenario_if_none_is_short(tmp_path):
    path = wrong_peer("truncation-not-persisted")
    launcher, (test,) = load_peer(path), select([FIGURE_8])
    scenario = shrinker._fuzzed_scenario(launcher, "saved-before-reply", 60, time.process_time)
    assert len(scenario) <= shrinker.STEPS_MANY
    assert run_test(make_lab_test(parse_script("\n".join(scenario), "x.scenario")), launcher, 1).error.rule
    assert shrinker._fuzzed_scenario(load_peer(ROOT / "raft" / "raft.py"), "one-vote", 0.1, time.process_time) is None

    # The report is about that run, and the choice file replays it.
    attempts = Attempts(test, launcher, place_of_peer(path))
    original = attempts.run_seed(SeededSource(1), 1)
    long = attempts.run_plan(attempts.without_test(original))
    (best, *_) = shrinker._as_steps(attempts, long, scenario)
    assert attempts.run_plan(best.plan).run.digest == best.run.digest
    left = ShrinkResult(original, best, 1, finished=True, scenario=scenario, from_fuzzing=True)
    said = render(left, write(left, test, 0, tmp_path / "out", raft=str(path)), test.name, 0, {})
    assert f"scenario  out/{test.name}-0.scenario, from another run that breaks the same rule:" in said
    peers = parse_script("\n".join(scenario), "x.scenario").peers
    assert f"To reproduce the failure with {peers} servers" in said


def test_removing_time_reduces_link_delay():
    second = 1_000_000_000
    slow = ScheduledOperation(second, "network.link", ["0", "1"], {"latency_ms": [20_000.0, 30_000.0]})
    later = ScheduledOperation(18 * second, "start", [0, 1])

    def latency(from_s, by_s):
        link, start = shift_acts([slow, later], from_s * second, by_s * second)
        return link.kwargs["latency_ms"], start.at_ns // second

    assert latency(15, 10) == ([10_000.0, 20_000.0], 8)
    assert latency(40, 25) == ([14_000.0, 14_000.0], 15), "not before the stretch begins"
    assert latency(40, 10) == ([20_000.0, 30_000.0], 18), "it had arrived"
    assert latency(3, 3) == ([20_000.0, 30_000.0], 15), "the link became slow in it"


def test_failed_expectation_only_loses_faults():
    """Its commands and its expectations stay, and it fails in the same line."""
    left = shrunk(wrong_peer("narrow-timeouts"), "test_split_votes_are_rare_2c", limit_s=0.8)
    assert left.best.plan.play is None
    assert left.best.signature == left.original.signature
    assert left.best.signature.where.called == "wait_for_leader"
    faults = [place for cluster in left.original.notes.clusters for place in cluster.faults]
    still = [place for cluster in left.best.notes.clusters for place in cluster.faults]
    assert [place[1] for place in faults] == ["network.latency", "crash1", "crash1"]
    assert len(still) < len(faults)
    assert left.best.events <= left.original.events
    assert left.scenario is None


def test_failure_of_a_service_is_shrunk():
    (mutant,) = [each for each in load_mutants() if each.id == "kv-any-reply-will-do"]
    path = mutant.write()
    (test,) = select(["test_basic_3a"])
    peer = load_peer(ROOT / "raft" / "raft.py", kv=path)
    seed = next(seed for seed in range(20) if run_test(test, peer, seed).error is not None)
    left = shrink(test, peer, seed, place_of_peer(ROOT / "raft" / "raft.py", path))
    assert left.best.outcome.name == left.rule
    assert left.best.events * 10 < left.original.events


def test_passing_run_is_not_shrunk(capsys):
    assert lab("shrink", "test_initial_election_2a", "--seed", "0") == 1
    said = "test_initial_election_2a with seed 0 does not fail, so there is nothing to shrink.\n"
    assert capsys.readouterr().out == said


def test_unrepeatable_failure_is_not_shrunk():
    runs = []

    def test_moody(make_config):
        runs.append(None)
        make_config(servers=1).fail(f"for the reason {'abc'[len(runs)]}")

    test = LabTest("test_moody", ROOT / "tests" / "test_2a.py", LabTestKind.PEER, test_moody)
    with pytest.raises(NothingToShrink, match="test_moody with seed 0 fails differently each time"):
        shrink(test, load_peer(ROOT / "raft" / "raft.py"), 0, ())


def test_interrupt_returns_the_best_so_far(tmp_path):
    bests = []

    def progress(best, runs):
        bests.append(best)
        if len(bests) == 2:
            raise KeyboardInterrupt

    left = shrunk(wrong_peer("append-not-persisted"), "test_persist1_2c", progress=progress)
    assert left.interrupted
    assert left.best.signature == left.original.signature
    assert left.best.events == bests[-1].events < left.original.events


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["test_nothing", "--seed", "1"], "lab shrink: no test matches 'test_nothing'"),
        (["2a", "--seed", "1"], "lab shrink: cannot shrink "),
        (["vote_of_an_older_campaign", "--seed", "1"], "lab shrink: vote_of_an_older_campaign is a scenario; "),
        ([FIGURE_8, "--seed", "1", "--limit", "0"], "lab shrink: --limit must be a number of seconds above 0, got 0"),
        ([FIGURE_8, "--seed", "1", "--raft", "none.py"], "lab shrink: none.py: "),
    ],
)
def test_wrong_options_of_shrink_are_refused(arguments, said, capsys):
    assert lab("shrink", *arguments) == 2
    assert capsys.readouterr().err.startswith(said)


def test_command_prints_steps_and_files(capsys, tmp_path):
    path = wrong_peer("append-not-persisted")
    assert lab("shrink", "test_persist1_2c", "--seed", "0", "--raft", path, "--json", tmp_path / "figures") == 0
    figures = json.loads((tmp_path / "figures").read_text())
    out = capsys.readouterr().out
    assert out.startswith("test_persist1_2c  seed 0\n  ")
    assert "\n  To reproduce the failure with 2 servers:\n    0." in out
    assert f"\n  It breaks saved-before-reply at {figures['told'][-1].partition(' at ')[2]}\n" in out
    assert f"\n  {figures['events']} of {figures['events_before']} events remain, after " in out
    assert "\n  timeline  build/shrunk/test_persist1_2c-0.txt\n" in out
    assert "\n  replay    lab replay build/shrunk/test_persist1_2c-0.choices\n" in out
    steps = (tmp_path / "build/shrunk/test_persist1_2c-0.scenario").read_text().splitlines()
    assert steps[0] == "# Breaks saved-before-reply, as test_persist1_2c with seed 0 does."
    assert out.endswith("".join(f"    {step}\n" for step in steps[4:]))


def test_run_becomes_a_scenario_without_shrinking(capsys, tmp_path):
    path = wrong_peer("append-not-persisted")
    assert lab("scenario", "--from", "test_persist1_2c", "--seed", "0", "--raft", path, "--out", "x.scenario") == 0
    assert lab("scenario", "x.scenario") == 0
    assert lab("scenario", "x.scenario", "--raft", path) == 1
    capsys.readouterr()
    assert lab("scenario", "--from", "test_initial_election_2a") == 1
    said = "test_initial_election_2a with seed 1 passes; only a run that breaks a rule becomes a scenario.\n"
    assert capsys.readouterr().out == said
    assert lab("scenario", "--from", "test_basic_3a") == 2
    assert "--from must be a test of parts 2A to 2D" in capsys.readouterr().err


# ---- reproduction steps ------------------------------------------------------------------------------------------


def steps_of_acts(*acts, chosen=None):
    choices = Choices()
    choices.chosen = chosen or {}
    plan = RunPlan(choices, RecordedSchedule({"servers": 3}, False, list(acts), 0))
    return reproduction_steps(Attempt(plan, Run(0), Outcome(ending=Ending.RULE), None, ScheduleRecording()))


def test_messages_with_the_same_outcome_share_a_line():
    there, back = ("request", "0->1", "Raft.append_entries"), ("reply", "2->0", "Raft.request_vote")
    late = [400, 900, 700]
    chosen = {
        (there, 7): Transit(5_000_000, lost=True),
        (there, 8): Transit(3_000_000),
        **{(back, number): Transit(ms * 1_000_000) for number, ms in enumerate(late, start=1)},
        (("node", "1"), 1): 12345,
        (("node", "2"), 1): 12345,
    }
    assert steps_of_acts(chosen=chosen) == [
        "0.000 s  append_entries 0->1, number 7 is lost",
        "0.000 s  3 replies to request_vote 2->0 take 400 to 900 ms",
        "the timeouts of peers 1, 2",
        "the exact delay of 1 message (a few milliseconds)",
    ]


def test_run_of_steps_is_described_by_its_steps(tmp_path):
    steps = ["peers 2", "campaign 0", "deliver 0->1 vote", "expect 1 voted 0"]
    play = RecordedSchedule({"servers": 2}, False, [], 0, steps=steps)
    attempt = Attempt(RunPlan(Choices(), play), Run(0), Outcome(ending=Ending.RULE), None, ScheduleRecording())
    assert reproduction_header(attempt) == "To reproduce the failure with 2 servers"
    assert reproduction_steps(attempt) == steps[1:]
    write_choices(tmp_path / "x.choices", Choices(), test="test_x_2a", digest="", play=play)
    header, _ = read_choices(tmp_path / "x.choices")
    run = run_test(make_schedule_test(header.play), load_peer(ROOT / "raft/raft.py"), 0)
    assert run.error is None
    assert [event.detail for event in run.simulation.trace if event.kind == STEP] == steps[1:]


def test_each_act_is_described():
    second = 1_000_000_000
    assert steps_of_acts(
        ScheduledOperation(second, "crash1", [2]),
        ScheduledOperation(2 * second, "start1", [2]),
        ScheduledOperation(2 * second, "connect", [2]),
        ScheduledOperation(2 * second, "disconnect", [1]),
        ScheduledOperation(3 * second, "connect", [1]),
        ScheduledOperation(3 * second, "pause", [0]),
        ScheduledOperation(4 * second, "network.partition", [["0", "1"], ["2"]]),
        ScheduledOperation(5 * second, "network.partition", []),
        ScheduledOperation(5 * second, "network.link", ["0", "1"], {"latency_ms": [5, 40]}),
        ScheduledOperation(5 * second, "crash_at", [1, "before save"]),
        ScheduledOperation(5 * second, "crash_at", [1, None]),
        ScheduledOperation(6 * second, "start", [0, "x"]),
        ScheduledOperation(7 * second, "start", [0, 1]),
        ScheduledOperation(7 * second, "start", [0, 2]),
        ScheduledOperation(8 * second, "make_client", ["client 3", [0, 1]]),
        ScheduledOperation(8 * second, "client.append", ["client 3", "k", "v"]),
        ScheduledOperation(9 * second, "get_state", [1]),
    ) == [
        "1.000 s  peer 2 crashes and restarts at 2.000 s",
        "2.000 s  peer 1 is disconnected until 3.000 s",
        "3.000 s  peer 0 is paused",
        "4.000 s  the network is partitioned: 0 1 | 2",
        "5.000 s  all links are restored",
        "5.000 s  0->1: takes 5 to 40 ms more",
        "5.000 s  peer 1 crashes before its next save",
        "5.000 s  peer 1 will not crash any more",
        "6.000 s  peer 0 is given the command 'x'",
        "7.000 s  peer 0 is given the commands 1, 2",
        "8.000 s  client 3 reaches only servers 0, 1",
        "8.000 s  client 3 appends 'v' to 'k'",
        "9.000 s  peer 1 is asked for its state",
    ]
