"""Each incarnation of a peer is executed anew: only saved state survives, and peers share nothing."""

import gc
import inspect
import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.loader import load_peer, load_program
from raftlab.harness.program import Incarnation, ModuleProxy
from raftlab.harness.run import run_test
from raftlab.harness.service import CommittedCommands
from raftlab.harness.shared_modules import outline
from raftlab.sandbox.loader import launcher_for
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import load_tests
from unit.students import ROOT, agree, edited_reference, line_of, peer, renamed_package, report_of, squeezed, written

pytestmark = pytest.mark.usefixtures("raft_package_restored")

TESTS = {test.name: test for part in "bc" for test in load_tests(ROOT / f"tests/test_2{part}.py")}
persist1 = TESTS["test_persist1_2c"]


@collect
def restart_all(make_config):
    cfg = make_config(servers=3)
    cfg.begin("Test: all crash")
    cfg.one("a", 3, retry=True)
    for i in range(3):
        cfg.crash1(i)
    cfg.restart(0, 1, 2)
    cfg.one("b", 3, retry=True)


def passes(path, *tests, realtime=False):
    program = load_peer(path)
    for test in tests:
        run = run_test(test, program, 7, realtime=realtime)
        if run.error is not None:
            raise run.error
    return run


# ---- state outside the disk ----------------------------------------------------------------------------------------

# Lines for the top of raft.py, after which disk() is a dict that lasts as long as its module does.
DISKS = {
    "a module variable": "SAVED = {}\ndef disk():\n    return SAVED",
    "a global statement": "def disk():\n    global SAVED\n    SAVED = globals().get('SAVED', {})\n    return SAVED",
    "a class variable": "class Disk:\n    saved = {}\ndef disk():\n    return Disk.saved",
    "a default argument": "def disk(saved={}):\n    return saved",
    "a closure": "def make():\n    saved = {}\n    return lambda: saved\ndisk = make()",
    "a function's attribute": "def disk():\n    return disk.__dict__.setdefault('saved', {})",
    "functools.cache": "import functools\n@functools.cache\ndef disk():\n    return {}",
    "sys.modules": "import sys\ndef disk():\n    return vars(sys.modules[__name__]).setdefault('SAVED', {})",
    "the package": "import raft\ndef disk():\n    return vars(raft).setdefault('SAVED', {})",
    "the module messages": "import raft.messages\ndef disk():\n    return vars(raft.messages).setdefault('SAVED', {})",
    "a class of messages": (
        "from raft import messages\ndef disk():\n    if not hasattr(messages.LogEntry, 'saved'):\n"
        "        messages.LogEntry.saved = {}\n    return messages.LogEntry.saved"
    ),
    "a class of messages, by setattr": (
        "from raft.messages import LogEntry\ndef disk():\n    if not hasattr(LogEntry, 'saved'):\n"
        "        setattr(LogEntry, 'saved', {})\n    return LogEntry.saved"
    ),
    "a method of messages": (
        "from raft.messages import LogEntry\ndef disk():\n    return LogEntry.__init__.__dict__.setdefault('saved', {})"
    ),
    "the annotations of messages": (
        "from raft.messages import LogEntry\ndef disk():\n    return LogEntry.__annotations__.setdefault('saved', {})"
    ),
    "ApplyMsg": "import raftapi\nraftapi.ApplyMsg.saved = {}\ndef disk():\n    return raftapi.ApplyMsg.saved",
}
# The same, with one more file beside raft.py, or a line more in messages.py.
HELPERS = {
    "from raft import helper": "from raft import helper\ndef disk():\n    return helper.SAVED",
    "from . import helper": "from . import helper\ndef disk():\n    return helper.SAVED",
    "from .helper import": "from .helper import SAVED\ndef disk():\n    return SAVED",
    "import raft.helper": "import raft.helper\ndef disk():\n    return raft.helper.SAVED",
    "import as": "import raft.helper as h\ndef disk():\n    return h.SAVED",
    "in a function": "def disk():\n    from raft.helper import SAVED\n    return SAVED",
    "importlib": "import importlib\ndef disk():\n    return importlib.import_module('raft.helper').SAVED",
    "its class": "from raft.helper import Disk\ndef disk():\n    return Disk.saved",
    "its function": "from raft.helper import disk",
    "messages.SAVED": "from raft.messages import SAVED\ndef disk():\n    return SAVED",
    "a class variable of a message": "from raft.messages import Disk\ndef disk():\n    return Disk.saved",
    "ClassVar of a dataclass": "from raft.messages import Kept\ndef disk():\n    return Kept.saved",
    "a function of messages": "from raft.messages import disk",
    "a function's attribute": (
        "from raft.messages import disk as f\ndef disk():\n    return vars(f).setdefault('saved', {})"
    ),
    "import helper": (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent))\n"
        "import helper\ndef disk():\n    return helper.SAVED"
    ),
}
HELPER = """\
from dataclasses import dataclass
from typing import ClassVar
SAVED = {}
class Disk:
    saved = {}
@dataclass
class Kept:
    saved: ClassVar[dict] = {}
def disk(saved={}):
    return saved
"""


