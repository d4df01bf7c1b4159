"""The contract is one for the lab and for student code, and no place to keep anything in."""

import os
import sys

import pytest

import raftapi
from raftlab.check.failure import Failure
from raftlab.harness.loader import load_peer, load_program
from raftlab.harness.run import run_test
from raftlab.sandbox.launcher import load_sandboxed
from raftlab.tools.selection import load_tests
from unit.students import ROOT, edited_reference

pytestmark = pytest.mark.usefixtures("raft_package_restored")

(persist1,) = [test for test in load_tests(ROOT / "tests/test_2c.py") if test.name == "test_persist1_2c"]

# What `kept(self)` returns is a dict that lasts as long as what it was written onto.
PLACES = {
    "the package": "import raftapi\ndef kept(peer):\n    return vars(raftapi).setdefault('KEPT', {})",
    "a module": (
        "import raftapi.apply_msg\ndef kept(peer):\n    return vars(raftapi.apply_msg).setdefault('KEPT', {})"
    ),
    "a module, by sys.modules": (
        "import sys\ndef kept(peer):\n    return vars(sys.modules['raftapi.persister']).setdefault('KEPT', {})"
    ),
    "a class": (
        "def kept(peer):\n    if not hasattr(ApplyMsg, 'kept'):\n        ApplyMsg.kept = {}\n    return ApplyMsg.kept"
    ),
    "a class, unseen": (
        "OWNER = [ApplyMsg][0]\ndef kept(peer):\n    if not hasattr(OWNER, 'kept'):\n"
        "        setattr(*[OWNER, 'kept', {}])\n    return OWNER.kept"
    ),
    "a method": (
        "def kept(peer):\n    if not hasattr(Persister.save, 'kept'):\n        Persister.save.kept = {}\n"
        "    return Persister.save.kept"
    ),
    "the class of the disk": (
        "def kept(peer):\n    disk = type(peer.persister)\n    if not hasattr(disk, 'kept'):\n"
        "        type(peer.persister).kept = {}\n    return disk.kept"
    ),
    "the class of the disk, unseen": (
        "def kept(peer):\n    disk = type(peer.persister)\n    if not hasattr(disk, 'kept'):\n"
        "        setattr(*[disk, 'kept', {}])\n    return disk.kept"
    ),
}


def peer_that_keeps(tmp_path, lines):
    """It saves too, or the rules about saving would notice; but what it reads is not the disk."""
    return edited_reference(
        tmp_path,
        ("\n# §5.6: broadcast", f"{lines}\n\n# §5.6: broadcast"),
        (
            "self.persister.save(state.bytes(), snapshot)",
            "kept(self)[self.me] = state.bytes()\n        self.persister.save(state.bytes(), snapshot)",
        ),
        ("saved = self.persister.read_raft_state()", "saved = kept(self).get(self.me, b'')"),
    )


def attributes():
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "raftapi"]
    return {(name, each) for each in (*modules, raftapi.ApplyMsg, raftapi.Persister) for name in vars(each)}


@pytest.mark.parametrize("lines", PLACES.values(), ids=PLACES)
def test_nothing_written_onto_it_survives_a_crash(tmp_path, lines):
    program = load_peer(peer_that_keeps(tmp_path, lines))
    first = run_test(persist1, program, 7)
    assert isinstance(first.error, Failure)  # it has forgotten, and done nothing worse
    assert run_test(persist1, program, 7).digest == first.digest


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="isolated runs need Linux")
@pytest.mark.parametrize("lines", PLACES.values(), ids=PLACES)
def test_nothing_survives_a_crash_of_a_sandboxed_peer(tmp_path, lines):
    before = attributes()
    program = load_sandboxed(peer_that_keeps(tmp_path, lines))
    try:
        assert isinstance(run_test(persist1, program, 7).error, Failure)
    finally:
        program.close()
    assert attributes() == before


def test_a_peer_may_look_at_all_of_it(tmp_path):
    looks = (
        "import raftapi\nfrom raftapi import ApplyMsg as A\nimport raft.messages, raft.persister\n"
        "assert raft.messages.ApplyMsg is A is raftapi.apply_msg.ApplyMsg\n"
        "assert raft.persister.Persister is raftapi.Persister is raftapi.persister.Persister\n"
        "assert raftapi.protocols.Peer is raftapi.Peer"
    )
    disk = ("self.persister = persister", "self.persister = persister\n        assert type(persister) is Persister")
    path = edited_reference(tmp_path, ("\n# §5.6: broadcast", f"{looks}\n\n# §5.6: broadcast"), disk)
    run = run_test(persist1, load_peer(path), 7)
    assert run.error is None
    assert run.digest == run_test(persist1, load_peer(ROOT / "raft/raft.py"), 7).digest


def test_a_package_with_copies_of_its_own_is_loaded_as_ever(tmp_path):
    for name in ("__init__.py", "messages.py", "raft.py"):
        (tmp_path / name).write_text((ROOT / "raft" / name).read_text())
    (tmp_path / "persister.py").write_text((ROOT / "raftapi/persister.py").read_text())
    copied = (ROOT / "raftapi/apply_msg.py").read_text().partition("from typing import Any\n")[2]
    messages = (tmp_path / "messages.py").read_text()
    (tmp_path / "messages.py").write_text(messages.replace("from raftapi import ApplyMsg as ApplyMsg\n", copied))
    program = load_program(tmp_path)
    assert program.template.module("raft.messages").ApplyMsg is not raftapi.ApplyMsg
    run = run_test(persist1, load_peer(tmp_path), 7)
    assert run.error is None
    assert run.digest == run_test(persist1, load_peer(ROOT / "raft/raft.py"), 7).digest
