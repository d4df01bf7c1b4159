"""The roster: a CSV file with the students of a course, and which submission belongs to which student.

Promise: a submission gets a student only if its name is the student's, or an export's documented form of it. A name
that fits two students fits neither. An invalid file is refused, with the line and the fix.

Start at `Roster.read()` and `Roster.student_of()`.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

import msgspec

_REQUIRED = ("id", "name")
_COLUMNS = (*_REQUIRED, "email", "section", "aliases")
_ENDING = re.compile(r"\.(py|zip|tar|tgz|txz|tbz2|gz|bz2|xz|7z|rar|zst|lz|z)$", re.IGNORECASE)
# jansen_LATE_1234_56789_raft.zip and "Ada Jansen_1234_assignsubmission_file"
_CANVAS = re.compile(r"(?P<who>[^_]+)(?:_LATE)?_\d+_\d+_.")
_MOODLE = re.compile(r"(?P<who>.+)_\d+_assignsubmission_")


class RosterError(Exception):
    """The roster cannot be used; the text names the file, the line and the fix."""


class Student(msgspec.Struct, frozen=True):
    id: str
    name: str
    email: str = ""
    section: str = ""
    aliases: tuple[str, ...] = ()  # names of submissions, for example an account on GitHub


class Roster:
    def __init__(self, students: tuple[Student, ...] = ()) -> None:
        self.students = students
        self._aliases = {normalized(alias): student for student in students for alias in student.aliases}
        exact = {normalized(text): student for student in students for text in (student.id, student.email) if text}
        # Names may be equal, and so may be the first halves of addresses.
        found: dict[str, set[Student]] = {}
        for student in students:
            for text in _names(student):
                found.setdefault(normalized(text), set()).add(student)
        names = {text: next(iter(fitting)) for text, fitting in found.items() if len(fitting) == 1}
        self._students = names | exact | self._aliases

    @classmethod
    def read(cls, path: Path) -> Roster:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise RosterError(f"{path}: {error.strerror}; ROSTER must name a CSV file") from None
        except UnicodeDecodeError as error:
            raise RosterError(f"{path}: not UTF-8 ({error.reason}); save it as CSV UTF-8") from None
        try:
            return cls(tuple(_students(str(path), text)))
        except csv.Error as error:
            raise RosterError(f"{path}: not CSV: {error}") from None

    def student_named(self, text: str) -> Student | None:
        """The student with this id, address, alias or name."""
        return self._students.get(normalized(text))

    def student_of(self, file: str) -> Student | None:
        """The student who submitted that file or folder: under a name of theirs, or as Canvas, Moodle and GitHub
        Classroom export it."""
        stem = file
        while _ENDING.search(stem):
            stem = _ENDING.sub("", stem)
        exported = [found["who"] for pattern in (_MOODLE, _CANVAS) if (found := pattern.match(stem))]
        student = next((student for text in (stem, *exported) if (student := self.student_named(text))), None)
        if student is not None:
            return student
        # GitHub Classroom: raft-lab-octocat. The longest account counts.
        words = stem.split("-")
        accounts = (normalized("-".join(words[first:])) for first in range(1, len(words)))
        return next((self._aliases[account] for account in accounts if account in self._aliases), None)


def normalized(text: str) -> str:
    """Letters and digits alone, without case and accents: "Ada M. Müller" and ada_m_muller are equal."""
    return "".join(c for c in unicodedata.normalize("NFKD", text).casefold() if c.isalnum())


def _names(student: Student) -> Iterator[str]:
    """Canvas writes the last name first."""
    yield student.name
    first, _, last = student.name.rpartition(" ")
    yield last + first
    if student.email:
        yield student.email.partition("@")[0]


def _students(path: str, text: str) -> Iterator[Student]:
    first = text.partition("\n")[0]
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
    head = [name.strip().lower() for name in next(rows, [])]
    _check_head(path, head)
    taken: dict[str, int] = {}
    for row in rows:
        line = rows.line_num
        if not any(cell.strip() for cell in row):
            continue
        if len(row) > len(head):
            raise RosterError(
                f"{path}:{line}: has {len(row)} cells, but there are {len(head)} columns; quote a cell that contains "
                "the separator"
            )
        cells = {name: cell.strip() for name, cell in zip(head, row, strict=False)}
        for name in _REQUIRED:
            if not cells.get(name):
                raise RosterError(f"{path}:{line}: has no {name}; every student needs one")
        aliases = tuple(alias.strip() for alias in cells.get("aliases", "").split(";") if alias.strip())
        student = Student(cells["id"], cells["name"], cells.get("email", ""), cells.get("section", ""), aliases)
        for unique in dict.fromkeys(filter(None, map(normalized, (student.id, student.email, *aliases)))):
            if unique in taken:
                raise RosterError(
                    f"{path}:{line}: {student.name} has an id, email or alias that belongs to the student in "
                    f"line {taken[unique]}; they must differ"
                )
            taken[unique] = line
        yield student
    if not taken:
        raise RosterError(f"{path}: has no students; add a line for each below the column names")


def _check_head(path: str, head: list[str]) -> None:
    columns = f"the first line must name the columns {', '.join(_REQUIRED)} and optionally {', '.join(_COLUMNS[2:])}"
    missing = next((name for name in _REQUIRED if name not in head), "")
    if missing:
        raise RosterError(f"{path}:1: no column {missing}; {columns}")
    for name in head:
        if head.count(name) > 1 and name in _COLUMNS:
            raise RosterError(f"{path}:1: two columns {name}; remove one")
        near = get_close_matches(name, set(_COLUMNS) - set(head), n=1, cutoff=0.8)
        if near:
            raise RosterError(f"{path}:1: unknown column {name}; did you mean {near[0]}? Other columns are ignored")
