"""Grading of parts 3A and 3B: the files of a submission, the Raft it runs on, and its points."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path

import pytest

from raftlab.tools.grade import gradescope
from raftlab.tools.grade.grader import Assignment, GradeProgress, grade, reference_files
from raftlab.tools.grade.output import pages_folder, write_submission, write_submitted
from raftlab.tools.grade.runs.run_worker import missing_sandbox
from raftlab.tools.grade.submission_loader import SERVER, Submission, WantedFiles, load_submissions
from raftlab.tools.grade.values.results import Result
from raftlab.tools.grade.values.rubric import Failures, Rubric, RubricError
from raftlab.tools.selection import load_tests
from unit.students import ROOT

RAFT = ROOT / "raft" / "raft.py"
SOURCES = {
    name: (ROOT / name).read_text(encoding="utf-8") for name in ("kv/server.py", "kv/client.py", "kv/messages.py")
}
WITH_SERVICE = WantedFiles(Rubric().files, Rubric().service_files)
ON_REFERENCE = WantedFiles(Rubric().files, Rubric().service_files, needs_peer=False)
HIDDEN = """
def test_hidden_3a(make_kv_config):
    cfg = make_kv_config(servers=3)
    cfg.begin("Test (3A, hidden): two clients")
    one, other = cfg.make_client(), cfg.make_client()
    for number in range(3):
        one.append("x", f"<{number}>")
        other.get("x")
"""


def hand_in(folder: Path, **files: str | None) -> Path:
    """A folder with the reference's service, and what differs by path; "__" stands for a folder, None for nothing."""
    wanted: dict[str, str | None] = {**SOURCES, **{name.replace("__", "/"): text for name, text in files.items()}}
    for name, text in wanted.items():
        name = name if "." in name else f"{name}.py"
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def load(folder: Path, wanted: WantedFiles) -> Submission:
    (found,) = load_submissions(folder, wanted, single=True).submissions
    return found


# ---- what is taken -------------------------------------------------------------------------------------------------


def test_service_is_read_from_its_folder(tmp_path: Path) -> None:
    hand_in(tmp_path, raft__raft="# raft", raft__messages="# its", labrpc__server="# the lab's", kv__helper="# mine")
    found = load(tmp_path, WITH_SERVICE)
    assert sorted(found.files) == ["kv/client.py", "kv/messages.py", "kv/server.py", "messages.py", "raft.py"]
    assert found.files["messages.py"] == b"# its"
    assert found.files[SERVER].decode() == SOURCES["kv/server.py"]
    assert found.remarks == (
        "These files beside server.py were ignored: helper.py. Only server.py, client.py, messages.py are used.",
    )


def test_service_alone_with_reference_raft(tmp_path: Path) -> None:
    hand_in(tmp_path)
    assert sorted(load(tmp_path, ON_REFERENCE).files) == sorted(SOURCES)
    assert load(tmp_path, WITH_SERVICE).problem.startswith("The submission has no raft.py; it has kv/client.py, ")
    assert sorted(load(tmp_path / "kv", ON_REFERENCE).files) == sorted(SOURCES)  # its files, without the folder


def test_submission_without_raft_or_service_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "notes.py").touch()
    assert (
        load(tmp_path, ON_REFERENCE).problem == "The submission has neither kv/server.py nor raft.py; it has notes.py."
    )


@pytest.mark.parametrize(
    ("files", "wanted", "remark"),
    [
        ({}, WantedFiles(Rubric().files), "kv/server.py was not run: parts 3A and 3B are not graded."),
        (dict.fromkeys(SOURCES), WITH_SERVICE, "The submission has no kv/server.py, so parts 3A and 3B were not run."),
        (
            {"kv/client.py": None},
            WITH_SERVICE,
            "There is no client.py beside server.py, so parts 3A and 3B were not run. These parts need both files.",
        ),
    ],
)
def test_remark_says_what_is_not_run(tmp_path: Path, files: dict[str, None], wanted: WantedFiles, remark: str) -> None:
    found = load(hand_in(tmp_path, raft__raft="# raft", **files), wanted)
    assert found.problem == ""
    assert found.remarks == (remark,)
    assert SERVER not in found.files


def test_shared_messages_file_is_remarked(tmp_path: Path) -> None:
    for name in ("raft.py", "messages.py", "server.py", "client.py"):
        (tmp_path / name).write_text("# all in one folder")
    assert load(tmp_path, WITH_SERVICE).remarks == (
        "raft.py and server.py are in one folder, so messages.py was used for both. Submit the folders raft and kv "
        "instead.",
    )


# ---- what it earns -------------------------------------------------------------------------------------------------


