"""Hostile submissions, for the grader's tests and for the class of classroom.py.

Most are a peer that does nothing (`LAZY`) with an attack in front, so every point they get is undeserved. Some use
`_posixsubprocess`, which Python's audit hooks do not see: there the sandbox must hold.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

LAZY = """
class Raft:
    def __init__(self, peers, me, persister, apply_ch):
        pass

    def start(self, command):
        return -1, 0, False

    def get_state(self):
        return 0, False

    def snapshot(self, index, snapshot):
        pass

    def kill(self):
        pass
"""

# Starts a program without a word to Python's audit hooks.
SPAWN = """
import os, _posixsubprocess
def spawn(*command):
    error_read, error_write = os.pipe()
    return _posixsubprocess.fork_exec(
        [os.fsencode(word) for word in command], [os.fsencode(command[0])], True, (error_write,), None, None,
        -1, -1, -1, -1, -1, -1, error_read, error_write, False, False, -1, None, None, None, -1, None, False
    )
"""


# Runs off the end of its stack.
SEGFAULT = "exec((lambda: 0).__code__.replace(co_code=b'\\x64\\xff' * 8, co_stacksize=0))\n"
FAKE = '{"run": {"test": "test_initial_election_2a", "seed": 1, "ending": "passed"}}'


@dataclass(frozen=True)
class Hostile:
    name: str
    source: str
    says: str  # in the report of some test, or as the problem
    earns: bool = False  # whether its Raft is right, and the attack does it no harm


def in_place_of(reference: str, old: str, new: str) -> str:
    assert reference.count(old) == 1, old
    return reference.replace(old, new)


def peers(reference: str, daemon_s: str = "86399") -> list[Hostile]:
    """Those that are one raft.py, made with the reference's text where they need a Raft that is right."""
    return [
        Hostile("endless_loop", LAZY.replace("return 0, False", "while True: pass"), ""),
        Hostile("endless_import", "while True: pass", ""),
        Hostile(
            "fork_bomb_unseen",
            SPAWN
            + "for _ in range(500):\n    spawn('/bin/sh', '-c', 'sleep 1000 & sleep 1000 & sleep 1000 & wait')\n"
            + LAZY,
            "raft/raft.py",
        ),
        Hostile(
            "memory_hog", LAZY.replace("return 0, False", "x = [bytes(1 << 24) for _ in range(1 << 20)]"), "MemoryError"
        ),
        Hostile(
            "much_output",
            LAZY.replace("return 0, False", "while True: print('x' * (1 << 20))"),
            "",
        ),
        Hostile("exit_zero", "import os\nos._exit(0)\n" + LAZY, "exit status 0"),
        Hostile("exit_zero_later", "import os\n" + LAZY.replace("return 0, False", "os._exit(0)"), "exit status 0"),
        Hostile("sys_exit_later", "import sys\n" + LAZY.replace("return 0, False", "sys.exit(0)"), "sys.exit() in"),
        Hostile("raises_in_import", "raise ValueError('no')\n", "ValueError while importing it: no"),
        Hostile("skips", "import pytest\n" + LAZY.replace("return 0, False", "pytest.skip('not today')"), ""),
        Hostile("syntax_error", "class Raft(:\n", "SyntaxError"),
        Hostile("empty", "", "no class Raft"),
        Hostile("breaks_the_compiler", f"x={'-' * 2500}1\n{reference}", "raft/raft.py"),
        Hostile(
            "feeds_the_compiler",
            "try: x\nfinally:\n"
            + "".join(f"{' ' * n}try: x\n{' ' * n}finally:\n" for n in range(1, 20))
            + " " * 20
            + "x\n",
            "raft/raft.py",
        ),
        Hostile(
            "talks_behind_its_back", "import os\n" + LAZY.replace("pass", "os.write(2, b'x' * 70000)", 1), "Expected"
        ),
        Hostile("segfault", SEGFAULT + LAZY, "SIGSEGV"),
        Hostile(
            "patches_config",
            "import raftlab.harness.config\nlabtest.config.Config.one = lambda self, *a, **k: 1\n"
            "raftlab.harness.config.Config.check_one_leader = lambda self: 0\n" + LAZY,
            "",
        ),
        Hostile(
            "patches_now_and_then",
            reference
            + "\nimport sys\nif any('hidden' in name for name in sys.modules if name.startswith('labtests_')):\n"
            "    sys.modules['raftlab.harness.config'].Config.one = lambda *arguments, **keywords: 1\n",
            "",
            earns=True,
        ),
        Hostile("patches_pytest", "import pytest\npytest.fail = print\n" + LAZY, ""),
        Hostile("seeds_random", "import random\nrandom.seed(1)\n" + LAZY, "ignores the seed"),
        Hostile(
            "answers_for_itself",
            f"import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{FAKE}\\n')\n    except OSError: pass\n"
            "os._exit(0)\n",
            "",
        ),
        Hostile(
            "writes_a_result",
            "import pathlib\nfor folder in ('.', '..', '/autograder/results', '/tmp'):\n"
            "    try: pathlib.Path(folder, 'results.json').write_text('{\"score\": 100}')\n    except OSError: pass\n"
            + LAZY,
            "Expected one leader",
        ),
        Hostile("closes_everything", "import os\nos.closerange(3, 64)\n" + LAZY, ""),
        Hostile(
            "kills_everybody",
            SPAWN + "spawn('/bin/sh', '-c', 'kill -9 -1; kill -9 1 2 3 4 5 6 7 8 9 10')\nwhile True: pass\n" + LAZY,
            "",
        ),
        Hostile(
            "uses_the_network",
            "import socket\nsocket.create_connection(('192.0.2.1', 80), 1)\n" + LAZY,
            "",
        ),
        Hostile(
            "sleeps_for_real",
            "import time\n" + LAZY.replace("return 0, False", "time.sleep(1000)"),
            "time.sleep() in raft/raft.py",
        ),
        Hostile(
            "sleeps_unseen",
            "import os\n" + LAZY.replace("return 0, False", "os.read(os.pipe()[0], 1)"),
            "",
        ),
        Hostile("leaves_daemons", SPAWN + f"spawn('/bin/sleep', '{daemon_s}')\n" + reference, ""),
        Hostile("writes_beside_itself", "open(f'{__file__}.log', 'w').write('x')\n" + reference, "", earns=True),
        Hostile("prints_much", "print('x' * (1 << 24))\n" + reference, "", earns=True),
    ]


