"""Writes results: Gradescope's results.json, JUnit XML, the pages, and for the class a table and an overview.

Promise: equal results give byte-identical files, except the class overview, which has times. What the rubric hides
from students is in none of the files under students/. Files are written atomically.

The graded files are written, too, so that you can replay a run. The grader itself does not read them.

Start at `write_submission()` and `write_class()`.
"""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from labsim.stacks import short_path
from raftlab.harness.outcome import Outcome
from raftlab.tools.common.text import printable
from raftlab.tools.grade.pages.overview import class_page
from raftlab.tools.grade.pages.submission import submission_page
from raftlab.tools.grade.submission_loader import Submission
from raftlab.tools.grade.values.class_list import NO_CLASS_LIST, ClassList
from raftlab.tools.grade.values.overrides import Override
from raftlab.tools.grade.values.results import Artifacts, Result, TestResult, cap_text, override_text, points
from raftlab.tools.grade.values.roster import Student
from raftlab.tools.grade.values.store import write_whole

STUDENTS = "students"
PAGES = "pages"
FULL = "full"
SUBMITTED = "submitted"
_FAILURES_SHOWN_MAX = 3
_OUTPUT_CHARS_MAX = 2_000
_STUDENT = ("id", "name", "email", "section")


def write_submitted(submission: Submission, out: Path) -> Submission:
    """Write the graded files, which may come from an archive, to a folder that replay commands can name."""
    folder = out / SUBMITTED / submission.name
    for old in folder.rglob("*"):
        if old.is_file() and old.relative_to(folder).as_posix() not in submission.files:
            old.unlink()  # a messages.py of an earlier submission would be used
    for name, content in submission.files.items():
        write_whole(folder / name, content)
    return replace(submission, path=Path(short_path(str(folder.resolve())))) if submission.files else submission


def pages_folder(out: Path, name: str) -> Path:
    """The folder for a submission's pages of failures: beside its student's page."""
    return out / STUDENTS / name / PAGES


def write_submission(result: Result, title: str, out: Path) -> None:
    folder = out / STUDENTS / result.name
    write_whole(folder / "results.json", msgspec.json.format(msgspec.json.encode(as_gradescope(result))) + b"\n")
    write_whole(folder / "junit.xml", as_junit(result))
    full = f"../{STUDENTS}/{result.name}/{PAGES}"
    write_whole(folder / "report.html", submission_page(result, title, full=False, pages=PAGES))
    write_whole(out / FULL / f"{result.name}.html", submission_page(result, title, full=True, pages=full))


