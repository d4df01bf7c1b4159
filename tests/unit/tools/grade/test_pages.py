"""The pages of `lab grade`: safe against hostile text, silent about hidden tests, and rendered by a browser."""

import dataclasses
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from html.parser import HTMLParser

import msgspec
import pytest

from raftlab.harness.outcome import Ending, Outcome
from raftlab.tools.grade.artifacts.artifact_worker import select_failures
from raftlab.tools.grade.output import as_gradescope, as_junit
from raftlab.tools.grade.pages.html import Html, el, local_link, visible
from raftlab.tools.grade.pages.style import SORT_JS
from raftlab.tools.grade.pages.submission import class_page, submission_page
from raftlab.tools.grade.values.results import Result
from raftlab.tools.grade.values.results import TestResult as Scored  # a name that pytest does not take for a test
from raftlab.tools.grade.values.rubric import Failures, GradedTest

# ---- made-up submissions -------------------------------------------------------------------------------------


def graded(name, points=10.0, seeds=(1, 2, 3), **more):
    part = re.search(r"_(2[a-d])$", name).group(1)
    given = {"hidden": False, "pass_rate": 1.0, "visibility": "visible", "show": "everything", "shown_name": name}
    return GradedTest(name=name, part=part, points=points, seeds=seeds, **(given | more))


def report(test, seed, said="One vote per term (§5.2): peer 1 voted twice in term 5, for 1 and for 0"):
    evidence = "    2.979995 s  request_vote 1->2 sent: term 5, last entry 0 of term 0"
    return f"{test}  seed {seed}\n  {said}\n{evidence}\n\n  replay    make replay TEST={test} SEED={seed}"


def failed(test, seed, cause="One vote per term (§5.2): peer # voted twice", rule="one-vote", **more):
    ending = Ending.RULE if rule else Ending.EXPECTATION
    told = {"text": cause, "report": report(test, seed), "digest": f"d1ge57{seed}"}
    return Outcome(test=test, seed=seed, **({"ending": ending, "name": rule} | told | more))


def passed(test, seed):
    return Outcome(test=test, seed=seed, digest=f"d1ge57{seed}", virtual_s=12.5, events=3456)


def good(test):
    return Scored(test, tuple(passed(test.name, seed) for seed in test.seeds))


def bad(test, **more):
    return Scored(test, tuple(failed(test.name, seed, **more) for seed in test.seeds))


def submission(name="ada", *tests, problem="", remarks=(), real_s=0.0):
    return Result(name, problem, tuple(remarks), tests, real_s)


HOSTILE = (
    "</pre></span><script>alert('x')</script><!-- --> <img src=x onerror=alert(1)> \" ' onclick='x' & &amp;lt; ]]> "
    "</title></style></details></article></table><a href='javascript:alert(1)'>x</a>"
    "\x00\x07\x08\x0b\x1b[31mred\x1b[0m\x1b]8;;http://evil.example\x07link\x9b\x7f\r\n\tnext\u2028line"
    "\u202egnp.exe\u2066\u200f\u061c \ud800 \udfff \ufeff " + "a" + "\u0301" * 500 + "w" * 5000
)


def hostile():
    tests = [graded("test_a_2a"), graded("test_b_2b", hidden=True), graded("test_c_2c")]
    everywhere = {
        "text": HOSTILE, "name": HOSTILE, "headline": HOSTILE, "where": HOSTILE, "output": HOSTILE, "report": HOSTILE
    }  # fmt: skip
    endings = [Ending.MISBEHAVED, Ending.UNLOADABLE, Ending.RULE]
    runs = [bad(test, ending=ending, digest=HOSTILE, **everywhere) for test, ending in zip(tests, endings, strict=True)]
    return submission(HOSTILE, *runs, Scored(graded("test_d_2d"), (), HOSTILE), problem=HOSTILE, remarks=[HOSTILE])


def some():
    """A small class: everybody fails something else, and the figures are easy to check."""
    a, b, c = graded("test_a_2a", 20.0), graded("test_b_2b", 2.5), graded("test_c_2b", 7.5)
    return [
        submission("ada", good(a), good(b), good(c), real_s=3.0),
        submission("ben", good(a), bad(b), good(c), real_s=1.0),
        submission("cyd", bad(a), bad(b, rule="log-matching"), bad(c), real_s=90.0),
        submission("dan", problem="The submission has no raft.py."),
    ]