# A peer that does nothing, and wants its run to end well all the same.
ENDS_WELL = {
    "fails_with_nothing": "labsim.current_simulation().fail(None)",
    "goes_to_the_main_greenlet": "labsim.current_simulation().main_greenlet.switch()",
    "goes_to_its_parent": "greenlet.getcurrent().parent.switch()",
    "keeps_no_trace": "sim = labsim.current_simulation(); sim.trace = list(sim.trace or ())",
    "says_nothing_is_due": "type(labsim.current_simulation())._next_timer_ns = lambda self: 0",
    "wants_the_network_reliable": "peers[0]._network.reliable(True)",
    "takes_all_apart": "import gc; [o.clear() for o in gc.get_objects() if type(o) in (list, dict) and len(o) > 9]",
    "has_a_signals_frame": "import _signal; _signal.signal(14, lambda n, frame: print(frame)); _signal.alarm(1)",
    "ends_it_when_told_of": "raise type('E', (Exception,), {'__str__': lambda error: __import__('os')._exit(0)})",
    "skips_as_pytest_does": "raise type('Skipped', (BaseException,), {'__module__': '_pytest.outcomes'})('')",
    "equals_everything": "class E(int): __eq__ = __lt__ = __gt__ = lambda a, b: True; __hash__ = int.__hash__\n"
    "        type(self).get_state = lambda self: (E(1), E(1))",
    "writes_to_memory": "import ctypes; ctypes.memset(id(labsim.current_simulation()), 0, 16)",
}

