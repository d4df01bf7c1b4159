"""What OUT keeps from one call to the next: the result of every submission, and how all of them came about.

Promise: the tables of a class are made from the results that are kept, so whoever grades one submission again keeps
the others. Results of two exams (other tests, points, seeds, another lab) are never in one table. Nothing that
depends on when or how often the grader was called is in a result; that is in the provenance alone.

Start at `Kept` and `Provenance`.
"""

from __future__ import annotations

import hashlib
import platform
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from raftlab.layout import ROOT
from raftlab.tools.grade.grader import Exam
from raftlab.tools.grade.values.results import PROVENANCE, Result
from raftlab.tools.grade.values.rubric import Limits, Rubric
from raftlab.tools.grade.values.store import write_whole

RESULTS = "results"
_VERSION = 1


class KeptError(Exception):
    """One submission cannot be added to what is kept; the text says why, and what to do."""


class ExamKey(msgspec.Struct, frozen=True):
    """What decides about results, in digests."""

    rubric: str
    public: str
    hidden: str
    seeds: str
    lab: str  # and Python

    @classmethod
    def of(cls, exam: Exam, rubric: Rubric) -> ExamKey:
        return cls(
            rubric=_digest([msgspec.json.encode(msgspec.structs.replace(rubric, title=""))]),
            public=_digest(digest.encode() for digest in files_of(exam, hidden=False).values()),
            hidden=_digest(digest.encode() for digest in files_of(exam, hidden=True).values()),
            seeds=_digest([msgspec.json.encode([(test.name, test.seeds) for test in exam.tests])]),
            # The limits are the rubric's.
            lab=replace(exam, limits=Limits()).lab_code,
        )

    def differs(self, other: ExamKey) -> str:
        """In what, in words; "" if in nothing."""
        words = {"rubric": "the rubric", "public": "the public tests", "hidden": "the hidden tests", "lab": "the lab"}
        found = [said for name, said in words.items() if getattr(self, name) != getattr(other, name)]
        # Which follow from the hidden tests, so that they are worth a word only alone.
        return ", ".join(found) or ("the seeds" if self.seeds != other.seeds else "")


def files_of(exam: Exam, *, hidden: bool) -> dict[str, str]:
    """A digest of each file that has a test of the exam, by the file's name."""
    files = dict.fromkeys(exam.files[test.name].file for test in exam.tests if test.hidden == hidden)
    return {file.name: _digest([file.read_bytes()]) for file in files}


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d " % len(part) + part)
    return digest.hexdigest()


# ---- results -------------------------------------------------------------------------------------------------


class _Record(msgspec.Struct):
    version: int
    exam: ExamKey
    result: Result


class Kept:
    """The results in OUT, as they were found there and as they are added."""

    def __init__(self, out: Path, exam: ExamKey) -> None:
        self._out = out
        self._folder = out / RESULTS
        self.exam = exam
        self._records: dict[str, _Record | None] = {}  # by name; None: it cannot be read
        for path in sorted(self._folder.glob("*.json")):
            if not path.name.startswith("."):
                self._records[path.stem] = _read(path)

    @property
    def results(self) -> list[Result]:
        """Of this exam, in the order in which a folder has them."""
        found = [record.result for record in self._records.values() if record is not None and record.exam == self.exam]
        return sorted(found, key=lambda result: (result.file, result.name))

    def name_of(self, file: str) -> str | None:
        """Under which name a file of that name was graded."""
        records = (record for record in self._records.values() if record is not None)
        return next((record.result.name for record in records if record.result.file == file), None)

    def file_of(self, name: str) -> str:
        """What was graded under that name; "" if nothing was."""
        record = self._records.get(name)
        return "" if record is None else record.result.file

    def add(self, result: Result) -> None:
        # What a run took is in the store of runs; of a result it is no part.
        tests = tuple(
            replace(test, runs=tuple(msgspec.structs.replace(run, real_s=0.0, cpu_s=0.0) for run in test.runs))
            for test in result.tests
        )
        record = self._records[result.name] = _Record(_VERSION, self.exam, replace(result, tests=tests))
        write_whole(self._path(result.name), msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")

    def keep_only(self, names: Iterable[str]) -> list[str]:
        """The class is these. Who was in it and is not any more; their runs stay, should they come back."""
        gone = sorted(self._records.keys() - set(names))
        for name in gone:
            del self._records[name]
            self._path(name).unlink()
        return gone

    def refuse_to_add(self, name: str) -> None:
        """KeptError if one more, of that name, would stand beside results of another exam."""
        others = {other: record for other, record in self._records.items() if other != name}
        fix = (
            "Grade the folder of the whole class into it (what need not be run again is not), or name another --out "
            "for this one"
        )
        if not self._records and (self._out / "scores.csv").exists():
            raise KeptError(f"{self._out}: its table was made without results that one more could be added to. {fix}")
        strange = [other for other, record in others.items() if record is None or record.exam != self.exam]
        if not strange:
            return
        first = others[strange[0]]
        why = f"cannot be read in {RESULTS}/" if first is None else f"differs in {self.exam.differs(first.exam)}"
        many = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise KeptError(f"{self._out}: it has results of another exam: {strange[0]}{many} ({why}). {fix}")

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _read(path: Path) -> _Record | None:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return None
    return record if record.version == _VERSION else None


# ---- provenance ----------------------------------------------------------------------------------------------


class Call(msgspec.Struct):
    date: str
    command: str
    submissions: int
    exam: ExamKey


class _Before(msgspec.Struct):
    """What is read back of a provenance."""

    passed_over: dict[str, str]
    calls: list[Call]


class Provenance(msgspec.Struct):
    """How the results in OUT came about: enough to make them again, or to say why they would be others."""

    version: int
    lab: str
    python: str
    exam: ExamKey
    rubric: Rubric  # as it was used: what the file left out is in it
    hidden: dict[str, str]  # a digest of each file
    seeds: dict[str, tuple[int, ...]]  # of each test
    passed_over: dict[str, str]  # of the folder that is the class
    calls: list[Call]

    @classmethod
    def of(cls, exam: Exam, rubric: Rubric, key: ExamKey) -> Provenance:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return cls(
            version=_VERSION,
            lab=f"{project['name']} {project['version']}",
            python=platform.python_version(),
            exam=key,
            rubric=rubric,
            hidden=files_of(exam, hidden=True),
            seeds={test.name: test.seeds for test in exam.tests},
            passed_over={},
            calls=[],
        )

    def write(self, out: Path, command: str, submissions: int, passed_over: dict[str, str] | None) -> None:
        """With one call more than there were. `passed_over`: None if it was no folder; then it stays as it was."""
        path = out / PROVENANCE
        with suppress(OSError, msgspec.MsgspecError):
            before = msgspec.json.decode(path.read_bytes(), type=_Before)
            self.calls, self.passed_over = before.calls, before.passed_over
        if passed_over is not None:
            self.passed_over = passed_over
        date = datetime.now(UTC).isoformat(timespec="seconds")
        self.calls.append(Call(date, command, submissions, self.exam))
        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @property
    def told(self) -> dict[str, str]:
        """In short, for a page. Without dates: the page of equal results is the same tomorrow."""
        hidden = ", ".join(f"{name} {digest}" for name, digest in self.hidden.items())
        return {
            "Lab": f"{self.lab}, digest {self.exam.lab}",
            "Python": self.python,
            "Rubric": f"digest {self.exam.rubric}",
            "Hidden tests": hidden or "none",
        }