def with_lines(tmp_path, lines, *changes):
    return edited_reference(tmp_path, ("import enum\n", f"{lines}\n\nimport enum\n"), *changes)


def package_with(tmp_path, lines, *changes):
    """The same, with messages.py and helper.py beside it."""
    renamed_package(tmp_path)
    (tmp_path / "helper.py").write_text(HELPER)
    with (tmp_path / "messages.py").open("a") as messages:
        messages.write(f"\n\n{HELPER}")
    path = with_lines(tmp_path, lines, *changes)
    path.rename(tmp_path / "raft.py")
    return tmp_path / "raft.py"


# It also saves, to satisfy the rules about saving, but it does not read the disk.
KEEPS = (
    (
        "self.persister.save(state.bytes(), snapshot)",
        "disk()[self.me] = state.bytes()\n        self.persister.save(state.bytes(), snapshot)",
    ),
    ("saved = self.persister.read_raft_state()", "saved = disk().get(self.me, b'')"),
)


@pytest.fixture
def path_restored(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)


@pytest.fixture(params=["in-process", "isolated", "race"])
def load(request):
    """A loader for each mode."""
    isolated = request.param == "isolated"
    if isolated and not hasattr(os, "pidfd_open"):
        pytest.skip("isolated runs need Linux")
    with ExitStack() as stack:

        def load(path):
            launcher = launcher_for(path, isolated=isolated, race=request.param == "race")
            if isolated:
                stack.callback(launcher.close)
            return launcher

        yield load


@pytest.mark.parametrize("lines", DISKS.values(), ids=DISKS)
def test_state_in_memory_does_not_survive_a_crash(tmp_path, lines, load):
    launcher = load(with_lines(tmp_path, lines, *KEEPS))
    assert run_test(persist1, launcher, 7).error is not None
    assert run_test(restart_all, launcher, 7).error is not None


@pytest.mark.usefixtures("path_restored")
@pytest.mark.parametrize("lines", HELPERS.values(), ids=HELPERS)
def test_state_in_modules_beside_raft_py_is_lost_in_a_crash(tmp_path, lines, load):
    assert run_test(persist1, load(package_with(tmp_path, lines, *KEEPS)), 7).error is not None


ALONE = (
    "self.mu = threading.Lock()",
    "self.mu = threading.Lock()\n        disk()[me] = me\n        assert len(disk()) == 1, 'shared'",
)


@pytest.mark.parametrize("lines", DISKS.values(), ids=DISKS)
def test_peers_and_runs_share_no_memory(tmp_path, lines):
    passes(with_lines(tmp_path, lines, ALONE), persist1, persist1)


@pytest.mark.usefixtures("path_restored")
@pytest.mark.parametrize("lines", HELPERS.values(), ids=HELPERS)
def test_peers_and_runs_share_no_module_beside_raft_py(tmp_path, lines):
    passes(package_with(tmp_path, lines, ALONE), persist1, persist1)


