"""The page of one submission, as its student or as the grader sees it. The overview of a class is in overview.py.

Promise: equal results give equal bytes, and no real time is told. Whatever comes from a submission is escaped
(html.py). What is said of tests is made from `_Told` alone, which holds nothing that is not to be told, so that no
seed, rule or word of a hidden run can get to the student by mistake.

Not promised: that `problem` and `remarks` of a result are fit for the student. They are told as they are.

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
    Result,
    Shown,
    TestResult,
    points,
)
from raftlab.tools.grade.values.rubric import FUZZ, RACE

__all__ = ["class_page", "submission_page"]

_CAUSE_CHARS_MAX = 600  # far above what we write ourselves: the fix stands at the end
_TIMELINE_LINES_OPEN = 40  # a longer one is opened by whoever wants it
_KINDS = {
    FAILED: "Failed",
    Ending.UNLOADABLE: "Could not be loaded",
    Ending.FORCED: "Exceeded a limit and was killed",
    Ending.DIED: "The process died",
    Ending.MISBEHAVED: "Violated the sandbox protocol",
}
_BESIDES = {
    RACE: "In these runs threads are preempted at any line, and data races are reported. make race does the same on "
    "your machine.",
    FUZZ: "The steps of these runs are random, and the same for every submission. make fuzz tries others on your "
    "machine.",
}
_COSTS_NOTHING = " Failures here cost no points."
_SHOWN = {
    "hidden": "never shown",
    "after_due_date": "shown after the due date",
    "after_published": "shown when grades are published",
}


# ---- what may be told ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Told:
    """One test as the reader of a page may know it. Without `runs` it only passed or did not."""

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
    shown: tuple[Shown, ...] = ()  # what was drawn and shrunk of its runs
    pages: str = ""  # the folder where that is
    counts: bool = True  # and is not only told
    skipped: bool = False

    @property
    def failures(self) -> list[Outcome]:
        return [run for run in self.runs if run.failed]

    @property
    def why_skipped(self) -> str:
        return next((run.cause for run in self.runs if run.ending is Ending.SKIPPED), "")

    def shown_of(self, run: Outcome) -> Shown | None:
        return next((shown for shown in self.shown if shown.seed == run.seed), None)

    def link(self, file: str, *said: str) -> Html:
        return el("a", *said, href=local_link(f"{self.pages}/{file}"))


def _told(test: TestResult, *, full: bool) -> _Told | None:
    """None: the reader must not know that there is such a test."""
    graded = test.test
    if not full and graded.visibility != "visible":
        return None
    nameless = graded.hidden and not full and graded.show == "nothing"
    bare = _Told(
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
    if graded.hidden and not full and graded.show != "everything":
        return bare
    tags = bare.tags
    if full and graded.visibility != "visible":
        tags += (_SHOWN[graded.visibility],)
    verdict = "not run" if test.not_run and not test.passed else bare.verdict
    runs = test.runs if full else test.for_students.runs
    return replace(bare, verdict=verdict, summary=test.summary, runs=runs, tags=tags)


# ---- one submission ------------------------------------------------------------------------------------------


def submission_page(result: Result, title: str, *, full: bool, pages: str = "") -> str:
    """`full`: the grader's, with everything. Otherwise the student's, with what the rubric lets them know.

    `pages`: the folder of the files that `result.shown` names, as seen from this page.
    """
    may_be_told = [told for test in result.tests if (told := _told(test, full=full)) is not None]
    tests = [replace(told, anchor=f"t{number}", pages=pages) for number, told in enumerate(may_be_told, 1)]
    # Only of tests whose runs may be told.
    of = {told.name: tuple(shown for shown in result.shown if shown.test == told.name) for told in tests if told.runs}
    tests = [replace(told, shown=of.get(told.name, ())) for told in tests]
    parts = sorted({test.part for test in tests})
    name = el("h1", el("bdi", clipped(result.name, 200) or "(no name)"))
    file = result.file if full and result.file != result.name else ""
    handed_in = el("p", "Submitted as ", el("bdi", clipped(file, 200)), class_="faint small under") if file else ""
    body = [
        el("header", el("p", title, class_="over"), name, handed_in),
        _handed_in(result),
        _score(tests, parts),
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
    return page(f"{result.name}: {title}", body)


def _handed_in(result: Result) -> Html:
    boxes = []
    if result.problem:
        boxes.append(_box("This submission could not be run", el("p", result.problem), bad=True))
    if result.unverified_because:
        because = el("ul", *(el("li", line) for line in result.unverified_because))
        boxes.append(_box("What cannot be verified", because, bad=True))
    if result.remarks:
        boxes.append(_box("Remarks", el("ul", *(el("li", remark) for remark in result.remarks))))
    return join(boxes)


def _box(heading: str, content: Html, *, bad: bool = False) -> Html:
    return el("div", el("h2", heading), content, class_="box bad" if bad else "box")


def _score(tests: Sequence[_Told], parts: Sequence[str]) -> Html:
    tests = [test for test in tests if test.counts]
    earned, possible = sum(test.earned for test in tests), sum(test.possible for test in tests)
    passed, skipped = sum(test.passed for test in tests), sum(test.skipped for test in tests)
    figure = el("p", points(earned), class_="figure")
    left_out = f", {skipped} skipped" if skipped else ""
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


def _name(test: _Told) -> Html:
    return code(test.name) if test.name.isidentifier() else safe(test.name)


def _headline(run: Outcome) -> str:
    return clipped(run.headline or run.cause or _KINDS.get(run.kind, run.kind), _CAUSE_CHARS_MAX)


def _causes(tests: Sequence[_Told]) -> Html:
    """One mistake often fails many tests: each once, with the tests that show it below it."""
    found: dict[tuple[str, ...], dict[str, _Told]] = {}
    example: dict[tuple[str, ...], Outcome] = {}
    shrunk: dict[tuple[str, ...], Html] = {}
    for test in tests:
        for run in [] if test.passed else test.failures:
            example.setdefault(run.cause_key, run)
            found.setdefault(run.cause_key, {})[test.anchor] = test
            drawn = test.shown_of(run)
            if drawn is not None and (drawn.recipe or drawn.not_shrunk):
                shrunk.setdefault(run.cause_key, _shrunk(test, drawn))
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


def _shrunk(test: _Told, shown: Shown) -> Html:
    """The same failure with as little as possible left."""
    if not shown.recipe:
        return el("p", f"Not minimized: {clipped(shown.not_shrunk, 300)}.", class_="faint small")
    left = (
        f"Minimized from {test.name} with seed {shown.seed}: {shown.events_left:,} of {shown.events:,} events are left."
    )
    ways = [test.link(shown.shrunk_page, "Step through it")] if shown.shrunk_page else []
    if shown.choices:
        replay = el("code", command_line(f"lab replay {shown.choices}", {"isolated": True}))
        ways.append(join([test.link(shown.choices, "replay it from this file"), " (", replay, ")"]))
    links = join(" or " if n % 2 else ways[n // 2] for n in range(2 * len(ways) - 1))
    told = shown.timeline.rstrip()
    timeline = el("pre", told, class_="wide", tabindex="0")
    at_once = "open" if told.count("\n") < _TIMELINE_LINES_OPEN else ""
    return el(
        "div",
        lines("\n".join(shown.recipe)),
        el("p", left, " ", links, "." if ways else "", class_="small"),
        el("details", el("summary", "Timeline", class_="small"), timeline, open=at_once),
        class_="shrunk",
    )


def _part(tests: Sequence[_Told], part: str, explained: set[tuple[str, ...]], *, full: bool) -> Html:
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
    what = el("p", f"{_BESIDES[part]}{'' if worth else _COSTS_NOTHING}", class_="small") if part in _BESIDES else ""
    shown = table(heads("Test", "Verdict", "#Points"), rows, class_="tests")
    return el("section", heading, what, shown, _skipped(tests), *articles, _every_run(tests) if full else "")


def _skipped(tests: Sequence[_Told]) -> Html:
    """Apart from the failures: they cost nothing."""
    rows = [
        el("li", _name(test), f": {clipped(test.why_skipped, _CAUSE_CHARS_MAX)}")
        for test in tests
        if test.skipped and test.why_skipped
    ]
    return join([el("p", "Skipped; these tests do not count:", class_="small"), el("ul", *rows)]) if rows else Html("")


def _verdict(test: _Told) -> Html:
    if test.passed:
        return el("span", f"✓ {test.verdict}")
    if test.skipped:
        return el("span", f"– {test.verdict}")
    return el("span", f"– {test.verdict}" if test.verdict == "not run" else f"✗ {test.verdict}", class_="bad-word")


def _failures(test: _Told, explained: set[tuple[str, ...]]) -> Html:
    """Each once, with the runs that show it. Empty if there is none, or it may not be told."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for run in test.failures:
        groups.setdefault(run.cause_key, []).append(run)
    if not groups:
        return Html("")
    content = []
    # One explanation stands open; a mistake that was explained in an earlier test needs none.
    first = None if test.passed else next((key for key in groups if key not in explained), None)
    for key, runs in groups.items():
        many = "" if len(test.runs) == 1 else f" · {_times(len(runs))}"
        known = " · explained above" if key in explained else ""
        rule = join([" ", code(runs[0].rule)]) if runs[0].rule else Html("")
        summary = el("summary", _headline(runs[0]), el("span", rule, many, known, class_="faint small"))
        others = (_another(test, run) for run in runs[1:])
        content.append(el("details", summary, _run(test, runs[0]), *others, open="open" if key == first else ""))
    if first is not None:
        explained.add(first)
    heading = el("h3", code(test.name))
    head = el("div", heading, el("span", test.summary, class_="faint small"), class_="head")
    return el("article", head, *content, id=test.anchor)


