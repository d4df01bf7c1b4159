"""The page of one submission, for its student or for the grader. The overview of a class is in overview.py.

Promise: equal results give equal bytes, without times. All text from submissions is escaped (html.py). Everything about
tests comes from `_VisibleTest`, which holds only what the reader may see, so no seed, rule or text of a hidden run can
reach the student by mistake.

Not promised: that `problem` and `remarks` of a result are fit for the student. The page shows them as they are.

Start at `submission_page()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raftlab.harness.options import command_line
from raftlab.harness.outcome import FAILED, Ending, Outcome
from raftlab.tools.grade.pages.html import (
    Html,
    bar,
    clipped,
    code,
    el,
    heads,
    join,
    lines,
    local_link,
    page,
    part_name,
    safe,
    table,
)
from raftlab.tools.grade.pages.overview import class_page
from raftlab.tools.grade.values.results import (
    Artifacts,
    Result,
    TestResult,
    cap_text,
    override_text,
    points,
)
from raftlab.tools.grade.values.rubric import FUZZ, RACE

__all__ = ["class_page", "submission_page"]

_CAUSE_CHARS_MAX = 600  # far above the length of our own texts, which end with the fix
_TIMELINE_LINES_OPEN = 40  # a longer one is collapsed
_ENDINGS = {
    FAILED: "Failed",
    Ending.UNLOADABLE: "Could not be loaded",
    Ending.FORCED: "Exceeded a limit and was killed",
    Ending.DIED: "The process died",
    Ending.MISBEHAVED: "Violated the sandbox protocol",
}
_INTRO = {
    RACE: "In these runs threads are preempted at any line, and data races are reported. make race does the same on "
    "your machine.",
    FUZZ: "The steps of these runs are random, and the same for every submission. make fuzz tries other steps on your "
    "machine.",
}
_COSTS_NOTHING = " Failures here cost no points."
_VISIBILITY = {
    "hidden": "never shown",
    "after_due_date": "shown after the due date",
    "after_published": "shown when grades are published",
}


# ---- what the reader may see ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _VisibleTest:
    """What the reader may see of one test. Without `runs`: only whether it passed."""

    name: str
    part: str
    passed: bool
    earned: float
    possible: float
    verdict: str = ""
    summary: str = ""
    runs: tuple[Outcome, ...] = ()
    tags: tuple[str, ...] = ()
    anchor: str = ""
    artifacts: tuple[Artifacts, ...] = ()  # artifacts of its runs
    pages: str = ""  # their folder
    counts: bool = True  # False: failures are shown but cost no points
    skipped: bool = False

    @property
    def failures(self) -> list[Outcome]:
        return [run for run in self.runs if run.failed]

    @property
    def why_skipped(self) -> str:
        return next((run.cause for run in self.runs if run.ending is Ending.SKIPPED), "")

    def artifacts_of(self, run: Outcome) -> Artifacts | None:
        return next((one for one in self.artifacts if one.seed == run.seed), None)

    def link(self, file: str, text: str) -> Html:
        return el("a", text, href=local_link(f"{self.pages}/{file}"))


def _visible_test(test: TestResult, *, full: bool) -> _VisibleTest | None:
    """None: the reader must not know that this test exists."""
    graded = test.test
    if not full and graded.visibility != "visible":
        return None
    nameless = graded.hidden and not full and graded.show == "nothing"
    bare = _VisibleTest(
        name=graded.shown_name if nameless else graded.name,
        part=graded.part,
        passed=test.passed,
        earned=test.earned,
        possible=test.possible,
        verdict=test.verdict,
        skipped=test.skipped,
        tags=("hidden",) if graded.hidden and not nameless else (),
        counts=graded.counts,
    )
    if not full and not graded.shows_rules:
        return bare
    tags = bare.tags
    if full and graded.visibility != "visible":
        tags += (_VISIBILITY[graded.visibility],)
    verdict = "not run" if test.not_run and not test.passed else bare.verdict
    runs = test.runs if full else test.for_students.runs
    return replace(bare, verdict=verdict, summary=test.summary, runs=runs, tags=tags)


# ---- one submission ------------------------------------------------------------------------------------------


def submission_page(result: Result, title: str, *, full: bool, pages: str = "") -> str:
    """`full`: the grader's page, with everything. Otherwise the student's, with what the rubric allows.

    `pages`: the folder of the files that `result.shown` names, relative to this page.
    """
    visible = [one for test in result.tests if (one := _visible_test(test, full=full)) is not None]
    tests = [replace(test, anchor=f"t{number}", pages=pages) for number, test in enumerate(visible, 1)]
    # Only of tests whose runs the reader may see.
    artifacts = {test.name: tuple(one for one in result.shown if one.test == test.name) for test in tests if test.runs}
    tests = [replace(test, artifacts=artifacts.get(test.name, ())) for test in tests]
    parts = sorted({test.part for test in tests})
    who = result.name if result.student is None else result.student.name
    name = el("h1", el("bdi", clipped(who, 200) or "(no name)"))
    student = (
        "" if result.student is None else el("p", el("bdi", clipped(result.student.id, 200)), class_="faint small")
    )
    file = result.file if full and result.file != who else ""
    handed_in = el("p", "Submitted as ", el("bdi", clipped(file, 200)), class_="faint small under") if file else ""
    body = [
        el("header", el("p", title, class_="over"), name, student, handed_in),
        _notes(result, full=full),
        _score(result, tests, parts),
    ]
    seen = [test for test in result.tests if test.test.visibility == "visible"]
    if len(seen) < len(result.tests):
        line = "Further tests are not shown here."
        if full:
            most = points(sum(test.possible for test in seen))
            line = f"The student sees {points(sum(test.earned for test in seen))} of {most} points so far."
        body.append(el("p", line, class_="faint small under"))
    body.append(_causes([test for test in tests if test.counts]))
    explained: set[tuple[str, ...]] = set()
    body += [_part([t for t in tests if t.part == part], part, explained, full=full) for part in parts]
    return page(f"{who}: {title}", body)


def _notes(result: Result, *, full: bool) -> Html:
    boxes = []
    if result.problem:
        boxes.append(_box("This submission could not be run", el("p", result.problem), bad=True))
    if result.cap is not None:
        boxes.append(_box("Capped score", el("p", cap_text(result, full=full)), bad=True))
    if override_text(result):
        boxes.append(_box("From the course staff", el("p", override_text(result))))
    if result.instead:
        boxes.append(_box("Another submission counts", el("p", f"{result.instead} counts instead of this submission.")))
    if result.unverified_because:
        because = el("ul", *(el("li", line) for line in result.unverified_because))
        boxes.append(_box("What cannot be verified", because, bad=True))
    if result.remarks:
        boxes.append(_box("Remarks", el("ul", *(el("li", remark) for remark in result.remarks))))
    return join(boxes)


def _box(heading: str, content: Html, *, bad: bool = False) -> Html:
    return el("div", el("h2", heading), content, class_="box bad" if bad else "box")


def _score(result: Result, tests: Sequence[_VisibleTest], parts: Sequence[str]) -> Html:
    tests = [test for test in tests if test.counts]
    earned, possible = sum(test.earned for test in tests), sum(test.possible for test in tests)
    passed, skipped = sum(test.passed for test in tests), sum(test.skipped for test in tests)
    left_out = f", {skipped} skipped" if skipped else ""
    if result.score != result.earned_by_tests:  # _notes() says why
        left_out += f"; these tests earn {points(earned)}"
        earned, possible = result.score, result.score_max
    figure = el("p", points(earned), class_="figure")
    of = el(
        "p", f"of {points(possible)} points; {passed} of {len(tests) - skipped} tests passed{left_out}", class_="of"
    )
    rows = []
    for part in parts:
        mine = [test for test in tests if test.part == part]
        if not mine:
            continue
        got, most = sum(test.earned for test in mine), sum(test.possible for test in mine)
        label = el("th", part_name(part), scope="row")
        of_most = el("td", f"{points(got)} of {points(most)}", class_="number")
        rows.append(el("tr", label, el("td", bar(got / most if most else 0.0)), of_most))
    return el("div", el("div", figure, of), el("table", el("tbody", *rows), class_="parts"), class_="score")


def _name(test: _VisibleTest) -> Html:
    return code(test.name) if test.name.isidentifier() else safe(test.name)


def _headline(run: Outcome) -> str:
    return clipped(run.headline or run.cause or _ENDINGS.get(run.kind, run.kind), _CAUSE_CHARS_MAX)


def _causes(tests: Sequence[_VisibleTest]) -> Html:
    """Each cause once, with the tests that it fails."""
    found: dict[tuple[str, ...], dict[str, _VisibleTest]] = {}
    example: dict[tuple[str, ...], Outcome] = {}
    shrunk: dict[tuple[str, ...], Html] = {}
    for test in tests:
        for run in [] if test.passed else test.failures:
            example.setdefault(run.cause_key, run)
            found.setdefault(run.cause_key, {})[test.anchor] = test
            artifacts = test.artifacts_of(run)
            if artifacts is not None and (artifacts.recipe or artifacts.not_shrunk):
                shrunk.setdefault(run.cause_key, _minimized(test, artifacts))
    if not found:
        return Html("")
    rows = []
    for same, failed in sorted(found.items(), key=lambda item: -len(item[1])):
        run = example[same]
        rule = el("div", code(run.rule), class_="faint small") if run.rule else Html("")
        links = [el("li", el("a", _name(test), href=f"#{test.anchor}")) for test in failed.values()]
        left = shrunk.get(same, Html(""))
        what = el(
            "th", _headline(run), rule, left, el("ul", *links, class_="failed small"), scope="row", class_="cause"
        )
        rows.append(el("tr", what, el("td", str(len(failed)), class_="number")))
    shown = table(heads("Failure", "#Tests"), rows)
    return el("section", el("h2", "What went wrong"), shown)


def _minimized(test: _VisibleTest, artifacts: Artifacts) -> Html:
    """The minimized failure, or why there is none."""
    if not artifacts.recipe:
        return el("p", f"Not minimized: {clipped(artifacts.not_shrunk, 300)}.", class_="faint small")
    left = f"{artifacts.events_left:,} of {artifacts.events:,} events are left."
    origin = f"Minimized from {test.name} with seed {artifacts.seed}: {left}"
    ways = [test.link(artifacts.shrunk_page, "Step through it")] if artifacts.shrunk_page else []
    if artifacts.choices:
        replay = el("code", command_line(f"lab replay {artifacts.choices}", {"isolated": True}))
        ways.append(
            join(
                [
                    "save " if ways else "Save ",
                    test.link(artifacts.choices, "this file"),
                    " beside your folder raft and run ",
                    replay,
                ]
            )
        )
    links = join(" or " if n % 2 else ways[n // 2] for n in range(2 * len(ways) - 1))
    text = artifacts.timeline.rstrip()
    timeline = el("pre", text, class_="wide", tabindex="0")
    at_once = "open" if text.count("\n") < _TIMELINE_LINES_OPEN else ""
    return el(
        "div",
        lines("\n".join(artifacts.recipe)),
        el("p", origin, " ", links, "." if ways else "", class_="small"),
        el("details", el("summary", "Timeline", class_="small"), timeline, open=at_once),
        class_="shrunk",
    )


def _part(tests: Sequence[_VisibleTest], part: str, explained: set[tuple[str, ...]], *, full: bool) -> Html:
    earned, possible = sum(test.earned for test in tests), sum(test.possible for test in tests)
    rows = []
    articles = []
    for test in tests:
        article = _failures(test, explained)
        name = el("a", _name(test), href=f"#{test.anchor}") if article else _name(test)
        tags = [el("span", tag, class_="tag") for tag in test.tags]
        both = el("div", el("span", name, " ", *tags), el("span", test.summary, class_="faint small"), class_="two")
        worth = "–" if test.skipped else f"{points(test.earned)} of {points(test.possible)}"
        row = (el("th", both, scope="row"), el("td", _verdict(test), class_="verdict"))
        rows.append(el("tr", *row, el("td", worth, class_="number")))
        articles.append(article)
    worth = f": {points(earned)} of {points(possible)} points" if any(test.counts for test in tests) else ""
    heading = el("h2", f"{part_name(part)}{worth}")
    what = el("p", f"{_INTRO[part]}{'' if worth else _COSTS_NOTHING}", class_="small") if part in _INTRO else ""
    shown = table(heads("Test", "Verdict", "#Points"), rows, class_="tests")
    return el("section", heading, what, shown, _skipped(tests), *articles, _all_runs(tests) if full else "")


def _skipped(tests: Sequence[_VisibleTest]) -> Html:
    """Skipped tests, apart from failures, because they cost no points."""
    rows = [
        el("li", _name(test), f": {clipped(test.why_skipped, _CAUSE_CHARS_MAX)}")
        for test in tests
        if test.skipped and test.why_skipped
    ]
    return join([el("p", "Skipped; these tests do not count:", class_="small"), el("ul", *rows)]) if rows else Html("")


def _verdict(test: _VisibleTest) -> Html:
    if test.passed:
        return el("span", f"✓ {test.verdict}")
    if test.skipped:
        return el("span", f"– {test.verdict}")
    return el("span", f"– {test.verdict}" if test.verdict == "not run" else f"✗ {test.verdict}", class_="bad-word")


def _failures(test: _VisibleTest, explained: set[tuple[str, ...]]) -> Html:
    """Each cause once, with its runs. Empty if there is none, or the reader may not see it."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for run in test.failures:
        groups.setdefault(run.cause_key, []).append(run)
    if not groups:
        return Html("")
    content = []
    # The first cause that no earlier test explains is open.
    first = None if test.passed else next((key for key in groups if key not in explained), None)
    for key, runs in groups.items():
        many = "" if len(test.runs) == 1 else f" · {_times(len(runs))}"
        known = " · explained above" if key in explained else ""
        rule = join([" ", code(runs[0].rule)]) if runs[0].rule else Html("")
        summary = el("summary", _headline(runs[0]), el("span", rule, many, known, class_="faint small"))
        others = (_same_failure(test, run) for run in runs[1:])
        content.append(el("details", summary, _run(test, runs[0]), *others, open="open" if key == first else ""))
    if first is not None:
        explained.add(first)
    heading = el("h3", code(test.name))
    head = el("div", heading, el("span", test.summary, class_="faint small"), class_="head")
    return el("article", head, *content, id=test.anchor)


