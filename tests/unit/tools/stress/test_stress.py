"""`lab stress` as people use it: real worker processes, small campaigns."""

import fcntl
import json
import os
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.mutants.tool.mutants import load_mutants
from unit.tools.peers import ROOT, lab, lab_command, make_peer
from unit.tools.processes import children_of, gone, on_linux, wait_until

QUICK = "test_basic_agree_2b"
ASKS = "test_initial_election_2a"  # asks every peer for its state several times


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def summary(out):
    return json.loads((out / "summary.json").read_text())


# ---- what it says without running anything -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--runs", "0"], "argument --runs: must be a whole number, at least 1, got '0'"),
        (["--jobs", "x"], "argument --jobs: must be a whole number, at least 1, got 'x'"),
        (["--for", "soon"], "argument --for: must be a time like 90s, 10m or 1h30m, got 'soon'"),
        (
            ["--run-limit", "-1"],
            "argument --run-limit: must be a number of seconds, above 0 and at most 86400, got '-1'",
        ),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["test_figure9"], "lab stress: no test matches 'test_figure9'; lab stress --list shows "),
        (["--raft", "nowhere.py"], "lab stress: nowhere.py: no such file; --raft must name a raft.py"),
        (["--file", "nowhere.py"], "lab stress: nowhere.py: no such test file"),
    ],
)
def test_what_is_wrong_is_said_shortly_with_status_2(arguments, told, capsys):
    assert lab("stress", *arguments) == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) <= 3


