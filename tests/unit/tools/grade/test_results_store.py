"""The results store: grading one submission again keeps the rest of the class; provenance."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import platform
from pathlib import Path

import pytest

from raftlab.tools.cli import main as lab

REFERENCE = Path("raft/raft.py").read_text()
BROKEN = "raise ValueError('a peer that is soon graded')"
HIDDEN = "def test_hidden_2a(make_config):\n    make_config(servers=3).check_one_leader()\n"
RUBRIC = "runs = 1\nseed = 'a word'\n[public]\nextra = false\n[points]\n2a = 30\n[failures]\npages = 0\nshrink = 0\n"


class Course:
    """A folder of submissions, one hidden test, and what `lab grade` makes of them."""

    def __init__(self, folder: Path) -> None:
        self.class_ = folder / "class"
        self.class_.mkdir()
        for name in ("ann", "bob", "zoe"):
            self.hand_in(f"{name}.py", BROKEN)
        self.hidden = folder / "hidden.py"
        self.hidden.write_text(HIDDEN)
        self.rubric = folder / "rubric.toml"
        self.rubric.write_text(RUBRIC)
        self.out = folder / "out"

    def hand_in(self, name: str, source: str) -> Path:
        path = self.class_ / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        return path

    def grade(self, what: Path | None = None) -> int:
        hidden = ["--hidden", str(self.hidden)] if self.hidden.exists() else []
        where = ["--rubric", str(self.rubric), "--out", str(self.out), "--jobs", "1"]
        return lab(["grade", str(what or self.class_), *hidden, *where])

    @property
    def scores(self) -> dict[str, str]:
        rows = csv.DictReader(io.StringIO((self.out / "scores.csv").read_text()))
        return {row["submission"]: row["score"] for row in rows}


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return Course(tmp_path)


def test_grading_one_again_keeps_the_class(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    assert course.grade() == 0
    assert course.scores == {"ann": "0", "bob": "0", "zoe": "0"}
    course.hand_in("bob.py", REFERENCE)
    capsys.readouterr()
    assert course.grade(course.class_ / "bob.py") == 0
    assert course.scores == {"ann": "0", "bob": "30", "zoe": "0"}
    assert "1 submission graded in 4 runs. Class of 3: mean 30, median 30 of 30, 1 with full marks." in (
        capsys.readouterr().out
    )
    page = (course.out / "index.html").read_text()
    assert all(f"full/{name}.html" in page for name in ("ann", "bob", "zoe"))
    # One more is added, and what was added is the same as if the whole class had been graded.
    assert course.grade(course.hand_in("cid.py", BROKEN)) == 0
    before = (course.out / "scores.csv").read_bytes()
    assert list(course.scores) == ["ann", "bob", "cid", "zoe"]
    assert course.grade() == 0
    assert (course.out / "scores.csv").read_bytes() == before


def test_removed_submission_leaves_the_class(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    assert course.grade() == 0
    (course.class_ / "zoe.py").unlink()
    capsys.readouterr()
    assert course.grade() == 0
    assert (
        "  removed from the class, because they are no longer in the folder (pages and runs are kept): zoe\n"
        in capsys.readouterr().out
    )
    assert list(course.scores) == ["ann", "bob"]
    assert "zoe" not in (course.out / "index.html").read_text()
    assert course.grade(course.class_ / "ann.py") == 0
    assert list(course.scores) == ["ann", "bob"]


@pytest.mark.parametrize("changed", ["the rubric", "the hidden tests", "the seeds"])
def test_results_of_another_assignment_are_not_mixed(
    course: Course, capsys: pytest.CaptureFixture[str], changed: str
) -> None:
    if changed == "the seeds":
        course.rubric.write_text(RUBRIC.replace("seed = 'a word'", ""))
        course.hidden.unlink()
    assert course.grade() == 0
    if changed == "the rubric":
        course.rubric.write_text(RUBRIC.replace("2a = 30", "2a = 40"))
    elif changed == "the seeds":
        (course.out / "seed").write_text("another word")
    else:
        course.hidden.write_text(f"{HIDDEN}# another\n")
    before = {path: path.read_bytes() for path in course.out.rglob("*") if path.is_file()}
    assert course.grade(course.class_ / "ann.py") == 2
    assert capsys.readouterr().err == (
        f"lab grade: {course.out}: has results of another assignment: bob and 1 more (differs in {changed}). Grade the "
        "folder of the whole class again (finished runs are cached), or use another --out for this submission\n"
    )
    assert {path: path.read_bytes() for path in course.out.rglob("*") if path.is_file()} == before
    assert course.grade() == 0
    assert course.grade(course.class_ / "ann.py") == 0
    assert list(course.scores) == ["ann", "bob", "zoe"]


def test_another_title_keeps_the_assignment(course: Course) -> None:
    assert course.grade() == 0
    course.rubric.write_text(f"title = 'Raft, again'\n{RUBRIC}")
    assert course.grade(course.class_ / "ann.py") == 0


@pytest.mark.parametrize("content", ["{", '{"version": 0}', None])
def test_unreadable_result_is_graded_again(
    course: Course, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    assert course.grade() == 0
    kept = course.out / "results" / "bob.json"
    if content is None:
        content = kept.read_text().replace('"version": 2', '"version": 1')
    kept.write_text(content)
    assert course.grade(course.class_ / "ann.py") == 2
    assert "has results of another assignment: bob (cannot be read in results/). Grade" in capsys.readouterr().err
    assert course.grade() == 0
    assert course.grade(course.class_ / "ann.py") == 0


def test_table_without_results_is_not_overwritten(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    course.out.mkdir()
    (course.out / "scores.csv").write_text("submission,score\nzoe,100\n")
    assert course.grade(course.class_ / "ann.py") == 2
    assert "out: cannot add a submission to a table without stored results. Grade" in capsys.readouterr().err
    assert course.scores == {"zoe": "100"}


def test_renamed_submission_keeps_its_name(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    course.hand_in("ann.zip", "no archive")
    assert course.grade() == 0
    assert list(course.scores) == ["ann", "ann_2", "bob", "zoe"]
    course.hand_in("ann/raft.py", REFERENCE)
    capsys.readouterr()
    assert course.grade(course.class_ / "ann.zip") == 0
    assert course.scores["ann"] == "0" and list(course.scores) == ["ann", "ann_2", "bob", "zoe"]
    assert "takes the place" not in capsys.readouterr().out
    # Handed in anew, in another form: it is the same student.
    assert course.grade(course.class_ / "ann") == 0
    assert course.scores["ann"] == "30" and list(course.scores) == ["ann", "ann_2", "bob", "zoe"]
    assert "  ann replaces ann.py, which was graded as ann\n" in capsys.readouterr().out


def test_only_one_grader_uses_a_folder(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    course.out.mkdir()
    with (course.out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert course.grade() == 2
    assert f"another lab grade is writing to {course.out}; wait until it ends" in capsys.readouterr().err


def test_provenance_is_stored(course: Course) -> None:
    (course.class_ / "notes.txt").touch()
    assert course.grade() == 0
    assert course.grade(course.class_ / "ann.py") == 0
    told = json.loads((course.out / "provenance.json").read_text())
    assert (told["lab"], told["python"]) == ("raftlab 0.1.0", platform.python_version())
    assert (told["rubric"]["runs"], told["rubric"]["points"], told["rubric"]["limits"]["cpu_s"]) == (1, {"2a": 30}, 30)
    assert list(told["hidden"]) == ["hidden.py"] and len(told["hidden"]["hidden.py"]) == 32
    assert {name: len(seeds) for name, seeds in told["seeds"].items()} == {
        "test_initial_election_2a": 1,
        "test_reelection_2a": 1,
        "test_many_elections_2a": 1,
        "test_hidden_2a": 1,
    }
    whole, one = told["calls"]
    assert whole["command"].startswith(f"lab grade {course.class_} --hidden {course.hidden} ")
    assert (whole["submissions"], one["submissions"], one["exam"]) == (3, 1, told["exam"])
    assert whole["date"][:2] == "20" and whole["date"].endswith("+00:00")
    assert list(told["passed_over"]) == ["notes.txt"]  # of the folder, also after one of it
    page = (course.out / "index.html").read_text()
    assert 'href="./provenance.json"' in page and told["hidden"]["hidden.py"] in page and "notes.txt" in page
    # Dates are nowhere else.
    date = whole["date"][:10]
    others = [path for path in course.out.rglob("*") if path.is_file() and path.name != "provenance.json"]
    assert [path for path in others if date in path.read_text()] == []
