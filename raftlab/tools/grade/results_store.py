"""Keeps results in OUT between calls, and their provenance.

Promise: the tables of a class are made from the stored results, so grading one submission again keeps the others. A
table never mixes results of different assignments (other tests, points, seeds or lab). A result does not depend on when
or how often the grader was called; only the provenance does.

Start at `ResultsStore` and `Provenance`.
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
from raftlab.tools.grade.grader import Assignment
from raftlab.tools.grade.values.results import PROVENANCE, Result
from raftlab.tools.grade.values.rubric import Limits, Rubric
from raftlab.tools.grade.values.store import write_whole

RESULTS = "results"
_VERSION = 2  # 1: points were no whole hundredths


class ResultsStoreError(Exception):
    """One submission cannot be added to the stored class; the text says why, and what to do."""


class AssignmentKey(msgspec.Struct, frozen=True):
    """Digests of everything that affects results."""

    rubric: str
    public: str
    hidden: str
    seeds: str
    lab: str  # and Python

    @classmethod
    def of(cls, assignment: Assignment, rubric: Rubric) -> AssignmentKey:
        return cls(
            rubric=_digest([msgspec.json.encode(msgspec.structs.replace(rubric, title=""))]),
            public=_digest(digest.encode() for digest in files_of(assignment, hidden=False).values()),
            hidden=_digest(digest.encode() for digest in files_of(assignment, hidden=True).values()),
            seeds=_digest([msgspec.json.encode([(test.name, test.seeds) for test in assignment.tests])]),
            # The limits are the rubric's.
            lab=replace(assignment, limits=Limits()).lab_code,
        )

    def differs(self, other: AssignmentKey) -> str:
        """The differences, as text; "" if equal."""
        labels = {"rubric": "the rubric", "public": "the public tests", "hidden": "the hidden tests", "lab": "the lab"}
        found = [label for name, label in labels.items() if getattr(self, name) != getattr(other, name)]
        # Seeds follow from the hidden tests, so they are named only if nothing else differs.
        return ", ".join(found) or ("the seeds" if self.seeds != other.seeds else "")


def files_of(assignment: Assignment, *, hidden: bool) -> dict[str, str]:
    """A digest of each file that has a test of the assignment, by the file's name."""
    files = dict.fromkeys(assignment.files[test.name].file for test in assignment.tests if test.hidden == hidden)
    return {file.name: _digest([file.read_bytes()]) for file in files}


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d " % len(part) + part)
    return digest.hexdigest()


# ---- results -------------------------------------------------------------------------------------------------


class _Record(msgspec.Struct):
    version: int
    exam: AssignmentKey
    result: Result


class ResultsStore:
    """The results in OUT."""

    def __init__(self, out: Path, key: AssignmentKey) -> None:
        self._out = out
        self._folder = out / RESULTS
        self.key = key
        self._records: dict[str, _Record | None] = {}  # by name; None: it cannot be read
        for path in sorted(self._folder.glob("*.json")):
            if not path.name.startswith("."):
                self._records[path.stem] = _read(path)

    @property
    def results(self) -> list[Result]:
        """The results of this assignment, sorted by file."""
        found = [record.result for record in self._records.values() if record is not None and record.exam == self.key]
        return sorted(found, key=lambda result: (result.file, result.name))

    @property
    def names(self) -> list[str]:
        return list(self._records)

    def name_of(self, file: str) -> str | None:
        """The name under which that file was graded."""
        records = (record for record in self._records.values() if record is not None)
        return next((record.result.name for record in records if record.result.file == file), None)

    def file_of(self, name: str) -> str:
        """The file that was graded under that name, or ""."""
        record = self._records.get(name)
        return "" if record is None else record.result.file

    def add(self, result: Result) -> None:
        # Times are in the store of runs; they are not part of a result.
        tests = tuple(
            replace(test, runs=tuple(msgspec.structs.replace(run, real_s=0.0, cpu_s=0.0) for run in test.runs))
            for test in result.tests
        )
        record = self._records[result.name] = _Record(_VERSION, self.key, replace(result, tests=tests))
        write_whole(self._path(result.name), msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")

    def keep_only(self, names: Iterable[str]) -> list[str]:
        """Remove all other submissions from the class, and return their names. Their runs stay."""
        gone = sorted(self._records.keys() - set(names))
        for name in gone:
            del self._records[name]
            self._path(name).unlink()
        return gone

    def refuse_to_add(self, name: str) -> None:
        """ResultsStoreError if a submission of that name cannot join results of another assignment."""
        others = {other: record for other, record in self._records.items() if other != name}
        fix = (
            "Grade the folder of the whole class again (finished runs are cached), or use another --out for this "
            "submission"
        )
        if not self._records and (self._out / "scores.csv").exists():
            raise ResultsStoreError(f"{self._out}: cannot add a submission to a table without stored results. {fix}")
        strange = [other for other, record in others.items() if record is None or record.exam != self.key]
        if not strange:
            return
        first = others[strange[0]]
        why = f"cannot be read in {RESULTS}/" if first is None else f"differs in {self.key.differs(first.exam)}"
        many = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise ResultsStoreError(f"{self._out}: has results of another assignment: {strange[0]}{many} ({why}). {fix}")

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
    exam: AssignmentKey


class _Before(msgspec.Struct):
    """The part of a provenance that is read back."""

    passed_over: dict[str, str]
    calls: list[Call]


class Provenance(msgspec.Struct):
    """How the results in OUT were made: enough to reproduce them, or to explain differences."""

    version: int
    lab: str
    python: str
    exam: AssignmentKey
    rubric: Rubric  # as used, with defaults
    hidden: dict[str, str]  # a digest of each file
    seeds: dict[str, tuple[int, ...]]  # of each test
    passed_over: dict[str, str]  # ignored entries of the folder, and why
    calls: list[Call]

    @classmethod
    def of(cls, assignment: Assignment, rubric: Rubric, key: AssignmentKey) -> Provenance:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return cls(
            version=_VERSION,
            lab=f"{project['name']} {project['version']}",
            python=platform.python_version(),
            exam=key,
            rubric=rubric,
            hidden=files_of(assignment, hidden=True),
            seeds={test.name: test.seeds for test in assignment.tests},
            passed_over={},
            calls=[],
        )

    def write(self, out: Path, command: str, submissions: int, passed_over: dict[str, str] | None) -> None:
        """Write the file, with this call added. `passed_over`: None leaves it unchanged (for a single submission)."""
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
    def summary(self) -> dict[str, str]:
        """For the overview. Without dates, so that equal results give equal pages."""
        hidden = ", ".join(f"{name} {digest}" for name, digest in self.hidden.items())
        return {
            "Lab": f"{self.lab}, digest {self.exam.lab}",
            "Python": self.python,
            "Rubric": f"digest {self.exam.rubric}",
            "Hidden tests": hidden or "none",
        }
