"""A peer as a program: compiled once, executed anew for each incarnation, so that only saved state survives a crash.

Each incarnation has its own raft.py and its own copy of every module beside it: their globals, classes and default
arguments are new and invisible to other peers. sys.modules has a proxy under each of their names. A proxy forwards to
the module of the current node, so imports, pickle, dataclasses and inspect find the incarnation's own modules.

A module in which nothing can change (usually messages.py) is executed only once, because eight dataclasses cost twenty
times as much as raft.py. Each incarnation has a copy of the module, with the same classes: see shared_modules.py.
raftapi is handled in the same way, so that changes of ApplyMsg or Persister do not survive either.

Not promised: protection against a peer that searches for other peers' objects, nor copies of anything outside its
folder (os.environ, loggers, the standard library, the lab). Sandboxed peers have their own processes for that.

Start at `Program.__call__()`, then `Incarnation.module()`.
"""

from __future__ import annotations

import logging
import sys
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import labgob
import raftapi
from labsim import current_node, current_simulation
from raftlab.guest.contract import CLERK, PACKAGE, PEER, SERVICE, SERVICE_PACKAGE
from raftlab.harness.shared_modules import ANYTHING, ModuleOutline, OriginalAttributes, outline
from raftlab.layout import PEER_FILES, ROOT

if TYPE_CHECKING:
    from raftlab.races import RaceInstrumentation

CONTRACT = raftapi.__name__
# As the lab itself has imported them, before any peer was loaded.
_contract = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == CONTRACT}


@dataclass(frozen=True)
class _Source:
    """One module of a program, compiled."""

    name: str
    file: str
    code: CodeType
    folders: list[str] | None = None  # of a package: where its modules are

    @property
    def package(self) -> str:
        return self.name if self.folders is not None else self.name.rpartition(".")[0]

    def outline(self) -> ModuleOutline:
        return outline(Path(self.file).read_bytes() if self.file else b"", self.package)


class ServiceFiles(NamedTuple):
    """The files of the service and its clerk, and the folder of their package."""

    server: Path
    clerk: Path
    folder: Path