def _times(count: int) -> str:
    return "in one run" if count == 1 else f"in {count} runs"


def _another(test: _Told, run: Outcome) -> Html:
    return el("details", el("summary", f"Same failure with seed {run.seed}", class_="small"), _run(test, run))


def _run(test: _Told, run: Outcome) -> Html:
    told = _without_frame(run)
    content = []
    shown = test.shown_of(run)
    if shown is not None and shown.page:
        content.append(el("p", test.link(shown.page, "Step through this run, event by event"), class_="small"))
    elif shown is not None and shown.no_page:
        content.append(el("p", f"No page of this run: {clipped(shown.no_page, 300)}.", class_="faint small"))
    if run.kind != FAILED and run.cause:
        content.append(el("p", f"{_KINDS.get(run.kind, run.kind)}.", class_="small"))
    if told:
        content.append(lines(told))
    if run.where and run.where not in told:
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
    """The report without its first line (test and seed) and its last (the command), which stand elsewhere."""
    told = run.report.rstrip().split("\n")
    if run.replay and told[-1].split() == ["replay", *run.replay.split()]:
        del told[-1]
    if told and told[0] == f"{run.test}  seed {run.seed}":
        told = [line.removeprefix("  ") for line in told[1:]]
    return "\n".join(told).strip("\n")


def _every_run(tests: Sequence[_Told]) -> Html:
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
