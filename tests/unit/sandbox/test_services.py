"""Sandboxed services and clerks: the same outcomes as in one process, one seed one run, and no leaks."""

import os
import re
import subprocess
import sys

import pytest

from labsim import time
from raftlab.harness import report
from raftlab.harness.launcher import LoadError
from raftlab.harness.loader import load_peer
from raftlab.harness.outcome import Ending
from raftlab.harness.run import run_test
from raftlab.sandbox import confinement
from raftlab.sandbox.launcher import SandboxLimits, load_sandboxed
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import load_tests
from raftlab.trace import events
from tests.mutants.tool.mutants import load_mutants
from unit.students import ROOT, WITHOUT_HYPOTHESIS, squeezed

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the sandbox needs Linux")

RAFT = ROOT / "raft" / "raft.py"
KV = ROOT / "kv" / "server.py"
TESTS = {test.name: test for file in sorted((ROOT / "tests").glob("test_3*.py")) for test in load_tests(file)}


@pytest.fixture(scope="module")
def reference():
    program = load_sandboxed(RAFT, KV)
    yield program
    program.close()


@pytest.fixture
def load():
    """load_sandboxed() of a service on the reference peer; ends all processes afterwards."""
    programs = []

    def load(kv, raft=RAFT, **options):
        programs.append(load_sandboxed(raft, kv, **options))
        return programs[-1]

    yield load
    for program in programs:
        program.close()


def service(tmp_path, *, server=(), client=()):
    """The reference service with each (old, new) replaced once."""
    for name, changes in (("server.py", server), ("client.py", client)):
        source = (ROOT / "kv" / name).read_text(encoding="utf-8")
        for old, new in changes:
            assert source.count(old) == 1, f"the reference has changed: {source.count(old)} times {old!r}"
            source = source.replace(old, new)
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path / "server.py"


@collect
def two_clients(make_kv_config):
    cfg = make_kv_config(servers=3, max_raft_state=300)
    cfg.begin("Test: two clients, a crash and snapshots")
    one, other = cfg.make_client(), cfg.make_client()
    for number in range(6):
        one.append("x", f"<{number}>")
        other.get("x")
    cfg.crash1(0)
    cfg.restart(0)
    time.sleep(1)
    other.put("x", "y")
    one.get("x")


# ---- correct services pass -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["test_paused_leader_3a", "test_snapshot_crash_anywhere_3b"])
def test_the_reference_passes(reference, name):
    run = run_test(TESTS[name], reference, 3)
    assert run.error is None, report.describe(run.error, name, 3, "")
    assert run.checks_off == []


# One has its own calls between servers; one has objects in the log.
@pytest.mark.parametrize("design", ["read_index", "through_log"])
def test_services_of_other_designs_pass(load, design):
    program = load(ROOT / "tests" / "peers" / "services" / design / "server.py")
    run = run_test(two_clients, program, 3)
    assert run.error is None, report.describe(run.error, design, 3, "")


def test_classes_in_the_log_are_known_after_a_restart(load):
    @collect
    def everybody_restarts(make_kv_config):
        cfg = make_kv_config(servers=3)
        cfg.begin("Test: everybody restarts")
        client = cfg.make_client()
        client.append("x", "1")
        for i in range(3):
            cfg.crash1(i)
        cfg.restart(0, 1, 2)
        client.append("x", "2")
        client.get("x")

    program = load(ROOT / "tests" / "peers" / "services" / "through_log" / "server.py")
    assert run_test(everybody_restarts, program, 3).error is None


def test_supervisor_observes_service_and_peer(reference):
    here, there = (run_test(two_clients, program, 1) for program in (load_peer(RAFT, kv=KV), reference))
    kinds = [{event.kind for event in run.simulation.trace} for run in (here, there)]
    assert kinds[0] == kinds[1]
    wanted = {events.START, events.STARTED, events.APPLY, events.SNAPSHOT, events.INVOKE, events.RETURN}
    assert wanted <= kinds[1]