def write_class(
    results: Sequence[Result],
    title: str,
    out: Path,
    *,
    class_list: ClassList = NO_CLASS_LIST,
    ignored: Mapping[str, str] = MappingProxyType({}),
    provenance: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """See class_page() for the arguments."""
    write_whole(out / "scores.csv", as_csv(results, class_list))
    page = class_page(
        results,
        title,
        page_of=lambda result: f"{FULL}/{result.name}.html",
        class_list=class_list,
        ignored=ignored,
        provenance=provenance,
    )
    write_whole(out / "index.html", page)


def as_gradescope(result: Result) -> dict[str, Any]:
    """Has a total only if it differs from the sum of the tests, which would reveal hidden tests."""
    return {
        **({"score": result.score} if result.score != result.earned_by_tests else {}),
        "output": "\n".join(_header_lines(result)),
        "output_format": "text",
        "stdout_visibility": "hidden",
        "tests": [
            {
                "name": test.test.shown_name,
                "number": f"{test.test.part.upper()}.{number}",
                "score": test.earned,
                "max_score": test.possible,
                **({"status": "passed" if test.passed else "failed"} if test.test.counts and not test.skipped else {}),
                "output": student_output(test, result.shown),
                "output_format": "text",
                "visibility": test.test.visibility,
                "tags": [test.test.part],
            }
            for number, test in enumerate(result.tests, start=1)
        ],
    }


def _header_lines(result: Result) -> list[str]:
    lines = [result.problem] if result.problem else []
    lines += filter(None, (cap_text(result, full=False), override_text(result)))
    lines += [*result.unverified_because, *result.remarks]
    shown = [test for test in result.tests if test.test.visibility == "visible" and test.test.counts]
    earned, possible = sum(test.earned for test in shown), sum(test.possible for test in shown)
    lines.append(f"{points(earned)} of {points(possible)} points in the {len(shown)} tests shown here.")
    return lines


def student_output(test: TestResult, artifacts: Sequence[Artifacts] = ()) -> str:
    """What the student sees of a test. `artifacts`: of all public tests."""
    if not test.test.shows_rules:
        return test.summary
    texts = [test.summary]
    failures = test.for_students.failures
    recipes = {one.seed: one.recipe for one in artifacts if one.test == test.test.name and not test.test.hidden}
    texts += [_run_text(run, recipes.get(run.seed, ())) for run in failures[:_FAILURES_SHOWN_MAX]]
    if len(failures) > _FAILURES_SHOWN_MAX:
        texts.append(f"... and {len(failures) - _FAILURES_SHOWN_MAX} more failures.")
    return "\n\n".join(texts)


def _run_text(run: Outcome, recipe: Sequence[str]) -> str:
    lines = [run.report, *(f"  {printable(line)}" for line in recipe)]
    if run.output:
        lines.append(f"Output:\n{printable(run.output[:_OUTPUT_CHARS_MAX])}")
    return "\n".join(lines)


def as_junit(result: Result) -> bytes:
    """The tests that students see."""
    shown = [test for test in result.tests if test.test.visibility == "visible" and test.test.counts]
    skipped = sum(bool(test.not_run) or test.skipped for test in shown)
    failed = sum(not test.passed for test in shown) - skipped
    suite = ElementTree.Element("testsuite", name=printable(result.name), tests=str(len(shown)), errors="0")
    suite.set("failures", str(failed))
    suite.set("skipped", str(skipped))
    for test in shown:
        case = ElementTree.SubElement(suite, "testcase", classname=test.test.part, name=test.test.shown_name)
        if test.not_run or test.skipped:
            ElementTree.SubElement(case, "skipped", message=printable(test.summary))
        elif not test.passed:
            failure = ElementTree.SubElement(case, "failure", message=printable(test.summary))
            failure.text = printable(student_output(test, result.shown))
    ElementTree.indent(suite)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def as_csv(results: Sequence[Result], class_list: ClassList = NO_CLASS_LIST) -> str:
    """A row for each submission: score, points of each part, then of each test. With a roster, also a row for each
    missing student."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    parts = list(results[0].parts) if results else []
    tests = [test.test.name for test in results[0].tests] if results else []
    roster = class_list.roster is not None
    decisions = ["earned", "excused", "comment"] if class_list.overrides.by_name else []
    head = ["submission", *(_STUDENT if roster else ()), "score", "of", *parts, "problem", "file", *decisions, *tests]
    writer.writerow(head)
    for result in [*results, *class_list.missing(results)]:
        override = result.override or Override()
        row = {
            "submission": _cell(result.name) if result.tests else "",
            **_student_cells(result.student),
            "score": points(result.score) if result.has_score else "",
            "of": points(result.score_max) if result.tests else "",
            **{part: points(earned) for part, (earned, _) in result.parts.items()},
            "problem": _cell(result.problem.partition("\n")[0] or _why_not_counted(result)),
            "file": _cell(result.file),
            "earned": points(result.earned) if result.tests else "",
            "excused": "yes" if override.excused else "",
            "comment": _cell(override.comment),
            **{test.test.name: points(test.earned) for test in result.tests},
        }
        writer.writerow([row.get(name, "") for name in head])
    return text.getvalue()


def _student_cells(student: Student | None) -> dict[str, str]:
    return {name: "" if student is None else _cell(getattr(student, name)) for name in _STUDENT}


def _why_not_counted(result: Result) -> str:
    return f"{result.instead} counts instead" if result.instead else ""


def _cell(text: str) -> str:
    # A spreadsheet would read these as the start of a formula.
    text = printable(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