# A sandboxed peer can send anything to its supervisor.
SPEAKS = """
import os, labsim.threading
from raftlab.guest import protocol as p

def speak(*effects, next_ns=None):
    os.write(3, p.encode_frame(p.TimeSliceResult(list(effects), next_ns)))
    os.read(3, 1 << 16)  # one frame at a time: wait for the reply

def raw(data):
    os.write(3, data)

def garble():
    frame = p.encode_frame
    garbled = lambda m: any(isinstance(effect, p.ThreadReport) for effect in m.effects)
    p.encode_frame = lambda m: b"\\0\\0\\0\\1\\xc1" if garbled(m) else frame(m)

def stick(self):
    lock = labsim.threading.Lock()
    lock.acquire(), lock.acquire()

def framed(value):
    data = msgspec.msgpack.encode(value)
    raw(len(data).to_bytes(4, "big") + data)
"""
SAYS = {
    "says_that_it_has_led": "speak(p.MethodResult(2, [1, True]), p.MethodResult(3, [1, True]))",
    "hangs_up_and_lives_on": "os.close(3); [None for _ in iter(int, 1)]",
    "is_due_in_the_past": "speak(next_ns=-5)",
    "says_what_is_no_message": "framed({'passed': True})",
    "says_what_is_too_long": "raw((1 << 31).to_bytes(4, 'big') + bytes(1 << 16))",
    "says_nested_things": "raw((100_000).to_bytes(4, 'big') + b'\\x91' * 100_000)",
    "answers_what_nobody_asked": "speak(p.OutgoingReply(7, 0, b'\\x80'))",
    "begins_a_giant_save": "speak(*(p.SaveFinished(n, b'a', b'b') for n in (0, -1, 1 << 62, 5, 5)), "
    "p.SaveStarted(1 << 62))",
    "calls_a_peer_that_is_not_there": "speak(p.OutgoingRequest(1, 99, 'Raft.request_vote', 0, b'\\x80'))",
    "declares_a_program": "speak(p.TypeDeclaration('x', ['a: exec(1)'], []))",
    "declares_without_end": "speak(*(p.TypeDeclaration(f'x{i}', ['a'], []) for i in range(5000)))",
    "applies_giant_numbers": "speak(p.ApplyChMessage(True, b'\\x91\\x91\\x01', (1 << 64) - 1, False, b'', 0, 0))",
    "applies_garbage": "speak(p.ApplyChMessage(True, b'garbage', 1, False, b'', 0, 0))",
    "fails_as_a_pass": "speak(p.ExitReport('passed', 'passed', '', [], []))",
    "fails_as_one_killed_from_outside": "speak(p.ExitReport('PeerProcessKilled', 'Killed', 'killed', [], []))",
    "fails_at_great_length": "speak(p.ExitReport('TaskFailed', 'E', 'x' * 20_000, ['a b' * 6000] * 800, []))",
    "has_dropped_giant_numbers": "speak(p.DroppedText(1 << 62), p.DroppedText(-(1 << 62)), "
    "p.ExitReport('E', 'E', '', [], []))",
    "shows_garbage_when_looked_at": "garble(); type(self).get_state = stick",
}


def liars() -> list[Hostile]:
    """Those that do nothing and lie about it: to their own process, or to their host."""
    init = "def __init__(self, peers, me, persister, apply_ch):\n        "
    inside = {
        name: f"import labsim, greenlet\n{LAZY.replace(init + 'pass', init + act)}" for name, act in ENDS_WELL.items()
    }
    outside = {name: f"import msgspec\n{SPEAKS}{LAZY.replace(init + 'pass', init + act)}" for name, act in SAYS.items()}
    return [Hostile(name, source, "") for name, source in (inside | outside).items()]


