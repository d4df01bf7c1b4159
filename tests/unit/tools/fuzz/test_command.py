"""`lab fuzz`: what it prints, what it writes, what it refuses, and how it ends."""

import re
import signal
import subprocess

import pytest

from raftlab.tools.workers.process import Lost, WorkerProcess
from tests.mutants.tool.mutants import load_mutants
from unit.tools.peers import ROOT, lab, lab_command, make_peer
from unit.tools.processes import children_of, gone, on_linux, wait_until

pytestmark = pytest.mark.usefixtures("raft_package_restored")


@pytest.fixture(autouse=True)
def at_home(monkeypatch):
    monkeypatch.chdir(ROOT)


def wrong(id_, tmp_path):
    return next(mutant for mutant in load_mutants() if mutant.id == id_).write(tmp_path)


def test_a_right_peer_is_accused_of_nothing(tmp_path, capsys):
    assert lab("fuzz", "--runs", 6, "--seed", 3, "--jobs", 2, "--out", tmp_path) == 0
    out = capsys.readouterr().out
    assert out.startswith("lab fuzz: raft/raft.py, seed 3, 6 runs, 2 workers\n")
    assert re.search(r"^No failure found: 6 runs, \d+ steps in [\d.]+ s\.$", out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_what_is_found_is_told_written_and_played_again(tmp_path, capsys):
    peer = wrong("double-vote", tmp_path)
    options = ["--raft", peer, "--seed", 1, "--jobs", 1, "--runs", 40, "--out", tmp_path / "out"]
    assert lab("fuzz", *options) == 1
    out = capsys.readouterr().out
    (file,) = (tmp_path / "out").iterdir()
    assert re.fullmatch(r"one-vote-[0-9a-f]{8}\.scenario", file.name)
    assert "  Broken rule: A peer votes for at most one candidate per term (§5.2)\n" in out
    assert f"  play      make scenario FILE={file} RAFT={peer}\n" in out
    again = f"make fuzz SEED=1 JOBS=1 RAFT={peer}"
    assert f"  repeat    {again}\n" in out
    text = file.read_text()
    assert text.startswith(f"# Breaks one-vote\n#\n# Found by: {again}. A correct peer passes.\n\n")
    for step in text.partition("\n\n")[2].splitlines():
        assert f"    {step}\n" in out
    assert lab("scenario", file, "--raft", peer) == 1
    assert "voted twice in term" in capsys.readouterr().out
    # Once more, it is the same.
    before = re.search(r"FOUND in run .*", out)[0]
    assert lab("fuzz", *options) == 1
    assert before in capsys.readouterr().out
    assert [other.name for other in (tmp_path / "out").iterdir()] == [file.name]


def test_what_fails_before_the_first_step_is_said_so(tmp_path, capsys):
    peer = tmp_path / "raft.py"
    source = (ROOT / "raft" / "raft.py").read_text()
    assert source.count("        pause_s = 0.0\n") == 1
    peer.write_text(source.replace("        pause_s = 0.0\n", '        raise NotImplementedError("2A: _ticker")\n'))
    assert lab("fuzz", "--raft", peer, "--runs", 5, "--seed", 1, "--jobs", 1, "--out", tmp_path / "out") == 1
    out = capsys.readouterr().out
    assert "  NotImplementedError: 2A: _ticker\n" in out
    assert "  The peer failed before the first step, so every test fails the same way.\n" in out
    assert not (tmp_path / "out").exists()


def test_a_peer_that_ends_its_process_is_found(tmp_path, capsys):
    peer = make_peer(tmp_path / "peer", "import os; os._exit(3)")
    assert lab("fuzz", "--raft", peer, "--runs", 5, "--seed", 1, "--jobs", 1, "--out", tmp_path / "out") == 1
    out = capsys.readouterr().out
    assert "FOUND in runs 1 to 5 of sequence 0\n  The worker process ended itself with exit status 3.\n" in out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--raft", "none/raft.py"], "lab fuzz: none/raft.py: no such file; --raft must name a raft.py"),
        (["--for", "soon"], "argument --for: must be a time like 90s, 10m or 1h30m, got 'soon'"),
        (["--runs", "0"], "argument --runs: must be a whole number, at least 1, got '0'"),
    ],
)
def test_what_cannot_be_is_refused(options, told, capsys):
    assert lab("fuzz", *options) == 2
    assert told in capsys.readouterr().err


def test_a_peer_that_cannot_be_loaded_is_said_once(tmp_path, capsys):
    peer = tmp_path / "raft.py"
    peer.write_text("class Raft(\n")
    assert lab("fuzz", "--raft", peer, "--jobs", 2) == 2
    err = capsys.readouterr().err
    assert err.startswith("lab fuzz: ")
    assert "raft.py:1" in err
    assert err.count("raft.py:1") == 1


def test_a_worker_that_is_killed_from_outside_is_no_finding(tmp_path, capsys, monkeypatch):
    ask, asked = WorkerProcess.ask, []

    def lost_once(worker, requests, limit_s):
        asked.append(requests)
        return ask(worker, requests, limit_s) if len(asked) > 1 else [Lost("was ended by SIGKILL", "", late=False)]

    monkeypatch.setattr(WorkerProcess, "ask", lost_once)
    assert lab("fuzz", "--runs", 4, "--seed", 3, "--jobs", 1, "--out", tmp_path) == 0
    assert "No failure found: 4 runs" in capsys.readouterr().out
    assert asked[0] == asked[1]


@on_linux
def test_ctrl_c_ends_it_and_its_workers(tmp_path):
    command = lab_command("fuzz", "--for", "10m", "--seed", 3, "--jobs", 2, "--out", tmp_path)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fuzz:
        wait_until(lambda: len(children_of(fuzz.pid)) == 2)
        workers = children_of(fuzz.pid)
        fuzz.send_signal(signal.SIGINT)
        out, err = fuzz.communicate(timeout=60)
    assert fuzz.returncode == 130
    assert "Interrupted. No failure found: " in out
    assert err == ""
    wait_until(lambda: all(gone(worker) for worker in workers))
