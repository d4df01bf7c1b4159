"""The pytest plugin as users see it: output, seeds, and hidden tests."""

import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from raftlab.pytest_plugin import output
from unit.students import (
    ROOT,
    WITHOUT_HYPOTHESIS,
    edited_reference,
    line_of,
    peer,
    pytest_run,
    pytest_run_here,
    renamed_package,
    written,
)

pytest_plugins = ["pytester"]

LAB = ROOT / "tests"
IN_WORKERS = pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one-process", "workers"])

# Fails with two of the seeds from 100 on.
MOODY = """
from labsim import current_simulation

def test_moody(make_config):
    cfg = make_config(servers=1)
    cfg.begin("Test: moody")
    cfg.one("x", 1, retry=True)
    seed = current_simulation().seed
    assert seed not in (103, 110), f"seed {seed} is not liked"
"""


def hidden(folder, source):
    path = folder / "test_hidden.py"
    path.write_text(source, encoding="utf-8")
    return path


@pytest.fixture
def run(pytester):
    """The output of pytest, run in this process if possible. Asserts its exit code."""

    def run(*args, code, elsewhere=False):
        if elsewhere or "-n" in args:
            return pytest_run(*args, cwd=pytester.path, code=code)
        return pytest_run_here(pytester, *args, code=code)

    return run


# ---- what is printed ---------------------------------------------------------------------------------------------


def test_passed_tests_print_seed_and_mit_s_lines(run, pytester):
    raft = edited_reference(pytester.path)
    text = run(LAB / "test_2a.py", "-q", "--seed", 7, "--raft", raft, code=0)
    assert "raftlab: peer.py, seed 7\n" in text
    assert text.count("raftlab:") == 1
    for name in ("initial election", "election after network failure", "multiple elections"):
        lines = rf"^Test \(2A\): {name} \.\.\.\n  \.\.\. Passed --  +\d+\.\d +\d +\d+ +\d+ +\d+   \(\d+\.\d\d s real\)$"
        assert re.search(lines, text, re.MULTILINE), text
    assert "3 passed" in text


def test_failure_text_with_a_surrogate_is_printed(run, pytester):
    raises = "    def __init__(self, *_):\n        raise ValueError('\\udce4')\n"
    methods = "".join(f"    def {name}(self): ...\n" for name in ("start", "get_state", "kill"))
    path = pytester.path / "raft.py"
    path.write_text(f"class Raft:\n{raises}{methods}")
    text = run(LAB / "test_2a.py", "-q", "-k", "initial", "--raft", path, code=1)
    assert r"ValueError: \udce4" in text


def test_a_fresh_seed_is_in_the_header(run, pytester):
    test = hidden(pytester.path, "def test_one(make_config):\n    make_config(servers=1)\n")
    seeds = set()
    for _ in range(2):
        text = run(test, "--raft", edited_reference(pytester.path), code=0)
        seeds.update(re.findall(r"^raftlab: peer\.py, seed (\d+)$", text, re.MULTILINE))
    assert len(seeds) == 2


FAILURE = """\
test_initial_election_2a  seed 7
  ValueError: voted_for
  In peer {peer}, Raft.request_vote from {source}:
      peer.py:{line} in request_vote                raise ValueError('voted_for')

  replay    make replay TEST=test_initial_election_2a SEED=7 RAFT=peer.py
  shrink    make shrink TEST=test_initial_election_2a SEED=7 RAFT=peer.py
  page      make page TEST=test_initial_election_2a SEED=7 RAFT=peer.py
  timeline  build/pytest/timelines/test_initial_election_2a-7.txt
"""


def test_failure_prints_only_the_lab_s_report(run, pytester):
    path = peer(pytester.path, tick="self.ask_next()", vote="raise ValueError('voted_for')")
    args = ("-q", "--seed", 7, "--raft", "peer.py")
    one = f"{LAB / 'test_2a.py'}::test_initial_election_2a"
    alone = run(one, *args, code=1)
    among = run(LAB / "test_2a.py", *args, "-n", 2, code=1)
    report = alone.partition("= FAILURES =")[2].partition("\n")[2].partition("\n\n1 failed")[0] + "\n"
    pattern = re.escape(FAILURE.format(peer="P", source="S", line=line_of(path, "raise Value")[8:]))
    assert re.fullmatch(pattern.replace("P", r"\d", 1).replace("S:", r"\d:", 1), report), alone
    # The same text with other tests, in a worker.
    assert report in among
    assert alone.startswith(
        "raftlab: peer.py, seed 7\nFAILED test_initial_election_2a  seed 7: ValueError: voted_for\n"
    )
    assert alone.count("ValueError: voted_for\n") == 2  # while it ran, and in the report
    assert "Traceback" not in alone + among and "_pytest" not in alone + among and "INTERNALERROR" not in among