# Where else than on its disk a peer could keep what it must not forget: keep(me, data), and kept(me).
ELSEWHERE = {
    "in_its_module": "DISK = {}\nkeep, kept = DISK.__setitem__, lambda me: DISK.get(me, b'')\n",
    "in_a_library": "import json\nvars(json).setdefault('disk', {})\n"
    "keep, kept = json.disk.__setitem__, lambda me: json.disk.get(me, b'')\n",
    "in_the_environment": "import os\ndef keep(me, data): os.environ[f'raft{me}'] = data.hex()\n"
    "def kept(me): return bytes.fromhex(os.environ.get(f'raft{me}', ''))\n",
    "in_a_file": "def keep(me, data): open(f'/dev/shm/raft{me}', 'wb').write(data)\ndef kept(me):\n"
    "    try: return open(f'/dev/shm/raft{me}', 'rb').read()\n    except OSError: return b''\n",
    "in_shared_memory": "import ctypes\nlibc = ctypes.CDLL(None)\ndef keep(me, data):\n"
    "    at = libc.shmat(libc.shmget(4100 + me, 1 << 16, 0o1666), None, 0)\n"
    "    if at > 0: ctypes.memmove(at, data, len(data))\ndef kept(me):\n"
    "    at = libc.shmat(libc.shmget(4100 + me, 1 << 16, 0o666), None, 0)\n"
    "    return ctypes.string_at(at, 4096) if at > 0 else b''\n",
}


def keepers(reference: str) -> list[Hostile]:
    """Right, but for one thing: they save nothing and keep it elsewhere. They earn what needs no memory."""
    found = []
    for where, way in ELSEWHERE.items():
        source = in_place_of(
            reference,
            "        self.persister.save(state.bytes(), snapshot)\n",
            "        keep(self.me, state.bytes())\n        self.persister.save(b'', snapshot)\n",
        )
        source = in_place_of(source, "saved = self.persister.read_raft_state()", "saved = kept(self.me)")
        found.append(Hostile(f"keeps_it_{where}", way + source, ""))
    return found


def harmless(reference: str) -> list[Hostile]:
    """Right ones with what students do for themselves, and which needs something of the system."""
    habits = {
        "hooks_exceptions": "import sys, threading\nsys.excepthook = threading.excepthook = print\n",
        "asks_its_hosts_name": "import socket\nprint(socket.gethostname())\n",
        "uses_a_temporary_file": "import tempfile\nwith tempfile.TemporaryFile() as file: file.write(b'x')\n",
        "shows_where_it_is": (
            "import logging, traceback\nlogging.basicConfig(filename='raft.log', format='%(funcName)s:%(lineno)d')\n"
            "logging.warning('x', stack_info=True)\ntry: 1 / 0\n"
            "except ZeroDivisionError: traceback.print_exc(); traceback.print_stack()\n"
            "print(traceback.extract_stack()[-1].lineno)\n"
        ),
        "has_classes_of_every_kind": (
            "import abc, collections, dataclasses, enum, functools, typing\nRole = enum.Enum('Role', 'A B')\n"
            "Pair = collections.namedtuple('Pair', 'a b')\nclass Triple(typing.NamedTuple): a: int = 0\n"
            "@functools.total_ordering\n@dataclasses.dataclass\nclass Mark:\n    x: int = 0\n"
            "    def __lt__(self, other): return self.x < other.x\nclass Base(abc.ABC): pass\n"
        ),
    }
    return [Hostile(name, habit + reference, "", earns=True) for name, habit in habits.items()]


def thieves(marker_file: Path, reference: str) -> list[Hostile]:
    """Those that want the hidden tests. All print, keep and raise what they find, and then are a right Raft."""
    find = f"""
import sys, pathlib
found = ""
for name, module in list(sys.modules.items()):
    if name.startswith("labtests_"):
        for key, value in vars(module).items():
            if key.startswith("test_"):
                found += key + repr(value.__code__.co_consts)
for folder in ({str(marker_file.parent)!r}, "hidden", "../hidden", "/sandbox", "/autograder/source/hidden"):
    try:
        for path in pathlib.Path(folder).rglob("*"):
            found += path.read_text()
    except OSError:
        pass
print(found)
pathlib.Path("loot.txt").write_text(found)
"""
    raises = "if 'secret' in found: raise ValueError(found)\n"
    return [
        Hostile("thief", find + reference, "", earns=True),
        Hostile("thief_that_raises", find + raises + reference, "", earns=True),
        Hostile(
            "thief_that_raises_later",
            find + in_place_of(reference, "        self.me = me\n", f"        self.me = me\n        {raises}"),
            "",
            earns=True,
        ),
    ]


