"""The grader: what is handed in, what it is worth, and that being killed, repeated or parallel changes nothing."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest

from labtools import grade as grade_command
from labtools.cli import main as lab
from labtools.grade_intake import IntakeError, submissions
from labtools.grade_results import DIED, FAILED, PASSED, TAMPERED, Result, RunRecord, TestResult
from labtools.grade_rubric import Graded, PerTest, Rubric, RubricError, seeds
from labtools.grade_store import Store
from labtools.grade_write import as_csv, as_gradescope, as_junit, write_submission
from labtools.mutants import load_zoo
from labtools.selecting import LabTest, load_tests

REFERENCE = Path("raft/raft.py")
FILES = ("raft.py", "messages.py")


def lab_tests(*names: str) -> list[LabTest]:
    return [
        LabTest(name, name[-2:] if name[-3:-1] == "_2" else "", Path("x.py"), lambda make_config: None)
        for name in names
    ]


# ---- the rubric ---------------------------------------------------------------------------------------------


def read(tmp_path: Path, text: str) -> Rubric:
    path = tmp_path / "rubric.toml"
    path.write_text(text)
    return Rubric.read(path)


def test_a_part_s_points_are_shared_by_weight() -> None:
    rubric = Rubric(points={"2a": 30})
    tests = rubric.assign(lab_tests("test_x_2a", "test_y_2a"), lab_tests("test_z_2a"), "p")
    assert [test.points for test in tests] == [10, 10, 10]
    assert [test.hidden for test in tests] == [False, False, True]


def test_what_the_points_do_not_name_is_not_asked() -> None:
    own = Rubric(points={"2a": 30}, tests={"test_z_2c": PerTest(points=5), "test_y_2b": PerTest(weight=2)})
    tests = own.assign(lab_tests("test_x_2a", "test_y_2b"), lab_tests("test_z_2c", "test_other"), "p")
    assert [(test.name, test.points) for test in tests] == [("test_x_2a", 30), ("test_z_2c", 5)]
    assert [test.name for test in Rubric(points={"2b": 0}).assign(lab_tests("test_y_2b"), [], "p")] == ["test_y_2b"]
    with pytest.raises(RubricError, match="points: no test is of a part that it names"):
        Rubric(points={"2d": 10}).assign(lab_tests("test_x_2a"), [], "p")


def test_weights_and_points_of_single_tests(tmp_path: Path) -> None:
    rubric = read(
        tmp_path,
        "[points]\n2a = 30\n[hidden]\nweight = 2\n[tests.test_x_2a]\npoints = 5\n[tests.test_y_2a]\nweight = 4\n",
    )
    tests = rubric.assign(lab_tests("test_x_2a", "test_y_2a"), lab_tests("test_z_2a"), "p")
    assert [round(test.points, 3) for test in tests] == [5, 20, 10]


def test_seeds_are_the_same_for_everybody_and_differ_by_test_and_phrase() -> None:
    one = Rubric(runs=3).assign(lab_tests("test_x_2a", "test_y_2a"), [], "phrase")
    assert one == Rubric(runs=3).assign(lab_tests("test_x_2a", "test_y_2a"), [], "phrase")
    assert len({*one[0].seeds, *one[1].seeds, *seeds("other", "test_x_2a", 3)}) == 9
    assert seeds("phrase", "test_x_2a", 5)[:3] == one[0].seeds  # more runs keep the earlier ones


def test_seeds_come_from_the_hidden_tests_unless_the_rubric_has_a_word(tmp_path: Path) -> None:
    file = tmp_path / "h.py"
    file.write_text("# one\n")
    hidden = [LabTest("test_h_2a", "2a", file, lambda make_config: None)]
    first = Rubric().seed_phrase(hidden)
    file.write_text("# two\n")
    assert first
    assert first != Rubric().seed_phrase(hidden)
    assert Rubric(seed="word").seed_phrase(hidden) == "word"
    assert Rubric().seed_phrase([]) == ""


def test_a_pass_rate_allows_failures() -> None:
    def graded(runs: int, rate: float) -> Graded:
        return Rubric(runs=runs, pass_rate=rate).assign(lab_tests("test_x_2a"), [], "p")[0]

    assert [graded(10, 0.9).failures_allowed, graded(10, 1).failures_allowed, graded(3, 0.5).failures_allowed] == [
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("runs = 0", "runs: must be 1..10000, got 0"),
        ("pass_rate = 1.5", "pass_rate: must be above 0 and at most 1, got 1.5"),
        ("[points]\n3a = 5", "points.3a: a part is one of 2a, 2b, 2c, 2d or other"),
        ("[points]\n2a = -5", "points.2a: must be 0 or more, got -5"),
        ("[hidden]\nshow = 'all'", "Invalid enum value 'all' - at `$.hidden.show`"),
        ("[hiden]\nshow = 'names'", "unknown field `hiden`"),
        ("[limits]\ncpu_s = 0", "limits.cpu_s: must be at least 1, got 0"),
        ("[points]\n2a = nan", "points.2a: must be 0 or more, got nan"),
        ("[hidden]\nweight = inf", "hidden.weight: must be 0 or more, got inf"),
        ("files = ['../raft.py']", "files: must be raft.py and then other .py files"),
        ("files = ['solution.py']", "files: must be raft.py and then other .py files"),
        ("runs = ", "not TOML"),
        ("[tests.test_x_2a]\nweight = -1", "tests.test_x_2a.weight: must be 0 or more, got -1"),
    ],
)
def test_a_wrong_rubric_is_refused_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RubricError) as refused:
        read(tmp_path, text)
    assert says in str(refused.value)
    assert "rubric.toml" in str(refused.value)


def test_a_rubric_that_names_no_test_is_refused() -> None:
    with pytest.raises(RubricError, match=r"tests.test_q_2a: there is no such test among the 1 that are graded"):
        Rubric(tests={"test_q_2a": PerTest(weight=1)}).assign(lab_tests("test_x_2a"), [], "p")
    with pytest.raises(RubricError, match="two tests are called test_x_2a"):
        Rubric().assign(lab_tests("test_x_2a"), lab_tests("test_x_2a"), "p")


# ---- what is handed in --------------------------------------------------------------------------------------


def test_folder_archive_and_single_file_are_the_same_submission(tmp_path: Path) -> None:
    source = REFERENCE.read_bytes()
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "raft.py").write_bytes(source)
    (tmp_path / "bob" / "lab" / "raft").mkdir(parents=True)
    (tmp_path / "bob" / "lab" / "raft" / "raft.py").write_bytes(source)
    (tmp_path / "cid.py").write_bytes(source)
    with zipfile.ZipFile(tmp_path / "dan.zip", "w") as archive:
        archive.writestr("work/raft.py", source)
        archive.writestr("__MACOSX/raft.py", b"junk")
    subprocess.run(["tar", "-czf", tmp_path / "eve.tgz", "-C", tmp_path / "ann", "raft.py"], check=True)
    (tmp_path / "notes.txt").write_text("not a submission")
    found = submissions(tmp_path, FILES)
    assert [s.name for s in found] == ["ann", "bob", "cid", "dan", "eve"]
    assert [s.problem for s in found] == [""] * 5
    assert len({s.digest for s in found}) == 1


def test_messages_beside_raft_are_taken_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "ann" / "raft"
    folder.mkdir(parents=True)
    for name in ("raft.py", "messages.py", "persister.py", "conftest.py"):
        (folder / name).write_text(f"# {name}")
    (tmp_path / "ann" / "labtest.py").write_text("# not mine")
    (found,) = submissions(tmp_path, FILES)
    assert found.files == {"raft.py": b"# raft.py", "messages.py": b"# messages.py"}


def test_one_submission_may_be_named_itself(tmp_path: Path) -> None:
    folder = tmp_path / "ann"
    folder.mkdir()
    (folder / "raft.py").write_text("#")
    assert [s.name for s in submissions(folder, FILES)] == ["ann"]
    assert [s.name for s in submissions(folder / "raft.py", FILES)] == ["ann"]
    (folder / "raft.py").rename(folder / "draft.py")
    (found,) = submissions(folder, FILES, single=True)
    assert found.problem == "There is no raft.py in it; it has draft.py."


def test_names_are_made_safe_and_unique(tmp_path: Path) -> None:
    for name in ("a b.py", "a_b.py", "-=x;.py"):
        (tmp_path / name).write_text("#")
    assert [s.name for s in submissions(tmp_path, FILES)] == ["-_x", "a_b", "a_b_2"]


def test_a_name_of_any_bytes_can_be_written_down(tmp_path: Path) -> None:
    class_ = tmp_path / "class"
    (class_ / ("\U00020000" * 62)).mkdir(parents=True)
    with tarfile.open(class_ / "bytes.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("caf\udce9\x1b[2J.py"))
    found = submissions(class_, FILES)
    assert [s.problem for s in found] == [
        "There is no raft.py in it; it has caf??[2J.py.",
        "There is no raft.py in it.",
    ]
    for submission in found:
        write_submission(Result(submission.name, submission.problem, submission.remarks, ()), "Raft", tmp_path / "out")


def test_an_archive_that_cannot_be_read_is_in_the_class(tmp_path: Path) -> None:
    (tmp_path / "ann.7z").write_bytes(b"7z")
    (tmp_path / "bob.rar").write_bytes(b"Rar!")
    os.mkfifo(tmp_path / "eve.py")
    (tmp_path / "notes.txt").write_text("no submission")
    assert {s.name: s.problem for s in submissions(tmp_path, FILES)} == {
        "ann": "An archive of the kind .7z cannot be read; hand in a .zip.",
        "bob": "An archive of the kind .rar cannot be read; hand in a .zip.",
        "eve": "It is neither a file nor a folder.",
    }


def test_the_graders_own_folders_are_no_submissions(tmp_path: Path) -> None:
    for name in ("ann", "grades", "hidden"):
        (tmp_path / name).mkdir()
    found = submissions(tmp_path, FILES, not_these=(tmp_path / "grades", tmp_path / "ann" / ".." / "hidden"))
    assert [s.name for s in found] == ["ann"]


def test_no_submissions_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IntakeError, match="there is no submission in it"):
        submissions(tmp_path, FILES)
    with pytest.raises(IntakeError, match="no such folder"):
        submissions(tmp_path / "nowhere", FILES)


# ---- points -------------------------------------------------------------------------------------------------


def graded_test(name: str, *, runs: int = 2, hidden: bool = False, rate: float = 1.0, **more: object) -> Graded:
    values = {
        "name": name,
        "part": "2a",
        "hidden": hidden,
        "points": 10.0,
        "seeds": tuple(range(runs)),
        "pass_rate": rate,
        "visibility": "visible",
        "show": "nothing" if hidden else "everything",
        "shown_name": "hidden test 1 (2A)" if hidden else name,
    }
    return Graded(**(values | more))  # type: ignore[arg-type]


def runs_of(test: Graded, *kinds: str) -> TestResult:
    return TestResult(
        test, tuple(RunRecord(test=test.name, seed=i, kind=kind, report=f"told {i}") for i, kind in enumerate(kinds))
    )


def test_points_are_for_as_many_passes_as_the_rubric_asks() -> None:
    assert runs_of(graded_test("t"), PASSED, PASSED).earned == 10
    assert runs_of(graded_test("t"), PASSED, FAILED).earned == 0
    assert runs_of(graded_test("t", rate=0.5), PASSED, FAILED).earned == 10
    assert runs_of(graded_test("t"), PASSED).earned == 0  # a run that was never made is none that passed
    assert runs_of(graded_test("t", runs=1), DIED).earned == 0
    assert runs_of(graded_test("t", rate=0.5), PASSED, TAMPERED).earned == 0


def test_summaries_say_what_was_run() -> None:
    assert runs_of(graded_test("t", runs=3), PASSED, FAILED).summary == "Failed 1 of 2 runs; the last was not needed."
    assert runs_of(graded_test("t", runs=4), FAILED).summary == "Failed 1 of 1 runs; the last 3 were not needed."
    assert runs_of(graded_test("t"), PASSED, PASSED).summary == "Passed 2 of 2 runs."
    assert TestResult(graded_test("t"), (), "why.").summary == "Not run: why."


def a_result() -> Result:
    public = runs_of(graded_test("test_x_2a"), PASSED, FAILED)
    hidden = runs_of(graded_test("test_secret_2a", hidden=True, visibility="after_published"), FAILED)
    good = runs_of(graded_test("test_y_2a"), PASSED, PASSED)
    return Result("ann", "", (), (public, good, hidden))


def test_gradescope_gets_scores_and_visibilities_and_no_hidden_text() -> None:
    found = as_gradescope(a_result())
    assert "score" not in found  # a sum would tell what is hidden
    assert [(t["name"], t["score"], t["max_score"], t["status"], t["visibility"]) for t in found["tests"]] == [
        ("test_x_2a", 0, 10, "failed", "visible"),
        ("test_y_2a", 10, 10, "passed", "visible"),
        ("hidden test 1 (2A)", 0, 10, "failed", "after_published"),
    ]
    assert "told 1" in found["tests"][0]["output"]
    text = json.dumps(found)
    assert "secret" not in text
    assert "told 0" not in text
    assert found["output"] == "10 of 20 points in the 2 tests that are shown."


def test_junit_has_the_shown_tests_and_is_xml() -> None:
    suite = ElementTree.fromstring(as_junit(a_result()))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "0")
    assert [case.get("name") for case in suite] == ["test_x_2a", "test_y_2a"]


def test_the_table_is_no_formula() -> None:
    result = a_result()
    evil = Result("=cmd", "-1+1|x\nmore", (), result.tests)
    rows = list(csv.reader(io.StringIO(as_csv([evil, result]))))
    assert rows[0] == [
        "submission",
        "score",
        "of",
        "2a",
        "problem",
        "tampered",
        "test_x_2a",
        "test_y_2a",
        "test_secret_2a",
    ]
    assert rows[1][:6] == ["'=cmd", "10", "30", "10", "'-1+1|x", ""]


# ---- the store ----------------------------------------------------------------------------------------------


def test_a_line_cut_off_by_a_kill_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "ann.jsonl"
    store = Store(path)
    store.add("code", RunRecord(test="t", seed=1, kind=PASSED))
    store.add("code", RunRecord(test="t", seed=2, kind=PASSED))
    store.close()
    path.write_bytes(path.read_bytes()[:-9])
    store = Store(path)
    assert store.get("code", "t", 1) is not None
    assert store.get("code", "t", 2) is None
    assert store.get("other code", "t", 1) is None
    store.add("code", RunRecord(test="t", seed=3, kind=FAILED))
    store.close()
    again = Store(path)
    assert [again.get("code", "t", seed) is not None for seed in (1, 2, 3)] == [True, False, True]
    again.close()


# ---- the whole ----------------------------------------------------------------------------------------------

HIDDEN = """
def test_hidden_start_2b(make_config):
    cfg = make_config(servers=3)
    cfg.begin("hidden")
    cfg.one(1, 3, retry=False)
