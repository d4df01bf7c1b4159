"""Writes the scores of a class as CSV files that Canvas and Moodle import, and in the columns of Gradescope's download.

Only students of the roster are in these files, because one unknown user makes Moodle refuse a whole file. A student
without a score, or with several submissions of which none was chosen, is left out; so nothing is overwritten.

Start at `write_exports()`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from raftlab.tools.grade.values.class_list import ClassList, several
from raftlab.tools.grade.values.results import Result, points
from raftlab.tools.grade.values.roster import Student
from raftlab.tools.grade.values.store import write_whole

EXPORTS = "exports"


def write_exports(results: Sequence[Result], title: str, class_list: ClassList, out: Path) -> None:
    if class_list.roster is None:
        return
    unclear = several(results)
    graded = [
        (result.student, result)
        for result in [*results, *class_list.missing(results)]
        if result.student is not None and result.student not in unclear and not result.instead
    ]
    possible = points(max((result.score_max for result in results), default=0.0))
    for name, rows in (
        ("canvas", _canvas(graded, title, possible)),
        ("moodle", _moodle(graded, title)),
        ("gradescope", _gradescope(graded, possible)),
    ):
        text = io.StringIO()
        csv.writer(text, lineterminator="\r\n").writerows(rows)
        write_whole(out / EXPORTS / f"{name}.csv", text.getvalue())


_Graded = Sequence[tuple[Student, Result]]


def _canvas(graded: _Graded, title: str, possible: str) -> Iterable[Sequence[str]]:
    # Canvas expects Student, ID and Section at these places, and finds a student without ID by the other columns.
    yield "Student", "ID", "SIS User ID", "SIS Login ID", "Section", title
    yield "    Points Possible", "", "", "", "", possible
    for student, result in graded:
        if result.excused or result.has_score:
            score = "EX" if result.excused else points(result.score)
            yield student.name, "", student.id, student.email, student.section, score


def _moodle(graded: _Graded, title: str) -> Iterable[Sequence[str]]:
    yield "ID number", "Email address", title, f"{title} (Feedback)"
    for student, result in graded:
        if result.excused or result.has_score:
            comment = "" if result.override is None else result.override.comment
            # "-" is no grade. Moodle knows no excused students in this format.
            score = "-" if result.excused else points(result.score)
            yield student.id, student.email, score, comment or ("Excused" if result.excused else "")


def _gradescope(graded: _Graded, possible: str) -> Iterable[Sequence[str]]:
    yield "Name", "SID", "Email", "Sections", "Total Score", "Max Points", "Status"
    for student, result in graded:
        status = "Excused" if result.excused else "Graded" if result.has_score else "Missing"
        score = points(result.score) if status == "Graded" else ""
        yield student.name, student.id, student.email, student.section, score, possible, status
