"""Detects the usual mistake, `import time` for `from labsim import time`, and reports it instead of hanging.

While a simulation runs, the functions that reach the real world (sleeping, clocks, threads, locks, randomness,
processes) are replaced by ones that check their caller. A task of the simulation gets a RealWorldError that names its
line and the fix; library code and other OS threads (test runners, timeouts) get the real function. When the last
simulation ends, everything is restored, so outside a simulation this costs nothing.

Not promised: isolation. The watchdog detects C code that blocks, the determinism check finds `datetime.now()`, and only
the sandbox stops hostile code.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, NamedTuple, NoReturn

from labsim.current import run_context
from labsim.errors import RealWorldError
from labsim.stacks import add_library, is_library, is_user_code, location_of, short_path

# time.time() inside a simulation starts here: a round number, so that 1000000012.5 still reads as 12.5 s.
EPOCH_NS = 1_000_000_000 * 1_000_000_000


class _Rule(NamedTuple):
    module: str
    attribute: str  # dotted for a method of a class
    why: str
    fix: str
    # Refuse even when library code is the caller: no use of it in a task is harmless.
    through_libraries: bool = False
    # Refuse only without arguments: localtime(t) is arithmetic, localtime() reads the clock.
    only_bare: bool = False


_STOPS = "stops every peer at once"
_CLOCK = "reads the real clock, so the run cannot be replayed"
_THREAD = "runs outside the simulation"
_LOCK = f"is not simulated, and waiting for it {_STOPS}"
_RANDOMNESS = "ignores the seed, so the run cannot be replayed"
_USE_TIME = "use 'from labsim import time'"
_USE_THREADING = "use 'from labsim import threading'"
_USE_QUEUE = "use 'from labsim import queue'"
_USE_RANDOM = "use 'from labsim import random'"
_USE_THREADS = "use threads: 'from labsim import threading'"
_NO_POOL = (
    "start a threading.Thread for each piece of work and put its result into a queue.Queue "
    "('from labsim import threading, queue')"
)
_NO_WAITING = "wait for a threading.Event or a queue.Queue ('from labsim import threading, queue')"
_NO_PROCESSES = "use threads and RPCs only"

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_RANDOM_FUNCTIONS = (
    "betavariate",
    "choice",
    "choices",
    "expovariate",
    "gammavariate",
    "gauss",
    "getrandbits",
    "getstate",
    "lognormvariate",
    "normalvariate",
    "paretovariate",
    "randbytes",
    "randint",
    "random",
    "randrange",
    "sample",
    "seed",
    "setstate",
    "shuffle",
    "triangular",
    "uniform",
    "vonmisesvariate",
    "weibullvariate",
)

_RULES = (
    _Rule("time", "sleep", _STOPS, _USE_TIME),
    *(_Rule("time", name + ns, _CLOCK, _USE_TIME) for name in _CLOCKS for ns in ("", "_ns")),
    *(_Rule("time", name, _CLOCK, _USE_TIME, only_bare=True) for name in ("localtime", "gmtime", "ctime")),
    _Rule("threading", "Thread.start", _THREAD, _USE_THREADING, through_libraries=True),
    _Rule("threading", "Thread.join", _STOPS, _USE_THREADING, through_libraries=True),
    _Rule("threading", "Condition.wait", _STOPS, _USE_THREADING, through_libraries=True),
    *(_Rule("threading", name, _LOCK, _USE_THREADING) for name in ("Lock", "RLock")),
    *(
        _Rule("threading", f"{name}.__init__", _LOCK, _USE_THREADING)
        for name in ("Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier")
    ),
    _Rule("_thread", "start_new_thread", _THREAD, _USE_THREADING),
    _Rule("_thread", "allocate_lock", _LOCK, _USE_THREADING),
    _Rule("queue", "Queue.__init__", _LOCK, _USE_QUEUE),
    _Rule("queue", "SimpleQueue", _LOCK, _USE_QUEUE),
    *(_Rule("random", name, _RANDOMNESS, _USE_RANDOM) for name in _RANDOM_FUNCTIONS),
    _Rule("random", "Random.__init__", _RANDOMNESS, _USE_RANDOM, only_bare=True),
    *(
        _Rule("random", f"SystemRandom.{name}", _RANDOMNESS, _USE_RANDOM)
        for name in ("random", "getrandbits", "randbytes")
    ),
    _Rule("os", "urandom", _RANDOMNESS, _USE_RANDOM),
    _Rule("uuid", "uuid1", _RANDOMNESS, _USE_RANDOM),
    _Rule("uuid", "uuid4", _RANDOMNESS, _USE_RANDOM),
    *(
        _Rule("secrets", name, _RANDOMNESS, _USE_RANDOM)
        for name in ("choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe")
    ),
    _Rule("asyncio", "run", _THREAD, _USE_THREADS),
    _Rule("asyncio", "new_event_loop", _THREAD, _USE_THREADS),
    _Rule("asyncio", "get_event_loop", _THREAD, _USE_THREADS),
    _Rule("concurrent.futures.thread", "ThreadPoolExecutor.__init__", _THREAD, _NO_POOL),
    _Rule("concurrent.futures.process", "ProcessPoolExecutor.__init__", _THREAD, _NO_POOL),
    _Rule("multiprocessing.process", "BaseProcess.start", _THREAD, _NO_PROCESSES, through_libraries=True),
    _Rule("subprocess", "Popen.__init__", _THREAD, _NO_PROCESSES, through_libraries=True),
    _Rule("os", "fork", _THREAD, _NO_PROCESSES, through_libraries=True),
    *(_Rule("os", name, _THREAD, _NO_PROCESSES) for name in ("system", "popen", "posix_spawn", "posix_spawnp")),
    *(
        _Rule("signal", name, "acts in real time", "use threading.Timer ('from labsim import threading')")
        for name in ("alarm", "setitimer", "signal", "pause")
    ),
    _Rule("select", "select", _STOPS, _USE_TIME),
    _Rule("gc", "collect", "also collects garbage of earlier runs, so the run cannot be replayed", "remove this call"),
)

# A task must not import one of these for the first time: its functions have not been replaced.
_REFUSED_IMPORTS = {
    "asyncio": _USE_THREADS,
    "concurrent.futures": _NO_POOL,
    "multiprocessing": _NO_PROCESSES,
    "subprocess": _NO_PROCESSES,
}


def trust(package_file: str) -> None:
    """Treat the package of this `__file__` as library code: the tester's own packages may read the real clock."""
    add_library(package_file)


