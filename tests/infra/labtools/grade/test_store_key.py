"""What makes the grader run a class again: a change of what runs in the sandbox, and of nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.labtools.test_manifest import a_copy
from infra.students import ROOT
from labtest import rooms
from labtools import manifest
from labtools.grade.grading import Exam
from labtools.grade.rubric import Limits
from labtools.grade.sandbox.box import Sandbox
from labtools.grade.sandbox.walls import LabCopy

IMPORTED = """
import sys
def test_what_is_loaded_2a(make_config):
    make_config(servers=3).check_one_leader()
    for module in list(sys.modules.values()):
        print(getattr(module, "__file__", None))
"""


@pytest.fixture(scope="module")
def lab():
    lab = LabCopy()
    yield lab
    lab.close()


def really_imported(lab):
    """The lab's files that a worker has loaded when a run ends, by their place in the project."""
    files = {f"raft/{name}": (ROOT / "raft" / name).read_bytes() for name in (*rooms.PEER_FILES, "raft.py")}
    sandbox = Sandbox(lab, files, "raft/raft.py", Limits())
    try:
        sandbox.load({"tests/loaded.py": IMPORTED.encode()})
        run = sandbox.run("test_what_is_loaded_2a", 7, "replay")
    finally:
        sandbox.end()
    assert run.passed, run.report
    # Without what the worker takes out of a run's reach, and what it is itself.
    lines = run.output.splitlines()
    script = "import sys, labtools.grade.sandbox.worker\nfor m in sys.modules.values(): print(vars(m).get('__file__'))"
    command, environment = [sys.executable, "-P", "-c", script], {"PYTHONPATH": str(lab.path)}
    own = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines += own.stdout.splitlines()
    found = {line.partition(f"{top}/")[2] for line in lines for top in ("/lab", lab.path) if line.startswith(f"{top}/")}
    assert {
        "labsim/simulation.py",
        "labtest/running.py",
        "labtools/selecting.py",
        "labtest/verdict.py",
    } <= found
    return {ROOT / name for name in found}


def key_if(changed, monkeypatch):
    """The key if one file had another line."""
    read = Path.read_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: read(path) + b"\n# another" * (path == changed))
        return Exam((), {}, Limits()).lab_code


def test_any_file_that_is_loaded_in_the_sandbox_is_in_the_key(lab, monkeypatch):
    now = Exam((), {}, Limits()).lab_code
    imported = really_imported(lab)
    assert sorted(str(path) for path in imported if key_if(path, monkeypatch) == now) == []
    # And nothing else of the tools lies in there.
    tools = ROOT / rooms.TOOLS
    assert {path for path in manifest.sandbox_files() if tools in path.parents} <= imported


def test_what_only_looks_at_results_is_not_in_the_key(monkeypatch):
    now = Exam((), {}, Limits()).lab_code
    inside = {*manifest.sandbox_files(), ROOT / "labtools/grade/sandbox/walls.py"}
    outside = [path for path in rooms.tool_files() if path not in inside]
    pages = [path for path in (ROOT / "labtools/grade/pages").iterdir() if path.is_file()]
    assert {path.suffix for path in pages} == {".py", ".css", ".js"}
    assert [path for path in [*outside, *pages] if key_if(path, monkeypatch) != now] == []
    names = {str(path.relative_to(ROOT / "labtools")) for path in outside}
    assert {"cli.py", "grade/command.py", "grade/write.py", "grade/pages/style.py", "timeline/command.py"} <= names


def test_another_page_style_keeps_what_was_graded_and_another_lab_does_not(tmp_path):
    project = a_copy(tmp_path)
    (tmp_path / "raft.py").write_text("raise ValueError('a peer that is soon graded')")
    (tmp_path / "rubric.toml").write_text("runs = 1\n[points]\n2a = 1\n")

    def grade():
        where = [str(tmp_path / "raft.py"), "--rubric", "rubric.toml", "--out", "out"]
        command = [sys.executable, "-P", "-m", "labtools", "grade", *where]
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
    style = project / "labtools" / "grade" / "pages" / "page.css"
    style.write_text(style.read_text().replace("--accent: #2c6390", "--accent: #123456"))
    assert "graded in 1 runs (1 were there already):" in grade()
    assert "--accent: #123456" in (tmp_path / "out" / "index.html").read_text()
    selecting = project / "labtools" / "selecting.py"
    selecting.write_text(f"{selecting.read_text()}\n# another\n")
    assert "graded in 1 runs:" in grade()