class Program:
    """The peer in one file and the modules beside it. Called like the class Raft; each call is a new incarnation.

    With a service, make_service() constructs one in the current node's incarnation, above its peer.
    """

    def __init__(
        self, path: Path, folder: Path, service: ServiceFiles | None = None, race: RaceInstrumentation | None = None
    ) -> None:
        """`folder`: where the package is, of which this file is to be raft.py. `race`: what rewrites it, if any."""
        self.race = race
        self._path = path
        self._folder = folder
        self._service = service
        self._sources: dict[str, _Source | None] = {}
        self._outlines: dict[str, ModuleOutline] = {}
        self._originals: dict[str, OriginalAttributes] = {}  # of the modules that may be shared
        self.shared: dict[str, dict[str, Any]] = {}  # the globals of the shared modules
        self.template = Incarnation(self)
        self.peer_class: Any = None  # the class of the template, for inspection
        self.__module__ = PEER

    def __call__(self, peers: Any, me: int, persister: raftapi.Persister, apply_ch: Any) -> Any:
        """Raft(peers, me, persister, apply_ch) of a new incarnation."""
        incarnation = self._incarnate()
        # The lab made it, with its own class or with an earlier incarnation's.
        persister.__class__ = incarnation.module(raftapi.Persister.__module__).Persister
        return self._register(incarnation.module(PEER).Raft(peers, me, persister, apply_ch))

    def _register(self, instance: Any, *, one_at_a_time: bool = False) -> Any:
        if self.race is not None:
            self.race.on_constructed(one_at_a_time=one_at_a_time)
        return instance

    def _incarnate(self) -> Incarnation:
        _install_proxies(self.template.modules)
        for name in self.shared:
            self._originals[name].restore()
        incarnation = Incarnation(self)
        node = current_node()
        if node is not None:
            node.program = incarnation
        return incarnation

    @property
    def has_service(self) -> bool:
        return self._service is not None

    def make_service(self, *args: Any) -> Any:
        """KVServer(servers, me, raft, apply_ch, persister, max_raft_state) of the current node's incarnation."""
        node = current_node()
        assert node is not None
        return self._register(node.program.module(SERVICE).KVServer(*args))

    def make_clerk(self, *args: Any) -> Any:
        """Clerk(servers) of a new incarnation."""
        return self._register(self._incarnate().module(CLERK).Clerk(*args), one_at_a_time=True)

    def __getattr__(self, name: str) -> Any:
        """Attributes are those of the class."""
        return getattr(self.peer_class, name)

    @property
    def __name__(self) -> str:
        return str(self.peer_class.__name__)

    @property  # type: ignore[misc]  # object's can be set; this one need not be
    def __class__(self) -> type:
        """isinstance() and inspect take it for the class: inspect.getfile() finds raft.py."""
        return type

    # ---- loading -----------------------------------------------------------------------------------------------

    def load(self, known: dict[str, ModuleType]) -> ModuleType:
        """Execute it for the first time, outside any run: the module raft.py. `known`: modules already executed."""
        for name in [name for name, module in sys.modules.items() if _is_ours(name) or type(module) is ModuleProxy]:
            del sys.modules[name]
        _loaded[:] = [self.template]
        _templates.add(self.template)
        known = {name: module for name, module in (_contract | known).items() if self.source(name) is not None}
        self.template.modules.update(known)
        for name, module in known.items():
            self.read_outline(name)
            self.note_executed(name, module)
        _install_proxies((PACKAGE, *known, PEER))
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        module = self.template.module(PEER)
        for name in (SERVICE, CLERK) if self._service is not None else ():
            self.template.module(name)
        self._find_shared()
        for name in self._originals.keys() & known.keys():
            self._originals[name].restore()  # changes of the lab's classes must not reach the next peer
        return module

    def read_outline(self, name: str) -> None:
        """Called before the module is executed, because its code may change Python itself."""
        source = self.source(name)
        assert source is not None
        self._outlines[name] = source.outline()

    def note_executed(self, name: str, module: ModuleType) -> None:
        is_immutable = self._outlines[name].is_immutable or _is_ours(name, CONTRACT)
        if name not in (PEER, SERVICE, CLERK) and is_immutable:
            self._originals[name] = OriginalAttributes(module)

    def _find_shared(self) -> None:
        """A module is shared unless another module changes it, or it imports one that is not shared."""
        modules, outlines = self.template.modules, self._outlines
        others = [outline for name, outline in outlines.items() if name not in self._originals]
        changes = {name for outline in others for name in outline.changes}
        shared = {
            name
            for name, originals in self._originals.items()
            if not changes & {ANYTHING, name.rpartition(".")[2], *vars(modules[name])} and not originals.are_changed
        }
        while importers := {name for name in shared if outlines[name].imports & (modules.keys() - shared)}:
            shared -= importers
        for name in filter(shared.__contains__, modules):
            # Without the submodules that importing them has set in a package.
            self.shared[name] = {
                key: value for key, value in vars(modules[name]).items() if f"{name}.{key}" not in modules
            }

    def own_imports(self, package: str) -> Iterator[str]:
        """The submodules that importing the package imports, and so sets in it."""
        inside = (name for name in self._outlines[package].imports if name.startswith(f"{package}."))
        return (name for name in inside if self.source(name) is not None)

    # ---- finding its modules -----------------------------------------------------------------------------------

    def source(self, name: str) -> _Source | None:
        """The module of this name, if it belongs to this program and not to a library."""
        if name not in self._sources:
            self._sources[name] = self._find(name)
        return self._sources[name]

    def _compiled(self, name: str, file: str, folders: list[str] | None = None) -> _Source:
        code = None
        if self.race is not None and file and not _is_ours(name, CONTRACT):
            code = self.race.compile(name, file, self._own_folders)
        if code is None:
            code = SourceFileLoader(name, file).get_code(name) if file else compile("", "<nothing>", "exec")
        assert code is not None
        return _Source(name, file, code, folders)

    @property
    def _own_folders(self) -> list[Path]:
        return [self._path.parent] if self._service is None else [self._path.parent, self._service.server.parent]

    def _find(self, name: str) -> _Source | None:
        if name == PEER:
            return self._compiled(name, str(self._path))
        if name == PACKAGE:
            init = self._folder / "__init__.py"
            return self._compiled(name, str(init) if init.exists() else "", [str(self._folder)])
        if name == CONTRACT:
            return self._compiled(name, str(raftapi.__file__), list(raftapi.__path__))
        if self._service is not None and name in (SERVICE, CLERK):
            return self._compiled(name, str(self._service.server if name == SERVICE else self._service.clerk))
        if self._service is not None and name == SERVICE_PACKAGE:
            return self._compiled(name, "", [str(self._service.folder)])
        parent, _, child = name.rpartition(".")
        if parent:
            package = self.source(parent)
            folders = None if package is None else package.folders
            if folders is None:
                return None
        else:
            # `import helper`: where sys.path leads to the file beside raft.py, or beside server.py.
            folders = None
            if not any((folder / f"{child}.py").is_file() for folder in self._own_folders):
                return None
        spec = PathFinder.find_spec(name, folders)
        if spec is None and parent == PACKAGE and f"{child}.py" in PEER_FILES:
            # The lab's file in that package that is not beside the peer: the persister.
            spec = PathFinder.find_spec(name, [str(ROOT / PACKAGE)])
        if spec is None or not (spec.loader is None or isinstance(spec.loader, SourceFileLoader)):
            return None
        if not parent and (spec.origin is None or Path(spec.origin).resolve().parent not in self._own_folders):
            return None
        inside = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        return self._compiled(name, spec.origin or "", inside)


