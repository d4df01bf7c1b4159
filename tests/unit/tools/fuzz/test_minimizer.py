"""What is made of a random run that fails."""

import pytest

from raft.raft import Raft
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.run import run_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import parse_script
from raftlab.tools.fuzz.fuzzers import first
from raftlab.tools.fuzz.minimizer import Finder, OurFailure
from raftlab.tools.generator.sequence import PROGRESS, RunSequence
from unit.tools.peers import mutant_peer

REFERENCE = InProcessLauncher(Raft)

pytestmark = pytest.mark.usefixtures("raft_package_restored")


def played(text, launcher=REFERENCE, *, seed=1, player=None):
    return run_test(make_lab_test(parse_script(text, "x.scenario"), runner=player), launcher, seed)


def fuzzed(id_, tmp_path, seed=1, runs=60, limit_s=20):
    launcher = mutant_peer(id_, tmp_path)
    finder = Finder(launcher, [tmp_path / id_], limit_s=limit_s)
    sequence = RunSequence(launcher, seed, 0)
    for _ in range(runs):
        steps, run_seed, run = sequence.run()
        if finder.outcome(run).failed:
            return finder.check(steps, run_seed, run, sequence=0, number=sequence.runs), launcher
    pytest.fail(f"{id_} was not found in {runs} runs")


@pytest.mark.parametrize("id_", ["double-vote", "no-persist-log", "commit-minority"])
def test_what_is_found_is_a_scenario_of_a_few_steps(id_, tmp_path):
    find, launcher = fuzzed(id_, tmp_path)
    assert find.shortened
    assert find.outcome.ending == "rule"
    assert len(find.steps) <= min(10, find.steps_before)
    assert find.summary == f"Breaks {find.outcome.name}"
    text = "\n".join([*find.header, *find.steps])
    assert played(text, launcher, seed=find.outcome.seed).error.rule == find.outcome.name
    assert played(text, seed=find.outcome.seed).error is None


def test_a_peer_that_gets_nowhere_is_found(tmp_path):
    find, _ = fuzzed("identical-timers", tmp_path, limit_s=1)  # each try takes all the time that is given to a peer
    assert find.outcome.ending == "expectation"
    assert find.steps[-1] == PROGRESS
    assert find.summary == "Makes no progress"
    assert any("there was none for 5 s" in line for line in find.outcome.report.splitlines())
    assert find.title.startswith("no-progress-")


def test_an_exception_in_a_peer_is_found(tmp_path):
    find, _ = fuzzed("commit-unbounded", tmp_path, limit_s=2)
    assert (find.outcome.ending, find.outcome.name) == ("exception", "IndexError")
    assert find.summary == "Ends with IndexError"


def test_what_fails_in_the_labs_own_code_accuses_nobody():
    class OurMistake(Exception):
        pass

    def player(scenario, script):
        raise OurMistake("in the tester")

    run = played("campaign 0\n", player=player)
    with pytest.raises(OurFailure, match="in the tester"):
        Finder(REFERENCE, [], limit_s=1).outcome(run)


def test_the_find_of_fewest_runs_comes_first(tmp_path):
    find, _ = fuzzed("double-vote", tmp_path)
    later = type(find)(**{name: getattr(find, name) for name in find.__struct_fields__} | {"run": find.run + 1})
    elsewhere = type(find)(**{name: getattr(find, name) for name in find.__struct_fields__} | {"sequence": 1})
    assert first([later, elsewhere, find]) is find
    assert first([later, elsewhere]) is elsewhere
    assert first([]) is None
