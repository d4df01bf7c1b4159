"""What the lab is made of is said once: a new file, or a new package, is everywhere at once."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from raftlab import layout
from raftlab.tools import handout
from unit.students import ROOT

HERE = "labsim/more.py"
NEW_PACKAGE = "labmore/__init__.py"

WHO_HAS_IT = """
import json, sys, zipfile
from pathlib import Path
from labsim import stacks
from raftlab import layout
from raftlab.sandbox import confinement
from raftlab.tools import handout
from raftlab.tools.grade import gradescope
from raftlab.tools.grade.runs import run_digest
from raftlab.tools.grade.values.rubric import Rubric
from raftlab.tools.workers import job_bundle

names = sys.argv[1:]
gradescope.pack(Path("autograder.zip"), None, Rubric(), [], seeds_from="a word", reference={})
with zipfile.ZipFile("autograder.zip") as archive:
    packed = {name.removeprefix("raftlab/") for name in archive.namelist()}
shown = lambda paths: {str(path.relative_to(layout.ROOT)) for path in paths}
bound = {Path(word) for word in confinement.fork_server_command()}
have = {
    "sandbox": {name for name in names if not confinement.bubblewrap() or layout.ROOT / Path(name).parent in bound},
    "handout": set(handout.files()),
    "gradescope": packed,
    "judging": shown(run_digest.graded_run_files()),
    "records": shown(layout.run_files()),
    "dask": set(job_bundle.lab_itself()),
    "reports": {name for name in names if not stacks.is_user_code(str(layout.ROOT / name))},
}
print(json.dumps({who: [name for name in names if name in theirs] for who, theirs in have.items()}))
"""


def a_copy(folder):
    skipped = shutil.ignore_patterns(".*venv*", ".git", "build", "__pycache__", ".*_cache", "*.egg-info")
    return shutil.copytree(ROOT, folder / "project", ignore=skipped)


def test_a_new_file_or_package_is_everywhere_at_once(tmp_path):
    project = a_copy(tmp_path)
    for name in (HERE, NEW_PACKAGE):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    # The package is named in this one place.
    listed = (project / "raftlab" / "layout.py").read_text()
    assert listed.count('"labrpc", ') == 1
    (project / "raftlab" / "layout.py").write_text(listed.replace('"labrpc", ', '"labrpc", "labmore", '))
    (project / "labmore" / "py.typed").touch()
    command = [sys.executable, "-P", "-c", WHO_HAS_IT, HERE, NEW_PACKAGE]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(project)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {who: names for who, names in json.loads(done.stdout).items() if names != [HERE, NEW_PACKAGE]} == {}


def test_the_packages_that_are_installed_and_typed_are_these():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert project["mypy"]["packages"] == list(layout.FOLDERS)
    assert project["setuptools"]["packages"]["find"]["include"] == [f"{folder}*" for folder in layout.FOLDERS]
    assert [folder for folder in layout.FOLDERS if not (ROOT / folder / "py.typed").is_file()] == []


def test_every_tool_and_test_is_decided_upon():
    named = set(layout.paths(layout.FOR_ALL, layout.FOR_GRADESCOPE))
    ours = {path for path in layout.tool_files() if path not in named}
    assert ours == {ROOT / "raftlab" / "tools" / "handout.py"}
    assert set((ROOT / "tests").glob("test_*.py")) <= named
    assert {ROOT / "raftlab/tools/grade/pages/page.css", ROOT / "raftlab/tools/grade/pages/sort.js"} <= named


def test_students_get_nothing_that_is_for_gradescope_alone():
    for_gradescope = {path.relative_to(ROOT).as_posix() for path in layout.paths(layout.FOR_GRADESCOPE)}
    assert for_gradescope & set(handout.files()) == {"README.md"}
    assert handout.INSTEAD["README.md"] != "README.md"


def test_a_pattern_that_names_nothing_is_an_error():
    with pytest.raises(layout.LayoutError, match=r"^docs/gone\.md names no file any more; correct raftlab/layout"):
        layout.paths({"docs": ("gone.md",)})
    assert layout.paths({"docs/student": ("names.md",)}, {"docs/student": ("*s.md",)})[0] == Path(
        ROOT / "docs" / "student" / "names.md"
    )
