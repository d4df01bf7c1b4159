"""A peer's files as compiled code: compiled in the nursery, which runs none of it, and executed in each guest anew."""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from labtest.loading import describe_load_error, missing_from
from labtest.program import PACKAGE, PEER

# These do something when they are imported, or are of no use to a peer.
_NOT_WARMED = frozenset(("antigravity", "idlelib", "test", "this", "tkinter", "turtle", "turtledemo"))


class CodeError(Exception):
    """The peer's files cannot be tested; the text says where and why."""


class Code(MetaPathFinder, Loader):
    """The modules of one submission, by name. Whoever imports one executes it."""

    def __init__(self, files: Mapping[str, bytes], raft: str) -> None:
        """`files` by the path that the reader knows; `raft` is that of raft.py."""
        self.raft = raft
        self.peer_class: Any = None
        self._codes: dict[str, CodeType] = {}
        self._files: dict[str, str] = {}
        self._broken: dict[str, Exception] = {}
        folder = PurePosixPath(raft).parent
        own_package = str(folder / "messages.py") in files
        for path, source in files.items():
            names = _module_names(PurePosixPath(path), folder, raft, own_package=own_package)
            linecache.cache[path] = (len(source), None, source.decode(errors="replace").splitlines(keepends=True), path)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = ast.parse(source, path)
                    code = compile(tree, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
                self._broken.update(dict.fromkeys(names, error))
                self._files.update(dict.fromkeys(names, path))
                continue
            for name in names:
                self._codes[name] = code
                self._files[name] = path
            _warm_up(tree)

    def take_over(self) -> None:
        """From now on these are the modules of this process."""
        package = sys.modules[PACKAGE]
        for name in self._files:
            sys.modules.pop(name, None)
            parent, _, child = name.rpartition(".")
            if parent == PACKAGE:
                vars(package).pop(child, None)
        sys.meta_path.insert(0, self)

    def load_peer_class(self) -> Any:
        """The class Raft of raft.py, executed now if it has not been."""
        if self.peer_class is not None:
            return self.peer_class
        try:
            module = importlib.import_module(PEER)
        except BaseException as error:
            if type(error).__name__ == "GreenletExit":
                raise
            raise CodeError(describe_load_error(self.raft, error)) from None
        peer_class = getattr(module, "Raft", None)
        problem = missing_from(module, peer_class)
        if problem:
            raise CodeError(f"{self.raft}: {problem}")
        self.peer_class = peer_class
        return peer_class

    # ---- importing -----------------------------------------------------------------------------------------------

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._files:
            return None
        return ModuleSpec(fullname, self, origin=self._files[fullname])

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in self._broken:
            raise self._broken[name]
        module.__file__ = self._files[name]
        exec(self._codes[name], vars(module))


def _module_names(path: PurePosixPath, folder: PurePosixPath, raft: str, *, own_package: bool) -> list[str]:
    """What it is imported as: part of the package, and also by itself if it lies beside raft.py."""
    if str(path) == raft:
        return [PEER]
    if not own_package or path.parent != folder:
        return [path.stem] if path.parent == folder else []
    if path.stem == "__init__":
        return []
    return [f"{PACKAGE}.{path.stem}", *([] if path.stem == "messages" else [path.stem])]


def _warm_up(tree: ast.Module) -> None:
    """Import what it imports of the standard library, so that each guest finds it there."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names and top not in _NOT_WARMED and not top.startswith("_"):
                with suppress(Exception):
                    importlib.import_module(name)
