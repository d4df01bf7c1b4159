"""`lab replay`: replays, the comparison with the recorded run, and the debugger."""

import os
import re
import subprocess
import sys

import pytest

from raftlab.harness import records
from unit.students import WITHOUT_HYPOTHESIS, pytest_run
from unit.tools.peers import ROOT, lab, lab_command, make_peer

TEST = "test_initial_election_2a"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Records go under the working directory; the lab's tests are found in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "raft").symlink_to(ROOT / "raft")


def replay(*arguments, **options):
    """In a new process, as a reader would."""
    return subprocess.run(
        lab_command("replay", *arguments), capture_output=True, text=True, timeout=60, check=False, **options
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["test_nothing", "--seed", "1"], "lab replay: no test matches 'test_nothing'"),
        (["2a", "--seed", "1"], "lab replay: cannot replay "),
        ([TEST], f"lab replay: {TEST}: no such file (to replay a test, add --seed N)"),
        (["--seed", "1"], "lab replay: give a TEST with --seed N, or a FILE"),
        (["none.jsonl"], "lab replay: none.jsonl: no such file (to replay a test, add --seed N)"),
        (["raft/raft.py"], "lab replay: raft/raft.py:1: not a file of choices"),
        ([TEST, "--seed", "1", "--raft", "none.py"], "lab replay: none.py: no such file"),
    ],
)
def test_wrong_options_of_replay_are_refused(arguments, told):
    result = replay(*arguments)
    assert result.returncode == 2
    assert told in result.stderr
    assert len(result.stderr.splitlines()) <= 3


def test_without_a_test_the_last_failed_run_is_replayed(tmp_path):
    assert "lab replay: no failed run is recorded here" in replay().stderr
    peer = make_peer(tmp_path / "peer", "assert False")
    for seed in ("5", "3"):
        assert lab("stress", TEST, "--runs", "1", "--seed-start", seed, "--jobs", "1", "--raft", peer) == 1
    result = replay()
    assert f"FAILED {TEST}  seed 3" in result.stdout
    assert "Same run as recorded" in result.stdout


def test_failure_of_pytest_in_a_subfolder_is_replayed(tmp_path):
    make_peer(tmp_path / "mine", "assert False")
    (tmp_path / "deep").mkdir()
    raft = os.path.relpath(tmp_path / "mine" / "raft.py", tmp_path / "deep")
    words = [f"../tests/test_2a.py::{TEST}", "-q", "-n", 0, "--seed", 4, "--raft", raft]
    pytest_run(*words, cwd=tmp_path / "deep", code=1)
    result = replay(cwd=tmp_path / "deep")
    assert f"FAILED {TEST}  seed 4" in result.stdout
    assert "Same run as recorded" in result.stdout


def test_a_run_is_repeated_from_its_choices(tmp_path):
    path = tmp_path / "run.jsonl"
    written = replay(TEST, "--seed", "7", "--write-choices", str(path)).stdout
    assert f" choices written to {path}.\n" in written
    again = replay(str(path)).stdout
    assert f"PASSED {TEST}  choices of {path}\n" in again
    assert "  Same run as recorded (digest " in again
    # Without the seeds of the nodes it is another one.
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '["node"' not in line))
    assert "  Not the recorded run (digest " in replay(str(path)).stdout


def test_failure_from_choices_has_a_replay_line(tmp_path):
    path, peer = tmp_path / "run.jsonl", tmp_path / "raft.py"
    source = (ROOT / "raft" / "raft.py").read_text()
    peer.write_text(
        source.replace("return self.current_term, self.role is Role.LEADER", "return self.current_term, False")
    )
    assert peer.read_text() != source
    replay(TEST, "--seed", "7", "--raft", str(peer), "--write-choices", str(path))
    told = replay(str(path), "--raft", str(peer)).stdout
    assert f"FAILED {TEST}  choices of {path}\n" in told
    assert f"  replay    lab replay {path} --raft {peer}\n" in told