class Incarnation(Loader):
    """One execution of a program: its modules, by name."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.modules: dict[str, ModuleType] = {}
        self.registered: dict[bytes, type] = {}  # with labgob
        # What rewritten code calls, besides its own functions.
        self._helpers = {} if program.race is None else program.race.helpers()

    def module(self, name: str) -> ModuleType:
        """Its module of this name, executed now if necessary."""
        found = self.modules.get(name)
        return self._make(name) if found is None else found

    def _make(self, name: str) -> ModuleType:
        program = self.program
        source = program.source(name)
        if source is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        parent, _, child = name.rpartition(".")
        package = self.module(parent) if parent else None
        module = ModuleType(name)
        shared = program.shared.get(name)
        if shared is not None:
            vars(module).update(shared)
            self.modules[name] = module
            for imported in program.own_imports(name):
                self.module(imported)
        else:
            self._execute(source, module)
        if package is not None:
            setattr(package, child, module)
        return module

    def _execute(self, source: _Source, module: ModuleType) -> None:
        name = source.name
        module.__loader__ = self
        module.__package__ = source.package
        if source.file:
            module.__file__ = source.file
        spec = module.__spec__ = ModuleSpec(name, self, origin=source.file or None)
        if source.folders is not None:
            spec.submodule_search_locations = module.__path__ = source.folders
        self.modules[name] = module
        vars(module).update(self._helpers)
        try:
            if self is self.program.template:
                self.program.read_outline(name)
                exec(source.code, vars(module))
                self.program.note_executed(name, module)
            else:
                with _restore_process_state(source.code):
                    exec(source.code, vars(module))
        except BaseException:
            del self.modules[name]
            raise

    def get_source(self, name: str) -> str | None:
        """For linecache, if the file no longer exists."""
        source = self.program.source(name)
        return None if source is None or not source.file else Path(source.file).read_text(encoding="utf-8")


@contextmanager
def _restore_process_state(code: CodeType) -> Iterator[None]:
    """Undo changes of the process that loading has made once already: folders in sys.path, handlers of loggers."""
    path = list(sys.path)
    loggers: dict[logging.Logger, list[logging.Handler]] = {}
    if "logging" in code.co_names:
        all_loggers = [logging.root, *logging.root.manager.loggerDict.values()]
        loggers = {logger: list(logger.handlers) for logger in all_loggers if isinstance(logger, logging.Logger)}
    try:
        yield
    finally:
        if sys.path != path:
            sys.path[:] = path
        for logger, handlers in loggers.items():
            if logger.handlers != handlers:
                logger.handlers[:] = handlers


# ---- the current incarnation -------------------------------------------------------------------------------------

_loaded: list[Incarnation] = []  # the last one loaded: for code that runs on no node
_templates: WeakSet[Incarnation] = WeakSet()


def _current() -> Incarnation | None:
    """The incarnation on whose behalf the caller runs."""
    node = current_node()
    if node is not None and type(node.program) is Incarnation:
        return node.program
    if current_simulation() is None:
        # A real thread that a peer has started: the innermost frame of a peer decides.
        frame = sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
            loader = frame.f_globals.get("__loader__")
            if type(loader) is Incarnation:
                return loader
    return _loaded[0] if _loaded else None


def _own_classes() -> dict[bytes, type] | None:
    incarnation = _current()
    return None if incarnation is None or incarnation in _templates else incarnation.registered


labgob.separate(_own_classes)


class ModuleProxy(ModuleType):
    """The entry in sys.modules for a program's module: forwards to the module of the current incarnation."""

    def __getattribute__(self, name: str) -> Any:
        own_name = ModuleType.__getattribute__(self, "__name__")
        incarnation = _current()
        if incarnation is None:
            return ModuleType.__getattribute__(self, name)
        module = incarnation.modules.get(own_name)
        if module is None:
            # Every import reads __spec__. Other dunder names may be read by code that iterates over sys.modules.
            if name.startswith("__") and name != "__spec__":
                return ModuleType.__getattribute__(self, name)
            module = incarnation.module(own_name)
        return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_target_of(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_target_of(self), name)

    def __dir__(self) -> list[str]:
        return dir(_target_of(self))

    def __repr__(self) -> str:
        return repr(_target_of(self))


