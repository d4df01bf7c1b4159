"""Submissions that nobody should hand in, for the grader's tests and for a class to try it on.

Most are a peer that does nothing (`LAZY`), so that every point it gets is one it did not earn, with an attack in front.
Those that go through `_posixsubprocess` do so because Python's own audit does not see it: there the sandbox must hold.
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
# Deeper than Python's stack.
DEEP = (
    "import os\nif not os.path.exists('d'):\n    for _ in range(1500):\n        os.mkdir('d')\n        os.chdir('d')\n"
    "    for _ in range(1500): os.chdir('..')\n"
)
FAKE = '{"run": {"test": "test_initial_election_2a", "seed": 1, "kind": "passed"}}'


@dataclass(frozen=True)
class Hostile:
    name: str
    source: str
    says: str  # in the report of some test, or as the problem
    earns: bool = False  # whether its Raft is right and gets its points in spite of all


def in_place_of(reference: str, old: str, new: str) -> str:
    assert reference.count(old) == 1, old
    return reference.replace(old, new)


def peers(reference: str, daemon_s: str = "86399") -> list[Hostile]:
    """Those that are one raft.py, made with the reference's text where they need a Raft that is right."""
    return [
        Hostile("endless_loop", LAZY.replace("return 0, False", "while True: pass"), "took too long and was ended"),
        Hostile("endless_import", "while True: pass", "took too long and was ended"),
        Hostile(
            "endless_loop_that_will_not_be_told",
            "import _signal\nfor number in (_signal.SIGXCPU, _signal.SIGURG):\n"
            "    _signal.signal(number, _signal.SIG_IGN)\n" + LAZY.replace("return 0, False", "while True: pass"),
            "took too long and was ended",
        ),
        Hostile("fork_bomb", "import os\nwhile True: os.fork()\n" + LAZY, "start a process (os.fork)"),
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
            "took too long and was ended",
        ),
        Hostile("exit_zero", "import os\nos._exit(0)\n" + LAZY, "exit status 0"),
        Hostile("exit_zero_later", "import os\n" + LAZY.replace("return 0, False", "os._exit(0)"), "exit status 0"),
        Hostile("sys_exit", "import sys\nsys.exit(0)\n" + LAZY, "ends the program"),
        Hostile("sys_exit_later", "import sys\n" + LAZY.replace("return 0, False", "sys.exit(0)"), "sys.exit() in"),
        Hostile("raises_in_import", "raise ValueError('no')\n", "ValueError while importing it: no"),
        Hostile(
            "raises_interrupt", LAZY.replace("return 0, False", "raise KeyboardInterrupt"), "before the test was over"
        ),
        Hostile("skips", "import pytest\n" + LAZY.replace("return 0, False", "pytest.skip('not today')"), "not today"),
        Hostile("syntax_error", "class Raft(:\n", "SyntaxError"),
        Hostile("empty", "", "there is no class Raft"),
        Hostile("segfault", SEGFAULT + LAZY, "SIGSEGV"),
        Hostile(
            "patches_config",
            "import labtest.config\nlabtest.config.Config.one = lambda self, *a, **k: 1\n"
            "labtest.config.Config.check_one_leader = lambda self: 0\n" + LAZY,
            "It changed the tester (labtest.config.Config.",
        ),
        Hostile(
            "patches_code",
            "import labtest.running\ndef passes(*a, **k): return None\n"
            "labtest.config.Config.check_one_leader.__code__ = passes.__code__\n" + LAZY,
            "Config.check_one_leader was replaced",
        ),
        Hostile(
            "patches_tests",
            "import sys\nfor name, module in list(sys.modules.items()):\n    if name.startswith('labtests_'):\n"
            "        for key in list(vars(module)):\n            if key.startswith('test_'):\n"
            "                getattr(module, key).__code__ = (lambda make_config: None).__code__\n" + LAZY,
            "was replaced",
        ),
        Hostile(
            "patches_now_and_then",
            reference
            + "\nimport sys\nif any('hidden' in name for name in sys.modules if name.startswith('labtests_')):\n"
            "    sys.modules['labtest.config'].Config.one = lambda *arguments, **keywords: 1\n",
            "Config.one was replaced",
        ),
        Hostile("patches_pytest", "import pytest\npytest.fail = print\n" + LAZY, "pytest.fail was replaced"),
        Hostile(
            "patches_random",
            "import random\nrandom.Random.random = lambda self: 0.5\n" + LAZY,
            "random.Random.random was added",
        ),
        Hostile(
            "patches_builtins",
            "import builtins\nbuiltins.sorted = lambda *a, **k: []\n" + LAZY,
            "sorted was replaced",
        ),
        Hostile(
            "patches_the_seed",
            "import labsim\ninit = labsim.Simulation.__init__\n"
            "labsim.Simulation.__init__ = lambda self, seed, **k: init(self, 1, **k)\n" + LAZY,
            "Simulation.__init__ was replaced",
        ),
        Hostile("seeds_random", "import random\nrandom.seed(1)\n" + LAZY, "draws outside the seed"),
        Hostile(
            "only_in_the_grader",
            "import sys\nif 'labtools.grade.sandbox.worker' in sys.modules or '__main__' in sys.modules:\n"
            "    import labtest.running\n    labtest.running.run_test = print\n" + LAZY,
            "labtest.running.run_test was replaced",
        ),
        Hostile("prints_a_result", f"print('{FAKE}', flush=True)\n" + LAZY, "Expected one leader"),
        Hostile(
            "answers_for_itself",
            f"import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{FAKE}\\n')\n    except OSError: pass\n"
            "os._exit(0)\n",
            "exit status 0",
        ),
        Hostile(
            "writes_a_result",
            "import pathlib\nfor folder in ('.', '..', '/autograder/results', '/tmp'):\n"
            "    try: pathlib.Path(folder, 'results.json').write_text('{\"score\": 100}')\n    except OSError: pass\n"
            + LAZY,
            "Expected one leader",
        ),
        Hostile("closes_everything", "import os\nos.closerange(3, 64)\n" + LAZY, "before the test was over"),
        Hostile("kills_its_parent", "import os\nos.kill(os.getppid(), 9)\n" + LAZY, "send a signal (os.kill)"),
        Hostile(
            "kills_everybody",
            SPAWN + "spawn('/bin/sh', '-c', 'kill -9 -1; kill -9 1 2 3 4 5 6 7 8 9 10')\nwhile True: pass\n" + LAZY,
            "",
        ),
        Hostile(
            "climbs_the_stack",
            "import inspect\nframe = inspect.currentframe()\nwhile frame and 'send' not in frame.f_locals:\n"
            "    frame = frame.f_back\n" + LAZY,
            "climb into the tester's stack (sys._getframe)",
        ),
        Hostile(
            "climbs_a_traceback",
            "try: raise ValueError\nexcept ValueError as error: frame = error.__traceback__.tb_frame\n" + LAZY,
            "climb into the tester's stack (object.__getattr__)",
        ),
        Hostile("calls_c", "import ctypes\nctypes.CDLL(None).system(b'id')\n" + LAZY, "call C code"),
        Hostile(
            "looks_through_objects", "import gc\nfound = gc.get_objects()\n" + LAZY, "look through the tester's objects"
        ),
        Hostile(
            "uses_the_network",
            "import socket\nsocket.create_connection(('192.0.2.1', 80), 1)\n" + LAZY,
            "use the network",
        ),
        Hostile(
            "sleeps_for_real",
            "import time\n" + LAZY.replace("return 0, False", "time.sleep(1000)"),
            "time.sleep() in raft/raft.py",
        ),
        Hostile(
            "sleeps_unseen",
            "import os\n" + LAZY.replace("return 0, False", "os.read(os.pipe()[0], 1)"),
            "took too long and was ended",
        ),
        Hostile("leaves_daemons", SPAWN + f"spawn('/bin/sleep', '{daemon_s}')\n" + reference, "", earns=True),
        Hostile("leaves_a_deep_folder", DEEP + reference, "", earns=True),
        Hostile("writes_beside_itself", "open(f'{__file__}.log', 'w').write('x')\n" + reference, "", earns=True),
        Hostile("prints_much", "print('x' * (1 << 24))\n" + reference, "", earns=True),
    ]


