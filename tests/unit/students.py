"""Peers with one mistake each, and what a student is told about them."""

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
    """A peer that never does much, with these lines in it: imports, init, tick, vote_def, vote, start, state."""
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
    path = tmp_path / "peer.py"  # not raft.py: where that is the working directory, it would hide the package
    path.write_text(source, encoding="utf-8")
    return path


def edited_reference(tmp_path, *changes):
    """The reference with each (old, new) replaced once."""
    source = (ROOT / "raft" / "raft.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert source.count(old) == 1, f"the reference has changed: {source.count(old)} times {old!r}"
        source = source.replace(old, new)
    return written(tmp_path, source)


def renamed_package(folder, **names):
    """The reference with its own messages.py, in both of which every `old` is called `new`."""
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


def told(path, test=elect, *, realtime=False, **limits):
    """The report of a run that must fail, without its first line (the test and its seed) and the replay line."""
    simulation = Simulation(7, **limits) if limits else None
    run = run_test(test, load_peer(path), 7, simulation=simulation, realtime=realtime)
    assert run.error is not None, "the peer passed"
    lines = report.describe(run.error, "a_test", 7, "REPLAY").splitlines()
    assert lines[0] == "a_test  seed 7"
    assert lines[-2:] == ["", "  replay    REPLAY"]
    return "\n".join(line[2:] for line in lines[1:-2]).replace(str(path), "raft.py")


def line_of(path, text):
    """How a report names the one line of the file that holds this text: 'raft.py:12'."""
    lines = path.read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return f"raft.py:{number}"


def squeezed(text):
    return " ".join(text.split())


# At the end of every session its plugin imports all of Hypothesis, which takes longer than the rest of such a session.
WITHOUT_HYPOTHESIS = ("-p", "no:hypothesispytest")


def pytest_run_here(pytester, *args, code):
    """What pytest prints, in this process, which is quicker; its exit code must be this one."""
    ini = ["-c", ROOT / "pyproject.toml", f"--rootdir={pytester.path}", "-p", "no:cacheprovider"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", " ".join(WITHOUT_HYPOTHESIS))  # for the process of --check-determinism too
        done = pytester.runpytest_inprocess(*ini, *map(str, args))
    text = f"{done.stdout}\n{done.stderr}"
    assert done.ret == code, text
    return text


def pytest_run(*args, cwd, code, timeout_s=110, env=None):
    """What pytest prints in a new process, the peer's path shortened; its exit code must be this one."""
    command = [sys.executable, "-m", "pytest", *WITHOUT_HYPOTHESIS, "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COLUMNS"))} | (env or {})
    # CI makes pytest write summaries of any width; a student's terminal does not.
    environment.pop("CI", None)
    done = subprocess.run(
        [*command, *map(str, args)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    return text
