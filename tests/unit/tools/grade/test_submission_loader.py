"""Submissions: folders, archives and single files, and which files of them are graded."""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from raftlab.tools.grade.output import write_submission
from raftlab.tools.grade.submission_loader import SubmissionError, WantedFiles, load_submissions
from raftlab.tools.grade.values.results import Result

REFERENCE = Path("raft/raft.py")
FILES = WantedFiles(("raft.py", "messages.py"))


def test_folder_archive_and_file_are_equivalent(tmp_path: Path) -> None:
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
    found = load_submissions(tmp_path, FILES).submissions
    assert [s.name for s in found] == ["ann", "bob", "cid", "dan", "eve"]
    assert [s.problem for s in found] == [""] * 5
    assert len({s.digest for s in found}) == 1


def test_only_messages_beside_raft_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "ann" / "raft"
    folder.mkdir(parents=True)
    for name in ("raft.py", "messages.py", "persister.py", "conftest.py"):
        (folder / name).write_text(f"# {name}")
    (tmp_path / "ann" / "raftlab.py").write_text("# not mine")
    (found,) = load_submissions(tmp_path, FILES).submissions
    assert found.files == {"raft.py": b"# raft.py", "messages.py": b"# messages.py"}


def test_single_submission_is_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "ann"
    folder.mkdir()
    (folder / "raft.py").write_text("#")
    assert [s.name for s in load_submissions(folder, FILES).submissions] == ["ann"]
    assert [s.name for s in load_submissions(folder / "raft.py", FILES).submissions] == ["ann"]
    (folder / "raft.py").rename(folder / "draft.py")
    (found,) = load_submissions(folder, FILES, single=True).submissions
    assert found.problem == "The submission has no raft.py; it has draft.py."


def test_names_are_safe_and_unique(tmp_path: Path) -> None:
    for name in ("a b.py", "a_b.py", "-=x;.py"):
        (tmp_path / name).write_text("#")
    assert [s.name for s in load_submissions(tmp_path, FILES).submissions] == ["-_x", "a_b", "a_b_2"]


def test_names_of_any_bytes_are_printable(tmp_path: Path) -> None:
    class_ = tmp_path / "class"
    (class_ / ("\U00020000" * 62)).mkdir(parents=True)
    with tarfile.open(class_ / "bytes.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("caf\udce9\x1b[2J.py"))
    found = load_submissions(class_, FILES).submissions
    assert [s.problem for s in found] == [
        "The submission has no raft.py; it has caf??[2J.py.",
        "The submission has no raft.py.",
    ]
    for submission in found:
        write_submission(Result(submission.name, submission.problem, submission.remarks, ()), "Raft", tmp_path / "out")


def test_unreadable_archive_stays_in_the_class(tmp_path: Path) -> None:
    (tmp_path / "ann.7z").write_bytes(b"7z")
    (tmp_path / "bob.rar").write_bytes(b"Rar!")
    os.mkfifo(tmp_path / "eve.py")
    (tmp_path / "notes.txt").write_text("no submission")
    assert {s.name: s.problem for s in load_submissions(tmp_path, FILES).submissions} == {
        "ann": ".7z archives cannot be read. Submit a .zip.",
        "bob": ".rar archives cannot be read. Submit a .zip.",
        "eve": "The submission is neither a file nor a folder.",
    }


def test_folders_of_the_grader_are_ignored(tmp_path: Path) -> None:
    for name in ("ann", "grades", "hidden"):
        (tmp_path / name).mkdir()
    found = load_submissions(
        tmp_path, FILES, excluded=(tmp_path / "grades", tmp_path / "ann" / ".." / "hidden")
    ).submissions
    assert [s.name for s in found] == ["ann"]


def test_ignored_entries_have_a_reason(tmp_path: Path) -> None:
    (tmp_path / "grades").mkdir()
    for name in ("ann.py", "ann.zip", "notes.txt", ".DS_Store", "solution.py"):
        (tmp_path / name).write_text("#")
    found = load_submissions(tmp_path, FILES, excluded=(tmp_path / "grades", tmp_path / "solution.py"))
    assert found.ignored == {
        ".DS_Store": "hidden file",
        "grades": "OUT, hidden tests or the solution",
        "notes.txt": "not a folder, an archive or a .py file",
        "solution.py": "OUT, hidden tests or the solution",
    }
    assert [(s.name, s.file) for s in found.submissions] == [("ann", "ann.py"), ("ann_2", "ann.zip")]
    assert found.is_class


def test_single_submission_is_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "raft.py").write_text("#")
    (tmp_path / "bob.py").write_text("#")
    found = [load_submissions(tmp_path / path, FILES) for path in ("ann", "ann/raft.py", "bob.py")]
    assert [(s.name, s.file) for one in found for s in one.submissions] == [
        ("ann", "ann"),
        ("ann", "ann/raft.py"),
        ("bob", "bob.py"),
    ]
    assert not any(one.is_class for one in found)


def test_other_files_beside_raft_are_remarked(tmp_path: Path) -> None:
    folder = tmp_path / "ann"
    folder.mkdir()
    for name in ("raft.py", "messages.py", "persister.py", "__init__.py", "util.py", "log.py"):
        (folder / name).write_text("#")
    (found,) = load_submissions(tmp_path, FILES).submissions
    assert found.remarks == (
        "These files beside raft.py were ignored: log.py, util.py. Only raft.py, messages.py are used.",
    )


def test_no_submissions_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="no submissions found"):
        load_submissions(tmp_path, FILES)
    with pytest.raises(SubmissionError, match="no such file or folder"):
        load_submissions(tmp_path / "nowhere", FILES)