"""
# Part 2A and one hidden test: the whole suite is for a whole class.
RUBRIC = """
runs = 2
seed = "a word"
[public]
extra = false
[points]
2a = 40
[tests.test_hidden_start_2b]
points = 60
"""
# The grader, with a signal to itself when so many runs are stored.
SIGNALLED = """
import os, signal, sys
from labtools.cli import main
from labtools.grade_store import Store

add, number, wanted = Store.add, getattr(signal, sys.argv[1]), int(sys.argv[2])

def add_and_signal(store, *args):
    global wanted
    add(store, *args)
    wanted -= 1
    if wanted == 0:
        os.kill(os.getpid(), number)

Store.add = add_and_signal
sys.exit(main(sys.argv[3:]))
"""


def a_class(folder: Path) -> Path:
    class_ = folder / "class"
    class_.mkdir()
    (class_ / "ann.py").write_bytes(REFERENCE.read_bytes())
    for name in ("E01", "E02"):
        mutant = next((m for m in load_zoo() if m.id == name), None) or load_zoo()[int(name[1:])]
        (class_ / f"{name}.py").write_text(mutant.source())
    (class_ / "syntax.py").write_text("def (")
    (class_ / "none").mkdir()
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "hidden_2b.py").write_text(HIDDEN)
    (folder / "rubric.toml").write_text(RUBRIC)
    return class_


def arguments(folder: Path, out: str, *more: str) -> list[str]:
    where = [str(folder / "class"), "--hidden", str(folder / "hidden"), "--rubric", str(folder / "rubric.toml")]
    return ["grade", *where, "--out", str(folder / out), *more]


def everything_in(out: Path) -> dict[str, bytes]:
    """All results, to the byte, but the overview, which tells the time it took, and the store's order."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "index.html" and path.suffix != ".jsonl"
    }