def _target_of(proxy: ModuleProxy) -> ModuleType:
    incarnation = _current()
    assert incarnation is not None
    return incarnation.module(ModuleType.__getattribute__(proxy, "__name__"))


def _install_proxies(names: Sequence[str] | dict[str, ModuleType]) -> None:
    for name in names:
        if type(sys.modules.get(name)) is not ModuleProxy:
            sys.modules[name] = ModuleProxy(name)


def _is_ours(name: str, *packages: str) -> bool:
    return name.partition(".")[0] in (packages or (PACKAGE, SERVICE_PACKAGE))


class _ProxyFinder(MetaPathFinder, Loader):
    """Creates the proxy when one of a program's modules is first imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Without proxies, the package is the lab's own again.
        if type(sys.modules.get(PACKAGE)) is not ModuleProxy:
            return None
        incarnation = _current()
        if incarnation is None or (source := incarnation.program.source(fullname)) is None:
            return None
        spec = ModuleSpec(fullname, self, origin=source.file or None, is_package=source.folders is not None)
        if source.folders is not None:
            spec.submodule_search_locations = source.folders
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        # Before it is executed, because imports may be circular.
        proxy = sys.modules[spec.name] = ModuleProxy(spec.name)
        try:
            _target_of(proxy)
        except BaseException:
            sys.modules.pop(spec.name, None)
            raise
        return proxy

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed."""


_finder = _ProxyFinder()
_lab: dict[str, ModuleType] = {}  # the shared modules of the lab's own package, executed for the first peer


def execute_program(path: Path, kv: Path | None = None, race: RaceInstrumentation | None = None) -> Program:
    """A file with a messages.py beside it is loaded with its whole package; otherwise the lab's package is used.

    `kv`: the server.py of a service. Its clerk is the client.py beside it, or the lab's.
    """
    lab_folder = ROOT / PACKAGE
    own_package = path.parent != lab_folder and (path.parent / "messages.py").exists()
    service = None if kv is None else _service_files(kv, lab_folder.parent / SERVICE_PACKAGE)
    program = Program(path, path.parent if own_package else lab_folder, service, race)
    module = program.load({} if own_package else _lab)
    program.peer_class = getattr(module, "Raft", None)
    if not own_package:
        _lab.update({name: program.template.modules[name] for name in program.shared if _is_ours(name, PACKAGE)})
    return program


def _service_files(server: Path, lab_folder: Path) -> ServiceFiles:
    clerk = server.parent / "client.py"
    own_package = (server.parent / "messages.py").exists()
    return ServiceFiles(
        server, clerk if clerk.exists() else lab_folder / "client.py", server.parent if own_package else lab_folder
    )


def forget_earlier_runs() -> None:
    """Release the classes of finished incarnations. Must not be called during another run in this process."""
    templates = list(_templates)

    @cache  # a process that loads peer after peer has many templates, and each has classes of the same few names
    def in_templates(module: str, qualified_name: str) -> set[int]:
        """The ids of the templates' classes of this name. Not ==: a metaclass may define equality."""
        found: list[Any] = [template.modules.get(module) for template in templates]
        for name in qualified_name.split("."):
            found = [getattr(each, name, None) for each in found]
        return {id(each) for each in found}

    @cache  # called many times for each class, before every run
    def is_gone(cls: type) -> bool:
        if type(sys.modules.get(cls.__module__)) is not ModuleProxy:
            return False
        return id(cls) not in in_templates(cls.__module__, cls.__qualname__)

    labgob.forget(is_gone)
    for clear_cache in getattr(typing, "_cleanups", ()):  # Queue[ApplyMsg] and the like, the last 128 of each kind
        clear_cache()
