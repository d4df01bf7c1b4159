"""Getting the peer class out of the student's file, with a sentence instead of a stack when that fails."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from labsim.stacks import short_path

DEFAULT = Path("raft/raft.py")
_REQUIRED = ("start", "get_state", "kill")


class LoadError(Exception):
    """The student's file cannot be tested; the text says where and why."""


def load_peer_class(path: Path) -> Any:
    """The class Raft of that file.

    A file with its own messages.py beside it brings its whole package; a file alone uses ours.
    """
    if path.is_dir():
        path = path / "raft.py"
    if not path.is_file():
        raise LoadError(f"{short_path(str(path))}: no such file; RAFT must name a raft.py")
    path = path.resolve()
    try:
        module = _load(path)
    except SyntaxError as error:
        where = short_path(error.filename or str(path))
        raise LoadError(f"{where}:{error.lineno}: SyntaxError: {error.msg}\n    {(error.text or '').strip()}") from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise LoadError(_describe(path, error)) from None
    peer_class = getattr(module, "Raft", None)
    if not isinstance(peer_class, type):
        raise LoadError(f"{short_path(str(path))}: there is no class Raft in it")
    missing = [name for name in _REQUIRED if not callable(getattr(peer_class, name, None))]
    if missing:
        raise LoadError(f"{short_path(str(path))}: class Raft has no method {' and no '.join(missing)}")
    return peer_class


def _load(path: Path) -> ModuleType:
    package = sys.modules.get("raft") or importlib.import_module("raft")
    own_package = Path(package.__path__[0]).resolve()
    if path.parent != own_package and (path.parent / "messages.py").exists():
        for name in [name for name in sys.modules if name == "raft" or name.startswith("raft.")]:
            del sys.modules[name]
        init = path.parent / "__init__.py"
        spec = importlib.util.spec_from_file_location(
            "raft", init if init.exists() else None, submodule_search_locations=[str(path.parent)]
        )
        assert spec is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["raft"] = package
        if spec.loader is not None:
            spec.loader.exec_module(package)
    spec = importlib.util.spec_from_file_location("raft.raft", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["raft.raft"] = module
    spec.loader.exec_module(module)
    return module


def _describe(path: Path, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if f.filename == str(path)), None)
    where = f"{short_path(str(path))}{f':{line}' if line else ''}"
    return f"{where}: {type(error).__name__} while importing it: {error}"