def _times(count: int) -> str:
    return "in one run" if count == 1 else f"in {count} runs"


def _same_failure(test: _VisibleTest, run: Outcome) -> Html:
    return el("details", el("summary", f"Same failure with seed {run.seed}", class_="small"), _run(test, run))


def _run(test: _VisibleTest, run: Outcome) -> Html:
    report = _without_frame(run)
    content = []
    artifacts = test.artifacts_of(run)
    if artifacts is not None and artifacts.page:
        content.append(el("p", test.link(artifacts.page, "Step through this run, event by event"), class_="small"))
    elif artifacts is not None and artifacts.no_page:
        content.append(el("p", f"No page of this run: {clipped(artifacts.no_page, 300)}.", class_="faint small"))
    if run.kind != FAILED and run.cause:
        content.append(el("p", f"{_ENDINGS.get(run.kind, run.kind)}.", class_="small"))
    if report:
        content.append(lines(report))
    if run.where and run.where not in report:
        content.append(el("p", "At ", el("code", clipped(run.where, 300)), class_="small"))
    if run.replay:
        content += [el("p", "Replay this run", class_="label"), el("code", run.replay, class_="copy", tabindex="0")]
    else:
        content.append(el("p", f"Seed {run.seed}", class_="small faint"))
    if run.output:
        content += [el("p", "Output", class_="label"), lines(run.output)]
    if run.dropped:
        content.append(el("p", f"{run.dropped:,} more characters were cut.", class_="small faint"))
    return el("div", *content)


def _without_frame(run: Outcome) -> str:
    """The report without its first line (test and seed) and its last (the command), which are shown elsewhere."""
    report = run.report.rstrip().split("\n")
    if run.replay and report[-1].split() == ["replay", *run.replay.split()]:
        del report[-1]
    if report and report[0] == f"{run.test}  seed {run.seed}":
        report = [line.removeprefix("  ") for line in report[1:]]
    return "\n".join(report).strip("\n")


def _all_runs(tests: Sequence[_VisibleTest]) -> Html:
    rows = []
    for test in tests:
        for run in test.runs:
            cells = [
                el("td", str(run.seed), class_="number"),
                el("td", run.kind, class_="bad-word" if run.failed else ""),
                el("td", f"{run.virtual_s:.3f} s", class_="number"),
                el("td", f"{run.events:,}", class_="number"),
                el("td", code(run.digest), class_="cause"),
            ]
            rows.append(el("tr", el("th", code(test.name), scope="row"), *cells))
    if not rows:
        return Html("")
    shown = table(heads("Test", "#Seed", "Outcome", "#Virtual time", "#Events", "Trace digest"), rows)
    return el("details", el("summary", f"All runs ({len(rows)})"), shown, class_="small every")
