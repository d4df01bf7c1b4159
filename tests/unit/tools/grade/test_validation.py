"""Tests are validated on a solution before grading."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from raftlab.tools.cli import main as lab
from raftlab.tools.grade.values.rubric import seeds

REFERENCE = Path("raft/raft.py").read_text()
RUBRIC = "runs = 2\nseed = 'a word'\n[public]\nextra = false\n[points]\n2a = 30\n[failures]\npages = 0\nshrink = 0\n"
RIGHT = "def test_right_2a(make_config):\n    make_config(servers=3).check_one_leader()\n"


class Course:
    """A submission that cannot be loaded, tests for it, and the output of `lab grade`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.hidden = folder / "hidden.py"
        self.rubric = folder / "rubric.toml"
        self.rubric.write_text(RUBRIC)
        (folder / "ann.py").write_text("raise ValueError('a peer that is soon graded')")
        self._capsys = capsys

    def grade(self, *more: str, what: list[str] | None = None) -> tuple[int, str]:
        what = what or [str(self.folder / "ann.py"), "--out", str(self.out)]
        given = ["--hidden", str(self.hidden), "--rubric", str(self.rubric), "--jobs", "1"]
        status = lab(["grade", *what, *given, *more])
        said = self._capsys.readouterr()
        return status, said.out + said.err


@pytest.fixture
def course(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Course:
    return Course(tmp_path, capsys)


BROKEN = {
    "1 / 0": ["ZeroDivisionError: division by zero", "hidden.py:6 in test_broken_2a", "1 / 0"],
    "make_config(servers=3).fail('nobody can pass this')": ["nobody can pass this"],
    "pytest.skip('later')": ["The solution skips this test, but it must pass the test"],
    "os._exit(3)": ["In 5 attempts, the process that makes the runs ended itself with exit status 3."],
    "spend(1.2)": ["s of processor time; the limit is 1 s. Shorten the test, or raise limits.cpu_s"],
}


@pytest.mark.parametrize("line", BROKEN)
def test_test_failed_by_the_solution_is_refused(course: Course, line: str) -> None:
    course.rubric.write_text(f"{RUBRIC}[limits]\ncpu_s = 1\n")
    spend = "def spend(s):\n    began = os.times()\n    while sum(os.times()[:2]) - sum(began[:2]) < s: pass\n"
    course.hidden.write_text(
        f"import os\nimport pytest\n\n\ndef test_broken_2a(make_config):\n    {line}\n{RIGHT}{spend}"
    )
    status, said = course.grade()
    assert status == 2
    assert (
        "lab grade: 1 of 5 tests fails on raft/raft.py. The solution must pass every test, so no submission "
        "was graded:\n" in said
    )
    assert f"\n  test_broken_2a  seed {min(seeds('a word', 'test_broken_2a', 2))}\n" in said
    for words in BROKEN[line]:
        assert words in said
    last = "If the solution is incorrect, name a correct one with --solution PATH (make: SOLUTION=path), and its "
    last += "service with --kv PATH (make: KV=path)"
    assert said.splitlines()[-1] == f"Fix the tests. {last}"
    assert not [name for name in ("scores.csv", "runs", "students", "provenance.json") if (course.out / name).exists()]


def test_replay_line_names_only_hidden_files(course: Course) -> None:
    course.hidden.write_text("def test_broken_2a(make_config): 1 / 0\n")
    (course.folder / "raft.py").write_text(REFERENCE.replace("def get_state(self)", "def get_state(self, _)"))
    _, said = course.grade("--solution", str(course.folder / "raft.py"))
    first = min(seeds("a word", "test_broken_2a", 2))
    assert (
        f"  lab replay test_broken_2a --seed {first} --file {course.hidden} --raft {course.folder}/raft.py --isolated\n"
        in said
    )
    first = min(seeds("a word", "test_initial_election_2a", 2))
    assert f"  make replay TEST=test_initial_election_2a SEED={first} RAFT={course.folder}/raft.py ISOLATED=1\n" in said


def test_the_solution_runs_sandboxed_as_submissions_do(course: Course) -> None:
    loader = "assert not any(name.endswith('harness.in_process') for name in sys.modules)"
    course.hidden.write_text(f"import sys\ndef test_sandboxed_2a(make_config):\n    {loader}\n")
    status, said = course.grade()
    assert status == 0, said


def test_hidden_scenarios_are_graded(course: Course) -> None:
    course.hidden = course.folder / "hidden"
    course.hidden.mkdir()
    (course.hidden / "right.py").write_text(RIGHT)
    scenario = course.hidden / "elected_2a.scenario"
    scenario.write_text("campaign 0\nexpect leader 0\n")
    status, said = course.grade()
    assert status == 2
    assert "Expected peer 0 as the leader; get_state() says: term 1, not leader" in said
    scenario.write_text("campaign 0\ndeliver\nexpect leader 0\n")
    status, said = course.grade()
    assert status == 0
    row = (course.out / "scores.csv").read_text().partition("\n")[0]
    assert "elected_2a" in row and "test_right_2a" in row


def test_validated_tests_are_not_validated_again(course: Course) -> None:
    course.hidden.write_text(RIGHT)
    solution = course.folder / "solution" / "raft.py"
    solution.parent.mkdir()
    solution.write_text(REFERENCE)
    where = ["--solution", str(solution.parent)]
    status, said = course.grade(*where)
    assert (status, f"  validating the tests on {solution}: 4 tests, 8 runs\n" in said) == (0, True)
    assert "validating the tests" not in course.grade(*where)[1]
    course.hidden.write_text(f"# changed\n{RIGHT}")
    assert "1 test, 2 runs\n" in course.grade(*where)[1]
    course.rubric.write_text(RUBRIC.replace("runs = 2", "runs = 3"))
    assert "4 tests, 12 runs\n" in course.grade(*where)[1]
    solution.write_text(f"{REFERENCE}# changed\n")
    assert "4 tests, 12 runs\n" in course.grade(*where, "--jobs", "1")[1]
    (course.out / "validation.json").write_text("{")
    assert "4 tests, 12 runs\n" in course.grade(*where)[1]


def test_only_failed_tests_are_validated_again(course: Course) -> None:
    course.hidden.write_text("def test_broken_2a(make_config): 1 / 0\n")
    assert course.grade()[0] == 2
    status, said = course.grade()
    assert (status, "  validating the tests on raft/raft.py: 1 test, 2 runs\n" in said) == (2, True)


def test_allowed_failures_are_only_reported(course: Course) -> None:
    course.hidden.write_text(
        "from labsim import random\ndef test_dice_2a(make_config):\n    if random.random() < 0.5: 1 / 0\n"
    )
    course.rubric.write_text(f"{RUBRIC}[tests.test_dice_2a]\nruns = 8\npass_rate = 0.1\n")
    for _ in range(2):
        status, said = course.grade()
        assert status == 0
        assert "  test_dice_2a fails on raft/raft.py with seed " in said and "; its pass_rate allows that\n" in said
    course.rubric.write_text(f"{RUBRIC}[tests.test_dice_2a]\nruns = 8\n")
    assert course.grade()[0] == 2


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "raft.py: no such file; --solution must name a raft.py that passes every test\n"),
        ("def (", "raft.py:1: SyntaxError"),
        (REFERENCE.replace("def start(", "def start(self, command): return -1, -1, False\n    def _(", 1), " fail on "),
    ],
)
def test_incorrect_solution_is_reported(course: Course, source: str | None, says: str) -> None:
    course.hidden.write_text("def test_start_2a(make_config): make_config(servers=3).one(1, 3, retry=False)\n" + RIGHT)
    solution = course.folder / "raft.py"
    if source is not None:
        solution.write_text(source)
    status, said = course.grade("--solution", str(solution))
    assert (status, says.replace(" fail on ", " fails on ") in said) == (2, True), said
    assert "--solution" in said.splitlines()[-1]