# ---- one seed, one run -----------------------------------------------------------------------------------------------

DIGEST = """
import sys
from pathlib import Path
from raftlab.sandbox.launcher import load_sandboxed
from raftlab.harness.run import run_test
from raftlab.tools.selection import select
(test,) = select([sys.argv[1]])
program = load_sandboxed(Path("raft/raft.py"), Path("kv/server.py"))
print(run_test(test, program, 5).digest)
program.close()
"""


def test_one_seed_gives_one_digest_in_any_process(reference):
    name = "test_late_replies_3a"
    there = subprocess.run(
        [sys.executable, "-c", DIGEST, name],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == run_test(TESTS[name], reference, 5).digest


def test_failure_is_replayed_exactly(pytester, tmp_path):
    path = service(tmp_path, server=[('value = self.data.get(op.key, "")\n', 'value = ""\n')])
    (pytester.path / "tests").symlink_to(ROOT / "tests")
    options = ("-k", "unreliable_one_key", "--seed", "1", f"--raft={RAFT}", f"--kv={path}", "--isolated")
    options += ("-p", "no:cacheprovider", *WITHOUT_HYPOTHESIS)
    done = pytester.runpytest_subprocess("-c", ROOT / "pyproject.toml", "tests/test_3a.py", *options)
    out = squeezed(done.stdout.str())
    line = f"make replay TEST=test_unreliable_one_key_3a SEED=1 RAFT={RAFT} KV={path} ISOLATED=1"
    assert line in out
    command = [sys.executable, "-m", "raftlab", "replay", "test_unreliable_one_key_3a", "--seed", "1"]
    command += [f"--raft={RAFT}", f"--kv={path}", "--isolated"]
    again = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=False)
    assert "Same run as recorded (digest " in again.stdout


# ---- incorrect services are reported ---------------------------------------------------------------------------------

SHORT = {
    "kv-reads-anywhere": "test_followers_do_not_answer_reads_3a",
    "kv-snapshot-of-the-next": "test_snapshot_rpc_3b",
}


@pytest.mark.parametrize("id_", SHORT)
def test_verdict_equals_the_in_process_verdict(load, tmp_path, id_):
    (mutant,) = [mutant for mutant in load_mutants() if mutant.id == id_]
    path = mutant.write(tmp_path)
    runs = [run_test(TESTS[SHORT[id_]], p, 1) for p in (load_peer(RAFT, kv=path), load(path))]
    assert len({run.outcome().name for run in runs}) == 1
    assert runs[0].error is not None


@pytest.mark.parametrize(
    ("server", "client", "said"),
    [
        (
            [
                (
                    "                msg = self.apply_ch.get(timeout=PATIENCE_S)\n",
                    "                if self.last_applied >= 3: time.sleep(30)\n"
                    "                msg = self.apply_ch.get(timeout=PATIENCE_S)\n",
                )
            ],
            [],
            r"the service of server \d has taken nothing from apply_ch for 0\.\d s",
        ),
        (
            [],
            [("        self.seq += 1\n", "        self.seq += self.nothing\n")],
            "'Clerk' object has no attribute 'nothing'",
        ),
        (
            [],
            [("key)).value)\n", "key)).value) and None\n")],
            r"get\('x'\) of client 1 returned None; it must return a str",
        ),
        (
            [],
            [("        self.seq = 0", "        time.sleep(30); self.seq = 0")],
            r"Clerk\(\.\.\.\) of client 0 has not returned for 10 s",
        ),
        (
            [],
            [("        self.seq += 1\n", "        import os; os._exit(0)\n")],
            "the clerk of client 0 ended its own process",
        ),
    ],
    ids=["deaf", "exception in the clerk", "no string", "clerk that waits", "clerk that ends"],
)
def test_failure_equals_the_in_process_failure(load, tmp_path, server, client, said):
    run = run_test(two_clients, load(service(tmp_path, server=server, client=client)), 1)
    assert run.error is not None
    assert re.search(said, squeezed("\n".join(report.message_lines(run.error))))