FORGE = """
def forge(frame):
    while frame is not None:
        if "send" in frame.f_locals and "request" in frame.f_locals:
            request = frame.f_locals["request"]
            record = frame.f_globals["RunRecord"](test=request.test, seed=request.seed, kind="passed")
            frame.f_locals["send"](record)
            import os; os._exit(0)
        frame = frame.f_back
"""
PATCHED = """
import labtest.config
labtest.config.Config.one = lambda self, *a, **k: 1
labtest.config.Config.check_one_leader = lambda self: 0
"""


def forgers() -> list[Hostile]:
    """Those that go for what judges them: its names, its inventory, and by whichever way its stack."""
    greenlets = "import greenlet\n        g = greenlet.getcurrent()\n        while g: forge(g.gr_frame); g = g.parent"
    return [
        Hostile(
            "calls_a_failure_a_pass", "import __main__\n__main__.FAILED = 'passed'\n" + LAZY, "Expected one leader"
        ),
        Hostile(
            "blinds_the_inventory",
            "import labtools.grade.sandbox.tamper\nlabtools.grade.sandbox.tamper.Inventory.changes = lambda self: ''\n"
            + PATCHED
            + LAZY,
            "was replaced",
        ),
        Hostile(
            "blinds_the_inventory_by_a_builtin",
            "import builtins\nbuiltins.any = lambda values: False\n" + PATCHED + LAZY,
            "builtins.any was replaced",
        ),
        Hostile(
            "changes_a_constant",
            "import labtest.config\nlabtest.config.MAX_TEST_S = 0\n" + LAZY,
            "labtest.config.MAX_TEST_S was replaced",
        ),
        Hostile(
            "changes_the_verdict_on_its_way",
            "import msgspec\nreal = msgspec.json.encode\n"
            "msgspec.json.encode = lambda m: real(m).replace(b'failed', b'passed').replace(b'tampered', b'passed')\n"
            + LAZY,
            "msgspec.json.encode was replaced",
        ),
        Hostile(
            "changes_what_a_verdict_is",
            "from labtools.grade.results import RunRecord\nkind = RunRecord.kind\n"
            "RunRecord.kind = property(kind.__get__, lambda self, value: kind.__set__(self, 'passed'))\n" + LAZY,
            "Expected one leader",
        ),
        Hostile(
            "forges_by_walk_stack",
            FORGE + "import traceback\nfor frame, _ in traceback.walk_stack(None): forge(frame)\n" + LAZY,
            "climb into the tester's stack (sys._getframe)",
        ),
        Hostile(
            "forges_by_walk_tb",
            FORGE + "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError as e:\n"
            "    for frame, _ in list(traceback.walk_tb(e.__traceback__)): forge(frame)\n" + LAZY,
            "climb into the tester's stack (object.__getattr__)",
        ),
        Hostile(
            "forges_by_logging",
            FORGE + "import logging\nforge(logging.currentframe())\n" + LAZY,
            "climb into the tester's stack (sys._getframe)",
        ),
        Hostile(
            "forges_by_a_generator",
            FORGE + "def climb():\n    yield forge(me.gi_frame)\nme = climb()\nnext(me)\n" + LAZY,
            "climb into the tester's stack (object.__getattr__)",
        ),
        Hostile(
            "forges_by_a_greenlet",
            FORGE + LAZY.replace("pass", greenlets, 1),
            "climb into the tester's stack (object.__getattr__)",
        ),
        Hostile(
            "forges_by_a_librarys_thread",
            FORGE
            + "import sys\nfrom concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(1) as pool:\n"
            "    for frame in pool.submit(sys._current_frames).result().values(): forge(frame)\n" + LAZY,
            "look through the tester's objects (sys._current_frames)",
        ),
        Hostile(
            "forges_in_a_librarys_name",
            FORGE + "import sys\nfound = {}\n"
            "exec(compile('import sys\\ndef climb(): return sys._getframe(1)', '<frozen os>', 'exec'), found)\n"
            "forge(found['climb']())\n" + LAZY,
            "pass for a library (compile)",
        ),
    ]


