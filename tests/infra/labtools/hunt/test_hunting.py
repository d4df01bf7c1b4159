"""Runs that nobody wrote: what is drawn, and what is made of a run that fails."""

import os
import subprocess
import sys

import pytest

from infra.labtools.peers import ROOT
from labtest import events
from labtest.loading import load_peer_class
from labtest.running import run_test
from labtest.scenarios.playing import as_test
from labtest.scenarios.text import parse_script
from labtools.hunt.finding import Finder, OurFailure
from labtools.hunt.hunters import first
from labtools.hunt.hunting import PROGRESS, Lane
from labtools.zoo.mutants import load_zoo
from raft.raft import Raft

pytestmark = pytest.mark.usefixtures("raft_package_restored")


def zoo_peer(id_, tmp_path):
    mutant = next(mutant for mutant in load_zoo() if mutant.id == id_)
    return load_peer_class(mutant.write(tmp_path))


def played(text, peer_class=Raft, *, seed=1, player=None):
    return run_test(as_test(parse_script(text, "x.scenario"), player=player), peer_class, seed)


# ---- what is drawn ------------------------------------------------------------------------------------------------


def test_a_right_peer_survives_and_its_runs_are_worth_something():
    lane = Lane(Raft, 5, 0)
    words = set()
    applied = 0
    for _ in range(24):
        steps, seed, run = lane.run()
        assert run.error is None, run.error
        assert steps.lines[-1] == PROGRESS
        assert seed == 1
        words |= {line.split()[0] for line in steps.lines}
        applied += any(event.kind == events.APPLY for event in run.simulation.trace)
    assert words >= {"campaign", "deliver", "drop", "duplicate", "start", "crash", "restart", "pause", "resume"}
    assert words >= {"partition", "busy", "ready", "snapshot", "heartbeat", "run", "expect"}
    assert applied == 24


def test_no_run_is_skipped_where_peers_replicate_in_words_of_their_own(tmp_path):
    """A step that finds nothing skips a scenario that somebody wrote; here it is left out."""
    lane = Lane(zoo_peer("stranger-pull", tmp_path), 1, 0)
    assert [lane.run()[2].error for _ in range(6)] == [None] * 6


def test_the_steps_of_a_run_are_the_run():
    """Most of the time: a step that made no sense was left out, and may have let a clock run."""
    lane = Lane(Raft, 6, 0)
    same = 0
    for _ in range(10):
        steps, seed, run = lane.run()
        again = played("\n".join([*steps.header, *steps.lines]), seed=seed)
        same += again.error is None and again.simulation.now_ns == run.simulation.now_ns
    assert same >= 5


LINES = """
from labtools.hunt.hunting import Lane
from raft.raft import Raft
lane = Lane(Raft, 3, 1)
for _ in range(4):
    steps, seed, run = lane.run()
    print(run.digest, steps.lines)
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_one_seed_and_lane_are_one_sequence_of_runs_in_any_process(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", LINES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    lane = Lane(Raft, 3, 1)
    expected = []
    for _ in range(4):
        steps, _, run = lane.run()
        expected.append(f"{run.digest} {steps.lines}")
    assert done.stdout.splitlines() == expected


def test_lanes_differ():
    assert Lane(Raft, 3, 0).run()[0] != Lane(Raft, 3, 1).run()[0]


# ---- what is found ------------------------------------------------------------------------------------------------


def hunted(id_, tmp_path, seed=1, runs=60, limit_s=20):
    peer_class = zoo_peer(id_, tmp_path)
    finder = Finder(peer_class, [tmp_path / id_], limit_s=limit_s)
    lane = Lane(peer_class, seed, 0)
    for _ in range(runs):
        steps, run_seed, run = lane.run()
        if finder.verdict(run).failed:
            return finder.look_at(steps, run_seed, run, lane=0, number=lane.runs), peer_class
    pytest.fail(f"{id_} was not found in {runs} runs")


@pytest.mark.parametrize("id_", ["double-vote", "no-persist-log", "commit-minority"])
def test_what_is_found_is_a_scenario_of_a_few_steps(id_, tmp_path):
    find, peer_class = hunted(id_, tmp_path)
    assert find.shortened
    assert find.ending == "rule"
    assert len(find.steps) <= min(10, find.steps_before)
    assert find.summary == f"Breaks {find.name}"
    text = "\n".join([*find.header, *find.steps])
    assert played(text, peer_class, seed=find.seed).error.rule == find.name
    assert played(text, seed=find.seed).error is None


def test_a_peer_that_gets_nowhere_is_found(tmp_path):
    find, _ = hunted("identical-timers", tmp_path, limit_s=1)  # each try takes all the time that is given to a peer
    assert find.ending == "expectation"
    assert find.steps[-1] == PROGRESS
    assert find.summary == "Gets nowhere"
    assert any("there was none for 5 s" in line for line in find.told)
    assert find.title.startswith("no-progress-")


def test_an_exception_in_a_peer_is_found(tmp_path):
    find, _ = hunted("commit-unbounded", tmp_path, limit_s=2)
    assert (find.ending, find.name) == ("exception", "IndexError")
    assert find.summary == "Ends with IndexError"


def test_what_fails_in_the_labs_own_code_accuses_nobody():
    class OurMistake(Exception):
        pass

    def player(scenario, script):
        raise OurMistake("in the tester")

    run = played("campaign 0\n", player=player)
    with pytest.raises(OurFailure, match="in the tester"):
        Finder(Raft, [], limit_s=1).verdict(run)


def test_the_find_of_fewest_runs_comes_first(tmp_path):
    find, _ = hunted("double-vote", tmp_path)
    later = type(find)(**{name: getattr(find, name) for name in find.__struct_fields__} | {"run": find.run + 1})
    elsewhere = type(find)(**{name: getattr(find, name) for name in find.__struct_fields__} | {"lane": 1})
    assert first([later, elsewhere, find]) is find
    assert first([later, elsewhere]) is elsewhere
    assert first([]) is None