def test_list_names_the_selected_tests_and_runs_none(capsys):
    assert lab("stress", "2a", "test_figure8*", "--list") == 0
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert {"test_initial_election_2a", "test_figure8_2c", "test_figure8_unreliable_2c"} <= set(names)
    assert "test_backup_2b" not in names


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("class Raft:\n    def start(self:\n", "raft.py:2: SyntaxError"),
        ("import nothing_of_this_name\n", "raft.py:1: ModuleNotFoundError"),
        ("import os\nos._exit(7)\n", "the worker ended itself with exit status 7 while loading it"),
    ],
)
def test_a_broken_raft_py_is_named_with_status_2(source, told, tmp_path, capsys):
    (tmp_path / "raft.py").write_text(source)
    assert lab("stress", QUICK, "--raft", tmp_path / "raft.py", "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert told in said
    assert "Traceback" not in said


# ---- campaigns -----------------------------------------------------------------------------------------------


def test_a_campaign_that_passes(tmp_path, capsys):
    (tmp_path / "cause-1.txt").write_text("of an earlier campaign")
    options = ["--runs", "3", "--jobs", "2", "--seed-start", "7"]
    assert lab("stress", ASKS, QUICK, *options, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert said.startswith("lab stress: raft/raft.py, 2 tests, 3 seeds each from 7, 2 workers\n")
    assert "6 runs: 6 passed, 0 failed" in said
    assert "virtual hours" in said and "hours per minute" in said
    result = summary(tmp_path)
    assert {name: test["passed"] for name, test in result["tests"].items()} == {ASKS: 3, QUICK: 3}
    assert result["causes"] == []
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")
    assert (tmp_path / "summary.txt").read_text().strip() in said
    assert not (tmp_path / "cause-1.txt").exists()


def test_a_failure_in_one_run_of_200_is_found_grouped_and_replays_from_its_line(tmp_path, capsys):
    peer = make_peer(tmp_path / "peer", "if seed % 200 == 17: raise KeyError(f'{seed} of {self.me}')")
    out = tmp_path / "out"
    assert lab("stress", ASKS, "--runs", "220", "--seed-start", "0", "--raft", peer, "--out", out) == 1
    said = capsys.readouterr().out
    (cause,) = summary(out)["causes"]
    assert (cause["count"], cause["cause"]) == (2, "KeyError: '...'")
    ((name, seeds),) = cause["tests"].items()
    assert (name, seeds["count"], seeds["smallest_seed"]) == (ASKS, 2, 17)
    shortest_seed = seeds["shortest_seed"]
    assert shortest_seed in (17, 217)
    assert cause["where"].startswith(f"{peer}:") and cause["where"].endswith(" in get_state")
    assert cause["repeats"] is True
    assert f"{ASKS}  2 of 220 runs, about one in 110; " in said
    assert "report" in said and "KeyError" in (out / "cause-1.txt").read_text()
    # The line, in a new process.
    assert cause["replay"] == f"make replay TEST={ASKS} SEED={shortest_seed} RAFT={peer}"
    replayed = subprocess.run(
        lab_command("replay", ASKS, "--seed", shortest_seed, "--raft", peer, "--records", out),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert replayed.returncode == 1
    assert "KeyError" in replayed.stdout
    assert "Same run as recorded" in replayed.stdout
    case = ElementTree.parse(out / "junit.xml").getroot().find("testcase/failure")
    assert cause["replay"] in case.get("message")


HOSTILE = """
import os, signal
if seed == 3: os._exit(5)
if seed == 5: os.kill(os.getpid(), signal.SIGSEGV)
if seed == 7:
    hoard = []
    while True: hoard.append(bytearray(1 << 24))
if seed == 9:
    while True: pass
"""


def test_hostile_runs_cost_themselves_and_nothing_else(tmp_path, capsys):
    peer = make_peer(tmp_path / "peer", HOSTILE)
    out = tmp_path / "out"
    options = ["--run-limit", "3", "--memory-mb", "400", "--seed-start", "0", "--jobs", "2"]
    assert lab("stress", ASKS, "--runs", "14", *options, "--raft", peer, "--out", out) == 1
    result = summary(out)
    assert (result["runs"], result["passed"], result["failed"]) == (14, 10, 4)
    by_seed = {cause["tests"][ASKS]["smallest_seed"]: cause for cause in result["causes"]}
    causes = {seed: (cause["kind"], cause["cause"]) for seed, cause in by_seed.items()}
    assert causes == {
        3: ("died", "The worker process ended itself with exit status 5 during the run."),
        5: ("died", "The worker process was ended by SIGSEGV during the run."),
        7: ("failed", "MemoryError"),
        9: ("late", "The run took longer than 3 s of real time and was ended."),
    }
    reports = {seed: cause["report"] for seed, cause in by_seed.items()}
    for seed in (5, 9):  # the stack at the end, though nobody in the process could print it
        assert "in get_state" in reports[seed]
    assert "in get_state" in reports[7]


def test_memory_that_earlier_runs_leaked_is_not_blamed_on_a_later_one(tmp_path):
    leak = "if self.me == 0: LEAK.append(bytearray(8 << 20))"
    peer = make_peer(tmp_path / "peer", leak, in_module="LEAK = []")
    options = ["--jobs", "1", "--memory-mb", "500", "--seed-start", "0"]
    assert lab("stress", ASKS, "--runs", "20", *options, "--raft", peer, "--out", tmp_path) == 0
    assert summary(tmp_path)["passed"] == 20


# A module of its own would not keep it from one run to the next.
KEPT = "import labsim\nSEEN = vars(labsim).setdefault('seen', set())"


def test_a_failure_that_a_fresh_process_does_not_repeat_is_told_as_such(tmp_path, capsys):
    peer = make_peer(tmp_path / "peer", "SEEN.add(seed)\nassert len(SEEN) < 4", in_module=KEPT)
    assert lab("stress", ASKS, "--runs", "6", "--jobs", "1", "--raft", peer, "--out", tmp_path) == 1
    assert "NOT REPEATED in a fresh process: the peer or the test keeps state between runs" in capsys.readouterr().out
    assert summary(tmp_path)["causes"][0]["repeats"] is False


def test_a_persister_that_comes_with_a_submission_is_not_the_disk(tmp_path):
    """An older copy of ours, handed in with the rest of the package, used to be the tester's own in a worker."""
    peer = tmp_path / "raft"
    peer.mkdir()
    for name in ("__init__.py", "messages.py", "raft.py"):
        (peer / name).write_bytes((ROOT / "raft" / name).read_bytes())
    (peer / "persister.py").write_text("class Persister:\n    def save(self, *_):\n        raise RuntimeError\n")
    assert lab("stress", "test_persist1_2c", "--runs", "1", "--jobs", "1", "--raft", peer, "--out", tmp_path) == 0


def test_what_a_peer_prints_does_not_disturb_the_conversation(tmp_path):
    peer = make_peer(tmp_path / "peer", "import os\nprint('ready')\nos.write(1, b'retire\\n')")
    assert lab("stress", ASKS, "--runs", "5", "--jobs", "1", "--raft", peer, "--out", tmp_path) == 0


def test_a_hidden_test_file_and_a_replay_line_that_names_it(tmp_path):
    hidden = tmp_path / "hidden_test.py"
    hidden.write_text("def test_hidden(make_config):\n    make_config(servers=3).fail('hidden says no to 12')\n")
    assert lab("stress", "--file", hidden, "--runs", "2", "--seed-start", "0", "--out", tmp_path / "out") == 1
    (cause,) = summary(tmp_path / "out")["causes"]
    assert (cause["cause"], cause["count"]) == ("hidden says no to #", 2)
    assert cause["replay"] == f"lab replay test_hidden --seed 0 --file {hidden}"


def test_each_replay_line_names_the_file_of_its_own_test(tmp_path):
    names = ("one", "two")
    for name in names:
        source = f"def test_{name}(make_config):\n    make_config(servers=3).fail('{name} says no')\n"
        (tmp_path / f"{name}.py").write_text(source)
    files = [word for name in names for word in ("--file", tmp_path / f"{name}.py")]
    options = ["--runs", "1", "--seed-start", "0", "--out", tmp_path / "out"]
    assert lab("stress", *files, "--file", "tests/test_2a.py", *options) == 1
    replays = sorted(cause["replay"] for cause in summary(tmp_path / "out")["causes"])
    assert replays == [f"lab replay test_{name} --seed 0 --file {tmp_path}/{name}.py" for name in names]


def test_a_test_that_skips_itself_is_no_failure(tmp_path):
    file = tmp_path / "skips.py"
    file.write_text("import pytest\n\n\ndef test_skips(make_config):\n    pytest.skip('not here')\n")
    assert lab("stress", "--file", file, "--runs", "2", "--out", tmp_path / "out") == 0


def test_until_fail_ends_at_the_first_failure(tmp_path, capsys):
    peer = make_peer(tmp_path / "peer", "assert seed % 50 != 49")
    options = ["--until-fail", "--seed-start", "0", "--jobs", "1"]
    assert lab("stress", ASKS, *options, "--raft", peer, "--out", tmp_path) == 1
    result = summary(tmp_path)
    assert result["failed"] == 1 and 50 <= result["runs"] < 150
    assert "The stress run ended at the first failure (--until-fail)." in capsys.readouterr().out


# ---- one folder, one campaign --------------------------------------------------------------------------------


def test_a_second_campaign_in_one_folder_is_refused_in_words(tmp_path, capsys):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lab("stress", QUICK, "--runs", "1", "--jobs", "1", "--out", tmp_path) == 2
    said = capsys.readouterr().err
    assert f"lab stress: another lab stress is writing to {tmp_path}; wait until it ends, or name another" in said
    assert lab("stress", QUICK, "--runs", "1", "--jobs", "1", "--out", tmp_path) == 0


def test_a_report_is_there_as_soon_as_it_is_named(tmp_path):
    peer = make_peer(tmp_path / "peer", "assert seed != 3")
    out = tmp_path / "out"
    command = lab_command("stress", ASKS, "--runs", "1000000", "--jobs", "1", "--seed-start", "0", "--raft", peer)
    with subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            named = next(line.split()[1] for line in process.stdout if line.startswith("  report "))
            assert "AssertionError" in Path(named).read_text()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


# ---- endings -------------------------------------------------------------------------------------------------


@on_linux
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_ends_it_at_once_with_the_summary_so_far(sent, tmp_path):
    command = lab_command("stress", ASKS, "--runs", "1000000", "--jobs", "2", "--out", tmp_path)
    # What SIGKILL leaves behind goes with tmp_path.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert "1,000,000 seeds each" in process.stdout.readline()
        wait_until(lambda: len(children_of(process.pid)) == 2)
        workers = children_of(process.pid)
        process.send_signal(sent)
        said, _ = process.communicate(timeout=60)
    wait_until(lambda: all(gone(pid) for pid in workers))
    if sent != signal.SIGKILL:
        assert process.returncode == 130
        assert "The stress run ended when it was interrupted." in said
        assert f"{summary(tmp_path)['runs']:,} run" in said


@on_linux
def test_a_worker_killed_from_outside_costs_one_run_at_most(tmp_path):
    command = lab_command("stress", ASKS, "--runs", "400", "--jobs", "2", "--out", tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "400 seeds each" in process.stdout.readline()  # the workers are there
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
        process.communicate(timeout=60)
    result = summary(tmp_path)
    assert result["runs"] == 400
    assert result["failed"] <= 1
    for cause in result["causes"]:
        assert cause["cause"] == "The worker process was ended by SIGKILL (out of memory?) during the run."


def test_the_shortest_run_of_a_cause_is_shrunk_and_told(tmp_path, capsys):
    (mutant,) = [each for each in load_mutants() if each.id == "append-not-persisted"]
    options = ["--runs", "1", "--seed-start", "0", "--jobs", "1", "--raft", mutant.write(tmp_path), "--shrink", "4"]
    assert lab("stress", "test_persist1_2c", *options, "--out", tmp_path / "out") == 1
    out = capsys.readouterr().out
    assert (
        f"     shrunk  {tmp_path}/out/shrunk/test_persist1_2c-0.txt\n     To reproduce the failure with 2 servers:\n"
        in out
    )
    (cause,) = summary(tmp_path / "out")["causes"]
    assert len(cause["recipe"]) == 3
    assert (tmp_path / "out/shrunk/test_persist1_2c-0.choices").exists()
