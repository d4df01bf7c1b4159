"""Cached runs become invalid when the code that makes runs changes, and only then."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from raftlab import layout
from raftlab.tools.grade.grader import Assignment
from raftlab.tools.grade.runs.run_digest import FUZZ_TESTS, graded_run_files
from raftlab.tools.grade.runs.run_worker import missing_sandbox
from raftlab.tools.grade.values.rubric import Limits
from unit.students import ROOT
from unit.test_layout import a_copy

# A worker makes a run, and prints what it has loaded. The second process is a peer process.
SCRIPT = """
import sys
from pathlib import Path
from raftlab.tools.grade.runs import worker
from raftlab.tools.grade.values.rubric import Limits
import raftlab.guest.fork_server
setup = worker.RunSetup({"raft/raft.py": Path(sys.argv[1]).read_bytes()}, "raft/raft.py", Limits())
request = worker.RunRequest(setup, sys.argv[2], "tests/x.py", sys.argv[3], 7, "replay")
(answer,) = worker.begin(b"", 0)(worker.encode(request))
assert b'"events"' in answer and b'"ending"' not in answer, answer
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None))
"""


@cache
def really_imported():
    """The lab's files that a worker, or a peer process, has loaded when a run ends."""
    found = set()
    for file, test in (("tests/test_2a.py", "test_initial_election_2a"), (FUZZ_TESTS, "test_fuzz_2c")):
        command = [sys.executable, "-P", "-c", SCRIPT, str(ROOT / "raft/raft.py"), str(ROOT / file), test]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
        found |= {Path(line) for line in done.stdout.splitlines()}
    ours = {path for path in found if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in OURS}
    expected = (
        "labsim/simulation.py",
        "raftlab/harness/run.py",
        "raftlab/guest/peer_process.py",
        "raftlab/tools/selection.py",
    )
    assert {ROOT / name for name in expected} <= ours
    return ours


OURS = (*layout.OURS, layout.PEER)


def key_if(changed, monkeypatch):
    """The key if one file had another line."""
    read = Path.read_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: read(path) + b"\n# another" * (path == changed))
        return Assignment((), {}, Limits()).lab_code


def test_key_covers_all_imported_files(monkeypatch):
    now = Assignment((), {}, Limits()).lab_code
    imported = really_imported()
    assert sorted(str(path) for path in imported if key_if(path, monkeypatch) == now) == []
    # And nothing else of the tools is.
    tools = ROOT / layout.TOOLS
    assert {path for path in graded_run_files() if tools in path.parents} <= imported


def test_graded_runs_do_not_import_the_in_process_loader():
    assert {ROOT / "raftlab/harness" / name for name in ("loader.py", "in_process.py", "program.py")}.isdisjoint(
        really_imported()
    )


def test_display_code_is_not_in_the_key(monkeypatch):
    now = Assignment((), {}, Limits()).lab_code
    inside = set(graded_run_files())
    tools = ROOT / layout.TOOLS
    outside = [path for path in layout.tool_files() if path not in inside]
    pages = [path for path in (ROOT / "raftlab/tools/grade/pages").iterdir() if path.is_file()]
    assert {path.suffix for path in pages} == {".py", ".css", ".js"}
    assert [path for path in [*outside, *pages] if key_if(path, monkeypatch) != now] == []
    names = {str(path.relative_to(tools)) for path in outside if tools in path.parents}
    assert {"cli.py", "grade/command.py", "grade/output.py", "grade/pages/style.py", "timeline/command.py"} <= names


@pytest.mark.skipif(bool(missing_sandbox()), reason=missing_sandbox())
def test_cache_depends_on_lab_not_on_style(tmp_path):
    project = a_copy(tmp_path)
    (tmp_path / "raft.py").write_text("raise ValueError('a peer that is soon graded')")
    (tmp_path / "rubric.toml").write_text("runs = 1\n[points]\n2a = 1\n")

    def grade():
        where = [str(tmp_path / "raft.py"), "--rubric", "rubric.toml", "--out", "out"]
        command = [sys.executable, "-P", "-m", "raftlab", "grade", *where]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={"PYTHONPATH": str(project), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "graded in 1 runs:" in grade()
    style = project / layout.TOOLS / "grade" / "pages" / "page.css"
    style.write_text(style.read_text().replace("--accent: #2c6390", "--accent: #123456"))
    assert "graded in 1 runs (1 from the cache):" in grade()
    assert "--accent: #123456" in (tmp_path / "out" / "index.html").read_text()
    selecting = project / layout.TOOLS / "selection.py"
    selecting.write_text(f"{selecting.read_text()}\n# another\n")
    assert "graded in 1 runs:" in grade()
