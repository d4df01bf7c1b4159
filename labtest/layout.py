"""The one list: which packages there are, in which order they may import each other, and who gets which file.

Promise: whatever else needs such a list derives it from here: the tests of imports and of pyproject.toml, the handout,
the Gradescope zip, the sandbox, the records of runs, the reports. A new file in a package, or in the folder of a tool
that is named here, goes wherever its neighbours go; what is named nowhere goes to nobody. Imports nothing of ours.

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
# What a run is made of, beside the peer and the test.
RUN = (*LIBRARIES, "labtest")
# What is run around the tests. No run depends on it.
TOOLS = "labtools"
# Lines in these are ours, and never the student's.
OURS = (*RUN, TOOLS)
FOLDERS = (*LIBRARIES, *STUDENTS, *(folder for folder in OURS if folder not in LIBRARIES))

# A package imports only what is to its left. Those in one bracket know nothing of each other.
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
# What is in each. Of two entries that fit a file the longer counts.
MODULES: Mapping[str, tuple[str, ...]] = {
    **{library: (library,) for library in LIBRARIES},
    "layout": ("labtest/__init__.py", "labtest/layout.py"),
    "trace": (
        "labtest/acts.py",
        "labtest/checks/reading.py",
        "labtest/choicefile.py",
        "labtest/events.py",
        "labtest/tracefile.py",
    ),
    "check": (
        "labtest/accusing.py",
        "labtest/checks",
        "labtest/diagnoses",
        "labtest/failure.py",
        "labtest/linearizability",
        "labtest/snapshot.py",
        "labtest/task_errors.py",
    ),
    "races": ("labtest/race", "labtest/unordered.py"),
    "guest": (
        "labtest/isolation/code.py",
        "labtest/isolation/guest.py",
        "labtest/isolation/inside.py",
        "labtest/isolation/last_words.py",
        "labtest/isolation/protocol.py",
        "labtest/isolation/race_guest.py",
        "labtest/isolation/scratch.py",
        "labtest/peer_contract.py",
    ),
    "harness": ("labtest",),
    "scenarios": ("labtest/acting.py", "labtest/collection.py", "labtest/scenarios"),
    "sandbox": ("labtest/isolation",),
    "pytest_plugin": ("labtest/hooks.py", "labtest/plugin.py", "labtest/scenarios/collecting.py"),
    "cluster": ("labtools/cluster",),
    "tools": (TOOLS,),
    **{package: (package,) for package in STUDENTS},
}


def package_of(path: str) -> str | None:
    """The package that a file is in, by its path in the project; None for what is in none."""
    entries = [(entry, package) for package, those in MODULES.items() for entry in those]
    fits = [(len(entry), package) for entry, package in entries if f"{path}/".startswith(f"{entry}/")]
    return max(fits)[1] if fits else None


def may_import(package: str) -> set[str]:
    """Which other packages that one may import."""
    if package in STUDENTS:
        return {*LIBRARIES, *STUDENTS[: STUDENTS.index(package)]}
    place = next(place for place, those in enumerate(ORDER) if package in those)
    return {other for those in ORDER[:place] for other in those}


def run_files() -> list[Path]:
    """Every file of the lab that has a part in a run."""
    found = [path for folder in RUN for path in sorted((ROOT / folder).rglob("*.py"))]
    return [*found, *(ROOT / PEER / name for name in PEER_FILES)]


def tool_files() -> list[Path]:
    """Every module of the tools that are here; a student has fewer of them."""
    return sorted((ROOT / TOOLS).rglob("*.py"))


# ---- who gets which file -----------------------------------------------------------------------------------------

# By folder; a pattern covers one folder, or with ** all that is below it.
Patterns = Mapping[str, tuple[str, ...]]

_MODULES = ("**/*.py", "py.typed")

FOR_ALL: Patterns = {
    **dict.fromkeys(RUN, _MODULES),
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
    f"{TOOLS}/grade": ("**/*.py", "pages/*.css", "pages/*.js"),
    ".": ("README.md",),
}


class LayoutError(Exception):
    """A pattern that names nothing any more."""


def paths(*parts: Patterns, root: Path = ROOT) -> list[Path]:
    """The files that the patterns name."""
    found: dict[Path, None] = {}
    for folder, pattern in ((folder, pattern) for part in parts for folder, those in part.items() for pattern in those):
        here = sorted((root / folder).glob(pattern))
        if not here:
            raise LayoutError(f"{folder}/{pattern} names no file any more; correct labtest/layout.py")
        found |= dict.fromkeys(here)
    return list(found)
