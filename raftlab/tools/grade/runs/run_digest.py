"""A digest of the code that graded runs depend on: the tester, and the tools that the run worker imports.

Promise: these files are found by following imports, so no list needs maintenance. Start at `run_digest()`.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from raftlab.layout import ROOT, TOOLS, peer_files, run_files

# The module that makes the runs of a submission, and the one that generates random runs.
_WORKER = "raftlab.tools.grade.runs.worker"
FUZZ_TESTS = f"{TOOLS}/generator/as_test.py"


def graded_run_files() -> list[Path]:
    """The files that affect a graded run: the tester, and the tools that the run worker imports."""
    drawing = needed_by(FUZZ_TESTS.removesuffix(".py").replace("/", "."))
    return list(dict.fromkeys([*run_files(), *peer_files(), *needed_by(_WORKER), *drawing]))


def run_digest() -> str:
    """Of these files, without the submission, the test and the limits."""
    digest = hashlib.blake2b(digest_size=16)
    for path in graded_run_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def needed_by(module: str) -> tuple[Path, ...]:
    """The files of the tools that a module imports, directly or indirectly, including itself."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imports(path)]
    return tuple(found[name] for name in sorted(found))


def _file_of(module: str) -> Path | None:
    """None if this is not a module of the tools."""
    if not f"{module}.".startswith(f"{TOOLS.replace('/', '.')}."):
        return None
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Also imports inside functions. The lab has no relative imports."""
    for statement in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