def _fail(rule: _Rule, frame: FrameType | None, called_as: object = None) -> NoReturn:
    library = None
    while frame is not None and is_library(frame.f_code.co_filename):
        library, frame = frame, frame.f_back
    by_name = frame is not None and any(value is called_as for value in list(frame.f_globals.values()))
    if by_name and rule.fix.startswith("use 'from labsim import "):
        # The caller's module did `from time import sleep`.
        rule = rule._replace(fix=f"use 'from labsim.{rule.module} import {rule.attribute}'")
    where = None if frame is None else location_of(frame)
    location = "" if where is None else f" in {short_path(where.file)}:{where.line}"
    called = f"{rule.module}.{rule.attribute}".removesuffix(".__init__")
    module = rule.module if library is None else str(library.f_globals.get("__name__"))
    if library is not None and module != rule.module and rule.why == _STOPS:
        # The user's code has called a library function that waits: Future.result().
        called, rule = f"{module.partition('._')[0]}.{library.f_code.co_qualname}", rule._replace(fix=_NO_WAITING)
    simulation = run_context.simulation
    assert simulation is not None
    # Not raised in the task, where `except Exception: pass` would swallow it.
    simulation.fail(RealWorldError(f"{called}(){location} {rule.why}; {rule.fix}", where=where))


@cache
def _guarded(rule: _Rule, real: Any) -> Any:
    # An __init__ is called with self, which the user does not pass.
    bare_args = 1 if rule.attribute.endswith("__init__") else 0
    log_clock = rule.module == "time" and rule.attribute in ("time", "time_ns")

    def guarded(*args: Any, **kwargs: Any) -> Any:
        simulation = run_context.simulation
        if simulation is not None:
            frame = sys._getframe(1)
            if log_clock and frame.f_globals.get("__name__") == "logging":
                # A peer's log lines carry virtual time.
                now_ns = EPOCH_NS + simulation.time_of(simulation.current.node)
                return now_ns if rule.attribute == "time_ns" else now_ns / 1e9
            if (rule.through_libraries or not is_library(frame.f_code.co_filename)) and not (
                rule.only_bare and (kwargs or len(args) > bare_args)
            ):
                _fail(rule, frame, guarded)
        return real(*args, **kwargs)

    return guarded