def informers(marker_file: Path) -> list[Hostile]:
    """Those that fail in the hidden test's own file, or say so, for its lines to be shown to them."""
    code = "\n".join(f"if n == {n}: raise ValueError" for n in range(1, 12))
    act = f"exec(compile({code!r}, {str(marker_file)!r}, 'exec'), {{'n': 6}})"
    places = [(str(marker_file), line, "f") for line in range(1, 12)]
    says = f"speak(p.ExitReport('TaskFailed', 'ValueError', 'x', [], {places}))"
    return [
        Hostile("fails_in_the_hidden_test", LAZY.replace("return 0, False", act), "ValueError"),
        Hostile("says_it_failed_in_the_hidden_test", f"import msgspec\n{SPEAKS}{LAZY.replace('pass', says, 1)}", "x"),
    ]


def vandal(victim: Path, reference: str) -> Hostile:
    """Deletes what it can reach, in three ways."""
    source = (
        SPAWN
        + f"""
import os, shutil
for attack in (
    lambda: shutil.rmtree({str(victim)!r}),
    lambda: os.remove({str(victim / "keep.txt")!r}),
    lambda: spawn("/bin/rm", "-rf", {str(victim)!r}, "/lab", "/usr/lib/python3"),
):
    try: attack()
    except OSError: pass
"""
    )
    return Hostile("vandal", source + reference, "", earns=True)


def spoilers(reference: str) -> list[Hostile]:
    """Right ones that would end whoever runs them, or spoil the place for the next."""
    attacks = {
        "interrupts_the_worker": "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGINT)",
        "starves_the_worker": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
    }
    return [
        Hostile(
            name, f"{reference}\nimport os, resource, signal\ntry: {attack}\nexcept OSError: pass\n", "", earns=True
        )
        for name, attack in attacks.items()
    ]


def write_archives(folder: Path, reference: str) -> dict[str, str]:
    """Archives that are not what they seem; gives what is said of each, "" where a raft.py is found and right."""
    says = {}

    def add_zip(name: str, members: dict[str, bytes], said: str) -> None:
        with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        says[name] = said

    def add_tar(name: str, members: list[tarfile.TarInfo], said: str, content: bytes = b"") -> None:
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz", compresslevel=1) as archive:
            for member in members:
                member.size = len(content) if member.isreg() else 0
                archive.addfile(member, io.BytesIO(content))
        says[name] = said

    right = reference.encode()
    add_zip("dot_dot", {"../../raft.py": right, "../raft/raft.py": right}, "The submission has no raft.py")
    add_zip("absolute", {"/tmp/raft.py": right}, "The submission has no raft.py")
    add_zip("nested_and_right", {"lab/raft/raft.py": right, "../evil.py": b"x"}, "")
    add_zip("two_rafts", {"a/raft.py": right, "b/raft.py": right}, "There are 2 files named raft.py")
    add_zip("zip_bomb", {"raft.py": b"#" * (32 << 20)}, "larger than 1 MB")
    link = tarfile.TarInfo("raft.py")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    add_tar("link", [link], "The submission has no raft.py")
    hard = tarfile.TarInfo("raft.py")
    hard.type, hard.linkname = tarfile.LNKTYPE, "/etc/passwd"
    add_tar("hard_link", [hard], "The submission has no raft.py")
    device = tarfile.TarInfo("raft.py")
    device.type = tarfile.CHRTYPE
    add_tar("device", [device], "The submission has no raft.py")
    add_tar(
        "tar_bomb",
        [tarfile.TarInfo("pad.bin"), tarfile.TarInfo("raft.py")],
        "unpacks to more than",
        b"\0" * (300 << 20),
    )
    (folder / "damaged.zip").write_bytes(b"PK\x03\x04 and then nothing")
    says["damaged"] = "damaged or has an unknown format"
    (folder / "no_archive.tar").write_bytes(b"hello")
    says["no_archive"] = "damaged or has an unknown format"
    (folder / "nothing").mkdir()
    says["nothing"] = "The submission has no raft.py"
    (folder / "linked").symlink_to("/etc")
    says["linked"] = "links are not followed"
    (folder / "wrong_encoding.py").write_bytes("NAME = 'caf\xe9'\n".encode("latin-1") + right)
    says["wrong_encoding"] = "SyntaxError"
    return says
