"""The roster and the overrides: which submission belongs to whom, what the tables show, and errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from raftlab.harness.outcome import Ending, Outcome
from raftlab.tools.cli import main as lab
from raftlab.tools.grade.exports import write_exports
from raftlab.tools.grade.output import as_csv, as_gradescope, write_class
from raftlab.tools.grade.pages.submission import class_page, submission_page
from raftlab.tools.grade.values.class_list import ClassList, several
from raftlab.tools.grade.values.overrides import Overrides, OverridesError
from raftlab.tools.grade.values.results import Result, points, without_skipped_points
from raftlab.tools.grade.values.results import TestResult as Scored
from raftlab.tools.grade.values.roster import Roster, RosterError
from raftlab.tools.grade.values.rubric import GradedTest

ROSTER = """\
id,name,email,section,aliases
101,Ada M. Jansen,ada@uni.example,A,
102,Bob Müller,bm@uni.example,A,octo-cat; bobby
103,Cyd Li,cyd@uni.example,B,
104,Cyd Li,li@uni.example,B,
105,Dan Ode,dan@uni.example,B,
"""


def roster(folder: Path, text: str = ROSTER, encoding: str = "utf-8") -> Roster:
    path = folder / "roster.csv"
    path.write_text(text, encoding=encoding)
    return Roster.read(path)


def overrides(folder: Path, text: str) -> Overrides:
    path = folder / "overrides.toml"
    path.write_text(text)
    return Overrides.read(path)


def result(file: str, *, passed: bool = True, problem: str = "") -> Result:
    test = GradedTest(
        name="test_x_2a", part="2a", hidden=False, points=30.0, seeds=(1,), pass_rate=1.0, visibility="visible",
        show="everything", shown_name="test_x_2a",
    )  # fmt: skip
    run = Outcome(test="test_x_2a", seed=1, ending=Ending.PASSED if passed else Ending.RULE)
    return Result(file.partition(".")[0], problem, (), (Scored(test, () if problem else (run,)),), file=file)


# ---- whose submission it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "student"),
    [
        ("101.zip", "101"),
        ("ada m jansen", "101"),
        ("Ada@uni.example.tar.gz", "101"),
        ("jansenadam_LATE_4711_90210_raft-1.py", "101"),  # Canvas
        ("Bob Müller_4711_assignsubmission_file", "102"),  # Moodle
        ("Bob Mu\u0308ller", "102"),  # as macOS writes it
        ("bob_muller.zip", "102"),
        ("raft-lab-octo-cat", "102"),  # GitHub Classroom
        ("bobby.py", "102"),
        ("Cyd Li", None),  # two students have this name
        ("li.py", "104"),
        ("cat.py", None),
        ("102-old", None),
        ("raft-lab-dan", None),  # an account must be listed
    ],
)
def test_submission_finds_its_student(tmp_path: Path, file: str, student: str | None) -> None:
    found = roster(tmp_path).student_of(file)
    assert (found and found.id) == student


def test_roster_from_a_spreadsheet(tmp_path: Path) -> None:
    text = 'Name;ID;Credits;Aliases\r\n"Jansen; Ada";101;5;"a;b"\r\n;;;\r\nBob;102;5\r\n'
    students = roster(tmp_path, text, "utf-8-sig").students
    assert [(s.id, s.name, s.aliases) for s in students] == [("101", "Jansen; Ada", ("a", "b")), ("102", "Bob", ())]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1: no column id; the first line must name the columns id, name and optionally email, section, aliases"),
        ("id,name,alias\n1,Ada,x\n", ":1: unknown column alias; did you mean aliases?"),
        ("id,name,id\n1,Ada,2\n", ":1: two columns id"),
        ("id,name\n", ": has no students"),
        ("id,name\n1,Ada\n,Bob\n", ":3: has no id"),
        ("id,name\n1,Ada\n2\n", ":3: has no name"),
        ("id,name\n1,Li, Ada\n", ":2: has 3 cells, but there are 2 columns"),
        ("id,name\n1,Ada\n\n1,Bob\n", ":4: Bob has an id, email or alias that belongs to the student in line 2"),
        ("id,name,aliases\n1,Ada,\n2,Bob,1\n", ":3: Bob has an id, email or alias that belongs"),
    ],
)
def test_invalid_roster_names_the_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RosterError) as refused:
        roster(tmp_path, text)
    assert f"roster.csv{says}" in str(refused.value)


def test_unreadable_roster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(ROSTER.encode("latin-1"))
    for name, says in (("latin.csv", "not UTF-8"), ("nowhere.csv", "ROSTER must name a CSV file")):
        with pytest.raises(RosterError, match=says):
            Roster.read(tmp_path / name)


# ---- overrides -----------------------------------------------------------------------------------------------


def test_overrides_change_scores_and_pages(tmp_path: Path) -> None:
    text = '[101]\nadjust = -5\ncomment = "<late>"\n["Dan Ode"]\nexcused = true\n[bobby]\npoints = 28.5\n'
    class_list = ClassList(roster(tmp_path), overrides(tmp_path, text))
    results = [result("101.py"), result("bobby.py", passed=False), result("dan.py"), result("li.py")]
    class_list.check(one.name for one in results)
    ada, bob, dan, li = class_list.join(results)
    assert [one.score for one in (ada, bob, li)] == [25, 28.5, 30]
    assert [one.earned for one in (ada, bob, li)] == [30, 0, 30]
    assert (dan.excused, li.override) == (True, None)
    assert as_gradescope(ada)["score"] == 25 and "score" not in as_gradescope(li)
    for full in (True, False):
        page = submission_page(ada, "Raft", full=full)
        assert (
            "Ada M. Jansen" in page and "changed the score by -5 to 25 of 30 points." in page and "&lt;late&gt;" in page
        )
        assert '<p class="figure">25</p>' in page and "these tests earn 30<" in page
        assert "Excused." in submission_page(dan, "Raft", full=full)
    overview = class_page([ada, bob, dan, li], "Raft", page_of=lambda one: "", class_list=class_list)
    assert "<h2>Overrides</h2>" in overview and "&lt;late&gt;" in overview
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(as_csv([ada, bob, dan, li], class_list)))}
    assert [rows[n]["score"] for n in ("101", "102", "105", "104")] == ["25", "28.5", "", "30"]
    assert (rows["101"]["earned"], rows["101"]["comment"], rows["105"]["excused"]) == ("30", "<late>", "yes")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[ann\n", ": not TOML: "),
        ("\nann = 5\n", ":2: [ann]: must be a table"),
        ("[ann]\ncomment = 'x'\npoint = 5\n", ":3: ann.point: unknown setting; did you mean points?"),
        ("[ann]\nlimits = 5\n", "; use points, adjust, comment, excused, submission"),
        ("[bob]\npoints = 1\n[ann]\npoints = 'ten'\n", ":4: ann.points: expected `float | null`, got `str`"),
        ("[ann]\npoints = -1\n", ":2: ann.points: must be a number, 0 or more, got -1"),
        ("[ann]\nadjust = nan\n", ":2: ann.adjust: must be a number, got nan"),
        ("[ann]\npoints = 1\nexcused = true\n", ":3: ann.excused: cannot be combined with points"),
    ],
)
def test_invalid_overrides_name_the_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(OverridesError) as refused:
        overrides(tmp_path, text)
    assert f"overrides.toml{says}" in str(refused.value) or (says.startswith(";") and says in str(refused.value))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[bobb]\npoints = 1\n", ":1: [bobb]: no such submission or student; did you mean bobby?"),
        ("['Cyd Li']\npoints = 1\n", ":1: [Cyd Li]: no such submission"),  # which of the two?
        (
            "[101]\npoints = 1\n\n['ada@uni.example']\npoints = 2\n",
            ":4: [ada@uni.example]: is the same student as [101]",
        ),
        ("[102]\nsubmission = 'bob'\n", ":2: 102.submission: no submission is called bob"),
    ],
)
def test_override_of_nobody_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(OverridesError) as refused:
        overrides(tmp_path, text).check_names(roster(tmp_path), ["bobby"])
    assert f"overrides.toml{says}" in str(refused.value)


# ---- exports --------------------------------------------------------------------------------------------------


def exported(folder: Path, name: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO((folder / f"exports/{name}.csv").read_text())))


def test_exports_have_the_columns_of_each_system(tmp_path: Path) -> None:
    text = "[101]\nadjust = -5.5\ncomment = 'late, by a day'\n[105]\nexcused = true\n[104]\npoints = 3\n"
    class_list = ClassList(roster(tmp_path), overrides(tmp_path, text))
    # One with two submissions, one unknown, one missing, one missing and excused.
    files = ("101.py", "102.py", "bobby.py", "eve.py")
    write_exports(class_list.join([result(file) for file in files]), "Raft", class_list, tmp_path)
    assert exported(tmp_path, "canvas") == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Raft"],
        ["    Points Possible", "", "", "", "", "30"],
        ["Ada M. Jansen", "", "101", "ada@uni.example", "A", "24.5"],
        ["Cyd Li", "", "104", "li@uni.example", "B", "3"],
        ["Dan Ode", "", "105", "dan@uni.example", "B", "EX"],
    ]
    assert exported(tmp_path, "moodle") == [
        ["ID number", "Email address", "Raft", "Raft (Feedback)"],
        ["101", "ada@uni.example", "24.5", "late, by a day"],
        ["104", "li@uni.example", "3", ""],
        ["105", "dan@uni.example", "-", "Excused"],
    ]
    assert exported(tmp_path, "gradescope") == [
        ["Name", "SID", "Email", "Sections", "Total Score", "Max Points", "Status"],
        ["Ada M. Jansen", "101", "ada@uni.example", "A", "24.5", "30", "Graded"],
        ["Cyd Li", "103", "cyd@uni.example", "B", "", "30", "Missing"],
        ["Cyd Li", "104", "li@uni.example", "B", "3", "30", "Graded"],
        ["Dan Ode", "105", "dan@uni.example", "B", "", "30", "Excused"],
    ]


def test_without_roster_nothing_is_exported(tmp_path: Path) -> None:
    write_exports([result("101.py")], "Raft", ClassList(), tmp_path)
    assert not list(tmp_path.iterdir())


# ---- points ---------------------------------------------------------------------------------------------------


def scored(name: str, part: str, points: float, ending: Ending) -> Scored:
    test = replace(result("x").tests[0].test, name=name, part=part, points=points)
    return Scored(test, (Outcome(test=name, seed=1, ending=ending),))


def test_points_of_skipped_tests_are_redistributed() -> None:
    tests = [
        scored("a", "2a", 33.34, Ending.PASSED),
        scored("b", "2a", 33.33, Ending.RULE),
        scored("c", "2a", 33.33, Ending.SKIPPED),
        scored("d", "2b", 5.0, Ending.SKIPPED),
    ]
    one = Result("ann", "", (), tuple(without_skipped_points(tests)))
    assert [test.possible for test in one.tests] == [52.51, 52.49, 0, 0]
    assert (one.score, one.score_max, one.parts["2a"]) == (52.51, 105, (52.51, 105))
    nothing = without_skipped_points(tests[3:])
    assert [(test.possible, test.test.points) for test in nothing] == [(0, 5)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(100.0, "100"), (98.89, "98.89"), (7.5, "7.5"), (0.0, "0"), (12345.67, "12345.67"), (1e6, "1000000")],
)
def test_points_are_printed_exactly(value: float, shown: str) -> None:
    assert points(value) == shown


# ---- the class -----------------------------------------------------------------------------------------------


def test_missing_unknown_and_resubmitted_are_listed(tmp_path: Path) -> None:
    class_list = ClassList(roster(tmp_path))
    results = class_list.join([result("101.py"), result("bobby.py"), result("102.zip"), result("eve.py")])
    assert [one.student.id for one in class_list.missing(results) if one.student] == ["103", "104", "105"]
    assert class_list.unknown(results) == ["eve"]
    assert list(several(results).values()) == [["bobby", "102"]]
    write_class(results, "Raft", tmp_path, class_list=class_list)
    page = (tmp_path / "index.html").read_text()
    assert "Dan Ode (105)" in page and "several submissions: bobby, 102;" in page and "not in the roster;" in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "scores.csv").read_text())))
    assert [row["name"] for row in rows if row["problem"] == "no submission"] == ["Cyd Li", "Cyd Li", "Dan Ode"]
    # A choice settles which submission counts.
    chosen = ClassList(class_list.roster, overrides(tmp_path, "[102]\nsubmission = 'bobby'\npoints = 7\n"))
    results = chosen.join(results)
    assert several(results) == {}
    assert [(one.score, one.instead) for one in results[1:3]] == [(7, ""), (30, "bobby")]
    assert "bobby counts instead" in submission_page(results[2], "Raft", full=True)


def test_statistics_leave_out_what_could_not_run(tmp_path: Path) -> None:
    excused = overrides(tmp_path, "[dan]\nexcused = true\n")
    results = [result("ann.py"), result("bob.py", problem="no raft.py"), result("dan.py")]
    page = class_page(ClassList(overrides=excused).join(results), "Raft", page_of=lambda one: "")
    assert "<dt>Mean score</dt>\n<dd>30</dd>" in page and "<dt>Full marks</dt>\n<dd>1</dd>" in page
    assert "The statistics leave out 2 submissions" in page


def test_roster_and_overrides_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class_, out = tmp_path / "class", tmp_path / "out"
    class_.mkdir()
    for name in ("101", "dan"):
        (class_ / f"{name}.py").write_text("def (")
    (tmp_path / "rubric.toml").write_text("runs = 1\n[public]\nextra = false\n[points]\n2a = 30\n")
    roster(tmp_path)
    overrides(tmp_path, "[dan]\npoints = 12\n")
    command = ["grade", str(class_), "--rubric", str(tmp_path / "rubric.toml"), "--out", str(out), "--no-validation"]
    files = ["--roster", str(tmp_path / "roster.csv"), "--overrides", str(tmp_path / "overrides.toml")]
    assert lab([*command, *files]) == 0
    table = (out / "scores.csv").read_bytes()
    assert b"dan,105,Dan Ode,dan@uni.example,B,12,30," in table
    assert "no submission: Bob Müller, Cyd Li, Cyd Li" in capsys.readouterr().out
    assert lab(command) == 0
    assert (out / "scores.csv").read_bytes() == table
    # A new override also changes the pages of those who are not graded again.
    overrides(tmp_path, "[dan]\npoints = 13\n")
    command[1] = str(class_ / "101.py")
    assert lab([*command, *files]) == 0
    assert json.loads((out / "students/dan/results.json").read_bytes())["score"] == 13
    overrides(tmp_path, "[dann]\npoints = 13\n")
    assert lab([*command, *files]) == 2
    assert "[dann]: no such submission or student; did you mean dan?" in capsys.readouterr().err
