"""The recorded digests hold, and only what changes a run changes its digest."""

import ast
import builtins
import os
import re
import shutil
import subprocess
import sys

import pytest
from digests.base import FORMAT, BaseError, read_base, read_renamed
from digests.compare import first_difference

from raftlab.layout import FOLDERS
from unit.students import ROOT


def compare(tree, *options):
    """What `compare` finds in a copy of the project: its exit status and what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "tests.digests", "compare", "--jobs", "1", *map(str, options)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def copy(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "unit", "mutants", "peers")
    for name in (*FOLDERS, "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path


# ---- edits that change no run ---------------------------------------------------------------------------------------


class _Edited(ast.NodeTransformer):
    """Local variables get other names, and what is said in begin() and fail() other words."""

    def __init__(self, tree):
        self.globals = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(dir(builtins))
        for node in tree.body:
            self.globals |= {getattr(node, "name", "")}
            self.globals |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and _is_global(node)}
            self.globals |= {(alias.asname or alias.name) for alias in getattr(node, "names", ())}
        self.renamed = set()
        self.reworded = 0

    def visit_FunctionDef(self, node):  # ast's own name
        outermost = not self.renamed
        if outermost:
            stored, kept = set(), set(self.globals)
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    stored.add(each.id)
                elif isinstance(each, ast.arg):
                    kept.add(each.arg)
                elif isinstance(each, ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom):
                    kept |= {getattr(name, "asname", None) or getattr(name, "name", name) for name in each.names}
                elif isinstance(each, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.FunctionDef | ast.ClassDef):
                    kept.add(each.name)
            self.renamed = stored - kept
        self.generic_visit(node)
        if outermost:
            self.renamed = set()
        return node

    def visit_Name(self, node):
        return ast.Name(f"{node.id}_renamed", node.ctx) if node.id in self.renamed else node

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("begin", "fail") and node.args:
            match node.args[0]:
                case ast.Constant(value=str()) as text:
                    text.value += " In other words."
                    self.reworded += 1
                case ast.JoinedStr(values=values):
                    values.append(ast.Constant(" In other words."))
                    self.reworded += 1
        return node


def _is_global(node):
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.If | ast.Try | ast.For | ast.With)


def edited(source):
    """Reformatted, with other local names and texts, and with a comment at the top of each function."""
    tree = ast.parse(source)
    edit = _Edited(tree)
    lines = []
    for line in ast.unparse(edit.visit(tree)).splitlines():
        lines.append(line)
        if re.match(r"\s*(async )?def .*:$", line):
            lines.append("# a comment, and then another line\n")
    return "\n".join(lines) + "\n", edit.reworded


def test_edits_that_change_no_run_change_no_digest(copy):
    reworded = 0
    for file in [
        *(copy / "tests").glob("test_*.py"),
        *(copy / "raftlab").rglob("*.py"),
        *(copy / "labrpc").glob("*.py"),
    ]:
        text, count = edited(file.read_text())
        file.write_text(text)
        reworded += count
    assert reworded > 100
    (copy / "raftlab/harness/workload.py").rename(copy / "raftlab/harness/moved.py")
    other_names = {"Latency": "LatencyRange", "LinkChange": "LinkState", "ServerSlot": "Slot", "workload": "moved"}
    pattern = re.compile(rf"\b({'|'.join(other_names)})\b")
    for file in (file for name in (*FOLDERS, "tests") for file in (copy / name).rglob("*.py")):
        file.write_text(pattern.sub(lambda match: other_names[match[0]], file.read_text()))
    status, said = compare(copy, "--seed", 7, "--mode", "in-process")
    assert status == 0, said
    status, said = compare(copy, "--seed", 7, "--mode", "isolated", "--mode", "race", "--sample", 30)
    assert status == 0, said


@pytest.mark.parametrize(
    ("file", "was", "becomes"),
    [
        ("raftlab/harness/config.py", "random.uniform(0.450, 0.550)", "random.uniform(0.450, 0.551)"),
        ("raftlab/harness/servers.py", "USUAL_LATENCY_MS = (", "USUAL_LATENCY_MS = (0.001 + "),
        ("raft/raft.py", "for peer in range(len(self.peers))", "for peer in reversed(range(len(self.peers)))"),
    ],
    ids=["a draw", "a latency", "the order of two sends"],
)
def test_a_change_of_the_run_changes_its_digest(copy, file, was, becomes):
    source = (copy / file).read_text()
    assert was in source
    (copy / file).write_text(source.replace(was, becomes))
    status, said = compare(copy, "--seed", 7, "--mode", "in-process", "--test", "test_reelection_2a")
    assert status == 1
    assert "test_reelection_2a seed 7 in-process: differs" in said


# ---- the recorded digests -------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    read_base().python != f"{sys.version_info[0]}.{sys.version_info[1]}", reason="recorded with another Python"
)
@pytest.mark.parametrize(("mode", "every"), [("in-process", 10), ("isolated", 30), ("race", 30)])
def test_recorded_runs_are_the_same_now(mode, every):
    status, said = compare(ROOT, "--mode", mode, "--sample", every)
    assert status == 0, f"{said}\nIf runs should change, say why in the commit and run: python -m tests.digests record"


def test_enough_runs_are_recorded_in_every_mode():
    digests = read_base().digests
    assert len(digests) >= 300
    assert all(len(each) == 3 and all(each) for each in digests.values())


def test_the_first_difference_is_named():
    def event(digest, at_ms, kind, text=""):
        return [digest, at_ms * 1_000_000, kind, "1", len(text), text]

    then = [event("a", 1, "send", "x"), event("b", 2, "deliver", "x")]
    assert "event 2 differs" in first_difference(then, [then[0], event("c", 2, "drop", "lost")])
    assert "0.002000 s  peer 1 drop lost" in first_difference(then, [then[0], event("c", 2, "drop", "lost")])
    assert "event 2 is equal, but the schedule" in first_difference(then, [then[0], event("c", 2, "deliver", "x")])
    assert "equal for 1 events; only the recorded run continues" in first_difference(then, then[:1])
    assert "the runs differ after the last one" in first_difference(then, then)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("never_recorded new", ":1: never_recorded is not in the base"),
        ("kept new", ":1: test kept still exists"),
        ("gone nowhere", ":1: nowhere is not a test"),
        ("gone kept", ":1: kept is in the base already"),
        ("gone", ":1: got 'gone'; write: old_name new_name"),
    ],
)
def test_a_wrong_renaming_is_refused(tmp_path, line, problem):
    (tmp_path / "renamed.txt").write_text(f"{line}\n")
    with pytest.raises(BaseError, match=re.escape(problem)):
        read_renamed(tmp_path / "renamed.txt", {"gone", "kept"}, {"new", "kept"})


def test_a_renamed_test_keeps_its_digests(tmp_path):
    (tmp_path / "renamed.txt").write_text("# why\ngone new\n")
    assert read_renamed(tmp_path / "renamed.txt", {"gone"}, {"new"}) == {"gone": "new"}


def test_a_damaged_base_is_refused_with_its_file(tmp_path):
    for text in ("", "something else\n", f"{FORMAT}\npython 3.11\ncommit x\nheader\ntest notaseed a b c\n"):
        (tmp_path / "base.txt").write_text(text)
        with pytest.raises(BaseError, match=r"base\.txt.*record it again"):
            read_base(tmp_path / "base.txt")