def test_autograder_is_validated_before_packing(course: Course) -> None:
    target = course.folder / "autograder.zip"
    course.rubric.write_text(RUBRIC.replace("seed = 'a word'", ""))
    course.hidden.write_text("def test_broken_2a(make_config): 1 / 0\n")
    status, said = course.grade(what=["--gradescope", str(target)])
    assert (status, "test_broken_2a  seed " in said, target.exists()) == (2, True, False)
    course.hidden = course.folder / "fixed.py"  # another name: a module is loaded once
    course.hidden.write_text(RIGHT)
    status, said = course.grade(what=["--gradescope", str(target)])
    assert (status, "  validating the tests on raft/raft.py: 4 tests, 8 runs\n" in said) == (0, True)
    with zipfile.ZipFile(target) as archive:
        archive.extractall(course.folder / "there")
    there = course.folder / "there"
    command = [sys.executable, "-P", "-m", "raftlab", "grade", str(course.folder / "ann.py"), "--single"]
    where = ["--rubric", str(there / "rubric.toml"), "--hidden", str(there / "hidden"), "--out", str(there / "out")]
    done = subprocess.run(
        [*command, *where],
        cwd=there,
        env=os.environ | {"PYTHONPATH": str(there / "raftlab")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "  tests not validated: raft/raft.py does not exist here, and --solution is not given\n" in done.stdout
    # The seeds over there are those that were tried here.
    assert course.grade()[0] == 0
    here, over_there = (json.loads((out / "provenance.json").read_text()) for out in (course.out, there / "out"))
    assert here["seeds"] == over_there["seeds"]


def test_grader_killed_in_validation_leaves_only_out(course: Course) -> None:
    course.hidden.write_text(
        "import os, signal\ndef test_kills_2a(make_config): os.kill(os.getppid(), signal.SIGKILL)\n"
    )
    elsewhere = course.folder / "tmp"
    elsewhere.mkdir()
    where = ["--hidden", str(course.hidden), "--rubric", str(course.rubric), "--out", str(course.out)]
    done = subprocess.run(
        [sys.executable, "-m", "raftlab", "grade", str(course.folder / "ann.py"), *where],
        env=os.environ | {"TMPDIR": str(elsewhere)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert list(elsewhere.iterdir()) == []
