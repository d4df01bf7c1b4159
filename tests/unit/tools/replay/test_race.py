"""Replays of runs with --race: in other processes, from choices, and their reports."""

import os
import subprocess

import pytest

from raftlab.harness import records
from raftlab.trace.choice_file import read_choices
from unit.tools.peers import ROOT, lab, lab_command, make_peer

pytestmark = pytest.mark.usefixtures("raft_package_restored")

TEST = "test_initial_election_2a"


def digest_elsewhere(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = lab_command("replay", TEST, "--seed", 5, "--race")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.rpartition("digest ")[2].partition(")")[0]


def test_race_run_is_the_same_in_any_process():
    first, second = digest_elsewhere("1"), digest_elsewhere("2")
    assert len(first) == 32
    assert first == second


def test_a_run_is_repeated_from_its_choices(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "run.choices"
    assert lab("replay", TEST, "--seed", 5, "--race", "--write-choices", file) == 0
    _, choices = read_choices(file)
    assert "preempt" in {place[0] for place, _ in choices.chosen}
    capfd.readouterr()
    assert lab("replay", file, "--race") == 0
    assert "Same run as recorded" in capfd.readouterr().out


def test_race_report_has_a_replay_line_with_race(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    peer = make_peer(tmp_path / "peer", "self.role")
    assert lab("replay", TEST, "--seed", 5, "--race", "--raft", peer) == 1
    told = capfd.readouterr().out
    assert "Data race on self.role: peer " in told
    assert "in get_state(), without a lock" in told
    assert "Likely: get_state() accesses it outside `with self.mu:`." in told
    assert f"make replay TEST={TEST} SEED=5 RAFT={peer} RACE=1" in told
    assert lab("replay", TEST, "--seed", 5, "--raft", peer) == 0  # and without --race nobody sees it


def test_record_with_other_options_does_not_match(tmp_path):
    peer = tmp_path / "raft.py"
    of_race = records.Record(test=TEST, seed=5, raft=str(peer), race=True, digest="d", report="", code={})
    of_race.write(tmp_path)
    assert records.find([tmp_path], TEST, 5, peer) is None
    assert records.find([tmp_path], TEST, 5, peer, race=True) == of_race