# Changes of objects whose names are not in the source of raft.py.
UNSEEN = {
    "a class": ("LogEntry", "setattr(*[OWNER, 'saved', {}])"),
    "a method": ("LogEntry", "setattr(*[OWNER, 'saved', {}]); setattr(*[OWNER, '__repr__', str])"),
    "a member of an enum": ("Kind.ONE", "setattr(*[OWNER, 'saved', {}])"),
}


@pytest.mark.parametrize(("owner", "change"), UNSEEN.values(), ids=UNSEEN)
def test_hidden_change_of_a_shared_class_is_undone(tmp_path, owner, change):
    lines = (
        "from raft.messages import LogEntry, Kind\n"
        f"OWNER = [{owner}][0]\n"
        f"def disk():\n    if not hasattr(OWNER, 'saved'):\n        {change}\n    return OWNER.saved"
    )
    path = package_with(tmp_path, lines, *KEEPS)
    kind = "import enum\nclass Kind(enum.Enum):\n    ONE = 1\n"
    (tmp_path / "messages.py").write_text(f"{(ROOT / 'raft/messages.py').read_text()}\n{kind}")
    program = load_program(path)
    assert "raft.messages" in program.shared
    launcher = InProcessLauncher.of_program(program)
    first = run_test(persist1, launcher, 7)
    assert first.error is not None
    assert run_test(persist1, launcher, 7).digest == first.digest


def test_run_does_not_depend_on_earlier_runs(tmp_path):
    change = ("self.mu = threading.Lock()", "self.mu = threading.Lock()\n        [random.random() for _ in SEEN]")
    program = load_peer(with_lines(tmp_path, "SEEN = []", change, ("self.me = me", "self.me = me; SEEN.append(me)")))
    assert len({run_test(persist1, program, 7).digest for _ in range(3)}) == 1


def test_class_passed_to_the_launcher_is_not_copied():
    from raft.raft import Raft

    seen = []

    class Counted(Raft):
        def __init__(self, *args):
            seen.append(type(self))
            super().__init__(*args)

    assert run_test(agree, InProcessLauncher(Counted), 7).error is None
    assert seen == [Counted] * 3


# ---- a peer's own classes ------------------------------------------------------------------------------------------

OWN = "    def _own(self, value, cls):\n        assert value is None or type(value) is cls\n        return value\n\n"


def reference_in_one_file(tmp_path, future=""):
    """The reference with its messages in raft.py itself; messages must arrive as the peer's own classes."""
    source = (ROOT / "raft/raft.py").read_text()
    declarations = (ROOT / "raft/messages.py").read_text().partition("from typing import Any\n")[2]
    before, _, after = source.partition("from raft.messages import (")
    source = before + "from dataclasses import dataclass\n" + after.partition(")\n")[2]
    edits = [
        ("import enum\n", f"{future}\nimport enum\n"),
        ("\n# §5.6: broadcast", f"{declarations}\n# §5.6: broadcast"),
        ("    def _read_persist(self) -> None:", f"{OWN}    def _read_persist(self) -> None:"),
        ('"""RequestVote RPC, receiver (Figure 2)."""', "self._own(args, RequestVoteArgs)"),
    ]
    for name in ("request_vote", "append_entries", "install_snapshot"):
        call = f'self.peers[peer].call("Raft.{name}", args)'
        reply = "".join(word.title() for word in name.split("_")) + "Reply"
        edits.append((call, f"self._own({call}, {reply})"))
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return written(tmp_path, source)


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
def test_raft_py_may_define_its_own_messages(tmp_path, future):
    path = reference_in_one_file(tmp_path, future)
    mine = passes(path, TESTS["test_basic_agree_2b"], persist1)
    # The messages are equal, bit for bit.
    assert mine.digest == run_test(persist1, load_peer(ROOT / "raft/raft.py"), 7).digest


def test_message_of_another_class_is_refused(tmp_path):
    path = peer(tmp_path, tick='self.peers[0].call("Raft.request_vote", RequestVoteReply(1, True))')
    assert "called Raft.request_vote of 0 with a RequestVoteReply; pass a RequestVoteArgs" in report_of(path)