def harmless(reference: str) -> list[Hostile]:
    """Right ones with what students do for themselves, which the fence and the inventory could take for something."""
    habits = {
        "hooks_exceptions": "import sys, threading\nsys.excepthook = threading.excepthook = print\n",
        "hooks_simulated_exceptions": "from labsim import threading\nthreading.excepthook = print\n",
        "sets_a_variable": "import os\nos.environ.setdefault('RAFT_DEBUG', '1')\n",
        "installs_a_translation": "import gettext\ngettext.install('raft')\n",
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
        Hostile("thief_that_raises", find + raises + reference, ""),
        Hostile(
            "thief_that_raises_later",
            find + in_place_of(reference, "        self.me = me\n", f"        self.me = me\n        {raises}"),
            "",
        ),
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
    """Right ones that would end the grader itself, where they run as its own user: the next in the class would pay."""
    attacks = {
        "takes_the_hidden_tests_place": "os.mkfifo('../hidden')",
        "locks_its_folder": "os.chmod('raft', 0); os.chmod('.', 0)",
        "moves_its_folder": "os.rename(os.getcwd(), '../elsewhere')",
        "interrupts_the_worker": "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGINT)",
        "starves_the_worker": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
    }
    return [
        Hostile(name, f"{reference}\nimport os, resource, signal\ntry: {attack}\nexcept OSError: pass\n", "")
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
    add_zip("dot_dot", {"../../raft.py": right, "../raft/raft.py": right}, "There is no raft.py in it")
    add_zip("absolute", {"/tmp/raft.py": right}, "There is no raft.py in it")
    add_zip("nested_and_right", {"lab/raft/raft.py": right, "../evil.py": b"x"}, "")
    add_zip("two_rafts", {"a/raft.py": right, "b/raft.py": right}, "There are 2 files raft.py")
    add_zip("zip_bomb", {"raft.py": b"#" * (32 << 20)}, "larger than 1 MB")
    link = tarfile.TarInfo("raft.py")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    add_tar("link", [link], "There is no raft.py in it")
    hard = tarfile.TarInfo("raft.py")
    hard.type, hard.linkname = tarfile.LNKTYPE, "/etc/passwd"
    add_tar("hard_link", [hard], "There is no raft.py in it")
    device = tarfile.TarInfo("raft.py")
    device.type = tarfile.CHRTYPE
    add_tar("device", [device], "There is no raft.py in it")
    add_tar(
        "tar_bomb",
        [tarfile.TarInfo("pad.bin"), tarfile.TarInfo("raft.py")],
        "unpacks to more than",
        b"\0" * (300 << 20),
    )
    (folder / "damaged.zip").write_bytes(b"PK\x03\x04 and then nothing")
    says["damaged"] = "damaged or of an unknown kind"
    (folder / "no_archive.tar").write_bytes(b"hello")
    says["no_archive"] = "damaged or of an unknown kind"
    (folder / "nothing").mkdir()
    says["nothing"] = "There is no raft.py in it"
    (folder / "linked").symlink_to("/etc")
    says["linked"] = "links are not followed"
    (folder / "wrong_encoding.py").write_bytes("NAME = 'caf\xe9'\n".encode("latin-1") + right)
    says["wrong_encoding"] = "SyntaxError"
    return says
