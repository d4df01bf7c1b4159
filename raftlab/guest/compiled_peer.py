"""A peer's files as code: compiled in the fork server, which runs none of it, and executed in each peer process."""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import PurePosixPath
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from raftlab.guest.contract import (
    CLASSES,
    CLERK,
    PACKAGE,
    PEER,
    SERVICE,
    SERVICE_PACKAGE,
    describe_load_error,
    missing_members,
)
from raftlab.layout import PEER_FILES

if TYPE_CHECKING:
    from raftlab.races import RaceInstrumentation

# Importing these has effects, or they are of no use to a peer.
_NOT_PREIMPORTED = frozenset(("antigravity", "idlelib", "test", "this", "tkinter", "turtle", "turtledemo"))


class PeerCodeError(Exception):
    """The peer's files cannot be tested; the text has the place and the reason."""


class CompiledPeer(MetaPathFinder, Loader):
    """The modules of one submission, by name. Importing one executes it."""

    def __init__(
        self, files: Mapping[str, bytes], modules: Mapping[str, str], race: RaceInstrumentation | None = None
    ) -> None:
        """`files`: sources by path as shown to users. `modules`: path by module name. `race` rewrites the sources."""
        self.race = race
        self._helpers: dict[str, Any] | None = None  # that rewritten code calls
        self.classes: dict[str, Any] = {}  # loaded so far, by name
        self._code: dict[str, CodeType] = {}
        self._paths: dict[str, str] = {}
        self._errors: dict[str, Exception] = {}
        if race is not None:
            race.read_fields(source for path, source in files.items() if PurePosixPath(path).name not in PEER_FILES)
        for path, source in files.items():
            names = [name for name, its_path in modules.items() if its_path == path]
            linecache.cache[path] = (len(source), None, source.decode(errors="replace").splitlines(keepends=True), path)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = ast.parse(source, path)
                    if race is None or PurePosixPath(path).name in PEER_FILES:
                        code = compile(tree, path, "exec", dont_inherit=True)
                    else:
                        code = race.compile_source(names, source, path)
            except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
                self._errors.update(dict.fromkeys(names, error))
                self._paths.update(dict.fromkeys(names, path))
                continue
            for name in names:
                self._code[name] = code
                self._paths[name] = path
            _preimport_stdlib(tree)

    @property
    def has_service(self) -> bool:
        return SERVICE in self._paths

    def install(self) -> None:
        """Make importlib find these modules, instead of any others with their names."""
        package = sys.modules[PACKAGE]
        for name in self._paths:
            sys.modules.pop(name, None)
            sys.modules.pop(SERVICE_PACKAGE, None)
            parent, _, child = name.rpartition(".")
            if parent == PACKAGE:
                vars(package).pop(child, None)
        sys.meta_path.insert(0, self)

    def load_class(self, name: str) -> Any:
        """The class of that name: Raft, KVServer or Clerk. Executes its module if necessary."""
        if name in self.classes:
            return self.classes[name]
        module_name = next(module for module, (class_name, _) in CLASSES.items() if class_name == name)
        path = self._paths[module_name]
        try:
            module = importlib.import_module(module_name)
        except BaseException as error:
            if type(error).__name__ == "GreenletExit":
                raise
            raise PeerCodeError(describe_load_error(self._file_of_error(path, error), error)) from None
        loaded = getattr(module, name, None)
        problem = missing_members(module, loaded, *CLASSES[module_name])
        if problem:
            raise PeerCodeError(f"{path}: {problem}")
        self.classes[name] = loaded
        return loaded

    def load_all(self) -> None:
        """Load all classes. Raises PeerCodeError."""
        for name in (PEER, SERVICE, CLERK):
            if name in self._paths:
                self.load_class(CLASSES[name][0])

    def _file_of_error(self, path: str, error: BaseException) -> str:
        """The innermost of the submission's files in the traceback."""
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        return next((file for file in reversed(files) if file in self._paths.values()), path)

    # ---- importing ---------------------------------------------------------------------------------------------------

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == SERVICE_PACKAGE and self.has_service:
            return ModuleSpec(fullname, self, is_package=True)
        if fullname not in self._paths:
            return None
        return ModuleSpec(fullname, self, origin=self._paths[fullname])

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name == SERVICE_PACKAGE:
            return  # the package itself is empty
        if name in self._errors:
            raise self._errors[name]
        module.__file__ = self._paths[name]
        if self.race is not None:
            if self._helpers is None:
                self._helpers = self.race.helpers()
            vars(module).update(self._helpers)
        exec(self._code[name], vars(module))


def _preimport_stdlib(tree: ast.Module) -> None:
    """Import the standard library modules that the peer imports, once for all peer processes."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names and top not in _NOT_PREIMPORTED and not top.startswith("_"):
                with suppress(Exception):
                    importlib.import_module(name)