def test_results_are_the_same_again_with_one_job_and_with_two(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a_class(tmp_path)
    assert lab(arguments(tmp_path, "one", "--jobs", "1")) == 0
    assert lab(arguments(tmp_path, "two", "--jobs", "2")) == 0
    one = everything_in(tmp_path / "one")
    assert one == everything_in(tmp_path / "two")
    assert {"scores.csv", "students/ann/results.json", "students/ann/junit.xml", "full/ann.html"} <= set(one)
    rows = {row["submission"]: row for row in csv.DictReader(io.StringIO(one["scores.csv"].decode()))}
    assert (rows["ann"]["score"], rows["ann"]["of"]) == ("100", "100")
    assert rows["syntax"]["problem"].startswith("raft/raft.py:1: SyntaxError")
    assert rows["none"]["problem"] == "There is no raft.py in it."
    # And again: nothing is left to run.
    capfd.readouterr()
    assert lab(arguments(tmp_path, "two", "--jobs", "2")) == 0
    said = capfd.readouterr().out
    assert "were there already)" in said
    assert everything_in(tmp_path / "two") == one
    made = [json.loads(line) for line in (tmp_path / "one/runs/ann.jsonl").read_text().splitlines()]
    assert len(made) == 2 * 4  # three tests of 2A and the hidden one, two seeds each


def test_a_killed_grader_goes_on_where_it_was(tmp_path: Path) -> None:
    a_class(tmp_path)
    (tmp_path / "rubric.toml").write_text(RUBRIC.replace("runs = 2", "runs = 1"))
    arguments_ = arguments(tmp_path, "out", "--jobs", "1")
    killed = subprocess.run([sys.executable, "-c", SIGNALLED, "SIGKILL", "3", *arguments_], check=False)
    assert killed.returncode == -signal.SIGKILL
    (stored,) = (tmp_path / "out" / "runs").iterdir()
    before = stored.read_bytes()
    assert before.count(b"\n") == 3
    assert not (tmp_path / "out" / "scores.csv").exists()
    stored.write_bytes(before[:-20])  # as if it had been killed in the middle of a line
    again = [sys.executable, "-m", "labtools", *arguments_]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert stored.read_bytes().startswith(before[:-20] + b"\n")
    assert "(2 were there already)" in done.stdout
    assert lab(arguments(tmp_path, "fresh", "--jobs", "2")) == 0
    assert everything_in(tmp_path / "out") == everything_in(tmp_path / "fresh")


def test_ctrl_c_ends_it_at_once_and_says_how_to_go_on(tmp_path: Path) -> None:
    a_class(tmp_path)
    command = [sys.executable, "-c", SIGNALLED, "SIGINT", "1", *arguments(tmp_path, "out", "--jobs", "2")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "interrupted; " in done.stdout
    assert "the same command goes on" in done.stdout


def test_only_parts_that_the_rubric_gives_points_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hidden_tests.py").write_text(HIDDEN + HIDDEN.replace("_2b", ""))
    (tmp_path / "rubric.toml").write_text("runs = 1\n[points]\n2b = 0\n[tests.test_basic_agree_2b]\nruns = 1\n")
    (tmp_path / "raft.py").write_text("raise ValueError('a peer that is soon graded')")
    where = ["--hidden", str(tmp_path / "hidden_tests.py"), "--rubric", str(tmp_path / "rubric.toml")]
    assert lab(["grade", str(tmp_path / "raft.py"), *where, "--out", str(tmp_path / "out")]) == 0
    opening = capsys.readouterr().out.splitlines()[1]
    assert opening.startswith("  not run, because points in the rubric does not name their part: ")
    assert [part for part in ("2A", "2B", "2C", "2D") if f" of {part}" in opening] == ["2A", "2C", "2D"]
    assert opening.endswith(", test_hidden_start (no _2a ... _2d in its name)")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out" / "scores.csv").read_text()))
    assert "test_basic_agree_2b" in row and "test_hidden_start_2b" in row
    assert not [name for name in row if name.endswith(("_2a", "_2c", "_2d", "_start"))]


@pytest.mark.parametrize(
    ("arguments_", "says"),
    [
        ([], "name either SUBMISSIONS, to grade them, or --gradescope ZIP"),
        (["nowhere"], "nowhere: no such folder; SUBMISSIONS must name a folder"),
        (["raft/raft.py", "--rubric", "nowhere.toml"], "nowhere.toml: No such file or directory; RUBRIC must name"),
        (["raft/raft.py", "--hidden", "docs"], "docs: there is no test in it: a function test_...(make_config)"),
        (["raft/raft.py", "--hidden", "nowhere.py"], "nowhere.py: no such test file"),
        (["raft/raft.py", "--out", "Makefile/out"], "Makefile/out: Not a directory; OUT must name a folder that can"),
        (["--gradescope", "Makefile/a.zip"], "lab grade: Makefile: File exists\n"),
    ],
)
def test_what_cannot_be_graded_is_said(arguments_: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab(["grade", *arguments_]) == 2
    assert says in capsys.readouterr().err


def test_a_full_disk_is_said_and_costs_nothing_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "ann.py").write_text("raise ValueError('a peer that is soon graded')")
    command = ["grade", str(tmp_path / "ann.py"), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(grade_command, "write_class", full)
        assert lab(command) == 2
    said = f"No space left on device; what is done is in {tmp_path / 'out'}, and the same command goes on"
    assert capsys.readouterr().err == f"lab grade: {said}\n"
    assert lab(command) == 0
    assert "(1 were there already)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("async def test_b_2a(make_config): assert False\n", "test_b_2a cannot be graded"),
        ("def test_b_2a(make_config):\n    yield\n", "test_b_2a cannot be graded"),
        ("import pytest\n@pytest.mark.parametrize('n', [3])\ndef test_b_2a(make_config, n): 1/0\n", "test_b_2a cannot"),
        ("class TestB:\n    def test_b_2a(self, make_config): 1/0\n", "TestB cannot be graded"),
        ("import pytest\npytest.skip('later', allow_module_level=True)\n", "Skipped while loading it: later"),
        ("import helper\n", "ModuleNotFoundError while loading it"),
    ],
    ids=["async", "generator", "parametrized", "class", "skip", "helper"],
)
def test_no_hidden_test_is_dropped_or_passed_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, says: str
) -> None:
    (tmp_path / "hidden.py").write_text(f"def test_a_2a(make_config): pass\n{source}")
    assert lab(["grade", "raft/raft.py", "--hidden", str(tmp_path / "hidden.py"), "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err


def test_hidden_files_with_names_alike_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a-b.py", "a_b.py", "other/a_b.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"def test_{len(name)}{name[1] == '-'}_2a(make_config): pass\n")
    assert load_tests(tmp_path / "a-b.py")[0].name != load_tests(tmp_path / "a_b.py")[0].name
    hidden = ["--hidden", str(tmp_path), "--hidden", str(tmp_path / "other")]
    assert lab(["grade", "raft/raft.py", *hidden, "--out", str(tmp_path / "out")]) == 2
    assert "two files of hidden tests are called a_b.py" in capsys.readouterr().err


def test_a_submission_with_its_own_message_fields_is_graded_with_them(tmp_path: Path) -> None:
    from labtools.grade_class import Exam, Progress, grade

    class_ = tmp_path / "class" / "ann"
    class_.mkdir(parents=True)
    messages = Path("raft/messages.py").read_text()
    changed = messages.replace("    vote_granted: bool\n", "    vote_granted: bool\n    remark: str = ''\n")
    assert changed != messages
    (class_ / "messages.py").write_text(changed)
    source = REFERENCE.read_text()
    (class_ / "raft.py").write_text(
        f"{source}\nfrom raft.messages import RequestVoteReply as _R\n_R(1, True, remark='x')\n"
    )
    tests = load_tests(Path("tests/test_2a.py"))[:1]
    exam = Exam(tuple(Rubric(runs=1).assign(tests, [], "p")), {tests[0].name: tests[0]}, Rubric().limits)
    found = submissions(tmp_path / "class", FILES)
    (result,) = grade(found, exam, jobs=1, runs=tmp_path / "runs", progress=Progress(1, 1), watch=lambda: None)
    assert result.score == 20, result


# ---- Gradescope ---------------------------------------------------------------------------------------------


def test_the_autograder_grades_as_gradescope_would_run_it(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "hidden_2b.py").write_text(HIDDEN)
    (tmp_path / "rubric.toml").write_text(RUBRIC)
    target = tmp_path / "autograder.zip"
    wanted = ["--hidden", str(hidden), "--rubric", str(tmp_path / "rubric.toml")]
    assert lab(["grade", "--gradescope", str(target), *wanted]) == 0
    root = tmp_path / "autograder"
    source = root / "source"
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
        archive.extractall(source)
        modes = {name: archive.getinfo(name).external_attr >> 16 & 0o777 for name in ("setup.sh", "run_autograder")}
    assert modes == {"setup.sh": 0o755, "run_autograder": 0o755}
    assert not [name for name in names if "zoo" in name or name.endswith(("raft/raft.py", "mutants.py"))]
    # Gradescope's paths, moved here; the environment that setup.sh would make is the one that runs this test.
    script = (source / "run_autograder").read_text().replace("/autograder", str(root))
    (source / "raftlab" / ".venv" / "bin").mkdir(parents=True)
    run_lab = f'#!/bin/sh\nexec env PYTHONPATH="{source}/raftlab" {sys.executable} -P -m labtools "$@"\n'
    (source / "raftlab" / ".venv" / "bin" / "lab").write_text(run_lab)
    (source / "raftlab" / ".venv" / "bin" / "lab").chmod(0o755)
    (root / "submission").mkdir()
    (root / "submission" / "raft.py").write_bytes(REFERENCE.read_bytes())
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((root / "results" / "results.json").read_text())
    assert round(sum(test["score"] for test in results["tests"])) == 100, results
    assert subprocess.run(["bash", "-n", source / "setup.sh"], check=False).returncode == 0
    # A broken autograder says so, instead of nothing.
    (source / "rubric.toml").write_text("runs = 0\n")
    subprocess.run(["bash", "-c", script], capture_output=True, check=False, cwd=tmp_path)
    assert "The autograder itself failed" in json.loads((root / "results" / "results.json").read_text())["output"]


def test_the_same_autograder_twice_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "rubric.toml").write_text("seed = 'w'\n")
    for name in ("a.zip", "b.zip"):
        assert lab(["grade", "--gradescope", str(tmp_path / name), "--rubric", str(tmp_path / "rubric.toml")]) == 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_rubric_with_an_empty_seed_from_notepad_makes_an_autograder_that_can_read_it(tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.toml"
    rubric.write_text('title = "Raft"\nseed = ""  # drawn\nruns = 2\n', encoding="utf-8-sig")
    assert lab(["grade", "--gradescope", str(tmp_path / "a.zip"), "--rubric", str(rubric)]) == 0
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        rubric.write_bytes(archive.read("rubric.toml"))
    assert (Rubric.read(rubric).runs, len(Rubric.read(rubric).seed)) == (2, 32)


def test_make_grade_takes_paths_with_spaces(tmp_path: Path) -> None:
    for name in ("SUBMISSIONS", "HIDDEN", "RUBRIC", "OUT"):
        (tmp_path / f"a {name}").touch()
    paths = [f"{name}={tmp_path}/a {name}" for name in ("SUBMISSIONS", "HIDDEN", "RUBRIC", "OUT")]
    said = subprocess.run(
        ["make", "--no-print-directory", "-n", "grade", *paths], capture_output=True, text=True, check=True
    ).stdout
    words = shlex.split(said.splitlines()[-1])
    assert [words[2], *words[4:9:2]] == [f"{tmp_path}/a {name}" for name in ("SUBMISSIONS", "OUT", "HIDDEN", "RUBRIC")]


def test_without_hidden_tests_or_a_word_the_seeds_are_drawn_once_and_kept(tmp_path: Path) -> None:
    first = grade_command._phrase(Rubric(), [], tmp_path)
    assert first == grade_command._phrase(Rubric(), [], tmp_path)
    assert first != grade_command._phrase(Rubric(), [], tmp_path / "other")
    assert len(first) == 32
    assert os.listdir(tmp_path / "other") == ["seed"]  # noqa: PTH208  # names alone
