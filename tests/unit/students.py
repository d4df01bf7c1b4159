"""Helpers: small incorrect peers, and the reports that students get of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labsim import Simulation
from raftlab.harness import report
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect

ROOT = Path(__file__).parents[2]

_PEER = """\
{imports}
from raft.messages import RequestVoteArgs, RequestVoteReply


class Raft:
    def __init__(self, peers, me, persister, apply_ch):
        self.peers = peers
        self.me = me
        self.persister = persister
        self.mu = threading.Lock()
        {init}
        threading.Thread(target=self.ticker, daemon=True).start()

    def ticker(self):
        while True:
            time.sleep(0.1)
            {tick}

    def ask_next(self):
        self.persister.save(b"term 1, voted for me")
        return self.peers[(self.me + 1) % len(self.peers)].call("Raft.request_vote", RequestVoteArgs(1, self.me, 0, 0))

    {vote_def}
        {vote}
        return RequestVoteReply(args.term, False)

    def start(self, command):
        return {start}

    def get_state(self):
        return {state}

    def kill(self):
        pass
"""


def peer(tmp_path, **changes):
    """A minimal peer with some lines replaced: imports, init, tick, vote_def, vote, start, state."""
    lines = {
        "imports": "from labsim import queue, random, threading, time",
        "init": "pass",
        "tick": "pass",
        "vote_def": "def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:",
        "vote": "pass",
        "start": "-1, 0, False",
        "state": "0, False",
    }
    assert changes.keys() <= lines.keys()
    return written(tmp_path, _PEER.format(**(lines | changes)))


def written(tmp_path, source):
    path = tmp_path / "peer.py"  # not raft.py, which would shadow the package raft
    path.write_text(source, encoding="utf-8")
    return path


def edited_reference(tmp_path, *changes):
    """The reference with each (old, new) replaced; old must occur once."""
    source = (ROOT / "raft" / "raft.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert source.count(old) == 1, f"the reference has changed: {source.count(old)} times {old!r}"
        source = source.replace(old, new)
    return written(tmp_path, source)


def renamed_package(folder, **names):
    """The reference and its messages.py, with names replaced: old=new."""
    for name in ("__init__.py", "raft.py", "messages.py", "persister.py"):
        source = (ROOT / "raft" / name).read_text(encoding="utf-8")
        for old, new in names.items():
            source = re.sub(rf"\b{old}\b", new, source)
        (folder / name).write_text(source, encoding="utf-8")
    return folder


@collect
def elect(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test: election")
    cfg.check_one_leader()


@collect
def agree(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test: agreement")
    cfg.one("x", 3, retry=True)


def report_of(path, test=elect, *, realtime=False, **limits):
    """The report of a run that must fail, without its first line (test and seed) and the replay line."""
    simulation = Simulation(7, **limits) if limits else None
    run = run_test(test, load_peer(path), 7, simulation=simulation, realtime=realtime)
    assert run.error is not None, "the peer passed"
    lines = report.describe(run.error, "a_test", 7, "REPLAY").splitlines()
    assert lines[0] == "a_test  seed 7"
    assert lines[-2:] == ["", "  replay    REPLAY"]
    return "\n".join(line[2:] for line in lines[1:-2]).replace(str(path), "raft.py")


def line_of(path, text):
    """The location of the only line with this text, as in reports: 'raft.py:12'."""
    lines = path.read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return f"raft.py:{number}"


def squeezed(text):
    return " ".join(text.split())


# Its plugin imports all of Hypothesis at the end of a session, which takes longer than the session.
WITHOUT_HYPOTHESIS = ("-p", "no:hypothesispytest")


def pytest_run_here(pytester, *args, code):
    """Run pytest in this process, which is faster; check its exit code, and return its output."""
    ini = ["-c", ROOT / "pyproject.toml", f"--rootdir={pytester.path}", "-p", "no:cacheprovider"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", " ".join(WITHOUT_HYPOTHESIS))  # for the process of --check-determinism too
        done = pytester.runpytest_inprocess(*ini, *map(str, args))
    text = f"{done.stdout}\n{done.stderr}"
    assert done.ret == code, text
    return text


def pytest_run(*args, cwd, code, timeout_s=110, env=None):
    """Run pytest in a new process; check its exit code, and return its output."""
    command = [sys.executable, "-m", "pytest", *WITHOUT_HYPOTHESIS, "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COLUMNS"))} | (env or {})
    # With CI set, pytest does not limit the width of its summary.
    environment.pop("CI", None)
    done = subprocess.run(
        [*command, *map(str, args)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    return text
