"""Knowledge flows one way between our packages, and the tester never knows a particular Raft."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT = {
    "labsim": set(),
    "labgob": set(),
    "labrpc": {"labsim", "labgob"},
    "raft": {"labsim", "labgob", "labrpc"},
    "labtest": {"labsim", "labgob", "labrpc", "raft"},
    "labtools": {"labsim", "labgob", "labrpc", "raft", "labtest"},
}


def imported_names(source, package):
    """(line, dotted name) of everything the source imports; `from a import b` gives both a and a.b."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield statement.lineno, alias.name
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                # Relative: all our packages are flat or nearly so, and what is relative stays in the package.
                base = f"{package}.{base}".rstrip(".")
            yield statement.lineno, base
            for alias in statement.names:
                yield statement.lineno, f"{base}.{alias.name}"


def broken_rules(package, source):
    found = []
    for line, name in imported_names(source, package):
        top = name.partition(".")[0]
        if top in MAY_IMPORT and top != package and top not in MAY_IMPORT[package]:
            found.append(f"line {line}: {package} must not import {top}")
        if package == "labtest" and (name == "raft.raft" or name.startswith("raft.raft.")):
            found.append(f"line {line}: labtest must not import a particular Raft")
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(package):
    files = sorted((ROOT / package).rglob("*.py"))
    found = {
        str(file.relative_to(ROOT)): broken
        for file in files
        if (broken := broken_rules(package, file.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_every_room_is_there():
    assert [name for name in MAY_IMPORT if not (ROOT / name / "__init__.py").is_file()] == []


@pytest.mark.parametrize(
    ("package", "source", "broken"),
    [
        ("labsim", "import labgob", ["line 1: labsim must not import labgob"]),
        ("labgob", "def f():\n    from labsim import time", ["line 2: labgob must not import labsim"] * 2),
        ("labrpc", "import labsim.time, labgob", []),
        ("raft", "import labtest.config as c", ["line 1: raft must not import labtest"]),
        ("labtest", "from raft import raft", ["line 1: labtest must not import a particular Raft"]),
        ("labtest", "from raft.raft import Raft", ["line 1: labtest must not import a particular Raft"] * 2),
        ("labtest", "import raft.raft", ["line 1: labtest must not import a particular Raft"]),
        ("labtest", "from raft.messages import ApplyMsg", []),
        ("labsim", "from . import guard\nfrom .guard import trust\nimport labsimulator, time", []),
    ],
)
def test_the_rules_are_seen_to_break(package, source, broken):
    assert broken_rules(package, source) == broken