def test_replay_line_names_the_file_of_own_tests(tmp_path):
    mine, path = tmp_path / "my tests.py", tmp_path / "run.jsonl"
    mine.write_text("def test_mine(make_config):\n    make_config(servers=3).fail('enough')\n")
    replay("test_mine", "--seed", "7", "--file", str(mine), "--write-choices", str(path))
    told = replay(str(path), "--file", str(mine)).stdout
    assert f"  replay    lab replay {path} --file '{mine}'\n" in told


def test_unwritable_choice_file_is_reported(tmp_path):
    done = replay(TEST, "--seed", "7", "--write-choices", str(tmp_path / "none" / "run.jsonl"))
    assert (done.returncode, done.stderr) == (2, f"lab replay: {tmp_path}/none/run.jsonl: No such file or directory\n")


def test_passing_run_prints_the_line_of_mit():
    result = replay(TEST, "--seed", "7")
    assert result.returncode == 0, result.stderr
    assert "Test (2A): initial election ...\n  ... Passed --" in result.stdout
    assert f"PASSED {TEST}  seed 7" in result.stdout
    assert "No recorded failure to compare with" in result.stdout


@pytest.fixture
def failed(tmp_path):
    """A peer that fails at seed 5, and the record that `lab stress` keeps of it."""
    peer = make_peer(tmp_path / "peer", "print('asked', self.me)\nassert seed != 5, f'no {seed}'")
    assert lab("stress", TEST, "--runs", "1", "--seed-start", "5", "--jobs", "1", "--raft", peer) == 1
    return peer


def test_recorded_run_is_recognized_and_prints(failed):
    result = replay(TEST, "--seed", "5", "--raft", failed)
    assert result.returncode == 1
    assert f"FAILED {TEST}  seed 5" in result.stdout
    assert "AssertionError: no 5" in result.stdout
    assert "asked " in result.stdout
    assert "Same run as recorded (digest " in result.stdout


def test_changed_code_is_named(failed):
    failed.write_text(failed.read_text().replace("assert seed != 5", "assert seed != 6"))
    result = replay(TEST, "--seed", "5", "--raft", failed)
    assert result.returncode == 0
    assert "Not the recorded run: these parts have changed since the recording: peer/raft.py." in result.stdout


def test_change_without_effect_is_named(failed):
    failed.write_text(failed.read_text() + "\n# a comment\n")
    assert "Same run as recorded, although these parts have changed since the recording: peer/raft.py." in (
        replay(TEST, "--seed", "5", "--raft", failed).stdout
    )


def test_different_run_of_the_same_code_is_reported(failed):
    record = records.find([records.STRESS], TEST, 5, failed)
    assert record is not None
    record.digest = "0" * 32
    record.write(records.STRESS)
    assert "NOT THE RECORDED RUN, although no file has changed" in replay(TEST, "--seed", "5", "--raft", failed).stdout


