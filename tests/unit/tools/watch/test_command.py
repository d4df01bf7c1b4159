"""lab watch: what has changed is printed, in new processes, and what failed runs first."""

import re
import signal
import subprocess
import sys

import pytest

from labsim import Unresponsive
from raftlab import layout
from raftlab.harness.run import Run
from raftlab.tools.cli import main as lab
from raftlab.tools.watch import command

REFERENCE = (layout.ROOT / "raft" / "raft.py").read_text()
COUNTS = "self._count_vote(peer, granted=reply.vote_granted)"


@pytest.fixture(autouse=True)
def own_results(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_RESULTS", tmp_path / "build" / "watch.json")


@pytest.fixture
def once(tmp_path, capsys):
    """Run the tests now on this source: the exit status and what was printed."""

    def run(source, *tests):
        path = tmp_path / "raft.py"
        path.write_text(source)
        code = lab(["watch", "--once", *tests, "--raft", str(path)])
        return code, capsys.readouterr().out

    return run


def watching(path):
    command = [sys.executable, "-m", "raftlab", "watch", "test_initial_election_2a", "--raft", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=layout.ROOT)


def test_only_what_changed_is_printed(once):
    code, out = once(REFERENCE, "2a")
    assert code == 0 and re.fullmatch(r"\d\d:\d\d:\d\d  2A: (\d+) of \1 pass \([\d.]+ s\)\n", out)
    code, broken = once(REFERENCE.replace(COUNTS, "pass"), "2a")
    assert code == 1 and "FAILED    test_initial_election_2a: " in broken and "make replay TEST=" in broken
    code, again = once(REFERENCE.replace(COUNTS, "pass"), "2a")
    assert code == 1 and "FAILED" not in again and "make replay TEST=" in again
    code, fixed = once(REFERENCE, "2a")
    assert code == 0 and "passed    test_initial_election_2a, " in fixed


def test_failures_of_one_kind_are_printed_once(once):
    _, out = once(REFERENCE.replace(COUNTS, "pass"), "2a")
    texts = re.findall(r"FAILED    \w+: (.*)", out)
    assert len(texts) == len(set(texts))


def test_failed_tests_run_first(once, monkeypatch):
    names = []

    def run(runs, test):
        names.append(test.name)
        return Run(1, error=ValueError("wrong") if test.name == "test_reelection_2a" else None)

    monkeypatch.setattr(command.Runs, "run", run)
    once(REFERENCE, "2a")
    assert names[0] == "test_initial_election_2a"
    names.clear()
    once(REFERENCE, "2a")
    assert names[0] == "test_reelection_2a"


def test_unresponsive_peer_ends_the_run(once, monkeypatch):
    names = []

    def run(runs, test):
        names.append(test.name)
        return Run(1, error=Unresponsive("runs for ever"))

    monkeypatch.setattr(command.Runs, "run", run)
    code, out = once(REFERENCE, "2a")
    assert code == 1 and len(names) == 1 and "2A: 0 of " in out


def test_without_a_test_the_first_failing_part_is_the_last(once):
    _, out = once(REFERENCE.replace("if index > self.commit_index:", "if False:"))
    assert "  2B: " in out


def test_file_that_cannot_be_loaded_is_reported(once):
    code, out = once("class Raft\n", "2a")
    assert code == 1 and "SyntaxError" in out


def test_wrong_name_is_refused(capsys):
    assert lab(["watch", "2x"]) == 2
    assert "2x" in capsys.readouterr().err


def test_missing_peer_is_refused(capsys):
    assert lab(["watch", "--raft", "nowhere/raft.py"]) == 2
    assert "nowhere/raft.py: no such file" in capsys.readouterr().err


def test_results_that_cannot_be_written_are_ignored(once, tmp_path):
    (tmp_path / "build").write_text("a file, so the folder cannot be made")
    code, out = once(REFERENCE, "test_initial_election_2a")
    assert code == 0 and "1 of 1 pass" in out


def test_output_of_an_import_is_not_printed(once):
    _, out = once(f"print('loaded')\n{REFERENCE}", "test_initial_election_2a")
    assert "1 of 1 pass" in out and "loaded" not in out


def test_peer_that_ends_its_process_is_reported(tmp_path):
    path = tmp_path / "raft.py"
    path.write_text("import os\nos._exit(7)\n")
    with watching(path) as process:
        assert any("exit status 7" in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0


def test_link_to_nowhere_does_not_end_it(tmp_path):
    path = tmp_path / "raft.py"
    path.write_text(REFERENCE)
    (tmp_path / ".#raft.py").symlink_to("student@host.123")  # the lock of an editor
    with watching(path) as process:
        assert any("1 of 1 pass" in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0


def test_save_starts_a_new_run_and_ctrl_c_ends(tmp_path):
    path = tmp_path / "raft.py"
    path.write_text(REFERENCE)
    with watching(path) as process:
        lines = iter(process.stdout.readline, "")
        assert any("1 of 1 pass" in line for line in lines)
        path.write_text(REFERENCE.replace(COUNTS, "pass"))
        assert any("FAILED    test_initial_election_2a" in line for line in lines)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
