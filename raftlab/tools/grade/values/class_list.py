"""Joins the results of a class with its roster and with the overrides. Both may change without running anything again.

Start at `ClassList.read()` and `ClassList.join()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raftlab.tools.grade.values.overrides import Overrides
from raftlab.tools.grade.values.results import Result
from raftlab.tools.grade.values.roster import Roster, Student
from raftlab.tools.grade.values.store import write_whole

NO_SUBMISSION = "no submission"
ROSTER, OVERRIDES = "roster.csv", "overrides.toml"  # copies in OUT, for calls without these options


@dataclass(frozen=True)
class ClassList:
    roster: Roster | None = None
    overrides: Overrides = field(default_factory=Overrides)
    files: tuple[Path, ...] = ()  # from which it was read

    @classmethod
    def read(cls, out: Path, roster: Path | None, overrides: Path | None) -> ClassList:
        """From these files, or else from the copies in OUT. RosterError, OverridesError if one is invalid."""
        roster = roster or _if_file(out / ROSTER)
        overrides = overrides or _if_file(out / OVERRIDES)
        return cls(
            roster=None if roster is None else Roster.read(roster),
            overrides=Overrides() if overrides is None else Overrides.read(overrides),
            files=tuple(file for file in (roster, overrides) if file is not None),
        )

    def keep(self, out: Path, roster: Path | None, overrides: Path | None) -> None:
        """Copy the files to OUT."""
        for file, name in ((roster, ROSTER), (overrides, OVERRIDES)):
            if file is not None and file.resolve() != (out / name).resolve():
                write_whole(out / name, file.read_bytes())

    def check(self, submissions: Iterable[str]) -> None:
        """OverridesError if an override belongs to no student and no submission."""
        self.overrides.check_names(self.roster, submissions)

    def join(self, results: Sequence[Result]) -> list[Result]:
        """With students and overrides."""
        joined = []
        for result in results:
            student = None if self.roster is None else self.roster.student_of(result.file or result.name)
            override = self.overrides.of(result.name, student, self.roster)
            chosen = "" if override is None else override.submission
            instead = chosen if chosen != result.name else ""
            joined.append(replace(result, student=student, override=None if instead else override, instead=instead))
        return joined

    def missing(self, results: Iterable[Result]) -> list[Result]:
        """An empty result for each student without a submission, who may have an override."""
        found = {result.student for result in results}
        students = () if self.roster is None else self.roster.students
        return [
            Result(
                student.name,
                NO_SUBMISSION,
                (),
                (),
                student=student,
                override=self.overrides.of("", student, self.roster),
            )
            for student in students
            if student not in found
        ]

    def unknown(self, results: Iterable[Result]) -> list[str]:
        """Submissions of no student in the roster."""
        return [] if self.roster is None else [result.name for result in results if result.student is None]


NO_CLASS_LIST = ClassList()


def several(results: Iterable[Result]) -> dict[Student, list[str]]:
    """Students with several submissions of which none was chosen, and these submissions."""
    found: dict[Student, list[str]] = {}
    for result in results:
        if result.student is not None and not result.instead:
            found.setdefault(result.student, []).append(result.name)
    return {student: names for student, names in found.items() if len(names) > 1}


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None