@IN_WORKERS
def test_one_mistake_in_many_tests_is_reported_once(run, pytester, workers):
    peer(pytester.path, state="self.nothing")
    text = run(LAB / "test_2a.py", LAB / "test_2a_extra.py", "-q", "--seed", 7, "--raft", "peer.py", *workers, code=1)
    tests = [
        name
        for file in ("test_2a.py", "test_2a_extra.py")
        for name in re.findall(r"^def (test_\w+)", (LAB / file).read_text(), re.MULTILINE)
    ]
    while_it_ran, _, told = text.partition("= FAILURES =")
    said = "AttributeError: 'Raft' object has no attribute 'nothing'"
    assert (while_it_ran.count(said), told.count(said)) == (1, 1)
    first = re.search(rf"^FAILED (\w+)  seed 7: {said}$", while_it_ran, re.MULTILINE)[1]
    as_it = re.findall(rf"^FAILED (\w+)  seed 7: same failure as {first}$", while_it_ran, re.MULTILINE)
    assert {first, *as_it} == set(tests)
    # In the order of the files, whichever worker was faster.
    report, _, others = told.partition("\n  The same failure in:\n")
    assert f"\n{tests[0]}  seed 7\n  {said}\n" in report
    assert re.findall(r"\btest_\w+", others) == tests[1:]
    assert "[gw" not in text and "short test summary" not in text
    assert f"{len(tests)} failed in " in text


TWO_MISTAKES = "self.nothing if len(self.peers) == 3 else [][0]"


def test_one_of_two_mistakes_is_reported_in_full(run, pytester):
    peer(pytester.path, state=TWO_MISTAKES)
    text = run(LAB / "test_2a.py", "-q", "--seed", 7, "--raft", "peer.py", code=1).partition("= FAILURES =")[2]
    assert text.count("  AttributeError: 'Raft' object has no attribute 'nothing'\n") == 1
    assert "\n  The same failure in:\n    test_reelection_2a\n" in text
    report, _, others = text.partition("Other failures, perhaps of the same mistake (-v shows them in full):\n")
    assert "IndexError" not in report
    assert "  test_many_elections_2a  seed 7: IndexError: list index out of range\n" in others


def test_all_mistakes_are_reported_with_verbose_output(run, pytester):
    peer(pytester.path, state=TWO_MISTAKES)
    text = run(LAB / "test_2a.py", "-v", "--seed", 7, "--raft", "peer.py", code=1).partition("= FAILURES =")[2]
    assert text.count("  AttributeError: 'Raft' object has no attribute 'nothing'\n") == 1
    assert text.count("  IndexError: list index out of range\n") == 1
    assert "Other failures" not in text


def test_report_with_a_likely_cause_is_the_one_in_full(run, pytester):
    strict = ("(args.last_log_term, args.last_log_index) >= (", "(args.last_log_term, args.last_log_index) > (")
    path = edited_reference(pytester.path, strict)
    text = run(LAB / "test_2b.py", "-q", "--seed", 3, "--raft", path, code=1).partition("= FAILURES =")[2]
    assert text.count("  Likely: ") == text.count("  replay ") == 1
    assert "Other failures" in text


def test_failures_of_other_tests_keep_pytest_s_report(run, pytester):
    peer(pytester.path, state="self.nothing")
    pytester.makepyfile("def test_own():\n    assert 1 == 2\n")
    text = run(LAB / "test_2a.py", ".", "-q", "--seed", 7, "--raft", "peer.py", code=1)
    assert re.search(r"^FAILED \S*::test_own", text, re.MULTILINE)
    assert "4 failed in " in text


def test_long_failure_is_wrapped_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = " ".join(["FAILED test  seed 7: what is wrong", *["and what is not"] * 9, "and the fix"])
    lines = output._wrapped(text, SimpleNamespace(isatty=True))
    assert max(map(len, lines)) <= 60
    assert " ".join(line.strip() for line in lines) == " ".join(text.split()).replace("test seed", "test  seed")
    assert output._wrapped(text, SimpleNamespace(isatty=False)) == [text]


