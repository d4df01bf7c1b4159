"""What the project is made of, and who gets which of it: students and Gradescope; and what a graded run depends on.

Promise: it is said once. A new file in a room of the tester (labtest/rooms.py), or in a tool's folder that is named
here, goes wherever its neighbours go; what is named nowhere goes to nobody. What decides about a graded run is what the
worker that makes it imports, found by reading its imports, so that nothing has to be listed.

Start at `FOR_ALL` and `judging_digest()`.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from labtest.rooms import PEER, PEER_FILES, ROOMS, ROOT, SERVICE, TOOLS, run_files

# By folder; a pattern covers one folder, or with ** all that is below it.
Patterns = Mapping[str, tuple[str, ...]]

_MODULES = ("**/*.py", "py.typed")

FOR_ALL: Patterns = {
    **dict.fromkeys(ROOMS, _MODULES),
    PEER: (*PEER_FILES, "py.typed"),
    SERVICE: ("__init__.py", "py.typed"),
    TOOLS: ("__init__.py", "__main__.py", "cli.py", "py.typed", "selecting.py"),
    **dict.fromkeys(
        [
            f"{TOOLS}/{tool}"
            for tool in (
                *("cluster", "common", "generator", "hunt", "page", "replay", "scenario", "shrink", "stress"),
                *("timeline", "workers"),
            )
        ],
        _MODULES[:1],
    ),
    f"{TOOLS}/page/web": ("*.css", "*.html", "*.js"),
    "tests": (
        "test_2[a-d].py",
        "test_2[a-d]_extra.py",
        "test_3[ab].py",
        "test_3[ab]_extra.py",
        "scenarios/**/*.scenario",
    ),
    ".": ("LICENSE", "pyproject.toml", "requirements.lock"),
}
FOR_STUDENTS: Patterns = {
    "docs": (
        "checks.md",
        "cluster.md",
        "determinism.md",
        "failures.md",
        "hunt.md",
        "kv.md",
        "names.md",
        "own-tests.md",
        "page.md",
        "page.png",
        "race.md",
        "scenario-figure-8.png",
        "scenario-trace.png",
        "scenarios.md",
        "shrink.md",
        "timeline.png",
        "trace.md",
    ),
    ".": (".gitignore",),
}
FOR_GRADESCOPE: Patterns = {
    TOOLS: ("manifest.py",),
    f"{TOOLS}/grade": ("**/*.py", "pages/*.css", "pages/*.js"),
    ".": ("README.md",),
}

# What makes the runs of a submission, and what draws those that nobody wrote.
_WORKER = f"{TOOLS}.grade.judging.worker"
HUNTS = f"{TOOLS}/generator/as_test.py"


class ManifestError(Exception):
    """A pattern that names nothing any more."""


def paths(*parts: Patterns, root: Path = ROOT) -> list[Path]:
    """The files that the patterns name."""
    found: dict[Path, None] = {}
    for folder, pattern in ((folder, pattern) for part in parts for folder, those in part.items() for pattern in those):
        here = sorted((root / folder).glob(pattern))
        if not here:
            raise ManifestError(f"{folder}/{pattern} names no file any more; correct {TOOLS}/manifest.py")
        found |= dict.fromkeys(here)
    return list(found)


def judging_files() -> list[Path]:
    """What decides about a graded run: the tester, and what the grader's worker needs of the tools."""
    drawing = needed_by(HUNTS.removesuffix(".py").replace("/", "."))
    return list(dict.fromkeys([*run_files(), *needed_by(_WORKER), *drawing]))


def judging_digest() -> str:
    """Of all that, without the submission, the test and the limits."""
    digest = hashlib.blake2b(digest_size=16)
    for path in judging_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def needed_by(module: str) -> tuple[Path, ...]:
    """The files of the tools that a module of theirs imports, itself included, at any remove."""
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
    """None for what is no module of the tools: another's, or a name in one."""
    if module.partition(".")[0] != TOOLS:
        return None
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Also those inside functions. Ours are never relative."""
    for statement in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
