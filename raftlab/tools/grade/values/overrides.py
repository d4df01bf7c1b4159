"""The overrides: a TOML file with the instructor's decisions about single submissions.

Promise: an override changes points and pages, never a run, so changing the file runs nothing again. An invalid file is
refused, with the line and the fix.

Start at `Overrides.read()`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from pathlib import Path

import msgspec

from raftlab.tools.grade.values.roster import Roster, Student


class OverridesError(Exception):
    """The overrides cannot be used; the text names the file, the line and the fix."""


class Override(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    points: float | None = None  # instead of the earned points
    adjust: float | None = None  # added to them
    comment: str = ""  # for the student
    excused: bool = False  # no score
    submission: str = ""  # of several submissions of this student, the one that counts


@dataclass(frozen=True)
class Overrides:
    path: str = ""
    by_name: Mapping[str, Override] = field(default_factory=dict)  # of a submission or a student
    _text: str = ""

    @classmethod
    def read(cls, path: Path) -> Overrides:
        try:
            text = path.read_text(encoding="utf-8-sig")
            raw = tomllib.loads(text)
        except OSError as error:
            raise OverridesError(f"{path}: {error.strerror}; OVERRIDES must name a TOML file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OverridesError(f"{path}: not TOML: {error}") from None
        overrides = cls(str(path), {name: Override() for name in raw}, text)
        return cls(str(path), {name: overrides._converted(name, table) for name, table in raw.items()}, text)

    def _converted(self, name: str, table: object) -> Override:
        if not isinstance(table, dict):
            raise self._error(name, "", f"must be a table; write [{name}] and its settings in the lines below")
        for key in table:
            if key not in Override.__struct_fields__:
                near = get_close_matches(key, Override.__struct_fields__, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; use {', '.join(Override.__struct_fields__)}"
                raise self._error(name, key, f"unknown setting{hint}")
            try:
                msgspec.convert({key: table[key]}, Override)
            except msgspec.ValidationError as error:
                raise self._error(name, key, str(error).partition(" - at")[0].lower()) from None
            value = table[key]
            if key in ("points", "adjust") and not (isfinite(value) and (value >= 0 or key == "adjust")):
                raise self._error(name, key, f"must be a number{', 0 or more' * (key == 'points')}, got {value:g}")
        override = msgspec.convert(table, Override)
        given = [key for key in ("points", "adjust", "excused") if getattr(override, key) not in (None, False)]
        if len(given) > 1:
            raise self._error(name, given[1], f"cannot be combined with {given[0]}; remove one")
        return override

    def check_names(self, roster: Roster | None, submissions: Iterable[str]) -> None:
        """OverridesError if a table belongs to no student and no submission, or two belong to one."""
        names = list(submissions)
        belongs_to: dict[str | Student, str] = {}
        for name, override in self.by_name.items():
            student = roster.student_named(name) if roster is not None else None
            whose = student or name
            if student is None and name not in names:
                students = [student.name for student in roster.students] if roster is not None else []
                near = get_close_matches(name, [*names, *students], n=2)
                hint = f"did you mean {' or '.join(near)}?" if near else "use a name in the table of the class"
                raise self._error(name, "", f"no such submission{' or student' * bool(students)}; {hint}")
            if whose in belongs_to:
                raise self._error(name, "", f"is the same student as [{belongs_to[whose]}]; use one table")
            if override.submission and override.submission not in names:
                raise self._error(
                    name, "submission", f"no submission is called {override.submission}; use a name in the table"
                )
            belongs_to[whose] = name

    def of(self, submission: str, student: Student | None, roster: Roster | None) -> Override | None:
        if submission in self.by_name:
            return self.by_name[submission]
        found = (name for name in self.by_name if student and roster and roster.student_named(name) == student)
        return next((self.by_name[name] for name in found), None)

    def _error(self, name: str, key: str, problem: str) -> OverridesError:
        where = f"{name}.{key}" if key else f"[{name}]"
        return OverridesError(f"{self.path}:{self._line(name, key)}: {where}: {problem}")

    def _line(self, name: str, key: str) -> int:
        """Of the key, or of its table. TOML's parser does not say."""
        table, setting = (rf"[\"']?{re.escape(text)}[\"']?\s*" for text in (name, key))
        line, inside = 1, False
        for number, text in enumerate(self._text.splitlines(), 1):
            if re.match(rf"\s*(\[\s*{table}\]|{table}[.=])", text):
                line, inside = number, True
            elif text.lstrip().startswith("["):
                inside = False
            if inside and key and re.match(rf"\s*{setting}=", text):
                return number
        return line