OP = """\
from dataclasses import dataclass
import labgob as gob
@gob.register
@dataclass
class Op:
    value: object
"""


def with_ops(tmp_path, lines=""):
    """Each entry contains an Op of the peer's own class, which is sent and saved."""
    path = package_with(
        tmp_path,
        OP + lines,
        ("LogEntry(self.current_term, command)", "LogEntry(self.current_term, command, Op(command))"),
        (
            "return ApplyMsg(command_valid=True,",
            "assert entry.extra == Op(entry.command), entry\n            return ApplyMsg(command_valid=True,",
        ),
    )
    messages = (ROOT / "raft/messages.py").read_text()
    (tmp_path / "messages.py").write_text(
        messages.replace("command: Any\n", "command: Any\n    extra: Any = None\n", 1)
    )
    return path


def test_registered_classes_are_decoded_as_the_receiver_s_own(tmp_path):
    path = with_ops(tmp_path)
    passes(path, TESTS["test_basic_agree_2b"], persist1, restart_all)
    assert "raft.messages" in load_program(path).shared


def test_different_commands_remain_different():
    @dataclass
    class Op:
        value: object

    first = Op

    @dataclass
    class Op:
        value: object

    committed = CommittedCommands()
    assert committed.add(1, first(3), 0) is None
    assert committed.add(1, Op(3), 1) is None
    assert "State machine safety" in committed.add(1, Op(4), 2)
    assert committed.add(2, 1, 0) is None
    assert "State machine safety" in committed.add(2, True, 1)
    assert committed.add(3, threading_lock := object(), 0) is None
    assert committed.add(3, threading_lock, 1) is None
    assert "State machine safety" in committed.add(3, object(), 1)


def test_pickle_finds_the_incarnation_s_classes(tmp_path):
    lines = "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass Saved:\n    fields: tuple\n"
    path = with_lines(
        tmp_path,
        lines,
        (
            "self.persister.save(state.bytes(), snapshot)",
            "self.persister.save(pickle.dumps(Saved((self.current_term, self.voted_for, self.log))), snapshot)",
        ),
        (
            "state = labgob.Decoder(saved)\n",
            "state = pickle.loads(saved)\n            assert type(state) is Saved\n"
            "            self.current_term, self.voted_for, self.log = state.fields\n            return\n",
        ),
    )
    passes(path, persist1)