@pytest.mark.parametrize(
    ("file", "source", "said"),
    [
        (
            "client.py",
            "class Clerk:\n    def get(self, key): ...\n",
            "client.py: class Clerk has no method put, no append",
        ),
        ("server.py", "def (", "server.py:1: SyntaxError"),
    ],
)
def test_load_error_has_the_file(tmp_path, file, source, said):
    path = service(tmp_path)
    (tmp_path / file).write_text(source)
    with pytest.raises(LoadError) as refused:
        load_sandboxed(RAFT, path)
    assert said in str(refused.value)


# ---- attacks ---------------------------------------------------------------------------------------------------------

_GET = '        return str(self._ask("KVServer.get", GetArgs(self.client_id, self._next(), key)).value)\n'
_PUT = '        self._ask("KVServer.put_append", PutAppendArgs(self.client_id, self._next(), "put", key, value))\n'
_APPEND = (
    '        self._ask("KVServer.put_append", PutAppendArgs(self.client_id, self._next(), "append", key, value))\n'
)

_LIKE_ALL = """class Like(str):
    def __eq__(self, other):
        return True
    __hash__ = str.__hash__
    def startswith(self, *_):
        return True


class Clerk:"""
_SILENT = """        import gc
        for each in gc.get_objects():
            if type(each).__name__ == "PeerSimulation":
                each.add_apply_message = lambda message: None
                each.add_effect = lambda effect: None
        snapshot = persister.read_snapshot()
"""
_CLERK_S_FILE = """        with open("/tmp/shared", "a+") as file:
            file.seek(0)
            return file.read()
"""

# Edits of the server and of the clerk, by name. All would pass if processes could share data, or if objects of a peer
# could reach the tester.
ATTACKS = {
    "clerks share a variable": (
        [],
        [
            ("class Clerk:", "SHARED = {}\n\n\nclass Clerk:"),
            (_GET, "        return SHARED.get(key, '')\n"),
            (_PUT, "        SHARED[key] = value\n"),
            (_APPEND, "        SHARED[key] = SHARED.get(key, '') + value\n"),
        ],
    ),
    "clerks share a file": (
        [],
        [
            (_GET, _CLERK_S_FILE),
            (_PUT, "        open('/tmp/shared', 'w').write(value)\n"),
            (_APPEND, "        open('/tmp/shared', 'a').write(value)\n"),
        ],
    ),
    "a string that equals every other": ([], [("class Clerk:", _LIKE_ALL), (_GET, "        return Like('nothing')\n")]),
    "a service that reports nothing": ([("        snapshot = persister.read_snapshot()\n", _SILENT)], []),
    "an answer without end": ([], [(_GET, "        return 'x' * (17 << 20)\n")]),
}


@pytest.mark.skipif(
    confinement.bubblewrap() is None or not confinement.syscall_filter(), reason="needs bubblewrap and libseccomp"
)
@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_does_not_pass(load, tmp_path, attack):
    server, client = ATTACKS[attack]
    program = load(service(tmp_path, server=server, client=client), limits=SandboxLimits(cpu_s=5))
    outcome = run_test(two_clients, program, 1).outcome()
    assert outcome.ending in (Ending.RULE, Ending.EXPECTATION, Ending.SIMULATION), outcome


def test_clerk_has_no_disk(load, tmp_path):
    saving = (
        "        import gc\n"
        "        from raftlab.guest.protocol import SaveFinished\n"
        "        (simulation,) = [one for one in gc.get_objects() if type(one).__name__ == 'PeerSimulation']\n"
        "        simulation.add_effect(SaveFinished(1, b'', None))\n        self.seq += 1\n"
    )
    error = run_test(two_clients, load(service(tmp_path, client=[("        self.seq += 1\n", saving)])), 1).error
    assert str(error) == "the clerk of client 0 violated the sandbox protocol: a save without a disk"
