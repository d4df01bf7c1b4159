"""The one list: which packages there are, in which order they may import each other, and who gets which file.

Promise: whatever else needs such a list derives it from here: the tests of imports and of pyproject.toml, the handout,
the Gradescope zip, the sandbox, the records of runs, the reports. A new file in a package, or in the folder of a tool
that is named here, goes wherever its neighbors go; what is named nowhere goes to nobody. Imports nothing of ours.

Start at `ORDER` and `FOR_ALL`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# ---- the packages ------------------------------------------------------------------------------------------------

# What student code may import.
LIBRARIES = ("labsim", "labgob", "labrpc", "raftapi")
# The student's package, and what in it is ours; and the student's other one, of parts 3A and 3B.
PEER = "raft"
PEER_FILES = ("__init__.py", "messages.py", "persister.py")
SERVICE = "kv"
STUDENTS = (PEER, SERVICE)
# The lab itself. Lines in it and in the libraries are ours, and never the student's.
LAB = "raftlab"
OURS = (*LIBRARIES, LAB)
FOLDERS = (*LIBRARIES, *STUDENTS, LAB)

# A package imports only what is to its left. Those in one bracket know nothing of each other. Those from `layout` on
# are parts of the lab.
ORDER = (
    ("labsim", "labgob"),
    ("labrpc",),
    ("raftapi",),
    ("layout",),
    ("trace",),
    ("check",),
    ("races",),
    ("guest",),
    ("harness",),
    ("scenarios",),
    ("sandbox",),
    ("pytest_plugin",),
    ("cluster",),
    ("tools",),
)
_PARTS = tuple(package for those in ORDER for package in those if package not in LIBRARIES)
# What makes a run, beside the libraries, the peer and the test. No run depends on the parts behind these.
_RUN = _PARTS[: _PARTS.index("cluster")]
TOOLS = f"{LAB}/tools"
# Those that are no folder.
_FILES = {"layout": (f"{LAB}/__init__.py", f"{LAB}/layout.py"), "tools": (f"{LAB}/__main__.py", TOOLS)}


def parts_of(package: str) -> tuple[str, ...]:
    """The folder of a package, or its files."""
    return _FILES.get(package, (f"{LAB}/{package}" if package in _PARTS else package,))


def package_of(path: str) -> str | None:
    """The package that a file is in, by its path in the project; None for what is in none."""
    packages = (*(package for those in ORDER for package in those), *STUDENTS)
    return next((one for one in packages if any(f"{path}/".startswith(f"{part}/") for part in parts_of(one))), None)


def may_import(package: str) -> set[str]:
    """Which other packages that one may import."""
    if package in STUDENTS:
        return {*LIBRARIES, *STUDENTS[: STUDENTS.index(package)]}
    place = next(place for place, those in enumerate(ORDER) if package in those)
    return {other for those in ORDER[:place] for other in those}


# What the process of a sandboxed peer can read of the lab, besides the libraries.
SANDBOX_FILES = (
    *parts_of("layout"),
    *(f"{LAB}/{package}" for package in ("trace", "races", "guest")),
    *(f"{LAB}/check/{name}.py" for name in ("__init__", "cluster_snapshot", "failure", "harness_rules", "task_errors")),
)


def run_files() -> list[Path]:
    """Every file of the lab that has a part in a run."""
    parts = [ROOT / part for package in (*LIBRARIES, *_RUN) for part in parts_of(package)]
    return [path for part in parts for path in (sorted(part.rglob("*.py")) if part.is_dir() else [part])]


def peer_files() -> list[Path]:
    """What is ours in the student's package: a peer without messages of its own uses these."""
    return [ROOT / PEER / name for name in PEER_FILES]


def tool_files() -> list[Path]:
    """Every module around the runs that is here; a student has fewer tools."""
    return sorted({*(ROOT / LAB).rglob("*.py")} - {*run_files()})


# ---- who gets which file -----------------------------------------------------------------------------------------

# By folder; a pattern covers one folder, or with ** all that is below it.
Patterns = Mapping[str, tuple[str, ...]]

_MODULES = ("**/*.py", "py.typed")

FOR_ALL: Patterns = {
    **dict.fromkeys(LIBRARIES, _MODULES),
    LAB: ("__init__.py", "__main__.py", "layout.py", "py.typed"),
    **{f"{LAB}/{package}": _MODULES[:1] for package in (*_RUN, "cluster") if package != "layout"},
    PEER: (*PEER_FILES, "py.typed"),
    SERVICE: ("__init__.py", "py.typed"),
    TOOLS: ("__init__.py", "cli.py", "selection.py"),
    **dict.fromkeys(
        [
            f"{TOOLS}/{tool}"
            for tool in (
                *("common", "fuzz", "generator", "live", "next", "page", "replay", "scenario", "shrink", "stress"),
                *("timeline", "watch", "workers"),
            )
        ],
        _MODULES[:1],
    ),
    f"{TOOLS}/live/web": ("*.css", "*.html", "*.js"),
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
    "docs/student": ("**/*.md", "*.png"),
    ".vscode": ("tasks.json",),
    ".devcontainer": ("devcontainer.json",),
    ".": (".gitignore",),
}
FOR_GRADESCOPE: Patterns = {
    f"{TOOLS}/grade": ("**/*.py", "pages/*.css", "pages/*.js"),
    ".": ("README.md",),
}


def project_of(folder: Path) -> Path:
    """The project that the folder is in, or else the folder itself."""
    return next((each for each in (folder, *folder.parents) if (each / "tests/test_2a.py").is_file()), folder)


class LayoutError(Exception):
    """A pattern that names nothing any more."""


def paths(*parts: Patterns, root: Path = ROOT) -> list[Path]:
    """The files that the patterns name."""
    found: dict[Path, None] = {}
    for folder, pattern in ((folder, pattern) for part in parts for folder, those in part.items() for pattern in those):
        here = sorted((root / folder).glob(pattern))
        if not here:
            raise LayoutError(f"{folder}/{pattern} names no file any more; correct raftlab/layout.py")
        found |= dict.fromkeys(here)
    return list(found)