def test_a_failure_under_pytest_is_recorded_too(tmp_path):
    peer = make_peer(tmp_path / "peer", "assert seed != 5, f'no {seed}'")
    pytest_command = [sys.executable, "-m", "pytest", *WITHOUT_HYPOTHESIS, "-q", "-p", "no:cacheprovider"]
    pytest_command += ["-p", "no:xdist", "--seed", "5"]
    pytest_command += ["--raft", "peer/raft.py", f"tests/test_2a.py::{TEST}", "--rootdir", str(tmp_path)]
    ran = subprocess.run(pytest_command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1, ran.stdout
    assert f"make replay TEST={TEST} SEED=5 RAFT=peer/raft.py" in ran.stdout
    assert "Same run as recorded" in replay(TEST, "--seed", "5", "--raft", peer).stdout


def test_run_that_ended_its_process_is_announced(tmp_path):
    peer = make_peer(tmp_path / "peer", "import os\nos._exit(3)")
    assert lab("stress", TEST, "--runs", "1", "--seed-start", "5", "--jobs", "1", "--raft", peer) == 1
    result = replay(TEST, "--seed", "5", "--raft", peer)
    assert result.returncode == 3
    assert "When this run was recorded, it ended its process:" in result.stdout
    assert "ended itself with exit status 3 during the run" in result.stdout


def test_timeline_is_printed_first():
    result = replay(TEST, "--seed", "7", "--timeline")
    assert result.returncode == 0, result.stderr
    assert "peer 0" in result.stdout and "candidate" in result.stdout
    assert result.stdout.index("candidate") < result.stdout.index("PASSED")


def test_package_uses_its_own_messages(tmp_path):
    package = tmp_path / "own"
    package.mkdir()
    for name in ("__init__.py", "messages.py", "persister.py", "raft.py"):
        (package / name).write_text((ROOT / "raft" / name).read_text())
    result = replay("test_basic_agree_2b", "--seed", "1", "--raft", package / "raft.py")
    assert result.returncode == 0, result.stdout


# ---- the debugger --------------------------------------------------------------------------------------------


def test_pdb_stops_in_the_peers_frame_and_stops_time(tmp_path):
    peer = make_peer(tmp_path / "peer", "here = 'the right frame'\nassert seed != 5")
    said = replay(TEST, "--seed", "5", "--raft", peer, "--pdb", input="p here, self.me\np time.sleep(1)\nq\n")
    assert said.returncode == 1
    assert "Stopped at " in said.stdout and " (virtual) in get_state() of peer 0" in said.stdout
    assert "('the right frame', 0)" in said.stdout
    assert "*** labsim.errors.SimulationError: virtual time is stopped in the debugger" in said.stdout
    assert f"FAILED {TEST}  seed 5" in said.stdout


def test_pdb_stops_where_the_test_failed(tmp_path):
    hidden = tmp_path / "hidden_test.py"
    hidden.write_text("def test_hidden(make_config):\n    here = 'in the test'\n    make_config().fail('no')\n")
    said = replay("test_hidden", "--file", hidden, "--seed", "5", "--pdb", input="p here\nc\n")
    assert said.returncode == 1
    assert "'in the test'" in said.stdout


def test_pdb_opens_in_the_peer_below_the_failing_service(tmp_path):
    source = (ROOT / "raft" / "raft.py").read_text()
    applied = "command_index=self.last_applied)"
    assert source.count(applied) == 1
    peer = tmp_path / "peer.py"
    peer.write_text(source.replace(applied, "command_index=self.last_applied + 1)"))
    asked = "p (type(self).__name__, 'applied', self.last_applied)\nq\n"
    said = replay("test_basic_agree_2b", "--seed", "5", "--raft", peer, "--pdb", input=asked)
    assert said.returncode == 1
    (number,) = re.findall(r"^Stopped at \S+ s \(virtual\) in service \d of peer (\d)\.", said.stdout, re.MULTILINE)
    assert re.search(rf"^Now in Thread-\d+ \(_applier\), a waiting thread of peer {number};", said.stdout, re.MULTILINE)
    assert "('Raft', 'applied', 1)" in said.stdout


def test_pdb_opens_in_the_peer_that_broke_the_rule(tmp_path):
    """The rule is broken when a vote is answered, and told when the tester crashes somebody for the first time."""
    source = (ROOT / "raft" / "raft.py").read_text()
    save = "        self.persister.save(state.bytes(), snapshot)\n"
    assert source.count(save) == 1
    peer = tmp_path / "peer.py"
    peer.write_text(source.replace(save, "        pass\n"))
    said = replay("test_persist1_2c", "--seed", "5", "--raft", peer, "--pdb", input="p ('me', self.me)\npeer 0\nq\n")
    (number,) = set(re.findall(r"Peer (\d) replied before it saved", said.stdout))
    assert f", a waiting thread of peer {number}; " in said.stdout
    assert f"('me', {number})" in said.stdout
    assert re.search(r"In Thread-\d+ \(_\w+\) of peer 0:\n> ", said.stdout)