def graded(folder: Path, submissions: dict[str, Path], *, raft: str = "own") -> dict[str, Result]:
    hidden = folder / "hidden.py"
    hidden.write_text(HIDDEN)
    public = [test for test in load_tests(ROOT / "tests" / "test_2a.py") if test.name == "test_initial_election_2a"]
    rubric = Rubric(runs=1, points={"2a": 10, "3a": 20})
    secret = load_tests(hidden)
    tests = tuple(rubric.assign(public, secret, "phrase"))
    reference = reference_files(RAFT) if raft == "reference" else {}
    exam = Assignment(
        tests, {t.name: t for t in (*public, *secret)}, rubric.limits, reference, str(RAFT), Failures(shrink=0)
    )
    wanted = ON_REFERENCE if reference else WITH_SERVICE
    class_ = []
    for name, path in submissions.items():
        (one,) = load_submissions(path, wanted, single=True).submissions
        class_.append(write_submitted(Submission(name, path, one.files, one.problem, one.remarks), folder / "out"))
    progress = GradeProgress(len(class_), 0)
    where = {"runs": folder / "runs", "pages": partial(pages_folder, folder / "out")}
    results = grade(class_, exam, jobs=1, **where, progress=progress, watch=lambda: None)
    for result in results:
        write_submission(result, "Raft", folder / "out")
    return {result.name: result for result in results}


@pytest.mark.skipif(bool(missing_sandbox()), reason=missing_sandbox())
def test_service_earns_only_its_part(tmp_path: Path) -> None:
    raft = RAFT.read_text(encoding="utf-8")
    messages = (ROOT / "raft" / "messages.py").read_text(encoding="utf-8")
    alone = SOURCES["kv/client.py"].replace("        return str(self._ask(", "        return '' and str(self._ask(")
    class_ = {"right": {}, "none": dict.fromkeys(SOURCES), "unloadable": {"kv/client.py": "def ("}}
    class_["wrong"] = {"kv/client.py": alone}
    folders = {
        name: hand_in(tmp_path / name, raft__raft=raft, raft__messages=messages, **files)
        for name, files in class_.items()
    }
    results = graded(tmp_path, folders)
    points = {name: [earned for earned, _ in result.parts.values()] for name, result in results.items()}
    assert points == {"right": [10, 20], "none": [10, 0], "unloadable": [10, 0], "wrong": [10, 0]}
    assert results["none"].tests[1].summary == "Not run: the submission has no kv/server.py with a client.py beside it."
    # Of a hidden test not even the reason.
    assert results["unloadable"].remarks == ("Parts 3A and 3B: The service cannot be loaded in a hidden test.",)
    (run,) = results["wrong"].tests[1].runs
    assert run.rule == "linearizability"
    submitted = tmp_path / "out" / "submitted" / "wrong"
    assert run.replay.endswith(f" --raft {submitted}/raft.py --kv {submitted}/kv/server.py --isolated")


@pytest.mark.skipif(bool(missing_sandbox()), reason=missing_sandbox())
def test_reference_raft_isolates_service_points(tmp_path: Path) -> None:
    wrong = hand_in(tmp_path / "wrong", raft__raft="raise ValueError")
    results = graded(tmp_path, {"alone": hand_in(tmp_path / "alone"), "wrong": wrong}, raft="reference")
    assert [earned for earned, _ in results["alone"].parts.values()] == [0, 20]
    assert [earned for earned, _ in results["wrong"].parts.values()] == [0, 20]
    assert results["wrong"].problem == ""
    assert results["wrong"].remarks[0].startswith("Parts 2A to 2D: raft/raft.py:1: ValueError while importing it")
    assert results["alone"].tests[0].summary == "Not run: the submission has no raft.py."
    assert "Services ran on the course's raft.py." in results["alone"].remarks[-1]


def test_missing_reference_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RubricError, match=r'raft = "reference" needs a raft.py to run services on, but '):
        reference_files(tmp_path / "raft.py")


@pytest.mark.parametrize("with_reference", [False, True])
def test_autograder_has_only_the_reference_peer(tmp_path: Path, with_reference: bool) -> None:
    reference = reference_files(RAFT) if with_reference else {}
    gradescope.pack(tmp_path / "a.zip", None, Rubric(), [], seeds_from="words", reference=reference)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = set(archive.namelist())
        run, setup = (archive.read(name).decode() for name in ("run_autograder", "setup.sh"))
    assert ("reference/raft.py" in names) == with_reference
    assert ("--solution ../reference/raft.py" in run) == with_reference
    assert ("/autograder/source/reference" in setup) == with_reference
    assert not names & {
        "raftlab/raft/raft.py",
        "raftlab/kv/server.py",
        "raftlab/kv/client.py",
        "raftlab/kv/messages.py",
    }