def test_two_programs_have_separate_modules(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        path = package_with(folder, "from raft import helper")
        (folder / "helper.py").write_text(f"NAME = {folder.name!r}\n")
        change = f"self.mu = threading.Lock()\n        assert helper.NAME == {folder.name!r}"
        path.write_text(path.read_text().replace("self.mu = threading.Lock()", change))
    one, two = map(load_peer, folders)
    assert [run_test(agree, program, 7).error for program in (one, two, one)] == [None] * 3


# ---- what happens while a module is executed -----------------------------------------------------------------------


def test_module_level_lock_is_virtual(tmp_path):
    path = with_lines(tmp_path, "from labsim import threading\nMU = threading.Lock()")
    path.write_text(path.read_text().replace("self.mu = threading.Lock()", "self.mu = MU"))
    passes(path, persist1)


def test_module_level_random_and_time_are_the_node_s(tmp_path):
    lines = "from labsim import log, random, time\nDRAWN = random.random()\nBEGAN = time.monotonic()\n"
    path = with_lines(tmp_path, lines, ("self.me = me", "self.me = me; log('began', '%r %r', DRAWN, BEGAN)"))
    program = load_peer(path)

    def began():
        run = run_test(restart_all, program, 7)
        assert run.error is None
        lines = [event.detail.text for event in run.simulation.trace if event.kind == "log"]
        return [tuple(map(float, line.split())) for line in lines]

    first = began()
    assert len({drawn for drawn, _ in first}) == 6
    assert [at for _, at in first[:3]] == [0.0] * 3
    assert all(0 < at < 20 for _, at in first[3:])
    assert began() == first


def test_real_clock_at_import_is_refused(tmp_path):
    path = with_lines(tmp_path, "import time as clock\nBEGAN = clock.time()")
    text = report_of(path)
    told_place = line_of(path, "BEGAN = clock")
    assert text.startswith(f"time.time() in {told_place} reads the real clock")


def test_exception_at_reexecution_is_reported_as_the_peer_s(tmp_path):
    lines = (
        "twice = 'again'\nfrom labsim import current_simulation\nif current_simulation():\n    raise ValueError(twice)"
    )
    path = with_lines(tmp_path, lines)
    text = report_of(path)
    assert text.splitlines()[:2] == ["ValueError: again", "In peer 0, Raft():"]
    assert squeezed(text).endswith(f"{line_of(path, '(twice)')} in <module> raise ValueError(twice)")


def test_module_may_wait_while_it_is_executed(tmp_path):
    lines = "from labsim import current_simulation, time\nif current_simulation():\n    time.sleep(0.1)\nSEEN = []"
    passes(
        with_lines(tmp_path, lines, ("self.me = me", "self.me = me; SEEN.append(me); assert SEEN == [me]")), restart_all
    )


def test_changes_of_the_process_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    logger = logging.getLogger("fresh peers")
    monkeypatch.setattr(logger, "handlers", [])
    lines = "import logging, sys\nsys.path.append('/nowhere')\n"
    lines += "logging.getLogger('fresh peers').addHandler(logging.NullHandler())"
    passes(with_lines(tmp_path, lines), restart_all, restart_all)
    assert len(logger.handlers) == 1
    assert sys.path.count("/nowhere") == 1


# ---- introspection -------------------------------------------------------------------------------------------------


def test_sys_modules_is_restored_after_a_run(tmp_path):
    program = load_program(edited_reference(tmp_path))
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "raft"}
    assert run_test(persist1, InProcessLauncher.of_program(program), 7).error is None
    assert {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "raft"} == before
    assert sys.modules["raft.raft"].Raft is program.peer_class
    assert inspect.getfile(program) == str(tmp_path / "peer.py")
    assert all(type(module) is ModuleProxy for module in before.values())


def test_peer_can_inspect_its_own_source(tmp_path):
    lines = "import inspect, sys"
    check = (
        "self.me = me\n"
        "        assert sys.modules[__name__].Raft is Raft is inspect.getmodule(Raft).Raft\n"
        "        assert 'class Raft:' in inspect.getsource(Raft) and inspect.getsourcefile(Raft) == __file__"
    )
    path = with_lines(tmp_path, lines, ("self.me = me", check))
    passes(path, agree)


def test_all_imports_find_the_same_module(tmp_path):
    lines = "from raft import helper\nfrom . import helper as relative\nimport raft.helper as named\nimport importlib"
    check = (
        "self.me = me\n"
        "        from raft.helper import SAVED\n"
        "        found = [helper, relative, named, importlib.import_module('raft.helper')]\n"
        "        assert all(module.SAVED is SAVED for module in found) and SAVED == {}\n"
        "        SAVED[me] = 1"
    )
    passes(package_with(tmp_path, lines, ("self.me = me", check)), restart_all, restart_all)


def test_missing_module_raises_the_usual_error(tmp_path):
    path = with_lines(tmp_path, "", ("self.me = me", "self.me = me\n        import raft.nothing"))
    assert report_of(path).startswith("ModuleNotFoundError: No module named 'raft.nothing'\n")


def test_finished_incarnations_are_released(tmp_path):
    program = load_program(with_ops(tmp_path))
    launcher = InProcessLauncher.of_program(program)
    for _ in range(3):
        assert run_test(persist1, launcher, 7).error is None
    run_test(collect(lambda make_config: None), launcher, 7)
    gc.collect()
    assert [one for one in gc.get_objects() if type(one) is Incarnation and one.program is program] == [
        program.template
    ]


# ---- on real threads -----------------------------------------------------------------------------------------------


