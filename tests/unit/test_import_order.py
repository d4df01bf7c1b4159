"""Packages import each other in the order of raftlab/layout.py, and a tool only the tools that are named here."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import PurePosixPath

import pytest

from raftlab import layout
from raftlab.layout import ROOT, TOOLS

# What any tool may use, and which other tools a tool uses.
HELPERS = {"__init__", "common", "selection", "workers"}
USES = {
    "workers": {"__init__", "selection"},  # dask.py sends all of the package
    "page": {"timeline"},
    "live": {"page"},
    "shrink": {"generator", "timeline"},
    "scenario": {"shrink", "timeline"},
    "fuzz": {"generator", "shrink"},
    "grade": {"grade/runs", "grade/pages", "grade/artifacts", "grade/values"},
    # What is part of a run's digest knows no page and no command, and pages know results alone.
    "grade/runs": {"grade/values"},
    "grade/pages": {"grade/values"},
    "grade/artifacts": {"grade/runs", "grade/values", "page", "shrink", "timeline"},
}


def file_of(name):
    """The project's file that importing this name executes last; None if it is another's."""
    while name:
        path = ROOT / name.replace(".", "/")
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file.relative_to(ROOT).as_posix()
        name = name.rpartition(".")[0]
    return None


def imported_files(path, source):
    """(line, file) of everything of ours that is imported at that path, also inside functions and for types alone."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = PurePosixPath(path).parts[: -node.level] if node.level else ()
            names = [".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names]
        yield from ((node.lineno, file) for file in dict.fromkeys(map(file_of, names)) if file is not None)


def against_the_order(path, source):
    own = layout.package_of(path)
    allowed = {own, None, *layout.may_import(own)}
    files = [(line, file) for line, file in imported_files(path, source) if layout.package_of(file) not in allowed]
    return [f"line {line}: {own} must not import {layout.package_of(file)}: {file}" for line, file in files]


def tool_of(path):
    """The tool that a file below raftlab/tools belongs to: its folder, or itself; of the grader a folder within."""
    below = PurePosixPath(path).relative_to(TOOLS).with_suffix("")
    return "/".join(below.parent.parts[:2]) or below.name


def unnamed_uses(path, source):
    own = tool_of(path)
    allowed = {own, *USES.get(own, ()), *(HELPERS if own not in HELPERS else ())}
    files = [(line, file) for line, file in imported_files(path, source) if layout.package_of(file) == "tools"]
    return [f"line {line}: {own} must not use {tool_of(file)}" for line, file in files if tool_of(file) not in allowed]


def broken(check, folders):
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    paths = [(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")) for file in files]
    return {path: found for path, source in paths if (found := check(path, source))}


def test_a_package_imports_only_what_is_to_its_left():
    assert broken(against_the_order, layout.FOLDERS) == {}


def test_a_tool_uses_only_what_is_named():
    assert broken(unnamed_uses, [TOOLS]) == {}


def test_no_tools_use_each_other():
    list(TopologicalSorter(USES).static_order())  # CycleError names the cycle


def test_every_package_and_module_is_in_the_list():
    ordered = [package for those in layout.ORDER for package in those]
    parts = {part for package in (*ordered, *layout.STUDENTS) for part in layout.parts_of(package)}
    assert [part for part in sorted(parts) if not (ROOT / part).exists()] == []
    files = [file.relative_to(ROOT).as_posix() for folder in layout.FOLDERS for file in (ROOT / folder).rglob("*.py")]
    assert [file for file in files if layout.package_of(file) is None] == []
    tools = {tool_of(path.relative_to(ROOT).as_posix()) for path in (ROOT / TOOLS).rglob("*.py")}
    assert HELPERS | USES.keys() <= tools


def test_every_package_and_tool_has_tests():
    tools = [f"tools/{path.name}" for path in (ROOT / TOOLS).iterdir() if (path / "__init__.py").is_file()]
    ours = [*(package for those in layout.ORDER for package in those if package not in ("layout", "guest")), *tools]
    assert [name for name in ours if not list((ROOT / "tests/unit" / name).glob("test_*.py"))] == []


RUN_2A = """
import sys
from pathlib import Path
from raftlab.harness.run import run_test
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.selection import load_tests

launcher = launcher_for(Path("raft/raft.py"), isolated=False)
assert run_test(load_tests(Path("tests/test_2a.py"))[0], launcher, 1).error is None
print(*sorted(name for name in sys.modules if name.startswith("raftlab.")))
"""
# What an in-process run of a test of peers alone does without.
NOT_IN_PROCESS = (
    *("check.linearizability", "check.service_diagnosis", "races", "sandbox", "pytest_plugin", "cluster", "tools"),
    *("harness.kv_config", "harness.clients", "harness.workload", "harness.interceptor"),
)
CHOOSES_THE_LAUNCHER = {"raftlab.sandbox", "raftlab.sandbox.loader"}
FINDS_THE_TEST = {"raftlab.tools", "raftlab.tools.selection"}


def test_a_run_in_process_imports_only_what_it_uses():
    shown = subprocess.run([sys.executable, "-c", RUN_2A], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    needless = tuple(f"raftlab.{name}" for name in NOT_IN_PROCESS)
    found = {name for name in shown.split() if f"{name}.".startswith(tuple(f"{one}." for one in needless))}
    assert found == CHOOSES_THE_LAUNCHER | FINDS_THE_TEST


GRADING_WORKERS = ("raftlab.tools.grade.runs.worker", "raftlab.tools.grade.artifacts.worker")
LOADS_INTO_THIS_PROCESS = {f"raftlab.harness.{name}" for name in ("loader", "in_process", "program")}


@pytest.mark.parametrize("worker", GRADING_WORKERS)
def test_a_grading_worker_cannot_load_a_peer_into_its_process(worker):
    script = f"import sys, {worker}; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert LOADS_INTO_THIS_PROCESS & set(shown.split()) == set()


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("labsim/x.py", "import labgob", "1: labsim must not import labgob: labgob/__init__.py"),
        ("labgob/x.py", "def f():\n    from labsim import time", "2: labgob must not import labsim: labsim/time.py"),
        ("labrpc/x.py", "import labsim.time, labgob", None),
        ("labsim/x.py", "from . import guard\nfrom .guard import trust\nimport labsimulator, time", None),
        ("raft/x.py", "from raftapi import Persister", None),
        (
            "raft/x.py",
            "import raftlab.harness.config as c",
            "1: raft must not import harness: raftlab/harness/config.py",
        ),
        ("kv/x.py", "if TYPE_CHECKING:\n    from raft.raft import Raft", None),
        ("raftlab/harness/x.py", "from raft import raft", "1: harness must not import raft: raft/raft.py"),
        ("raftlab/trace/events.py", "from raftlab.trace import decoding", None),
        (
            "raftlab/trace/events.py",
            "if TYPE_CHECKING:\n    from raftlab.check.rules import facts",
            "2: trace must not import check: raftlab/check/rules/facts.py",
        ),
        (
            "raftlab/check/rules/x.py",
            "from raftlab import layout\nfrom raftlab.races import data_race",
            "2: check must not import races: raftlab/races/data_race.py",
        ),
        ("raftlab/cluster/x.py", "import raftlab.tools.cli", "1: cluster must not import tools: raftlab/tools/cli.py"),
    ],
)
def test_a_wrong_import_is_found(path, source, wrong):
    assert against_the_order(path, source) == ([] if wrong is None else [f"line {wrong}"])


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("raftlab/tools/timeline/x.py", "from raftlab.tools import stress", "timeline must not use stress"),
        (
            "raftlab/tools/timeline/x.py",
            "from raftlab.tools.timeline import labels\nfrom raftlab.tools import selection",
            None,
        ),
        ("raftlab/tools/grade/x.py", "from raftlab.tools.workers.pool import LocalPool", None),
        ("raftlab/tools/common/x.py", "from raftlab.tools.selection import x", "common must not use selection"),
        ("raftlab/tools/grade/pages/x.py", "from raftlab.tools.grade import write", "grade/pages must not use grade"),
        ("raftlab/tools/grade/x.py", "from raftlab.tools.grade.pages import overview", None),
        ("raftlab/tools/cli.py", "from raftlab.tools.page import html", "cli must not use page"),
    ],
)
def test_a_wrong_use_is_found(path, source, wrong):
    assert unnamed_uses(path, source) == ([] if wrong is None else [f"line 1: {wrong}"])
