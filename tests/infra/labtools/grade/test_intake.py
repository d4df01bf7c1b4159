"""What is handed in: folders, archives and single files, and what is taken of them."""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from labtools.grade.intake import IntakeError, submissions
from labtools.grade.results import Result
from labtools.grade.write import write_submission

REFERENCE = Path("raft/raft.py")
FILES = ("raft.py", "messages.py")


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