class _ForbidImports(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        fix = _REFUSED_IMPORTS.get(fullname)
        if fix is not None and run_context.simulation is not None:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.startswith("<frozen "):
                frame = frame.f_back
            if frame is not None and not is_library(frame.f_code.co_filename):
                where = location_of(frame)
                location = f"{short_path(where.file)}:{where.line}"
                run_context.simulation.fail(
                    RealWorldError(f"'import {fullname}' in {location} {_THREAD}; {fix}", where=where)
                )
        return None


_finder = _ForbidImports()
_installing = _thread.allocate_lock()
_users = 0
_undo: list[tuple[Any, str, Any]] = []


@contextmanager
def installed() -> Iterator[None]:
    global _users
    with _installing:
        _users += 1
        if _users == 1:
            _install()
    try:
        yield
    finally:
        with _installing:
            _users -= 1
            if _users == 0:
                _uninstall()


def _install() -> None:
    by_identity: dict[int, tuple[_Rule, Any]] = {}
    for rule in _RULES:
        module = sys.modules.get(rule.module)
        if module is None:
            continue
        owner, name = _owner_of(rule, module)
        # Look in the class's own dict: patching an inherited attribute would patch it twice.
        real = vars(owner).get(name)
        if real is None:
            continue
        _replace(owner, name, rule, real)
        if owner is module:
            by_identity.setdefault(id(real), (rule, real))
    _guard_from_imports(by_identity)
    sys.meta_path.insert(0, _finder)


def _uninstall() -> None:
    while _undo:
        setattr(*_undo.pop())
    sys.meta_path.remove(_finder)


@cache
def _owner_of(rule: _Rule, module: ModuleType) -> tuple[Any, str]:
    """The module or class that has the attribute, and the attribute's name."""
    owner: Any = module
    *classes, name = rule.attribute.split(".")
    for class_name in classes:
        owner = getattr(owner, class_name)
    return owner, name


def _replace(owner: Any, name: str, rule: _Rule, real: Any) -> None:
    setattr(owner, name, _guarded(rule, real))
    _undo.append((owner, name, real))


class _Module:
    """A module outside all libraries, and which of its names are real functions. There may be hundreds of modules with
    thousands of names, and a run may be short, so a module is searched again only when its number of names changes."""

    def __init__(self, module: ModuleType, filename: str) -> None:
        self._module = module
        self._filename = filename
        self._size = -1
        self._names: list[str] = []

    def guard(self, by_identity: dict[int, tuple[_Rule, Any]], *, anew: bool) -> None:
        namespace = self._module.__dict__
        if anew or len(namespace) != self._size:
            self._names = [name for name, value in list(namespace.items()) if id(value) in by_identity]
            self._size = len(namespace)
        if self._names and not is_library(self._filename):
            for name in self._names:
                rule, real = by_identity.get(id(namespace.get(name)), (None, None))
                if rule is not None:
                    _replace(self._module, name, rule, real)


_modules: dict[str, _Module] = {}
_known_modules: dict[str, Any] = {}  # sys.modules as it was then
_identities: list[int] = []  # of these modules, so that no module's __eq__ is called
_known_real: set[int] = set()


def _guard_from_imports(by_identity: dict[int, tuple[_Rule, Any]]) -> None:
    """`from time import sleep` left the function itself in a module, out of reach of any patch of `time`."""
    global _known_modules, _identities, _known_real
    now = dict(sys.modules)
    identities = [*map(id, now.values())]
    if identities != _identities:
        for name in _modules.keys() - now.keys():
            del _modules[name]
        for name, module in now.items():
            if _known_modules.get(name) is not module:
                _modules.pop(name, None)
                filename = isinstance(module, ModuleType) and module.__dict__.get("__file__")
                if name == "__main__" or (filename and not is_library(filename)):
                    _modules[name] = _Module(module, filename or "")
        _known_modules, _identities = now, identities
    anew = by_identity.keys() != _known_real
    if anew:
        _known_real = set(by_identity)
    for own in _modules.values():
        own.guard(by_identity, anew=anew)


@contextmanager
def forbid_exit() -> Iterator[None]:
    """Forbid sys.exit(), which silently ends one thread. In a peer that is never intended."""
    real = sys.exit

    def refused(*args: Any) -> NoReturn:
        simulation, caller = run_context.simulation, sys._getframe(1)
        if simulation is not None and is_user_code(caller.f_code.co_filename):
            where = location_of(caller)
            location = f"{short_path(where.file)}:{where.line}"
            simulation.fail(
                RealWorldError(
                    f"sys.exit() in {location} would end only this thread; return from the function, or raise an error",
                    where=where,
                )
            )
        real(*args)

    sys.exit = refused
    try:
        yield
    finally:
        sys.exit = real