def test_on_real_threads_too(tmp_path):
    path = with_ops(tmp_path, "\nSEEN = []")
    path.write_text(path.read_text().replace("self.me = me", "self.me = me; SEEN.append(me); assert SEEN == [me]"))
    passes(path, restart_all, realtime=True)


def test_own_messages_work_on_real_threads(tmp_path):
    passes(reference_in_one_file(tmp_path, "from __future__ import annotations"), restart_all, realtime=True)


# ---- modules that all incarnations share -----------------------------------------------------------------------------

IMMUTABLE = [
    '"""Words."""',
    "LIMIT = 2 * 60.0\nNAMES = ('a', 'b')\nKINDS = frozenset()",
    "from typing import Any, Callable\nCommand = Any\nHook = Callable[[int], str] | None\nTerm = NewType('Term', int)",
    "@dataclass(slots=True)\nclass Args:\n    term: int\n    hints: list[int] = field(default_factory=list)",
    "class Role(enum.Enum):\n    LEADER = 'leader'\n    OTHER = auto()",
    "class Pair(NamedTuple):\n    a: int = 0",
    "@labgob.register\n@dataclasses.dataclass\nclass Op:\n    key: str",
]
MUTABLE = [
    "SEEN = {}",
    "SEEN = [1]",
    "SEEN = dict()",
    "__all__ = ['x']",
    "LOCK = threading.Lock()",
    "NAMES = ([],)",
    "FIRST = [[]][0]",
    "for i in range(3):\n    pass",
    "print('here')",
    "def last(log):\n    return log[-1]",
    "last = lambda x, seen=[]: seen",
    "class Args:\n    seen = {}",
    "@dataclass\nclass Args:\n    seen: ClassVar[list] = []",
    "class Pair(NamedTuple):\n    seen: list = []",
    "class Args:\n    def __post_init__(self):\n        type(self).count += 1",
    "class Args:\n    class Inner:\n        pass",
    "class Args(metaclass=Counting):\n    pass",
    "class Args(base()):\n    pass",
    "Args.seen = 1",
    "@surprise\nclass Args:\n    pass",
    "@surprise(1)\nclass Args:\n    pass",
]


def is_immutable(source):
    return outline(source if isinstance(source, bytes) else source.encode(), "raft").is_immutable


@pytest.mark.parametrize("source", IMMUTABLE)
def test_module_without_mutable_state_may_be_shared(source):
    assert is_immutable(source)


@pytest.mark.parametrize("source", MUTABLE)
def test_module_with_possible_state_is_executed_anew(source):
    assert not is_immutable(source)


@pytest.mark.parametrize(
    "file", ["raft/__init__", "raft/messages", "raft/persister", "handout/messages", "kv/messages"]
)
def test_modules_of_the_lab_may_be_shared(file):
    assert is_immutable((ROOT / f"{file}.py").read_bytes())


@pytest.mark.parametrize(
    "line",
    [
        "LogEntry.__repr__ = lambda self: 'entry'",
        "LogEntry.seen = {}",
        "raft.messages.LogEntry.seen = {}",
        "raft.messages.SEEN = {}",
        "setattr(LogEntry, 'seen', {})",
        "def later(entry):\n    type(entry).seen = 1",
    ],
)
def test_messages_that_raft_py_changes_are_not_shared(tmp_path, line):
    program = load_program(with_lines(tmp_path, f"import raft.messages\nfrom raft.messages import LogEntry\n{line}"))
    assert "raft.messages" not in program.shared
    assert run_test(agree, InProcessLauncher.of_program(program), 7).error is None


def test_importer_of_an_unshared_module_is_not_shared(tmp_path):
    path = package_with(tmp_path, "from raft import messages")
    messages = tmp_path / "messages.py"
    messages.write_text((ROOT / "raft/messages.py").read_text() + "\nfrom raft.helper import Disk\n")
    assert "raft.messages" not in load_program(path).shared
    (tmp_path / "helper.py").write_text("class Disk:\n    pass\n")
    assert "raft.messages" in load_program(path).shared