@IN_WORKERS
def test_load_error_is_reported_once(run, pytester, workers):
    written(pytester.path, "class Raft:\n    def start(self)\n")
    text = run(LAB / "test_2a.py", "-q", "--raft", "peer.py", *workers, code=4)
    assert "ERROR: peer.py:2: SyntaxError: expected ':'\n    def start(self)\n" in text
    assert text.count("SyntaxError") == 1
    assert "INTERNALERROR" not in text and "Traceback" not in text


@IN_WORKERS
def test_disabled_checks_are_reported_once(run, pytester, workers):
    folder = pytester.mkdir("mine")
    renamed_package(folder, success="matches")
    test = f"{LAB / 'test_2a.py'}::test_reelection_2a"
    text = run(test, "-q", "--runs", 3, "--raft", folder, *workers, code=0)
    unread = (
        "Replies to Raft.append_entries are not checked: they have no field 'success' (its requests are checked).\n"
    )
    assert text.count(unread) == text.count("so these rules assume the best for its receiver: earned-leadership, ") == 1


@IN_WORKERS
def test_unverified_tests_are_explained_once_and_counted(run, pytester, workers):
    folder = pytester.mkdir("mine")
    renamed_package(folder, vote_granted="yes")
    tests = [f"{LAB / 'test_2a.py'}::{name}" for name in ("test_initial_election_2a", "test_reelection_2a")]
    text = run(*tests, "-q", "--runs", 2, "--raft", folder, *workers, code=0)
    assert text.count("Leadership cannot be verified: ") == 1
    assert "RequestVoteReply: term, vote_granted" in text
    assert text.count("Part 2A is unverified: 2 tests rely on messages that cannot be decoded") == 1


def test_long_output_of_a_peer_is_shortened(run, pytester):
    peer(pytester.path, tick="for i in range(5000): print('line', i)\n            self.nothing")
    test = f"{LAB / 'test_2a.py'}::test_initial_election_2a"
    text = run(test, "-q", "--seed", 7, "--raft", "peer.py", code=1)
    assert "AttributeError: 'Raft' object has no attribute 'nothing'" in text
    assert "... 4,900 earlier lines; pytest -s -n 0 shows all\nline 4900\n" in text
    assert text.count("\n") < 150


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_timeout_in_real_seconds_shows_what_was_running(run, pytester, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    peer(pytester.path, tick="while True: pass")
    test = f"{LAB / 'test_2a.py'}::test_initial_election_2a"
    text = run(test, "-q", "--seed", 7, "--raft", "peer.py", "--timeout", 1, code=1, elsewhere=True)
    assert "\n  Timeout (>1.0s) from pytest-timeout.\n" in text
    assert re.search(r"^ +peer.py:\d+ in ticker +while True: pass$", text, re.MULTILINE)
    assert "labsim-watchdog" not in text


def test_ctrl_c_ends_pytest_even_if_the_peer_catches_everything(run, pytester):
    swallow = "while True:\n                try: time.sleep(1e-7)\n                except: pass"
    raft = peer(pytester.path, tick=swallow)
    test = f"{LAB / 'test_2a.py'}::test_initial_election_2a"
    command = [sys.executable, "-m", "pytest", *WITHOUT_HYPOTHESIS, "-p", "no:cacheprovider"]
    command += ["-s", "-q", test, "--raft", str(raft)]
    raft.write_text(raft.read_text().replace("time.sleep(0.1)\n", "time.sleep(0.1); print('begun', flush=True)\n", 1))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            assert "begun" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "! KeyboardInterrupt !" in text and "no tests ran" in text


# ---- seeds -----------------------------------------------------------------------------------------------------------


@IN_WORKERS
def test_runs_of_one_test_are_one_line_and_one_report(run, pytester, workers):
    hidden(pytester.path, MOODY)
    raft = edited_reference(pytester.path)
    args = ("test_hidden.py", "--runs", 40, "--seed", 100, "--raft", raft, *workers)
    text = run(*args, code=1)
    assert "raftlab: peer.py, 40 seeds from 100\n" in text
    lines = re.findall(r"^FAILED .*", text, re.MULTILINE)
    assert lines == ["FAILED test_moody  2 of 40 runs, seeds 103, 110: AssertionError: seed 103 is not liked"]
    assert text.count("  AssertionError: seed 103 is not liked\n") == 1
    assert "replay    pytest test_hidden.py::test_moody --seed 103 --raft " in text
    assert "  The same failure in:\n    test_moody  2 of 40 runs, seeds 103, 110\n" in text
    assert "1 failed in " in text


def test_first_failure_ends_a_stopped_run(run, pytester):
    hidden(pytester.path, MOODY)
    args = ("test_hidden.py", "-x", "--runs", 40, "--seed", 100, "--raft", edited_reference(pytester.path))
    text = run(*args, code=1)
    lines = re.findall(r"^FAILED test_moody.*", text, re.MULTILINE)
    assert lines == ["FAILED test_moody  1 of 4 runs, seed 103: AssertionError: seed 103 is not liked"]


def test_passed_runs_of_one_test_are_counted_as_one(run, pytester):
    hidden(pytester.path, MOODY)
    raft = edited_reference(pytester.path)
    text = run("test_hidden.py", "--runs", 20, "--seed", 111, "--raft", raft, code=0)
    assert "  ... 20 runs passed, " in text
    assert "1 passed in " in text


def test_thread_that_never_waits_ends_all_tests(run, pytester):
    peer(pytester.path, tick="while True: pass")
    text = run(LAB / "test_2a.py", "-q", "--runs", 3, "--raft", "peer.py", code=1)
    assert "so no other test can pass" in text
    assert len(re.findall(r"^FAILED ", text, re.MULTILINE)) == 1


def test_replay_line_of_a_hidden_test_works(run, pytester):
    hidden(pytester.path, MOODY)
    text = run("test_hidden.py::test_moody", "-q", "--seed", 110, "--raft", edited_reference(pytester.path), code=1)
    assert "AssertionError: seed 110 is not liked" in text


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--runs", "0"], "--runs must be at least 1, got 0"),
        (["--realtime", "--check-determinism"], "--check-determinism needs virtual time"),
    ],
)
def test_contradictory_options_are_refused(run, pytester, args, text):
    test = hidden(pytester.path, MOODY)
    assert text in run(test, *args, code=4)


