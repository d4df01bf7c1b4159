"""A seed determines a run in any process, and --check-determinism names the line that violates this."""

import json
import os
import re
import subprocess
import sys

import pytest

from raftlab.harness import determinism
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from unit.students import ROOT, agree, edited_reference, line_of, peer, pytest_run_here

pytest_plugins = ["pytester"]

DIGEST = """
import json, sys
from pathlib import Path
from unit.students import agree, elect
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
launcher = load_peer(Path(sys.argv[1]))
print(json.dumps([run_test(test, launcher, seed).digest for test in (elect, agree) for seed in (1, 7)]))
"""


def test_digests_do_not_depend_on_the_hash_seed():
    told = set()
    for hash_seed in ("0", "1"):
        environment = dict(os.environ, PYTHONHASHSEED=hash_seed, PYTHONPATH=str(ROOT / "tests"))
        command = [sys.executable, "-c", DIGEST, str(ROOT / "raft" / "raft.py")]
        told.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    (digests,) = told
    assert len(set(json.loads(digests))) == 4


def test_a_digest_does_not_depend_on_what_ran_before():
    launcher = load_peer(ROOT / "raft" / "raft.py")
    first = run_test(agree, launcher, 7).digest
    run_test(agree, launcher, 8)
    determinism.shuffle_memory()
    assert run_test(agree, launcher, 7).digest == first
    assert run_test(agree, launcher, 8).digest != first


# ---- --check-determinism ---------------------------------------------------------------------------------------------


ELECTION = """
def test_election(make_config):
    make_config(servers=7).check_one_leader()
"""


def check(pytester, raft, code, test=ELECTION):
    """The output for an election among so many peers that two random orders are unlikely to be equal."""
    file = pytester.makepyfile(test_hidden=test)
    args = (file, "-q", "--seed", 7, "--raft", raft, "--check-determinism")
    return pytest_run_here(pytester, *args, code=code)


@pytest.mark.parametrize("test", ["test_2a.py::test_reelection_2a", "test_2d.py::test_snapshot_basic_2d"])
def test_the_reference_is_deterministic(pytester, test):
    raft = ROOT / "raft" / "raft.py"
    args = (ROOT / "tests" / test, "-q", "--seed", 7, "--raft", raft, "--check-determinism")
    assert "1 passed" in pytest_run_here(pytester, *args, code=0)


LOOP = """\
        for peer in range(len(self.peers)):
            if peer != self.me and peer not in self.votes:"""
CLOCK = "            pause_s = self._tick()"


def ordered_by(expression):
    return (LOOP, LOOP.replace("range(len(self.peers))", expression))


@pytest.mark.parametrize(
    ("change", "culprit", "why"),
    [
        pytest.param(
            ordered_by("map(int, {str(i) for i in range(len(self.peers))})"),
            "map(int, {",
            "the order of a set differs between processes; use sorted()",
            id="a-set-of-strings",
        ),
        pytest.param(
            ordered_by("sorted(range(len(self.peers)), key=lambda i: id(self.peers[i]))"),
            "id(self.peers[i])",
            "id() is an address, which differs between processes",
            id="sorted-by-id",
        ),
        pytest.param(
            ordered_by("sorted(range(len(self.peers)), key=lambda i: hash(str(i)))"),
            "hash(str(i))",
            "hash() of a string differs between processes",
            id="hash-of-a-string",
        ),
        pytest.param(
            (CLOCK, f"{CLOCK} + __import__('datetime').datetime.now().microsecond / 1e9"),
            "datetime.now()",
            "the real clock; use 'from labsim import time'",
            id="the-real-clock",
        ),
    ],
)
def test_cause_of_nondeterminism_is_named(pytester, change, culprit, why):
    path = edited_reference(pytester.path, change)
    # With 7 servers one order in 720 is equal by chance, so use 13. Only few objects have addresses in another order,
    # so use 7 for id().
    test = ELECTION if "id(" in culprit else ELECTION.replace("servers=7", "servers=13")
    text = check(pytester, "peer.py", code=1, test=test)
    assert re.search(r"^  Nondeterministic: two runs of one seed differ, first at event \d+:$", text, re.MULTILINE)
    for run in ("first run ", "second run"):
        event = rf"^    {run}  \d+\.\d{{6}} s  peer \d+ \w+: .+\n +caused at peer\.py:\d+ in \w+$"
        assert re.search(event, text, re.MULTILINE), text
    where = line_of(path, culprit).replace("raft.py", "peer.py")
    suspects = rf"^  Possible causes:\n(    .*\n)*    {re.escape(where)}  .*{re.escape(why)}\)$"
    assert re.search(suspects, text, re.MULTILINE)


