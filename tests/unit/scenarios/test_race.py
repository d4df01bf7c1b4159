"""Scenarios with --race: a delayed thread resumes before its step ends, although clocks are frozen."""

import os
from pathlib import Path

import pytest

from labsim.choices import SeededSource
from raftlab.harness.run import run_test
from raftlab.races.preemption import Preemption
from raftlab.sandbox.loader import launcher_for
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import parse_script
from raftlab.tools.cli import main as lab
from raftlab.trace.events import PREEMPT

STRICT = """
strict
campaign 0
deliver 0->1 vote
expect 1 voted 0
deliver 1->0 vote reply
expect leader 0 term 1
start 0 x
deliver 0->1 append
deliver 1->0 append reply
"""


class Late(SeededSource):
    """Preempts as often as possible, for 40 ms."""

    def choose(self, place, ordinal, distribution):
        return Preemption(1, 40_000_000) if place[0] == "preempt" else super().choose(place, ordinal, distribution)


@pytest.mark.parametrize("isolated", [False, True])
def test_preempted_thread_resumes_before_the_step_ends(isolated):
    if isolated and not hasattr(os, "pidfd_open"):
        pytest.skip("isolated runs need Linux")
    launcher = launcher_for(Path("raft/raft.py"), isolated=isolated, race=True)
    run = run_test(make_lab_test(parse_script(STRICT, "strict.scenario")), launcher, 7, choice_source=Late(7))
    if isolated:
        launcher.close()
    assert run.error is None, run.error
    assert any(event.detail.late_ns for event in run.simulation.trace if event.kind == PREEMPT)


def test_lab_scenario_reports_races(tmp_path, capfd):
    source = Path("raft/raft.py").read_text(encoding="utf-8")
    locked = "        with self.mu:\n            return self.current_term, self.role is Role.LEADER\n"
    assert source.count(locked) == 1
    peer = tmp_path / "raft.py"
    peer.write_text(source.replace(locked, locked.replace("with self.mu", "if True")), encoding="utf-8")
    file = tmp_path / "x.scenario"
    file.write_text(STRICT.replace("strict\n", ""))
    assert lab(["scenario", str(file), "--raft", str(peer), "--race"]) == 1
    told = capfd.readouterr().out
    assert "Data race on self." in told
    assert told.rstrip().endswith(f"make scenario FILE={file} RAFT={peer} RACE=1")
    assert lab(["scenario", str(file), "--raft", str(peer)]) == 0
