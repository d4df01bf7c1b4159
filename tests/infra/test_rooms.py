"""Knowledge flows one way between our packages and between the tools, and the tester never knows a particular Raft."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT = {
    "labsim": set(),
    "labgob": set(),
    "labrpc": {"labsim", "labgob"},
    "raftapi": {"labsim", "labgob", "labrpc"},
    "raft": {"labsim", "labgob", "labrpc", "raftapi"},
    # Of raft only the name of its class: which Raft is below a service, it is handed.
    "kv": {"labsim", "labgob", "labrpc", "raftapi", "raft"},
    "labtest": {"labsim", "labgob", "labrpc", "raftapi"},
    "labtools": {"labsim", "labgob", "labrpc", "raftapi", "labtest"},
}
# What students write: tested by running it.
STUDENTS = ("raft", "kv")

# The rooms of labtools, and its files that are in none. What may be used of another room: all of it, or one module.
TOOLS_MAY_IMPORT = {
    "common": set(),
    "selecting": set(),
    "manifest": set(),
    "workers": {"selecting"},
    "generator": set(),
    "handout": {"manifest"},
    "timeline": {"selecting"},
    # It words everything as the timeline does.
    "page": {
        *("selecting", "timeline.calls", "timeline.peers", "timeline.rows", "timeline.story", "timeline.words"),
    },
    "stress": {"common", "selecting", "workers"},
    # What cannot be written as a scenario may be drawn.
    "shrink": {"selecting", "timeline.command", "generator"},
    "scenario": {"selecting", "timeline.command", "shrink.shrinking"},
    "hunt": {"common", "selecting", "workers", "generator", "shrink.scripting"},
    # It asks for a timeline by name, when it is to print one.
    "replay": {"selecting"},
    "zoo": {"common", "selecting", "workers", "generator"},
    "grade": {
        *("common", "selecting", "manifest", "workers", "grade.judging", "grade.pages", "grade.showing"),
        *("grade.values", "stress.outcome", "stress.pool"),
    },
    "grade.values": {"selecting"},
    # What runs there is what is hashed: it knows no page and no command.
    "grade.judging": {"selecting", "workers", "grade.values.results", "grade.values.rubric"},
    # It draws and shrinks what was judged, as the two tools do.
    "grade.showing": {
        *("selecting", "manifest", "workers", "grade.judging", "grade.values"),
        *("page", "shrink.shrinking", "shrink.telling", "timeline.command"),
    },
    # Pages know results, and neither judging nor store.
    "grade.pages": {"common", "grade.values.results", "grade.values.rubric"},
    "cluster": {"common"},
    # Commands are imported by name, when they are called.
    "cli": set(),
    "__main__": {"cli"},
    "__init__": set(),
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
    return found


def room_of(name):
    """The room of labtools that a module is in, by its name below labtools: `grade.judging.worker`, `cli`."""
    within = [room for room in TOOLS_MAY_IMPORT if f"{name}.".startswith(f"{room}.")]
    return max(within, key=len, default=name)


def broken_directions(room, source):
    found = {}  # by line: `from a import b` names a and a.b
    for line, name in imported_names(source, "labtools"):
        inside = name.removeprefix("labtools.")
        if inside == name or room_of(inside) == room:
            continue  # not ours, or our own
        if any(other.startswith(f"{inside}.") for other in (*TOOLS_MAY_IMPORT[room], room)):
            continue  # the package above; what is taken from it is judged by its own name
        if not any(f"{inside}.".startswith(f"{other}.") for other in TOOLS_MAY_IMPORT[room]):
            found.setdefault(line, f"line {line}: {room} must not import {inside}")
    return list(found.values())


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(package):
    files = sorted((ROOT / package).rglob("*.py"))
    found = {
        str(file.relative_to(ROOT)): broken
        for file in files
        if (broken := broken_rules(package, file.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_tool_imports_only_what_it_may():
    tools = ROOT / "labtools"
    found = {}
    for file in sorted(tools.rglob("*.py")):
        path = file.relative_to(tools)
        room = room_of(".".join(path.with_suffix("").parts))
        assert room in TOOLS_MAY_IMPORT, f"{path} is in no room; say in TOOLS_MAY_IMPORT what it may import"
        if broken := broken_directions(room, file.read_text(encoding="utf-8")):
            found[str(path)] = broken
    assert found == {}


def test_no_tools_import_each_other():
    arrows = {}
    for room, others in TOOLS_MAY_IMPORT.items():
        arrows[room] = {room_of(other) for other in others} - {room}
    list(TopologicalSorter(arrows).static_order())  # CycleError names the cycle


def test_every_room_is_there():
    assert [name for name in MAY_IMPORT if not (ROOT / name / "__init__.py").is_file()] == []
    tools = [ROOT / "labtools" / room.replace(".", "/") for room in TOOLS_MAY_IMPORT]
    assert [path.name for path in tools if not path.with_suffix(".py").is_file() and not path.is_dir()] == []


def test_no_file_of_a_tool_carries_its_rooms_name():
    rooms = [path for path in (ROOT / "labtools").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert [file for room in rooms for file in room.iterdir() if file.name.startswith(f"{room.name}_")] == []


def test_the_tests_have_the_same_rooms():
    infra = ROOT / "tests" / "infra"
    tools = [path.name for path in (ROOT / "labtools").iterdir() if (path / "__init__.py").is_file()]
    rooms = [*(name for name in MAY_IMPORT if name not in STUDENTS), *(f"labtools/{tool}" for tool in tools)]
    assert [room for room in rooms if not list((infra / room).glob("test_*.py"))] == []


@pytest.mark.parametrize(
    ("package", "source", "broken"),
    [
        ("labsim", "import labgob", ["line 1: labsim must not import labgob"]),
        ("labgob", "def f():\n    from labsim import time", ["line 2: labgob must not import labsim"] * 2),
        ("labrpc", "import labsim.time, labgob", []),
        ("raft", "import labtest.config as c", ["line 1: raft must not import labtest"]),
        ("labtest", "from raft import raft", ["line 1: labtest must not import raft"] * 2),
        ("labtest", "from raftapi import ApplyMsg", []),
        ("labsim", "from . import guard\nfrom .guard import trust\nimport labsimulator, time", []),
    ],
)
def test_the_rules_are_seen_to_break(package, source, broken):
    assert broken_rules(package, source) == broken


@pytest.mark.parametrize(
    ("room", "source", "broken"),
    [
        ("timeline", "import labtools.stress.pool", ["line 1: timeline must not import stress.pool"]),
        ("timeline", "from labtools import stress", ["line 1: timeline must not import stress"]),
        ("timeline", "from labtools.timeline import words\nfrom labtools import selecting", []),
        ("grade", "from labtools.stress.pool import LocalPool", []),
        ("grade", "from labtools.stress import tally", ["line 1: grade must not import stress.tally"]),
        ("common", "from labtools.selecting import x", ["line 1: common must not import selecting"]),
        ("grade.pages", "from labtools.grade import write", ["line 1: grade.pages must not import grade.write"]),
        (
            "grade.pages",
            "from labtools.grade.judging import box",
            ["line 1: grade.pages must not import grade.judging"],
        ),
        ("grade", "from labtools.grade.pages import overview", []),
    ],
)
def test_directions_are_seen_to_break(room, source, broken):
    assert broken_directions(room, source) == broken