def test_deterministic_failure_is_reported_unchanged(pytester):
    peer(pytester.path, tick="raise KeyError('x')")
    text = check(pytester, "peer.py", code=1)
    assert "  KeyError: 'x'\n" in text
    assert "Nondeterministic" not in text


def test_check_works_with_runs_and_parameters(pytester):
    edited_reference(pytester.path)
    test = """
import pytest

@pytest.mark.parametrize("n", [3])
def test_election(n, make_config):
    make_config(servers=n).check_one_leader()
"""
    file = pytester.makepyfile(test_hidden=test)
    args = (file, "-q", "--seed", 7, "--raft", "peer.py", "--check-determinism", "--runs", 2)
    assert "2 runs passed" in pytest_run_here(pytester, *args, code=0)


# ---- comparing -------------------------------------------------------------------------------------------------------

SEND = [1_500_000, "send", "0", "Raft.request_vote 0->1 RequestVoteArgs(term=1)", "raft.py:12 in campaign"]


def test_causes_of_events_are_not_compared():
    assert determinism.first_difference([SEND], [[*SEND[:4], "raft.py:13 in campaign"]]) is None


def test_first_difference_shows_both_runs():
    other = [2_000_000, *SEND[1:]]
    assert determinism.first_difference([SEND, SEND], [SEND, other]) == (
        "Nondeterministic: two runs of one seed differ, first at event 2:\n"
        "  first run   0.001500 s  peer 0 send: Raft.request_vote 0->1 RequestVoteArgs(term=1)\n"
        "              caused at raft.py:12 in campaign\n"
        "  second run  0.002000 s  peer 0 send: Raft.request_vote 0->1 RequestVoteArgs(term=1)\n"
        "              caused at raft.py:12 in campaign"
    )


def test_longer_run_is_shown():
    assert determinism.first_difference([SEND], [SEND, SEND]) == (
        "Nondeterministic: two runs of one seed have 1 equal events, and only the second run continues, with\n"
        "  0.001500 s  peer 0 send: Raft.request_vote 0->1 RequestVoteArgs(term=1)\n"
        "              caused at raft.py:12 in campaign"
    )


def test_of_long_texts_the_different_part_is_shown():
    a, b = ([1, "send", "0", f"{'x' * 1000}{end}{'y' * 1000}", ""] for end in "AB")
    text = determinism.first_difference([a], [b])
    assert text is not None
    assert "xxxAyyy" in text and "xxxByyy" in text and len(text) < 700


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("for p in set(names): pass", True),
        ("for p in {'a', 'b'}: pass", True),
        ("xs.sort(key=id)", True),
        ("n = hash('a')", True),
        ("for p in sorted({'a', 'b'}): pass", False),
        ("n = len(set(names))", False),
        ("ok = kind in {'a', 'b'}", False),
        ("d = {'a': 1}", False),
        ("self.dead.set()", False),
        ("t = datetime.now()", True),
    ],
)
def test_suspects(tmp_path, line, found):
    path = tmp_path / "raft.py"
    path.write_text(line)
    assert [told.partition("   (")[0] for told in determinism.suspects(path)] == (
        [f"{path}:1  {line}"] if found else []
    )
