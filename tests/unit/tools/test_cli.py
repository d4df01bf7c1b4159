"""The command `lab` itself, before a tool runs."""

import importlib
import os
import subprocess
import sys

import pytest

from raftlab.layout import ROOT
from raftlab.tools import cli

LAB = [sys.executable, "-m", "raftlab"]


@pytest.mark.parametrize("words", [["fuzz"], ["fuzz", "--help"]])
def test_ctrl_c_during_import_prints_interrupted(words, monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert cli.main(words) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_terminal_without_unicode_gets_escapes():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [*LAB, "scenario", "tests/scenarios/2a/starts_as_a_follower.scenario"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_lab_works_from_any_folder_of_the_project(tmp_path):
    for name in ("tests", "raft"):
        (tmp_path / name).symlink_to(ROOT / name)
    folder = tmp_path / "mine" / "deep"
    folder.mkdir(parents=True)
    (folder / "peer.py").write_text(
        (ROOT / "raft" / "raft.py").read_text().replace("role is Role.LEADER", "nothing", 1)
    )
    words = ["replay", "test_initial_election_2a", "--seed", "7"]
    done = subprocess.run([*LAB, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert "PASSED test_initial_election_2a" in done.stdout
    done = subprocess.run([*LAB, *words, "--raft", "peer.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert "mine/deep/peer.py:" in done.stdout


def test_file_named_without_an_option_is_found_where_it_was_typed(tmp_path):
    for name in ("tests", "raft"):
        (tmp_path / name).symlink_to(ROOT / name)
    folder = tmp_path / "mine"
    folder.mkdir()
    for words in (["test_initial_election_2a", "--seed", "7", "--write-choices", "run.choices"], ["run.choices"]):
        done = subprocess.run([*LAB, "replay", *words], cwd=folder, capture_output=True, text=True, check=False)
        assert "PASSED test_initial_election_2a" in done.stdout, done.stderr
