"""Sandboxed peers: the same verdicts and reports as in one process, one seed one run, and no leaks."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import labgob
from labsim import time
from raftlab.check.failure import Failure, PeerProcessFailed
from raftlab.guest import protocol
from raftlab.harness import report
from raftlab.harness.launcher import LoadError
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.sandbox import confinement, processes
from raftlab.sandbox.launcher import SandboxedLauncher, SandboxLimits, load_sandboxed
from raftlab.scenarios.collection import collect
from raftlab.tools.cli import main as lab
from raftlab.tools.selection import load_tests
from raftlab.trace import events
from tests.mutants.tool.mutants import load_mutants
from unit.students import ROOT, WITHOUT_HYPOTHESIS, agree, edited_reference, elect, peer, renamed_package, squeezed

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the sandbox needs Linux")

REFERENCE = ROOT / "raft" / "raft.py"
TESTS = {test.name: test for file in sorted((ROOT / "tests").glob("test_2*.py")) for test in load_tests(file)}


@pytest.fixture(scope="module")
def reference():
    program = load_sandboxed(REFERENCE)
    yield program
    program.close()


@pytest.fixture
def load():
    """load_sandboxed(); ends all its processes afterwards."""
    programs = []

    def load(path, **options):
        programs.append(load_sandboxed(path, **options))
        return programs[-1]

    yield load
    for program in programs:
        program.close()


def report_of(error, path):
    return squeezed("\n".join(report.message_lines(error)).replace(str(path), "raft.py"))


# ---- correct peers pass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "test_reelection_2a",
        "test_paused_leader_2a",
        "test_concurrent_starts_2b",
        "test_persist2_2c",
        "test_crash_after_reply_2c",
        "test_crash_before_save_2c",
        "test_paused_slow_disks_2c",
        "test_snapshot_install_crash_2d",
        "test_snapshot_paused_follower_2d",
    ],
)
def test_the_reference_passes(reference, name):
    run = run_test(TESTS[name], reference, 3)
    assert run.error is None, report.describe(run.error, name, 3, "")
    assert run.checks_off == []


def design(name):
    return ROOT / "tests" / "peers" / name / "raft.py"


@pytest.mark.parametrize("name", ["added_ack", "event_loop", "pre_vote"])
def test_correct_peers_of_other_designs_pass(load, name):
    program = load(design(name))
    for test in ("test_backup_2b", "test_snapshot_all_crash_2d"):
        run = run_test(TESTS[test], program, 3)
        assert run.error is None, report.describe(run.error, test, 3, "")


# ---- one seed, one run -----------------------------------------------------------------------------------------------

DIGEST = """
import sys
from pathlib import Path
from raftlab.sandbox.launcher import load_sandboxed
from raftlab.harness.run import run_test
from raftlab.tools.selection import select
(test,) = select([sys.argv[1]])
program = load_sandboxed(Path("raft/raft.py"))
print(run_test(test, program, 5).digest)
program.close()
"""


def test_one_seed_gives_one_digest_in_any_process(reference):
    name = "test_unreliable_agree_2c"
    here = [run_test(TESTS[name], reference, 5).digest for _ in range(2)]
    there = [
        subprocess.run(
            [sys.executable, "-c", DIGEST, name],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert len({*here, *there}) == 1
    assert here[0] != run_test(TESTS[name], reference, 6).digest


def test_failure_is_replayed_exactly(pytester, tmp_path):
    path = edited_reference(tmp_path, ("        self.voted_for = self.me\n", "        self.voted_for = None\n"))
    (pytester.path / "tests").symlink_to(ROOT / "tests")
    options = ("-k", "test_many_elections_2a", "--seed", "1", f"--raft={path}", "--isolated", "-p", "no:cacheprovider")
    options += WITHOUT_HYPOTHESIS
    done = pytester.runpytest_subprocess("-c", ROOT / "pyproject.toml", "tests/test_2a.py", *options)
    out = done.stdout.str()
    assert "voted twice in term" in out, out
    assert f"make replay TEST=test_many_elections_2a SEED=1 RAFT={path} ISOLATED=1" in out
    command = [sys.executable, "-m", "raftlab", "replay", "test_many_elections_2a", "--seed", "1", "--raft", path]
    again = subprocess.run([*command, "--isolated"], cwd=pytester.path, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "Same run as recorded" in again.stdout, again.stdout + again.stderr


# ---- incorrect peers are reported ------------------------------------------------------------------------------------


def test_exception_is_reported_with_the_peers_lines(load, tmp_path):
    path = peer(tmp_path, tick="self.mu.nothing()")
    error = run_test(elect, load(path), 7).error
    assert isinstance(error, PeerProcessFailed)
    text = report_of(error, path)
    assert text.startswith("AttributeError: 'Lock' object has no attribute 'nothing' In peer ")
    assert "raft.py:17 in ticker self.mu.nothing()" in text


def test_real_clock_is_refused(load, tmp_path):
    path = peer(tmp_path, imports="from labsim import threading\nimport time")
    error = run_test(elect, load(path), 7).error
    assert "time.sleep() in" in report_of(error, path) and "use 'from labsim import time'" in report_of(error, path)


def test_2d_runs_without_a_previous_load():
    launcher = SandboxedLauncher({"raft/raft.py": REFERENCE.read_bytes()}, "raft/raft.py")
    try:
        assert run_test(TESTS["test_snapshot_basic_2d"], launcher, 7).error is None
    finally:
        launcher.close()


def test_wrong_result_is_reported_without_lab_lines(load, tmp_path):
    path = edited_reference(
        tmp_path, ("            return self.current_term, self.role is Role.LEADER", "            return 5")
    )
    told = "\n".join(report.message_lines(run_test(elect, load(path), 7).error))
    assert "get_state() of peer 0 returned 5; it must return" in told
    assert "stubs.py" not in told


def test_blocked_call_is_reported_with_its_lock(load, tmp_path):
    path = peer(tmp_path, state="self.mu.acquire() and self.mu.acquire()")
    error = run_test(elect, load(path), 7).error
    assert isinstance(error, Failure) and error.rule == "calls-return"
    assert "get_state() of peer 0 has not returned for 10 s" in report_of(error, path)
    assert "s for a Lock made at raft.py:10, held by itself raft.py:31 in get_state" in report_of(error, path)


def test_unencodable_result_is_reported_by_its_text(load, tmp_path):
    path = peer(tmp_path, state="object")
    assert "get_state() of peer 0 returned <class 'object'>; it must return" in report_of(
        run_test(elect, load(path), 7).error, path
    )


@pytest.mark.parametrize(
    ("tick", "words"),
    [
        ("(_ for _ in ()).throw(TypeError('half: \\ud800'))", "TypeError: half: \\ud800 "),
        ("self.ch.put(ApplyMsg(True, 1, '1'))", "put an ApplyMsg whose command_index is '1' on apply_ch"),
        ("self.ch.put(ApplyMsg(True, 1, 1 << 80))", "whose command_index is 1208925819614629174706176 on apply_ch"),
        ("self.ch.put(ApplyMsg(False, 1, 1, True, 'x'))", "an ApplyMsg whose snapshot is 'x' on apply_ch"),
    ],
)
def test_unencodable_value_is_reported(load, tmp_path, tick, words):
    imports = "from labsim import threading, time\nfrom raft.messages import ApplyMsg"
    path = peer(tmp_path, imports=imports, init="self.ch = apply_ch", tick=tick)
    error = run_test(elect, load(path), 7).error
    assert words in report_of(error, path)


def test_peer_cannot_skip_the_delay_of_a_slow_disk(load, tmp_path):
    """Nor the order of saves, which a rule needs."""

    @collect
    def test(make_config):
        cfg = make_config(servers=1)
        cfg.slow_disks(10, 20)
        time.sleep(1)

    lies = "persister.before_save = None"
    error = run_test(test, load(peer(tmp_path, init=lies, tick="self.persister.save(b'x')")), 7).error
    assert "violated the sandbox protocol: a save that was not due" in str(error)
    forgets = "if time.monotonic() < 0.5: self.persister._begun = 0; self.persister.save(b'x')"
    assert run_test(test, load(peer(tmp_path, tick=forgets)), 7).error is None


def test_much_output_in_one_slice_is_not_a_violation(load, tmp_path, capsys):
    path = peer(
        tmp_path,
        init="[print(n) or labsim.log('t', 'x') for n in range(110_000)]",
        imports="import labsim\nfrom labsim import threading, time",
    )
    error = run_test(elect, load(path), 7).error
    assert "Expected one leader" in str(error)
    assert capsys.readouterr().out.startswith("0\n1\n2\n")


def test_peer_that_never_waits_is_killed(load, tmp_path):
    path = peer(tmp_path, tick="\n            while True: pass")
    error = run_test(elect, load(path, limits=SandboxLimits(cpu_s=2)), 7).error
    assert "used more than 2 s of processor time" in report_of(error, path)


def test_peer_that_exits_its_process_fails(load, tmp_path):
    path = peer(tmp_path, imports="import os\nfrom labsim import threading, time", tick="os._exit(3)")
    error = run_test(elect, load(path), 7).error
    assert (error.kind, "ended its own process, with exit status 3" in str(error)) == ("Died", True)


def test_process_killed_from_outside_is_not_a_failure(reference):
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        supervisor = cfg._slots[1].peer.supervisor
        signal.pidfd_send_signal(supervisor._process._process, signal.SIGKILL)
        cfg.check_one_leader()

    assert isinstance(run_test(test, reference, 7).error, processes.PeerProcessKilled)
    assert run_test(elect, reference, 7).error is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class Raft(:\n", "SyntaxError"),
        ("x = 1\n", "no class Raft"),
        ("raise ValueError('no')\n", "ValueError while importing it: no"),
        ("import sys\nsys.exit()\n", "sys.exit() in"),
        ("import os\nos._exit(0)\n", "importing it ends the process"),
        ("import nowhere\n", "No module named 'nowhere'"),
        ("x=" + "-" * 2500 + "1\n", "raft.py"),
        ("x=" + "-" * 100_000 + "1\n", "raft.py"),
    ],
)
def test_load_error_is_reported_before_any_run(tmp_path, source, words):
    (tmp_path / "raft.py").write_text(source)
    with pytest.raises(LoadError) as error:
        load_sandboxed(tmp_path / "raft.py")
    assert words in str(error.value)


# ---- messages, logs and files ----------------------------------------------------------------------------------------


@labgob.register
@dataclass
class Op:
    key: str
    value: int


def test_peer_forwards_commands_of_unknown_classes(reference):
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        index = cfg.one(Op("k", 7), 3, retry=True)
        assert cfg.n_committed(index) == (3, Op("k", 7))
        assert cfg.n_committed(cfg.one((1, "a", None), 3, retry=True)) == (3, (1, "a", None))

    run = run_test(test, reference, 7)
    assert run.error is None, run.error


def test_messages_can_be_decoded_after_the_run(load, tmp_path):
    """Also those with classes that only the peer has; other decoders still refuse these."""
    own = "@labgob.register\n@dataclass\nclass Seal:\n    color: str\n\n\n"
    path = edited_reference(
        tmp_path,
        ("class Raft:\n", f"{own}class Raft:\n"),
        ("LogEntry(self.current_term, command)", "LogEntry(self.current_term, (Seal('red'), command))"),
        ("entry.command", "entry.command[1]"),
    )
    path.write_text(f"from dataclasses import dataclass\n{path.read_text()}")
    run = run_test(agree, load(path), 7)
    sent = [event.detail for event in run.simulation.trace if event.kind == events.SEND]
    entries = [entry for message in sent for entry in getattr(message.decode_args(), "entries", ())]
    assert "Seal" in repr(entries[0].command)
    with pytest.raises(labgob.DecodeError, match="Seal, which is not registered here"):
        labgob.decode(labgob.encode([entries[0].command]), list[Any])


def test_own_message_types_are_decoded_by_field_names(load, tmp_path):
    program = load(renamed_package(tmp_path, conflict_index="first_index"))
    run = run_test(TESTS["test_backup_2b"], program, 3)
    assert (run.error, run.checks_off) == (None, [])
    (tmp_path / "other").mkdir()
    renamed = load(renamed_package(tmp_path / "other", vote_granted="yes"))
    assert "they have no field 'vote_granted'" in run_test(elect, renamed, 3).checks_off[0]


def test_log_lines_and_output_arrive(load, tmp_path, capsys):
    path = edited_reference(
        tmp_path, ("        self.me = me\n", "        self.me = me\n        log('hi', me); print(me)\n")
    )
    path.write_text(path.read_text().replace("from labsim import queue", "from labsim import log, queue"))
    run = run_test(elect, load(path), 7)
    lines = [
        (event.node, event.detail.topic, event.detail.text)
        for event in run.simulation.trace
        if event.kind == events.LOG
    ]
    assert lines == [("0", "hi", "0"), ("1", "hi", "1"), ("2", "hi", "2")]
    assert capsys.readouterr().out == "0\n1\n2\n"


def test_scratch_files_end_with_the_process(load, tmp_path):
    keeps = (
        "        self.me = me\n",
        "        self.me = me\n"
        "        with open('raft.log', 'a+') as file:\n"
        "            file.seek(0)\n"
        "            assert file.read() == ''\n"
        "            file.write('x')\n"
        "        assert open('raft.log').read() == 'x'\n",
    )
    run = run_test(TESTS["test_persist1_2c"], load(edited_reference(tmp_path, keeps)), 3)
    assert run.error is None, report_of(run.error, "")
    assert not Path("raft.log").exists()


def test_output_over_the_limit_is_dropped_and_counted(load, tmp_path, monkeypatch):
    path = edited_reference(
        tmp_path, ("        self.me = me\n", "        self.me = me\n        print('x' * 5_000_000)\n")
    )
    program = load(path)
    said = []
    program.print_text = said.append
    assert run_test(elect, program, 7).error is None
    assert sum(map(len, said)) == protocol.LOG_CHARS_MAX
    newlines = 3
    assert program.dropped_chars == 3 * 5_000_000 + newlines - protocol.LOG_CHARS_MAX


# ---- confinement -----------------------------------------------------------------------------------------------------

needs_confinement = pytest.mark.skipif(
    confinement.bubblewrap() is None or not confinement.syscall_filter(), reason=f"needs {confinement.INSTALL}"
)


@needs_confinement
@pytest.mark.parametrize(
    "attempt",
    [
        "os.fork()",
        "os.system('true') and 1/0",
        "os.kill(os.getppid(), 9)",
        "socket.socket()",
        "socket.socketpair()",
        "fcntl.flock(os.open('/lab/labsim/__init__.py', os.O_RDONLY), fcntl.LOCK_SH)",
        "fcntl.lockf(os.open('/lab/labsim/__init__.py', os.O_RDONLY), fcntl.LOCK_SH)",
        "[][0 if ctypes.CDLL(None).shmget(1, 4096, 0o1666) == -1 else None]",
        "[][0 if ctypes.CDLL(None).inotify_init() == -1 else None]",
        "_thread.start_new_thread(print, ())",
        "open(os.dup(_real('/lab/labsim/x', os.O_WRONLY | os.O_CREAT)))",
        "os.listdir('/proc')",
        "os.sched_getaffinity(1)",
        "[][os.getpid()]",
        "__import__('_signal').setitimer(0, 1.0)",
        f"os.listdir({str(ROOT / 'tests')!r})",
        "open('/lab/raft/raft.py')",
        "os.listdir('/lab/tests')",
    ],
)
def test_sandbox_blocks_effects_outside(load, tmp_path, attempt):
    imports = (
        "import ctypes, fcntl, os, socket, _thread\nfrom raftlab.guest.scratch_files import _real_os_open as _real\n"
        "from labsim import threading, time"
    )
    blocked = "except (OSError, RuntimeError, IndexError): raise KeyError('blocked') from None"
    tried = f"\n        try: {attempt}\n        {blocked}"
    error = run_test(elect, load(peer(tmp_path, imports=imports, init=tried)), 7).error
    assert isinstance(error, PeerProcessFailed), report.message_lines(error)
    assert error.name == "KeyError" or error.kind == "RealWorldError", report.message_lines(error)


@needs_confinement
def test_close_ends_all_processes():
    program = load_sandboxed(REFERENCE)
    assert run_test(agree, program, 7).error is None
    fork_server = program._fork_server._process
    program.close()
    assert fork_server.poll() is not None


# ---- unsupported options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--realtime", "--pdb", "--check-determinism"])
def test_unsupported_pytest_options_are_refused(pytester, option):
    done = pytester.runpytest_subprocess("--isolated", option)
    assert f"{option} is not supported with --isolated: " in done.stderr.str()


def test_unsupported_lab_options_are_refused(capsys):
    assert lab(["replay", "test_initial_election_2a", "--seed", "1", "--isolated", "--pdb"]) == 2
    assert "--pdb is not supported with --isolated" in capsys.readouterr().err
    assert lab(["stress", "2a", "--isolated", "--dask", "tcp://127.0.0.1:1"]) == 2
    assert "--isolated is not supported with --dask" in capsys.readouterr().err


# ---- a few mutants ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["double-vote", "wrong-quorum", "variant-votes-for-itself-when-asked"])
def test_verdict_equals_the_in_process_verdict(load, tmp_path, id_):
    (mutant,) = [mutant for mutant in load_mutants() if mutant.id == id_]
    path = mutant.write(tmp_path)
    name = "test_many_elections_2a"
    verdicts = [run_test(TESTS[name], program, 1).error for program in (load_peer(path), load(path))]
    assert len({getattr(error, "rule", None) for error in verdicts}) == 1
    assert (verdicts[0] is None) == mutant.correct


def test_launcher_knows_the_methods_of_raft():
    program = SandboxedLauncher({"raft/raft.py": b"class Raft:\n    def start(self): pass\n"}, "raft/raft.py")
    try:
        with pytest.raises(LoadError, match="class Raft has no method get_state, no kill"):
            program.load()
    finally:
        program.close()


def test_root_without_bubblewrap_needs_a_readable_python(tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(confinement, "bubblewrap", lambda: None)
    monkeypatch.setattr(confinement, "sandbox_uid", lambda: confinement.UNPRIVILEGED_UID)
    monkeypatch.setattr("sys.base_prefix", str(closed))
    with pytest.raises(LoadError, match=f"who may not read {closed}. Install bubblewrap"):
        load_sandboxed(REFERENCE)