def pages_of(result, **more):
    return [submission_page(result, "Raft", full=full, **more) for full in (False, True)]


def everything():
    """Every page of everything above, for comparing."""
    results = [*some(), hostile()]
    pages = [text for result in results for text in pages_of(result)]
    return "\0".join([*pages, class_page(results, "Raft", page_of=lambda result: f"{result.name}.html")])


# ---- reading a page ------------------------------------------------------------------------------------------

_VOID = {"meta", "wbr"}
_TAGS = {
    *_VOID,
    "html", "head", "title", "style", "body", "main", "header", "section", "article", "div", "h1", "h2", "h3", "p",
    "ul", "ol", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "span", "b", "i", "small",
    "bdi", "code", "pre", "a", "details", "summary", "script",
}  # fmt: skip
_ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "title", "scope", "style", "tabindex",
    "aria-hidden", "open", "data-v", "data-key", "data-first", "data-sortable",
}  # fmt: skip


class Reader(HTMLParser):
    """Fails at anything that our templates do not write; keeps the text by its class."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.stack, self.scripts, self.rows, self.texts, self.details = [], [], [], {}, []
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        assert tag in _TAGS, tag
        for name, value in attrs:
            assert name in _ATTRIBUTES, (tag, name, value)
        attrs = dict(attrs)
        if "href" in attrs:
            assert re.fullmatch(r"#t\d+|\./[\w%./~-]+", attrs["href"])
        if "style" in attrs:
            assert re.fullmatch(r"(width|height):[\d.]+%|--indent:\d+ch", attrs["style"])
        if tag in _VOID:
            return
        self.stack.append((tag, attrs.get("class", "")))
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append("")
        if tag == "details":
            self.details.append("open" in attrs)

    def handle_endtag(self, tag):
        assert self.stack.pop()[0] == tag

    def handle_data(self, data):
        tags = [tag for tag, _ in self.stack]
        if "script" in tags:
            self.scripts[-1] += data
        if "td" in tags or "th" in tags:
            self.rows[-1][-1] += data
        for class_ in {word for _, classes in self.stack for word in classes.split()}:
            self.texts.setdefault(class_, []).append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


# ---- hostile texts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext, ünï 李雷 \u05d3", "plain\n\ttext, ünï 李雷 \u05d3"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("a\x00b\x7fc\x85d\re\r\nf", "a␀b␡c[U+0085]d␍e\nf"),
        ("\u202egnp.exe\u2066", "[U+202E]gnp.exe[U+2066]"),
        ("one\u200btwo\u2028three", "one[U+200B]two[U+2028]three"),
        ("\ud800x\udcff", "\ufffdx\ufffd"),
        ("e\u0301 z" + "\u0336" * 50 + "!", "e\u0301 z" + "\u0336" * 4 + "!"),
    ],
)
def test_invisible_characters_are_made_visible(text, shown):
    assert visible(text) == shown


def test_text_is_escaped_once():
    inner = el("b", "<i> & 'x'", title='"')
    assert inner == '<b title="&quot;">&lt;i&gt; &amp; &#x27;x&#x27;</b>'
    assert el("td", inner) == f"<td>{inner}</td>"
    assert "&lt;b" in el("td", "label: " + inner)  # no markup any more, so it is shown, not believed
    assert isinstance(inner, Html)


@pytest.mark.parametrize(
    ("path", "link"),
    [
        ("ada/index.html", "./ada/index.html"),
        ("javascript:alert(1)", "./javascript%3Aalert%281%29"),
        ("//evil.example/x", ".///evil.example/x"),
        ("a b#c?d%41\"'<.html", "./a%20b%23c%3Fd%2541%22%27%3C.html"),
        ("\udcff\u00e4.html", "./%FF%C3%A4.html"),  # a name on disk that is not UTF-8
        ("\ud800.html", "./%3F.html"),
    ],
)
def test_links_stay_relative(path, link):
    assert local_link(path) == link


def test_nothing_in_a_submission_becomes_markup():
    result = hostile()
    for page in (*pages_of(result), class_page([result], HOSTILE, page_of=lambda r: r.name)):
        page.encode()  # no lone surrogate is left
        read = Reader(page)
        assert [script for script in read.scripts if script != SORT_JS] == []
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200f\ud800-\udfff]", page)
        assert "&lt;script&gt;" in page


def test_pages_forbid_loading_and_scripts():
    student, full = pages_of(hostile())
    overview = class_page([], "Raft", page_of=lambda result: "")
    for page in (student, full, overview):
        assert "default-src 'none'" in page
        assert not re.search(r"(src|@import|url\()\s*=?\s*[\"'(]?\s*(https?:)?//", page.replace(HOSTILE, ""))
    assert "script-src" not in student and "script-src" not in full
    assert "script-src 'sha256-" in overview


def test_smuggled_command_is_not_copyable():
    test = graded("test_a_2a", seeds=(7,))
    page = submission_page(submission("eve", bad(test, report="oh\n  replay    rm -rf ~")), "Raft", full=True)
    assert "copy" not in Reader(page).texts


def test_replay_command_is_shown_once():
    test = graded("test_a_2a", seeds=(7,))
    command = "lab replay test_a_2a --seed 7 --file hidden/test_x.py --raft 'ada (2)/raft.py'"
    with_it = bad(test, report=f"oh\n\n  replay    {command}", replay=command)
    page = submission_page(submission("ada", with_it), "Raft", full=False)
    assert Reader(page).texts["copy"] == [command]
    assert page.count("--seed 7") == 1


def test_overview_lists_renamed_and_ignored():
    test = graded("test_a_2a")
    plain, other = (dataclasses.replace(submission(name, good(test)), file="ann.zip") for name in ("ann", "ann_2"))
    told = {"ignored": {"<b>.txt": "no archive"}, "provenance": {"Lab": "<i>raftlab"}}
    page = class_page([plain, other], "Raft", page_of=lambda result: "", **told)
    Reader(page)
    assert page.count("submitted as ") == 1  # an ending is nothing to speak of
    assert "&lt;b&gt;.txt" in page and "no archive" in page
    assert "&lt;i&gt;raftlab" in page and 'href="./provenance.json"' in page
    student, full = pages_of(other)
    assert "Submitted as <bdi>ann.zip</bdi>" in full
    assert "ann.zip" not in student


# ---- hidden tests --------------------------------------------------------------------------------------------

SECRETS = {
    "text": "SECRETCAUSE", "headline": "SECRETSAID", "name": "SECRETRULE", "where": "SECRETWHERE",
    "replay": "SECRETREPLAY", "output": "SECRETOUTPUT", "digest": "SECRETDIGEST",
    "report": "SECRETREPORT\n\n  replay    SECRETREPLAY",
}  # fmt: skip
SEEDS = (1618033988, 1414213562, 1732050807)


def with_secret(show, visibility, *, not_run="", ending=Ending.RULE):
    test = graded(
        "test_secretname_2c", 7.77, SEEDS, hidden=True, visibility=visibility, show=show,
        shown_name="hidden test 1 (2C)" if show == "nothing" else "test_secretname_2c",
    )  # fmt: skip
    result = Scored(test, (), not_run) if not_run else bad(test, ending=ending, **SECRETS)
    return submission("ada", good(graded("test_a_2a")), bad(graded("test_b_2b")), result)


def leaks(page):
    return sorted(set(re.findall("SECRET[A-Z]+|secretname", page)) | {seed for seed in map(str, SEEDS) if seed in page})


@pytest.mark.parametrize("ending", [Ending.RULE, Ending.MISBEHAVED, Ending.UNLOADABLE, Ending.FORCED, Ending.DIED])
@pytest.mark.parametrize("visibility", ["visible", "hidden", "after_due_date", "after_published"])
@pytest.mark.parametrize("show", ["everything", "names", "nothing"])
def test_student_page_hides_hidden_tests(show, visibility, ending):
    result = with_secret(show, visibility, ending=ending)
    page = submission_page(result, "Raft", full=False)
    read = Reader(page)
    if visibility != "visible":
        assert leaks(page) == []
        assert "7.77" not in page and "2C" not in page and "hidden test" not in page
        assert "Further tests are not shown here." in page
        assert read.texts["of"] == ["of 20 points; 1 of 2 tests passed"]
        return
    assert "Further tests" not in page
    assert read.texts["of"] == ["of 27.77 points; 1 of 3 tests passed"]
    row = next(row for row in read.rows if len(row) == 3 and row[2] == "0 of 7.77" and "✗" in row[1])
    if show == "everything":
        assert set(leaks(page)) >= {"SECRETSAID", "SECRETREPORT", "SECRETOUTPUT"}
        assert "SECRETREPLAY" not in page  # it names the grader's files
    elif show == "names":
        assert leaks(page.replace("test_<wbr>secretname_<wbr>2c", "")) == []
        assert [cell.strip() for cell in row] == ["test_secretname_2c hidden", "✗ failed", "0 of 7.77"]
    else:
        assert leaks(page) == []
        assert [cell.strip() for cell in row] == ["hidden test 1 (2C)", "✗ failed", "0 of 7.77"]


@pytest.mark.parametrize("show", ["names", "nothing"])
def test_reason_of_a_hidden_test_not_run_is_hidden(show):
    page = submission_page(with_secret(show, "visible", not_run="SECRETREASON"), "Raft", full=False)
    assert "SECRET" not in page
    assert "SECRETREASON" in submission_page(with_secret(show, "visible", not_run="SECRETREASON"), "Raft", full=True)


@pytest.mark.parametrize("hidden", [False, True])
def test_show_rule_reveals_the_rule_alone(hidden):
    ann, secrets = graded("test_a_2a", hidden=hidden, show="rule"), {"where": "SECRET", "output": "SECRET"}
    result = submission("ann", bad(ann, report="SECRET", headline="SECRET", cause="SECRET", **secrets))
    texts = [submission_page(result, "Raft", full=False), str(as_gradescope(result)), as_junit(result).decode()]
    assert all("SECRET" not in text and "Violates one-vote" in text for text in texts)
    assert "SECRET" in submission_page(result, "Raft", full=True)
    assert select_failures(result.tests, Failures()) == []  # no pages either


def test_show_names_hides_failures_of_public_tests():
    result = submission("ann", bad(graded("test_a_2a", show="names")))
    page = submission_page(result, "Raft", full=False)
    assert "test_<wbr>a_<wbr>2a" in page and "one-vote" not in page and "failed" in page
    assert "voted twice" not in str(as_gradescope(result))


def test_full_page_shows_everything():
    page = submission_page(with_secret("nothing", "after_published"), "Raft", full=True)
    words = ("DIGEST", "OUTPUT", "REPLAY", "REPORT", "RULE", "SAID", "WHERE")
    assert leaks(page) == sorted([*(f"SECRET{word}" for word in words), *map(str, SEEDS), "secretname"])
    assert "shown when grades are published" in page
    assert "The student sees 10 of 20 points so far." in page
    assert "12.500 s" in page and "3,456" in page and "d1ge571" in page


# ---- one submission ------------------------------------------------------------------------------------------


def test_points_add_up_to_the_score():
    ben = some()[1]
    for page in pages_of(ben):
        read = Reader(page)
        assert read.texts["figure"] == ["27.5"]
        assert read.texts["of"] == ["of 30 points; 2 of 3 tests passed"]
        assert [row for row in read.rows if row[0].startswith("Part")] == [
            ["Part 2A", "", "20 of 20"],
            ["Part 2B", "", "7.5 of 10"],
        ]
        tests = [row for row in read.rows if row[0].startswith("test_") and len(row) == 3]
        assert [row[2] for row in tests] == ["20 of 20", "0 of 2.5", "7.5 of 7.5"]
        assert [row[1] for row in tests] == ["✓ passed", "✗ failed", "✓ passed"]


def test_each_cause_is_explained_once():
    first, second = graded("test_a_2a", seeds=(1, 2, 3, 4)), graded("test_b_2a", seeds=(5, 6))
    mixed = Scored(
        first, tuple(failed(first.name, seed, cause="CAUSE-ODD" if seed % 2 else "CAUSE-EVEN") for seed in first.seeds)
    )
    again = Scored(
        second,
        tuple(failed(second.name, seed, cause="CAUSE-ODD" if seed % 2 else "CAUSE-NEW") for seed in second.seeds),
    )
    page = submission_page(submission("ada", mixed, again), "Raft", full=False)
    # Odd and its second run, even and its second; then odd, known by now, and the new one.
    assert Reader(page).details == [True, False, False, False, False, True]
    assert page.count("explained above") == 1
    assert page.count("in 2 runs") == 2 and page.count("in one run") == 2


def test_one_cause_in_many_tests_is_one_row():
    tests = [graded(f"test_{letter}_2a") for letter in "abc"]
    other = graded("test_d_2a")
    same = {"mistake": "expectation | no leader", "rule": "", "headline": "no leader for 5 s"}
    results = [bad(test, where=f"tests/test_2a.py:{n}", cause=f"cause {n}", **same) for n, test in enumerate(tests)]
    last = bad(other, rule="", cause="another", headline="another")
    page = submission_page(submission("ada", *results, last), "Raft", full=False)
    causes = page.partition("What went wrong")[2].partition("</section>")[0]
    assert causes.count("no leader for 5 s") == 1
    assert re.findall(r'href="#(t\d)"', causes) == ["t1", "t2", "t3", "t4"]
    rows = [row for row in Reader(page).rows if row[0].startswith(("no leader", "another"))]
    assert [row[1] for row in rows] == ["3", "1"]
    assert page.count("explained above") == 2


def test_allowed_failures_are_collapsed():
    test = graded("test_a_2a", pass_rate=0.6)
    result = Scored(test, (passed(test.name, 1), failed(test.name, 2), passed(test.name, 3)))
    read = Reader(submission_page(submission("ada", result), "Raft", full=False))
    assert read.details == [False]
    assert read.texts["figure"] == ["10"]


def test_unrunnable_submission_says_so_first():
    tests = [Scored(graded("test_a_2a"), (), "nothing could be run")]
    dan = submission("dan", *tests, problem="There is no raft.py.", remarks=["Found instead: raft.txt"])
    for page in (*pages_of(dan), *pages_of(submission("dan", problem="There is no raft.py."))):
        Reader(page)
        assert page.index("This submission could not be run") < page.index('class="score"')
        assert "There is no raft.py." in page
    assert "– not run" in pages_of(dan)[0] and "Found instead: raft.txt" in pages_of(dan)[0]


def test_output_and_its_cut_are_shown():
    result = submission("eve", bad(graded("test_a_2a"), output="debug: here\n", dropped=12345))
    page = submission_page(result, "Raft", full=False)
    assert ">Output<" in page and "debug: here" in page
    assert "12,345 more characters were cut." in page


# ---- the class -----------------------------------------------------------------------------------------------


def overview(results):
    page = class_page(results, "Raft", page_of=lambda result: f"{result.name}.html")
    return page, Reader(page)


def test_the_figures_of_a_class_add_up():
    page, read = overview(some())
    figures = [word for word in read.texts["figures"] if word.strip()]
    assert dict(zip(figures[::2], figures[1::2], strict=True)) == {
        "Submissions": "4",
        "Mean score": "19.17",
        "Median score": "27.5",
        "Full marks": "1",
        "Could not run": "1",
    }
    counts = re.findall(r"<b(?: class=\"none\")?>(\d+)</b>", page[page.index('class="hist"') : page.index("</ol>")])
    assert counts == ["1", "0", "0", "0", "0", "0", "0", "0", "0", "1", "1"]
    rows = {row[0]: [cell.strip() for cell in row[1:]] for row in read.rows if len(row) == 8}
    assert rows["ada"] == ["30", "20", "10", "0 of 3", "", "", "3.0 s"]
    assert rows["ben"] == ["27.5", "20", "7.5", "1 of 3", "one-vote × 1", "", "1.0 s"]
    assert rows["cyd"] == ["0", "0", "0", "3 of 3", "one-vote × 2", "", "90.0 s"]
    assert rows["dan"] == ["0", "–", "–", "0 of 0", "", "could not be run", "0.0 s"]
    short = {row[0].split()[0]: row[1] for row in read.rows if len(row) == 3}
    assert short["test_b_2b"] == "2 of 3" and short["test_a_2a"] == "1 of 3"
    assert short["one-voteOne"] == "2 of 3" and short["log-matchingOne"] == "1 of 3"
    assert "94.0 s in total, 23.5 s per submission on average" in page
    assert 'href="./ada.html"' in page


def test_overview_flags():
    test = graded("test_a_2a")
    flags = {
        Ending.MISBEHAVED: "violated the sandbox protocol",
        Ending.UNLOADABLE: "could not be loaded",
        Ending.FORCED: "killed at a limit",
        Ending.DIED: "process died",
    }
    for kind, flag in flags.items():
        result = submission("eve", bad(test, ending=kind), remarks=["late"])
        _, read = overview([result])
        row = next(row for row in read.rows if row[0] == "eve" and len(row) == 7)
        assert flag in row[5] and "remarks" in row[5]


def test_ties_are_sorted_by_name():
    a, b = graded("test_a_2a"), graded("test_b_2a")
    results = [
        submission("ada", good(a), bad(b, rule="rule-b", cause="")),
        submission("ben", bad(a, rule="rule-a", cause=""), good(b)),
    ]
    for order in (results, results[::-1]):
        _, read = overview(order)
        names = [row[0].strip() for row in read.rows if len(row) == 3 and row[1] == "1 of 2"]
        assert names == ["test_a_2a", "test_b_2a", "rule-a", "rule-b"]


def test_empty_class_and_class_without_points():
    page, _ = overview([])
    assert "There are no submissions." in page
    page, read = overview([submission("ada", good(graded("test_a_2a", 0.0)))])
    assert "Every submission passes every test." in page
    assert "No submission breaks a rule of the protocol." in page
    assert read.texts["figures"].count("1") == 2  # one submission, with full marks


def test_table_of_300_long_names():
    tests = [graded(f"test_number_{number}_2{'abcd'[number % 4]}") for number in range(47)]
    results = [
        submission(
            f"{number:03}_" + "long" * (number % 60),
            *((bad if (number * index) % 7 == 1 else good)(test) for index, test in enumerate(tests)),
        )
        for number in range(300)
    ]
    page, read = overview(results)
    names = [row[0] for row in read.rows if len(row) == 10][1:]
    assert len(names) == 300 and names[7].startswith("007_long") and max(map(len, names)) == 80
    assert len(page) < 400_000


def test_pages_do_not_depend_on_times():
    quick = some()[1]
    tests = [
        Scored(test.test, tuple(msgspec.structs.replace(run, real_s=9.0) for run in test.runs)) for test in quick.tests
    ]
    slow = submission(quick.name, *tests, real_s=77.0)
    assert pages_of(quick) == pages_of(slow)
    assert overview([quick])[0] != overview([slow])[0]
    assert overview([quick])[0] == overview([some()[1]])[0]


def test_pages_do_not_depend_on_the_hash_seed():
    script = f"import runpy; print(runpy.run_path({__file__!r})['digest']())"
    found = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{digest()}\n".encode()}


def digest():
    return hashlib.sha256(everything().encode()).hexdigest()


# ---- in a browser --------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


def browse(tmp_path, page, *arguments, fragment="", size="1200,900"):
    """The page in a real browser: what it wrote to its standard output. It must have nothing to complain about."""
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}", *arguments, file.as_uri() + fragment,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    said = done.stderr.decode(errors="replace")
    assert "CONSOLE" not in said, said
    return done.stdout.decode()


def names_in_order(dom):
    table = dom[dom.index('class="class"') :]
    return re.findall(r"<bdi>(\w+)</bdi>", table[: table.index("</table>")])


@in_a_browser
def test_browser_sorts_by_url_fragment(tmp_path):
    page, _ = overview(some())
    dom = browse(tmp_path, page, "--dump-dom", fragment="#sort=failed")
    assert names_in_order(dom) == ["cyd", "ben", "ada", "dan"]
    assert re.search(r'data-key="failed"[^>]* aria-sort="descending"', dom)


@in_a_browser
def test_header_clicks_sort_on_phones_too(tmp_path):
    page, _ = overview([*some(), hostile()])
    order = "[...document.querySelectorAll('.class tbody bdi')].map(e => e.textContent.slice(0, 3)).join()"
    clicks = f"""<script>
      const click = key => {{ document.querySelector(`[data-key="${{key}}"] button`).click(); return {order}; }};
      const wide = document.documentElement.scrollWidth - innerWidth;
      document.body.dataset.seen = [click("time"), click("time"), click("name"), wide].join(" ");
    </script>"""
    page = re.sub(r"<meta http-equiv[^\n]*\n", "", page).replace("</body>", f"{clicks}</body>")
    dom = browse(tmp_path, page, "--dump-dom", size="390,900")
    seen = re.search(r'data-seen="([^"]*)"', dom).group(1)
    assert seen == "cyd,ada,ben,dan,&lt;/p dan,&lt;/p,ben,ada,cyd &lt;/p,ada,ben,cyd,dan 0"


@in_a_browser
def test_browser_renders_hostile_page(tmp_path):
    page = submission_page(hostile(), "Raft", full=True)
    shot = tmp_path / "shot.png"
    browse(tmp_path, page, f"--screenshot={shot}", size="600,800")
    width, height, pixels = read_png(shot.read_bytes())
    assert (width, height) == (600, 800)
    # A blank page has two values here; text with its soft edges has many.
    assert len(set(pixels)) > 100


def read_png(data):
    """Its size, and the bytes of its lines as they are stored: each the difference to a neighbour."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    return width, height, zlib.decompress(packed)
