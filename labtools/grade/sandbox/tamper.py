"""Two ways to notice that a submission does more than run: an inventory of the tester, and a fence around the process.

Inventory: every function, method and constant of the tester, of what it stands on and of the tests, as they were before
the submission was loaded. One that was replaced, removed or added is named, and the run counts for nothing.

Fence: an audit hook of Python, which nothing can take away again. What a peer has no business to do (start a
process, use the network, call C, look through the tester's objects, touch files outside its folder) is refused with a
PermissionError that names the line, and told to the grader. Library code is let through when no line of the submission
is below it on the stack.

Not promised: completeness; docs/grading.md says what remains. Start at `Inventory.changes()` and `Fence`.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import inspect
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from operator import is_not
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import greenlet  # type: ignore[import-untyped]  # it ships no types

from labtest.rooms import OURS, ROOT

# What the tester is, and what it cannot be right without. "raft" is missing: a submission may bring its own messages.
_TESTER = (*OURS, "greenlet", "msgspec", "pytest", "builtins")
_BELOW = ("contextlib", "heapq", "inspect", "linecache", "os", "posixpath", "queue", "random", "resource", "signal")
_WATCHED = frozenset((*_TESTER, *_BELOW, "threading", "time", "traceback"))
_TESTS = "labtests_"  # as selecting names the modules it makes of test files
# Everybody may set it, and no run depends on it.
_FREE = "excepthook"
_CONSTANTS = (bool, bytes, float, frozenset, int, str, tuple)

Fingerprint = tuple[Any, ...]


class Inventory:
    """The tester as it is now."""

    def __init__(self) -> None:
        self._builtins, self._builtins_now = dict(vars(builtins)), vars(builtins)
        self._modules = {name: module for name, module in sys.modules.items() if _is_watched(name)}
        # Each namespace by its name: a module's, or a class's.
        self._spaces: dict[str, ModuleType | type] = dict(self._modules)
        for module in self._modules.values():
            for value in vars(module).values():
                if isinstance(value, type) and _is_watched(value.__module__) and value.__module__ != "builtins":
                    self._spaces[f"{value.__module__}.{value.__qualname__}"] = value
        self._members = {name: dict(_members(space)) for name, space in self._spaces.items()}
        self._bases = [(name, space, space.__mro__) for name, space in self._spaces.items() if isinstance(space, type)]
        self._hooks = (sys.gettrace, sys.getprofile)

    def changes(self) -> str:
        """The first thing that is not as it was, by name; "" if all is."""
        # First, and with none of them: nothing that follows could be right without.
        for name, builtin in self._builtins.items():
            if self._builtins_now.get(name) is not builtin:
                return f"builtins.{name} was replaced"
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                return f"the module {name} was replaced"
        for name, cls, bases in self._bases:
            if cls.__mro__ != bases:
                return f"the bases of {name} were changed"
        for name, space in self._spaces.items():
            members = self._members[name]
            now = dict(_members(space))
            for member, was in members.items():
                fingerprint = now.get(member)
                if fingerprint is None:
                    return f"{name}.{member} was removed"
                if len(was) != len(fingerprint) or any(map(is_not, was, fingerprint)):
                    return f"{name}.{member} was replaced"
            if len(now) != len(members) and space is not builtins:
                return f"{name}.{next(member for member in now if member not in members)} was added"
        for hook in self._hooks:
            if hook() is not None:
                return f"a function was set with sys.{hook.__name__.replace('get', 'set')}"
        return ""

    def overridden(self, *instances: object) -> str:
        """The first method that one of these objects has for itself alone."""
        for instance in instances:
            for name in list(getattr(instance, "__dict__", ())):
                if inspect.isroutine(getattr(type(instance), name, None)):
                    return f"{type(instance).__name__}.{name} of one object was replaced"
        return ""


def _members(space: ModuleType | type) -> Iterator[tuple[str, Fingerprint]]:
    """What can be called, or makes what can be, each with all that makes it do what it does; and what is constant."""
    for name, value in list(vars(space).items()):
        kind = type(value)
        if name == _FREE:
            continue
        if kind is FunctionType:
            yield name, _fingerprint(value)
        elif kind is property:
            yield name, (value, *_fingerprint(value.fget))
        elif kind is staticmethod or kind is classmethod:
            yield name, (value, *_fingerprint(value.__func__))
        elif name.isupper() and kind in _CONSTANTS:
            yield name, (value,)
        elif name.isupper() and kind is dict:
            yield name, (value, *value, *value.values())
        elif kind is not ModuleType and callable(value):
            yield name, (value,)


def _fingerprint(function: Any) -> Fingerprint:
    if type(function) is not FunctionType:
        return (function,)
    code, defaults, keywords = function.__code__, function.__defaults__, function.__kwdefaults__
    return (function, code, defaults, keywords, *(function.__closure__ or ()))


def _is_watched(module: str) -> bool:
    return module.partition(".")[0] in _WATCHED or module.startswith(_TESTS)


# ---- the fence ----------------------------------------------------------------------------------------------

_PROCESS = "start a process"
_REFUSED = {
    "os.fork": _PROCESS,
    "os.forkpty": _PROCESS,
    "os.exec": _PROCESS,
    "os.posix_spawn": _PROCESS,
    "os.spawn": _PROCESS,
    "os.system": _PROCESS,
    "subprocess.Popen": _PROCESS,
    "pty.spawn": _PROCESS,
    "os.kill": "send a signal",
    "os.killpg": "send a signal",
    "signal.pthread_kill": "send a signal",
    "sys.settrace": "trace the tester",
    "sys.setprofile": "trace the tester",
    "sys.addaudithook": "watch the tester",
}
# Refused to everybody but the lab: a library would hand on what it finds, also from a thread of its own.
_SEARCHING = ("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames")
_SEARCH = "look through the tester's objects"
# Refused only where the submission does it itself, or has it done by what hands out frames: libraries climb the stack
# all the time.
_CLIMBING = ("sys._getframe", "object.__getattr__")
_CLIMB = "climb into the tester's stack"
_FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame", "gr_frame")
# Refused with a library's file name: the fence knows code by that.
_NAMING = ("compile", "code.__new__")
_PASS = "pass for a library"
_REFUSED_KINDS = {"socket": "use the network", "ctypes": "call C code"}
_ALLOWED = ("socket.gethostname",)
# Those with a path: refused outside the submission's folder. Writing is; so is reading what is no library.
_WRITE = "change a file outside its folder"
_READ = "read a file outside its folder"
_PATHS = {
    "os.remove": _WRITE,
    "os.rename": _WRITE,
    "os.rmdir": _WRITE,
    "os.mkdir": _WRITE,
    "os.link": _WRITE,
    "os.symlink": _WRITE,
    "os.truncate": _WRITE,
    "os.chmod": _WRITE,
    "os.chown": _WRITE,
    "os.utime": _WRITE,
    "shutil.rmtree": _WRITE,
    "shutil.move": _WRITE,
    "shutil.copyfile": _WRITE,
    "os.listdir": _READ,
    "os.scandir": _READ,
    "glob.glob": _READ,
    "open": _READ,  # or _WRITE, as its flags say
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TOLD_MAX = 20
_LOGGING_FRAME = logging.currentframe.__code__


class Fence:
    """Around this process, from put_up() to its end. `tell` hears what was refused, each thing once."""

    def __init__(self, own: Path, tell: Callable[[str], None]) -> None:
        self._own = (str(own) + os.sep, os.devnull + os.sep)
        names = ("stdlib", "platstdlib", "purelib", "platlib")
        beside = {Path(module.__file__).parent.parent for module in _third_party() if module.__file__}
        libraries = {Path(sysconfig.get_path(name)) for name in names} | beside
        rooms = {ROOT / room for room in OURS}
        self._rooms = tuple(f"{path}{os.sep}" for path in rooms)
        self._libraries = tuple(sorted(f"{path}{os.sep}" for path in libraries | rooms))
        self._trusted = (*self._libraries, "<frozen ")
        self._readable = (*self._own, *self._libraries, "/dev/urandom")
        self._tell = tell
        self._told: set[str] = set()
        self._looking = False

    def put_up(self) -> None:
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CLIMBING:
            self._climbing(event, arguments)
            return
        if event in _NAMING or event in _SEARCHING:
            self._searching(event, arguments)
            return
        what = _REFUSED.get(event) or _REFUSED_KINDS.get(event.partition(".")[0])
        if what is None or event in _ALLOWED:
            what = _PATHS.get(event)
            if what is None or (what := self._path_refused(event, what, arguments)) is None:
                return
        where = self._submission_s(self._caller())
        if where is not None:
            self._refuse(where, what, event)

    def _refuse(self, where: str, what: str, event: str) -> None:
        text = f"{where} tried to {what} ({event})"
        if text not in self._told and len(self._told) < _TOLD_MAX:
            self._told.add(text)
            self._tell(text)
        instead = "; traceback.extract_stack() has names and lines" if what == _CLIMB else ""
        raise PermissionError(f"{where} tries to {what} ({event}); a graded peer may not{instead}")

    def _climbing(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._looking or (event == "object.__getattr__" and arguments[1] not in _FRAMES):
            return
        frame = self._caller()
        while frame is not None and _hands_out_frames(frame.f_code):
            frame = frame.f_back
        if frame is not None and not frame.f_code.co_filename.startswith(self._trusted):
            self._refuse(self._shown(frame), _CLIMB, event)

    def _searching(self, event: str, arguments: tuple[Any, ...]) -> None:
        frame = self._caller()
        if frame is None:
            return
        if event in _SEARCHING:
            if not frame.f_code.co_filename.startswith(self._rooms):
                self._refuse(self._shown(frame), _SEARCH, event)
            return
        name = arguments[1]
        ours = not isinstance(name, str | bytes) or not os.fsdecode(name).startswith(self._trusted)
        if not ours and not frame.f_code.co_filename.startswith(self._trusted):
            self._refuse(self._shown(frame), _PASS, event)

    def _caller(self) -> FrameType | None:
        """The frame below the hook and this class. Asking for it is an event itself."""
        self._looking = True
        frame: FrameType | None = sys._getframe(1)
        self._looking = False
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        return frame

    def _path_refused(self, event: str, what: str, arguments: tuple[Any, ...]) -> str | None:
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return None  # a file that is open already, or the folder it is in
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            what = _WRITE
        real = os.path.realpath(os.fsdecode(path))
        allowed = self._own if what == _WRITE else self._readable
        return None if f"{real}{os.sep}".startswith(allowed) else what

    def _submission_s(self, frame: FrameType | None) -> str | None:
        """The innermost line that is no library's, or None if all are."""
        while frame is not None:
            if not frame.f_code.co_filename.startswith(self._trusted):
                return self._shown(frame)
            frame = frame.f_back
        return None

    def _shown(self, frame: FrameType) -> str:
        return f"{frame.f_code.co_filename.removeprefix(self._own[0])}:{frame.f_lineno}"


def _hands_out_frames(code: CodeType) -> bool:
    """What gives its caller a frame: all of inspect, the generators of traceback, and one function of logging."""
    if code.co_filename == traceback.__file__:
        return bool(code.co_flags & inspect.CO_GENERATOR)
    return code.co_filename == inspect.__file__ or code is _LOGGING_FRAME


def announce_frames_of_greenlets() -> None:
    """For the fence, and before the inventory: a greenlet gives its frame without a word to the audit."""
    kind = greenlet.greenlet
    (members,) = gc.get_referents(vars(kind))  # the dict behind the proxy: it is a type made in C
    frame_of = members["gr_frame"].__get__

    def gr_frame(self: object) -> Any:
        sys.audit("object.__getattr__", self, "gr_frame")
        return frame_of(self)

    members["gr_frame"] = property(gr_frame)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _third_party() -> list[ModuleType]:
    return [module for name in ("greenlet", "msgspec", "pytest") if (module := sys.modules.get(name)) is not None]