# ---- hidden tests ----------------------------------------------------------------------------------------------------

HIDDEN = """
import pytest
from labsim import time

@pytest.fixture
def three():
    return 3

@pytest.fixture
def cluster(make_config):
    return make_config(servers=3)

@pytest.mark.parametrize("n", [1, 3])
def test_with_others(n, make_config, three, tmp_path):
    cfg = make_config(servers=n)
    cfg.begin(f"Test: {n} of {three}")
    cfg.one("x", n, retry=True)
    assert n == three

def test_skips(make_config):
    make_config(servers=1)
    pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail(make_config):
    make_config(servers=1).fail("as expected")

def test_expects_to_fail(make_config):
    make_config(servers=1)
    pytest.xfail("inside")

def test_in_a_fixture(cluster):
    pass

class TestClass:
    def test_method(self, make_config):
        assert [1, 2] == [1, 3]

def test_two_clusters(make_config):
    for n in (3, 5):
        cfg = make_config(servers=n)
        cfg.begin(f"Test: cluster of {n}")
        cfg.one("x", n, retry=True)
        cfg.one("y", n, retry=True)

def test_plain():
    pass
"""


def test_hidden_tests_have_all_features(run, pytester):
    hidden(pytester.path, HIDDEN)
    text = run("test_hidden.py", "-v", "--seed", 7, "--raft", edited_reference(pytester.path), code=1)
    assert "2 failed, 3 passed, 1 skipped, 2 xfailed, 1 error" in text
    assert "FAILED test_with_others[1]  seed 7: AssertionError: assert 1 == 3\n" in text
    assert "  replay    pytest 'test_hidden.py::test_with_others[1]' --seed 7 --raft " in text
    assert "Test: 3 of 3 ...\n  ... Passed --" in text
    assert "  AssertionError: assert [1, 2] == [1, 3]\n" in text
    assert "  replay    pytest test_hidden.py::TestClass::test_method --seed 7 --raft " in text
    assert "call make_config() in the test itself: fixtures run outside the simulation\n" in text
    assert "Test: cluster of 3 ...\n  ... Passed --" in text and "Test: cluster of 5 ...\n  ... Passed --" in text
    assert re.search(r"^SKIPPED \[1\] \S+: not today$", text, re.MULTILINE)
