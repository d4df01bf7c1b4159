"""Random scenarios: their steps, and that seed and sequence number decide them."""

import os
import subprocess
import sys

import pytest

from raft.raft import Raft
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.run import run_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import parse_script
from raftlab.tools.generator.sequence import PROGRESS, RunSequence
from raftlab.trace import events
from unit.tools.peers import ROOT, mutant_peer

REFERENCE = InProcessLauncher(Raft)

pytestmark = pytest.mark.usefixtures("raft_package_restored")


def test_correct_peer_passes_varied_runs():
    sequence = RunSequence(REFERENCE, 5, 0)
    words = set()
    applied = 0
    for _ in range(24):
        steps, seed, run = sequence.run()
        assert run.error is None, run.error
        assert steps.lines[-1] == PROGRESS
        assert seed == 1
        words |= {line.split()[0] for line in steps.lines}
        applied += any(event.kind == events.APPLY for event in run.simulation.trace)
    assert words >= {"campaign", "deliver", "drop", "duplicate", "start", "crash", "restart", "pause", "resume"}
    assert words >= {"partition", "busy", "ready", "snapshot", "heartbeat", "run", "expect"}
    assert applied == 24


def test_own_rpcs_do_not_skip_runs(tmp_path):
    """A step that finds nothing skips a scenario that somebody wrote; here it is left out."""
    sequence = RunSequence(mutant_peer("design-pull", tmp_path), 1, 0)
    assert [sequence.run()[2].error for _ in range(6)] == [None] * 6


def test_steps_reproduce_the_run():
    """Most of the time: a step that made no sense was left out, and may have let a clock run."""
    sequence = RunSequence(REFERENCE, 6, 0)
    same = 0
    for _ in range(10):
        steps, seed, run = sequence.run()
        again = run_test(
            make_lab_test(parse_script("\n".join([*steps.header, *steps.lines]), "x.scenario")), REFERENCE, seed
        )
        same += again.error is None and again.simulation.now_ns == run.simulation.now_ns
    assert same >= 5


LINES = """
from raftlab.harness.in_process import InProcessLauncher
from raftlab.tools.generator.sequence import RunSequence
from raft.raft import Raft

REFERENCE = InProcessLauncher(Raft)
sequence = RunSequence(REFERENCE, 3, 1)
for _ in range(4):
    steps, seed, run = sequence.run()
    print(run.digest, steps.lines)
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_seed_and_number_decide_runs_in_any_process(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", LINES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    sequence = RunSequence(REFERENCE, 3, 1)
    expected = []
    for _ in range(4):
        steps, _, run = sequence.run()
        expected.append(f"{run.digest} {steps.lines}")
    assert done.stdout.splitlines() == expected


def test_sequences_differ():
    assert RunSequence(REFERENCE, 3, 0).run()[0] != RunSequence(REFERENCE, 3, 1).run()[0]
