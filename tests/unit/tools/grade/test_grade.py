"""The grader: points, and that interruption, repetition and parallel jobs change no result."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from dataclasses import replace
from html import unescape
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from labsim import Simulation
from labsim.watchdog import describe_unresponsive
from raftlab.harness.outcome import Ending, Outcome
from raftlab.tools.cli import main as lab
from raftlab.tools.grade import command as grade_command
from raftlab.tools.grade.grader import GradeProgress
from raftlab.tools.grade.output import as_csv, as_gradescope, as_junit, write_submitted
from raftlab.tools.grade.runs.worker import without_stack
from raftlab.tools.grade.submission_loader import Submission, WantedFiles, load_submissions
from raftlab.tools.grade.values.results import Result, TestResult
from raftlab.tools.grade.values.rubric import GradedTest, Rubric
from raftlab.tools.grade.values.store import Store
from raftlab.tools.selection import load_tests
from tests.mutants.tool.mutants import load_mutants
from unit.students import ROOT, renamed_package

REFERENCE = Path("raft/raft.py")
FILES = WantedFiles(("raft.py", "messages.py"))


# ---- points -------------------------------------------------------------------------------------------------


def graded_test(name: str, *, runs: int = 2, hidden: bool = False, rate: float = 1.0, **more: object) -> GradedTest:
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
    return GradedTest(**(values | more))  # type: ignore[arg-type]


def runs_of(test: GradedTest, *kinds: str) -> TestResult:
    return TestResult(
        test, tuple(Outcome(test=test.name, seed=i, ending=kind, report=f"told {i}") for i, kind in enumerate(kinds))
    )


def test_points_follow_the_pass_rate() -> None:
    assert runs_of(graded_test("t"), Ending.PASSED, Ending.PASSED).earned == 10
    assert runs_of(graded_test("t"), Ending.PASSED, Ending.RULE).earned == 0
    assert runs_of(graded_test("t", rate=0.5), Ending.PASSED, Ending.RULE).earned == 10
    assert runs_of(graded_test("t"), Ending.PASSED).earned == 0  # a run that was never made is none that passed
    assert runs_of(graded_test("t", runs=1), Ending.DIED).earned == 0


def test_summaries_count_runs() -> None:
    assert runs_of(graded_test("t", runs=3), Ending.PASSED, Ending.RULE).summary == "Failed 1 of 2 runs; 1 not run."
    assert runs_of(graded_test("t", runs=4), Ending.RULE).summary == "Failed 1 of 1 runs; 3 not run."
    assert runs_of(graded_test("t"), Ending.PASSED, Ending.PASSED).summary == "Passed 2 of 2 runs."
    assert TestResult(graded_test("t"), (), "why.").summary == "Not run: why."


def a_result() -> Result:
    public = runs_of(graded_test("test_x_2a"), Ending.PASSED, Ending.RULE)
    hidden = runs_of(graded_test("test_secret_2a", hidden=True, visibility="after_published"), Ending.RULE)
    good = runs_of(graded_test("test_y_2a"), Ending.PASSED, Ending.PASSED)
    return Result("ann", "", (), (public, good, hidden))


def test_gradescope_gets_no_hidden_text() -> None:
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
    assert found["output"] == "10 of 20 points in the 2 tests shown here."


def test_junit_has_the_shown_tests_and_is_xml() -> None:
    suite = ElementTree.fromstring(as_junit(a_result()))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "0")
    assert [case.get("name") for case in suite] == ["test_x_2a", "test_y_2a"]


def test_junit_is_xml_whatever_a_submission_prints() -> None:
    (public, good, hidden) = a_result().tests
    runs = [msgspec.structs.replace(run, report="\x00\x1b\ud800\ufffe\uffff]]>\U0001fffe") for run in public.runs]
    result = Result("an\ufffe", "", (), (replace(public, runs=tuple(runs)), good, hidden))
    suite = ElementTree.fromstring(as_junit(result))
    assert suite.get("name") == "an?"
    assert "?????]]>\U0001fffe" in (suite[0][0].text or "")


def test_report_of_a_killed_run_ends_its_sentences() -> None:
    text = describe_unresponsive(Simulation(1), "never waits", sys._getframe())
    text = text.replace("\nVirtual", "\n      <string>:8 in <module>\nVirtual")
    assert "It is here:\n" in text
    left = without_stack(text)
    assert ".py:" not in left and "It is here" not in left
    assert "at 0.000000 s (virtual).\nVirtual time" in left


def test_long_phases_are_not_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    progress = GradeProgress(2, 1000, at={"ann": "test_x_2a", "bob": "test_y_2a"})
    progress.count(made=10, stored=20, not_needed=30)
    report = grade_command._regularly(Console(), lambda: grade_command._progress_line(progress))
    report()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(grade_command, "_LINE_EVERY_S", -1.0)
    report()
    assert capsys.readouterr().out == "  60 of 1,000 runs; ann: test_x_2a, bob: test_y_2a\n"


def test_missing_sandbox_names_the_option_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grade_command, "missing_sandbox", lambda: "bubblewrap is missing")
    (tmp_path / "ann.py").write_text("def (")
    (tmp_path / "rubric.toml").write_text(ONLY_2A)
    command = ["grade", str(tmp_path / "ann.py"), "--rubric", str(tmp_path / "rubric.toml"), "--no-validation"]
    command += ["--out", str(tmp_path / "out")]
    assert lab(command) == 2
    assert "bubblewrap is missing, or grade without the sandbox: --no-sandbox" in capsys.readouterr().err
    assert lab([*command, "--no-sandbox"]) == 0
    assert "No sandbox: bubblewrap is missing\n" in capsys.readouterr().out


def test_the_table_is_no_formula() -> None:
    result = a_result()
    evil = Result("=cmd", "-1+1|x\nmore", (), result.tests, file="@cmd.zip")
    rows = list(csv.reader(io.StringIO(as_csv([evil, result]))))
    assert rows[0] == [
        "submission",
        "score",
        "of",
        "2a",
        "problem",
        "file",
        "test_x_2a",
        "test_y_2a",
        "test_secret_2a",
    ]
    assert rows[1][:6] == ["'=cmd", "10", "30", "10", "'-1+1|x", "'@cmd.zip"]


# ---- the store ----------------------------------------------------------------------------------------------


def test_incomplete_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "ann.jsonl"
    store = Store(path, Outcome)
    store.add("code", Outcome(test="t", seed=1, ending=Ending.PASSED))
    store.add("code", Outcome(test="t", seed=2, ending=Ending.PASSED))
    store.close()
    path.write_bytes(path.read_bytes()[:-9])
    store = Store(path, Outcome)
    assert store.get("code", "t", 1) is not None
    assert store.get("code", "t", 2) is None
    assert store.get("other code", "t", 1) is None
    store.add("code", Outcome(test="t", seed=3, ending=Ending.RULE))
    store.close()
    again = Store(path, Outcome)
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
[failures]
pages = 1
shrink = 0
[points]
2a = 40
[tests.test_hidden_start_2b]
points = 60
"""
ONLY_2A = "runs = 1\nseed = 'a word'\n[public]\nextra = false\n[failures]\npages = 0\nshrink = 0\n[points]\n2a = 30\n"
# The grader, with a signal to itself when so many runs are stored.
SIGNALLED = """
import os, signal, sys
from raftlab.tools.cli import main
from raftlab.tools.grade.values.store import Store

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
        mutant = next((m for m in load_mutants() if m.id == name), None) or load_mutants()[int(name[1:])]
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
    return ["grade", *where, "--no-validation", "--out", str(folder / out), *more]


def everything_in(out: Path) -> dict[str, bytes]:
    """All results, to the byte, but for the time that they took, when they were made, and the store's order.

    Lines that replay a run name OUT, and here there are two.
    """
    found = {
        str(path.relative_to(out)): path.read_bytes().replace(bytes(out), b"OUT")
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in ("index.html", "provenance.json") and path.suffix != ".jsonl"
    }
    return {name: re.sub(rb'"real_s": [\d.e-]+', b"", content) for name, content in found.items()}


def test_results_do_not_depend_on_jobs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a_class(tmp_path)
    assert lab(arguments(tmp_path, "one", "--jobs", "1")) == 0
    assert lab(arguments(tmp_path, "two", "--jobs", "2")) == 0
    one = everything_in(tmp_path / "one")
    assert one == everything_in(tmp_path / "two")
    assert {"scores.csv", "students/ann/results.json", "students/ann/junit.xml", "full/ann.html"} <= set(one)
    rows = {row["submission"]: row for row in csv.DictReader(io.StringIO(one["scores.csv"].decode()))}
    assert (rows["ann"]["score"], rows["ann"]["of"]) == ("100", "100")
    assert rows["syntax"]["problem"].startswith("raft/raft.py:1: SyntaxError")
    assert rows["none"]["problem"] == "The submission has no raft.py."
    # And again: nothing is left to run.
    capfd.readouterr()
    assert lab(arguments(tmp_path, "two", "--jobs", "2")) == 0
    said = capfd.readouterr().out
    assert "from the cache)" in said
    assert everything_in(tmp_path / "two") == one
    made = [json.loads(line) for line in (tmp_path / "one/runs/ann.jsonl").read_text().splitlines()]
    assert len(made) == 2 * 4  # three tests of 2A and the hidden one, two seeds each


def test_killed_grader_resumes(tmp_path: Path) -> None:
    a_class(tmp_path)
    (tmp_path / "rubric.toml").write_text(RUBRIC.replace("runs = 2", "runs = 1").replace("pages = 1", "pages = 0"))
    arguments_ = arguments(tmp_path, "out", "--jobs", "1")
    killed = subprocess.run([sys.executable, "-c", SIGNALLED, "SIGKILL", "3", *arguments_], check=False)
    assert killed.returncode == -signal.SIGKILL
    (stored,) = (tmp_path / "out" / "runs").iterdir()
    before = stored.read_bytes()
    assert before.count(b"\n") == 3
    assert not (tmp_path / "out" / "scores.csv").exists()
    stored.write_bytes(before[:-20])  # as if it had been killed in the middle of a line
    again = [sys.executable, "-m", "raftlab", *arguments_]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert stored.read_bytes().startswith(before[:-20] + b"\n")
    assert "(2 from the cache)" in done.stdout
    assert lab(arguments(tmp_path, "fresh", "--jobs", "2")) == 0
    assert everything_in(tmp_path / "out") == everything_in(tmp_path / "fresh")


def test_ctrl_c_stops_and_says_how_to_resume(tmp_path: Path) -> None:
    a_class(tmp_path)
    command = [sys.executable, "-c", SIGNALLED, "SIGINT", "1", *arguments(tmp_path, "out", "--jobs", "2")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "interrupted: " in done.stdout
    assert "run the same command again to resume" in done.stdout


def test_only_parts_with_points_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hidden_tests.py").write_text(HIDDEN + HIDDEN.replace("_2b", ""))
    (tmp_path / "rubric.toml").write_text("runs = 1\n[points]\n2b = 0\n[tests.test_basic_agree_2b]\nruns = 1\n")
    (tmp_path / "raft.py").write_text("raise ValueError('a peer that is soon graded')")
    where = ["--hidden", str(tmp_path / "hidden_tests.py"), "--rubric", str(tmp_path / "rubric.toml")]
    assert lab(["grade", str(tmp_path / "raft.py"), *where, "--out", str(tmp_path / "out")]) == 0
    opening = capsys.readouterr().out.splitlines()[1]
    assert opening.startswith("  these tests are not run, because [points] in the rubric omits their part: ")
    assert [part for part in ("2A", "2B", "2C", "2D") if f" of {part}" in opening] == ["2A", "2C", "2D"]
    assert opening.endswith(", test_hidden_start (no _2a ... _3b in its name)")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out" / "scores.csv").read_text()))
    assert "test_basic_agree_2b" in row and "test_hidden_start_2b" in row
    assert not [name for name in row if name.endswith(("_2a", "_2c", "_2d", "_start"))]


def test_hidden_failure_replays_from_full_page(tmp_path: Path) -> None:
    class_, out = tmp_path / "a class", tmp_path / "the grades"
    (class_ / "bob" / "lab" / "raft").mkdir(parents=True)
    # A peer that starts nothing. Its own messages.py has a field more, which it needs.
    messages = Path("raft/messages.py").read_text()
    changed = messages.replace("    vote_granted: bool\n", "    vote_granted: bool\n    remark: str = ''\n")
    source = REFERENCE.read_text().replace(
        "def start(", "def start(self, command): return -1, -1, False\n    def _(", 1
    )
    source += "\nfrom raft.messages import RequestVoteReply as _R\n_R(1, True, remark='x')\n"
    for name, content in (("raft.py", source), ("messages.py", changed)):
        (class_ / "bob" / "lab" / "raft" / name).write_text(content)
    with zipfile.ZipFile(class_ / "ann.zip", "w") as archive:
        archive.writestr("work/raft.py", source)
        archive.writestr("work/messages.py", changed)
    hidden = tmp_path / "hidden tests.py"
    hidden.write_text(HIDDEN)
    rubric = "runs = 1\n[points]\nother = 0\n[hidden]\nshow = 'everything'\nvisibility = 'visible'\n"
    (tmp_path / "rubric.toml").write_text(f"{rubric}[tests.test_hidden_start_2b]\npoints = 60\n")
    where = ["--hidden", str(hidden), "--rubric", str(tmp_path / "rubric.toml"), "--out", str(out)]
    assert lab(["grade", str(class_), *where]) == 0
    for name in ("ann", "bob"):
        page = unescape((out / "full" / f"{name}.html").read_text())
        command = re.search(r">(lab replay test_hidden_start_2b [^<]+)<", page)
        assert command is not None
        words = [sys.executable, "-m", "raftlab", *shlex.split(command.group(1))[1:]]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        (stored,) = (out / "runs" / f"{name}.jsonl").read_text().splitlines()
        assert json.loads(stored)["run"]["digest"] in done.stdout
        # Whoever may read everything of a hidden test still cannot use that command.
        for path in (out / "students" / name).iterdir():
            text = path.read_text()
            assert "lab replay" not in text and str(tmp_path) not in text, path
            assert "test_hidden_start_2b" in text.replace("<wbr>", ""), path


def test_files_of_an_earlier_submission_are_removed(tmp_path: Path) -> None:
    two = Submission("ann", tmp_path / "ann.zip", {"raft.py": b"#", "messages.py": b"#"})
    assert write_submitted(two, tmp_path).path == tmp_path / "submitted" / "ann"
    write_submitted(replace(two, files={"raft.py": b"# new"}), tmp_path)
    assert [path.name for path in (tmp_path / "submitted" / "ann").iterdir()] == ["raft.py"]
    unread = replace(two, files={}, problem="The submission has no raft.py.")
    assert write_submitted(unread, tmp_path) == unread
    assert not list((tmp_path / "submitted" / "ann").iterdir())


def test_ignored_and_renamed_entries_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class_ = tmp_path / "class"
    class_.mkdir()
    for name in ("ann.py", "ann.zip", "bob c.py", "notes.txt", "list.csv", ".DS_Store"):
        (class_ / name).write_text("raise ValueError('a peer that is soon graded')")
    (tmp_path / "rubric.toml").write_text(ONLY_2A)
    out = tmp_path / "out"
    assert lab(["grade", str(class_), "--rubric", str(tmp_path / "rubric.toml"), "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "  ignored (hidden file): .DS_Store" in said
    assert "  ignored (not a folder, an archive or a .py file): list.csv, notes.txt" in said
    assert "  renamed: ann.zip to ann_2, bob c.py to bob_c" in said
    page = (out / "index.html").read_text()
    assert "notes.txt" in page and ".DS_Store" in page and "submitted as <bdi>ann.zip</bdi>" in page
    rows = csv.DictReader(io.StringIO((out / "scores.csv").read_text()))
    assert [(row["submission"], row["file"]) for row in rows] == [
        ("ann", "ann.py"),
        ("ann_2", "ann.zip"),
        ("bob_c", "bob c.py"),
    ]


@pytest.mark.parametrize(
    ("arguments_", "says"),
    [
        ([], "give either SUBMISSIONS, to grade them, or --gradescope ZIP"),
        (["nowhere"], "nowhere: no such file or folder; SUBMISSIONS must be"),
        (["raft/raft.py", "--rubric", "nowhere.toml"], "nowhere.toml: No such file or directory; RUBRIC must name"),
        (["raft/raft.py", "--hidden", "docs"], "docs: no tests found; expected functions test_...(make_config)"),
        (["raft/raft.py", "--hidden", "nowhere.py"], "nowhere.py: no such test file"),
        (["raft/raft.py", "--out", "Makefile/out"], "Makefile/out: Not a directory; OUT must be a writable folder"),
        (["--gradescope", "Makefile/a.zip"], "lab grade: Makefile: File exists\n"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments_: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert lab(["grade", *arguments_]) == 2
    assert says in capsys.readouterr().err


def test_full_disk_keeps_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "ann.py").write_text("raise ValueError('a peer that is soon graded')")
    (tmp_path / "rubric.toml").write_text(ONLY_2A)
    where = ["--rubric", str(tmp_path / "rubric.toml"), "--out", str(tmp_path / "out")]
    command = ["grade", str(tmp_path / "ann.py"), *where]
    with monkeypatch.context() as patch:
        patch.setattr(grade_command, "write_class", full)
        assert lab(command) == 2
    said = f"No space left on device; finished runs are in {tmp_path / 'out'}, run the same command again to resume"
    assert capsys.readouterr().err == f"lab grade: {said}\n"
    assert lab(command) == 0
    assert "(1 from the cache)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("async def test_b_2a(make_config): assert False\n", "test_b_2a cannot be graded: it is async; write it as a"),
        ("def test_b_2a(make_config):\n    yield\n", "test_b_2a cannot be graded: it contains yield"),
        (
            "import pytest\n@pytest.mark.parametrize('n', [3])\ndef test_b_2a(make_config, n): 1/0\n",
            "test_b_2a cannot be graded: it is parametrized",
        ),
        ("class TestB:\n    def test_b_2a(self, make_config): 1/0\n", "TestB cannot be graded: it is a class"),
        (
            "def test_b_2a(make_config, tmp_path): 1/0\n",
            "test_b_2a cannot be graded: it has the parameter tmp_path; a lab",
        ),
        ("def test_b_2a(): 1/0\n", "test_b_2a cannot be graded: it has no parameter; add make_config"),
        ("def testb(make_config): 1/0\n", "testb cannot be graded: its name "),
        ("import pytest\npytest.skip('later', allow_module_level=True)\n", "Skipped while loading it: later"),
        ("import helper\n", "ModuleNotFoundError while loading it"),
    ],
    ids=["async", "generator", "parametrized", "class", "fixture", "no config", "name", "skip", "helper"],
)
def test_unsuitable_hidden_test_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, says: str
) -> None:
    (tmp_path / "hidden.py").write_text(f"def test_a_2a(make_config): pass\n{source}")
    assert lab(["grade", "raft/raft.py", "--hidden", str(tmp_path / "hidden.py"), "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("values", ["'n', [3]", "'make_config', [3]"])
def test_only_parametrized_test_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], values: str) -> None:
    name = values[1 : values.index("'", 1)]
    source = f"import pytest\n@pytest.mark.parametrize({values})\ndef test_b_2a({name}): 1/0\n"
    (tmp_path / "hidden.py").write_text(source)
    assert lab(["grade", "raft/raft.py", "--hidden", str(tmp_path / "hidden.py"), "--out", str(tmp_path / "out")]) == 2
    assert "hidden.py: test_b_2a cannot be graded: it is parametrized" in capsys.readouterr().err


def test_hidden_files_with_similar_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a-b.py", "a_b.py", "other/a_b.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"def test_{len(name)}{name[1] == '-'}_2a(make_config): pass\n")
    assert load_tests(tmp_path / "a-b.py")[0].name != load_tests(tmp_path / "a_b.py")[0].name
    hidden = ["--hidden", str(tmp_path), "--hidden", str(tmp_path / "other")]
    assert lab(["grade", "raft/raft.py", *hidden, "--out", str(tmp_path / "out")]) == 2
    assert "two files of hidden tests are called a_b.py" in capsys.readouterr().err


def test_submitted_messages_are_used(tmp_path: Path) -> None:
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
    result = graded_on_one_test(tmp_path)
    assert result.score == 20, result
    assert not result.remarks


def test_undecodable_messages_are_remarked(tmp_path: Path) -> None:
    class_ = tmp_path / "class" / "bob"
    class_.mkdir(parents=True)
    renamed_package(class_, success="matches")
    result = graded_on_one_test(tmp_path)
    assert result.score == 20, result
    assert (
        result.remarks[0]
        == "Replies to Raft.append_entries are not checked: they have no field 'success' (its requests are checked)."
    )
    assert "so these rules assume the best for its receiver: earned-leadership, " in result.remarks[1]
    # The names of its methods and fields could tell everybody what a hidden test says.
    (remark,) = graded_on_one_test(tmp_path, hidden=True).remarks
    assert (
        remark.startswith("In hidden tests the peer sent messages that the checks cannot read")
        and "append_entries" not in remark
    )


def graded_on_one_test(folder: Path, *, hidden: bool = False) -> Result:
    from raftlab.tools.grade.grader import Assignment, GradeProgress, grade

    test = load_tests(Path("tests/test_2a.py"))[0]
    tests = [msgspec.structs.replace(graded, hidden=hidden) for graded in Rubric(runs=1).assign([test], [], "p")]
    exam = Assignment(tuple(tests), {test.name: test}, Rubric().limits)
    found = load_submissions(folder / "class", FILES).submissions
    runs = folder / f"runs {hidden}"
    where = {"runs": runs, "pages": lambda _: folder / "pages"}
    (result,) = grade(found, exam, jobs=1, **where, progress=GradeProgress(1, 1), watch=lambda: None)
    return result


# ---- Gradescope ---------------------------------------------------------------------------------------------


def test_autograder_grades_like_gradescope(tmp_path: Path) -> None:
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
    assert not [name for name in names if "mutants" in name or name.endswith(("raft/raft.py", "mutants.py"))]
    # Gradescope's paths, moved here; the environment that setup.sh would make is the one that runs this test.
    script = (source / "run_autograder").read_text().replace("/autograder", str(root))
    (source / "raftlab" / ".venv" / "bin").mkdir(parents=True)
    run_lab = f'#!/bin/sh\nexec env PYTHONPATH="{source}/raftlab" {sys.executable} -P -m raftlab "$@"\n'
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


def test_autograder_is_reproducible(tmp_path: Path) -> None:
    (tmp_path / "rubric.toml").write_text(ONLY_2A)
    for name in ("a.zip", "b.zip"):
        assert lab(["grade", "--gradescope", str(tmp_path / name), "--rubric", str(tmp_path / "rubric.toml")]) == 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_empty_seed_and_bom_in_autograder(tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.toml"
    rubric.write_text('title = "Raft"\nseed = ""  # drawn\nruns = 2\n[points]\n2a = 30\n', encoding="utf-8-sig")
    assert lab(["grade", "--gradescope", str(tmp_path / "a.zip"), "--rubric", str(rubric)]) == 0
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        rubric.write_bytes(archive.read("rubric.toml"))
    assert (Rubric.read(rubric).runs, len(Rubric.read(rubric).seed)) == (2, 32)


def test_make_grade_takes_paths_with_spaces(tmp_path: Path) -> None:
    names = ("SUBMISSIONS", "OUT", "HIDDEN", "RUBRIC", "ROSTER", "OVERRIDES", "SOLUTION")
    for name in names:
        (tmp_path / f"a {name}").touch()
    paths = [f"{name}={tmp_path}/a {name}" for name in names]
    said = subprocess.run(
        ["make", "--no-print-directory", "-n", "grade", *paths], capture_output=True, text=True, check=True
    ).stdout
    words = shlex.split(said.splitlines()[-1])
    assert [words[2], *words[4:15:2]] == [f"{tmp_path}/a {name}" for name in names]


def test_random_seed_phrase_is_stored(tmp_path: Path) -> None:
    first = grade_command._seed_phrase(Rubric(), [], tmp_path)
    assert first == grade_command._seed_phrase(Rubric(), [], tmp_path)
    assert first != grade_command._seed_phrase(Rubric(), [], tmp_path / "other")
    assert len(first) == 32
    assert os.listdir(tmp_path / "other") == ["seed"]  # noqa: PTH208  # names alone
