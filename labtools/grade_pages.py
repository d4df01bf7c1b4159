"""The pages of a graded class: one for each submission, as its student or as the grader sees it, and the overview.

Promise: equal results give equal bytes; only the overview tells processor time. Whatever comes from a submission is
escaped (grade_html). The student's page is made from `_Told` alone, which holds nothing that is not to be told, so
that no seed, rule or word of a hidden run can get there by mistake.

Start at `submission_page()` and `class_page()`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from labtools.grade_html import Html, bar, clipped, code, el, heads, join, lines, local_link, opened, page, safe, table
from labtools.grade_results import (
    DIED,
    FAILED,
    FORCED,
    TAMPERED,
    UNLOADABLE,
    Result,
    RunRecord,
    TestResult,
    points,
    tests_failed,
)
from labtools.grade_rubric import OTHER
from labtools.grade_style import SORT_JS
from labtools.stress_summary import duration

_NAME_CHARS_MAX = 80
_CAUSE_CHARS_MAX = 240
_SLOWEST_SHOWN = 5
_REMARKS = "remarks"  # the one flag that is no accusation
_KINDS = {
    FAILED: "Failed",
    UNLOADABLE: "raft.py could not be loaded",
    FORCED: "Over a limit, and ended from outside",
    DIED: "Took its process along",
    TAMPERED: "Changed the tester, so that nothing it says can be believed",
}
_SHOWN = {
    "hidden": "never shown",
    "after_due_date": "shown after the due date",
    "after_published": "shown when grades are published",
}
# A command is shown for copying only if it is the lab's own and can do nothing else, whatever the report says.
_PATH = r"(?:[\w@%+=:,./-]+|'[\w@%+=:,./ ()-]+')"
_REPLAY = re.compile(
    rf"make replay TEST=(?P<a>\w+) SEED=(?P<b>\d+)(?: RAFT={_PATH})?"
    rf"|lab replay (?P<c>\w+) --seed (?P<d>\d+)(?: --file {_PATH})?(?: --raft {_PATH})?"
)


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
    runs: tuple[RunRecord, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def failures(self) -> list[RunRecord]:
        return [run for run in self.runs if not run.passed]


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
        possible=graded.points,
        verdict="passed" if test.passed else "failed",
        tags=("hidden",) if graded.hidden and not nameless else (),
    )
    if graded.hidden and not full and graded.show != "everything":
        return bare
    tags = bare.tags
    if full and graded.visibility != "visible":
        tags += (_SHOWN[graded.visibility],)
    verdict = "not run" if test.not_run and not test.passed else bare.verdict
    return replace(bare, verdict=verdict, summary=test.summary, runs=test.runs, tags=tags)


# ---- one submission ------------------------------------------------------------------------------------------


def submission_page(result: Result, title: str, *, full: bool) -> str:
    """`full`: the grader's, with everything. Otherwise the student's, with what the rubric lets him know."""
    tests = [told for test in result.tests if (told := _told(test, full=full)) is not None]
    numbered = {id(test): f"t{number}" for number, test in enumerate(tests, 1)}
    parts = sorted({test.part for test in tests})
    body = [
        el("header", el("p", title, class_="over"), el("h1", el("bdi", clipped(result.name, 200)))),
        _handed_in(result, tests),
        _score(tests, parts),
    ]
    if len(tests) < len(result.tests):
        body.append(el("p", "Further tests are not shown here.", class_="faint small", style="margin-top:1rem"))
    body.append(_causes(tests, numbered))
    explained: set[tuple[str, ...]] = set()
    body += [_part([t for t in tests if t.part == part], part, numbered, explained, full=full) for part in parts]
    return page(f"{result.name}: {title}", body)


def _handed_in(result: Result, tests: Sequence[_Told]) -> Html:
    boxes = []
    if result.problem:
        boxes.append(_box("This submission could not be run", el("p", result.problem), bad=True))
    if any(run.kind == TAMPERED for test in tests for run in test.runs):
        words = "It changed the tester while it ran. Tests in which it did so are worth nothing, whatever they said."
        boxes.append(_box("This submission interferes with the tester", el("p", words), bad=True))
    if result.remarks:
        boxes.append(_box("On what was handed in", el("ul", *(el("li", remark) for remark in result.remarks))))
    acts = list(dict.fromkeys(act for test in tests for run in test.runs for act in run.denied))
    if acts:
        boxes.append(_box("It tried what a submission may not do", _acts(acts), bad=True))
    return join(boxes)


def _box(heading: str, content: Html, *, bad: bool = False) -> Html:
    return el("div", el("h2", heading), content, class_="box bad" if bad else "box")


def _acts(acts: Sequence[str], shown: int = 10) -> Html:
    rest = [el("li", f"and {len(acts) - shown} more")] if len(acts) > shown else []
    return el("ul", *(el("li", clipped(act, 500)) for act in acts[:shown]), *rest, class_="acts")


def _score(tests: Sequence[_Told], parts: Sequence[str]) -> Html:
    earned, possible = sum(test.earned for test in tests), sum(test.possible for test in tests)
    passed = sum(test.passed for test in tests)
    figure = el("p", points(earned), class_="figure")
    of = el("p", f"of {points(possible)} points; {passed} of {len(tests)} tests passed", class_="of")
    rows = []
    for part in parts:
        mine = [test for test in tests if test.part == part]
        got, most = sum(test.earned for test in mine), sum(test.possible for test in mine)
        label = el("th", _part_name(part), scope="row")
        of_most = el("td", f"{points(got)} of {points(most)}", class_="number")
        rows.append(el("tr", label, el("td", bar(got / most if most else 0.0)), of_most))
    return el("div", el("div", figure, of), el("table", el("tbody", *rows), class_="parts"), class_="score")


def _part_name(part: str) -> str:
    return "Other" if part == OTHER else f"Part {part.upper()}"


def _name(test: _Told) -> Html:
    return code(test.name) if test.name.isidentifier() else safe(test.name)


def _same(run: RunRecord) -> tuple[str, ...]:
    """Failures with one of these are taken for one mistake."""
    return (run.kind, run.rule, run.cause, run.where)


def _headline(run: RunRecord) -> str:
    words = run.cause or _KINDS.get(run.kind, run.kind)
    return clipped(words, _CAUSE_CHARS_MAX)


def _causes(tests: Sequence[_Told], numbered: dict[int, str]) -> Html:
    """One mistake often fails many tests: each once, with the first test that shows it."""
    found: dict[tuple[str, ...], list[_Told]] = {}
    example: dict[tuple[str, ...], RunRecord] = {}
    for test in tests:
        for run in [] if test.passed else test.failures:
            key = (run.kind, run.rule or run.cause)
            example.setdefault(key, run)
            if test not in found.setdefault(key, []):
                found[key].append(test)
    if len({id(test) for tests_of in found.values() for test in tests_of}) < 2:
        return Html("")
    rows = []
    for key, failed in sorted(found.items(), key=lambda item: -len(item[1])):
        run = example[key]
        rule = el("div", code(run.rule), class_="faint small") if run.rule else Html("")
        first = el("a", _name(failed[0]), href=f"#{numbered[id(failed[0])]}")
        what = el("th", _headline(run), rule, scope="row", class_="cause")
        rows.append(el("tr", what, el("td", str(len(failed)), class_="number"), el("td", first)))
    shown = table(heads("What failed", "#Tests", "First seen in"), rows)
    return el("section", el("h2", "What went wrong"), shown)


def _part(
    tests: Sequence[_Told], part: str, numbered: dict[int, str], explained: set[tuple[str, ...]], *, full: bool
) -> Html:
    earned, possible = sum(test.earned for test in tests), sum(test.possible for test in tests)
    rows = []
    articles = []
    for test in tests:
        article = _failed_test(test, numbered[id(test)], explained) if not test.passed else Html("")
        name = el("a", _name(test), href=f"#{numbered[id(test)]}") if article else _name(test)
        tags = [el("span", tag, class_="tag") for tag in test.tags]
        both = el("div", el("span", name, " ", *tags), el("span", test.summary, class_="faint small"), class_="two")
        worth = f"{points(test.earned)} of {points(test.possible)}"
        row = (el("th", both, scope="row"), el("td", _verdict(test), class_="verdict"))
        rows.append(el("tr", *row, el("td", worth, class_="number")))
        articles.append(article)
    heading = el("h2", f"{_part_name(part)}: {points(earned)} of {points(possible)} points")
    shown = table(heads("Test", "Verdict", "#Points"), rows, class_="tests")
    return el("section", heading, shown, *articles, _every_run(tests) if full else "")


def _verdict(test: _Told) -> Html:
    if test.passed:
        return el("span", "✓ passed")
    return el("span", f"– {test.verdict}" if test.verdict == "not run" else f"✗ {test.verdict}", class_="bad-word")


def _failed_test(test: _Told, anchor: str, explained: set[tuple[str, ...]]) -> Html:
    """Empty if there is nothing to explain, or it may not be told."""
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for run in test.failures:
        groups.setdefault(_same(run), []).append(run)
    if not groups:
        return Html("")
    content = []
    for number, (key, runs) in enumerate(groups.items()):
        many = "" if len(test.runs) == 1 else f" · {_times(len(runs))}"
        known = " · explained above" if key in explained else ""
        rule = join([" ", code(runs[0].rule)]) if runs[0].rule else Html("")
        summary = el("summary", _headline(runs[0]), el("span", rule, many, known, class_="faint small"))
        whole = el("details", summary, _run(runs[0]), *(_another(run) for run in runs[1:]))
        # The first explanation stands open; of a mistake that was explained already, none has to.
        content.append(opened(whole) if number == 0 and key not in explained else whole)
        if number == 0:
            explained.add(key)
    heading = el("h3", code(test.name))
    head = el("div", heading, el("span", test.summary, class_="faint small"), class_="head")
    return el("article", head, *content, id=anchor)


def _times(count: int) -> str:
    return "in one run" if count == 1 else f"in {count} runs"


def _another(run: RunRecord) -> Html:
    return el("details", el("summary", f"The same with seed {run.seed}", class_="small"), _run(run))


def _run(run: RunRecord) -> Html:
    told, replay = _told_and_replay(run)
    content = []
    if run.kind != FAILED and run.cause:
        content.append(el("p", f"{_KINDS.get(run.kind, run.kind)}.", class_="small"))
    if told:
        content.append(lines(told))
    if run.where and run.where not in told:
        content.append(el("p", "At ", el("code", clipped(run.where, 300)), class_="small"))
    if replay:
        content += [el("p", "Replay this run", class_="label"), el("code", replay, class_="copy", tabindex="0")]
    else:
        content.append(el("p", f"Seed {run.seed}", class_="small faint"))
    if run.output:
        content += [el("p", "What it printed", class_="label"), lines(run.output)]
    if run.denied:
        content += [el("p", "What it tried and was not allowed", class_="label"), _acts(run.denied)]
    return el("div", *content)


def _told_and_replay(run: RunRecord) -> tuple[str, str]:
    """The report without its first line (test and seed) and its last (the command), and that command."""
    told = run.report.rstrip().split("\n")
    replay = ""
    last = re.fullmatch(r" *replay +(.*)", told[-1])
    if last is not None:
        found = _REPLAY.fullmatch(last.group(1))
        if found and (found["a"] or found["c"], found["b"] or found["d"]) == (run.test, str(run.seed)):
            replay = last.group(1)
            del told[-1]
    if told and told[0] == f"{run.test}  seed {run.seed}":
        told = [line.removeprefix("  ") for line in told[1:]]
    return "\n".join(told).strip("\n"), replay


def _every_run(tests: Sequence[_Told]) -> Html:
    rows = []
    for test in tests:
        for run in test.runs:
            cells = [
                el("td", str(run.seed), class_="number"),
                el("td", run.kind, class_="" if run.passed else "bad-word"),
                el("td", f"{run.virtual_s:.3f} s", class_="number"),
                el("td", f"{run.events:,}", class_="number"),
                el("td", code(run.digest), class_="cause"),
            ]
            rows.append(el("tr", el("th", code(test.name), scope="row"), *cells))
    if not rows:
        return Html("")
    shown = table(heads("Test", "#Seed", "Outcome", "#Virtual time", "#Events", "Digest of the trace"), rows)
    return el("details", el("summary", f"Every run ({len(rows)})"), shown, class_="small", style="margin-top:1.5rem")


# ---- the class -----------------------------------------------------------------------------------------------


def class_page(results: Sequence[Result], title: str, *, page_of: Callable[[Result], str]) -> str:
    """The grader's overview. `page_of` gives the path of a submission's full page, relative to this one, or ""."""

    def linked(result: Result) -> Html:
        name = clipped(result.name, _NAME_CHARS_MAX)
        whole = clipped(result.name, 500) if name != result.name else ""
        path = page_of(result)
        if not path:
            return el("bdi", name or "(no name)", title=whole)
        return el("a", el("bdi", name or "(no name)"), href=local_link(path), title=whole)

    body = [el("header", el("p", "Class overview", class_="over"), el("h1", clipped(title, 200))), _figures(results)]
    if results:
        body += [
            el("section", el("h2", "Scores"), _histogram(results)),
            el("section", el("h2", "Submissions"), _submissions(results, linked), class_="class-scroll"),
            el("section", el("h2", "Which tests fail most"), _tests_failing(results)),
            el("section", el("h2", "Which rules are broken most"), _rules_broken(results)),
            el("section", el("h2", "Processor time"), _time(results, linked)),
        ]
    else:
        body.append(el("section", el("p", "There are no submissions.")))
    return page(title, body, SORT_JS)


def _share(result: Result) -> float:
    return result.score / result.score_max if result.score_max else 0.0


def _full_marks(result: Result) -> bool:
    return bool(result.tests) and all(test.passed for test in result.tests)


def _could_not_run(result: Result) -> bool:
    return bool(result.problem) or UNLOADABLE in _kinds(result)


def _kinds(result: Result) -> set[str]:
    return {run.kind for test in result.tests for run in test.runs}


def _figures(results: Sequence[Result]) -> Html:
    scores = [result.score for result in results]
    told = {
        "Submissions": str(len(results)),
        "Mean score": points(mean(scores)) if scores else "–",
        "Median score": points(median(scores)) if scores else "–",
        "Full marks": str(sum(map(_full_marks, results))),
        "Could not run": str(sum(map(_could_not_run, results))),
        "Tampered": str(sum(result.tampered for result in results)),
    }
    return el("dl", *(el("div", el("dt", what), el("dd", figure)) for what, figure in told.items()), class_="figures")


def _histogram(results: Sequence[Result]) -> Html:
    """Ten steps by the share of the points, and those that have all of them apart."""
    # The small term is for sums that should be 0.3 of the points and come out just below.
    steps = Counter(min(9, int(10 * _share(result) + 1e-9)) for result in results if not _full_marks(result))
    counts = [steps[step] for step in range(10)] + [sum(map(_full_marks, results))]
    labels = [f"{10 * step}–{10 * step + 9}" for step in range(9)] + ["90–99", "all"]
    most = max(counts)
    columns = [
        el(
            "li",
            el("b", str(count), class_="" if count else "none"),
            el("span", el("i", style=f"height:{100 * count / most:.1f}%"), aria_hidden="true"),
            el("small", label),
        )
        for count, label in zip(counts, labels, strict=True)
    ]
    under = el("p", "Submissions by the percentage of the points they earned.", class_="faint small")
    return join([el("ol", *columns, class_="hist"), under])


def _submissions(results: Sequence[Result], linked: Callable[[Result], Html]) -> Html:
    parts = sorted({part for result in results for part in result.parts})
    columns = [
        ("Name", "name"),
        ("Score", "score"),
        *((_part_name(part).removeprefix("Part "), part) for part in parts),
        ("Failed", "failed"),
        ("Rule broken most", "rule"),
        ("Flags", "flags"),
        ("CPU time", "time"),
    ]
    texts = ("name", "rule")
    head = [
        el(
            "th",
            label,
            scope="col",
            class_="" if key in (*texts, "flags") else "number",
            data_key=key,
            data_first="" if key in texts else "down",
        )
        for label, key in columns
    ]
    rows = [_submission_row(result, parts, linked) for result in results]
    return table(head, rows, class_="class", data_sortable="yes")


def _submission_row(result: Result, parts: Iterable[str], linked: Callable[[Result], Html]) -> Html:
    failed = sum(not test.passed for test in result.tests)
    rules = _most_common(result.rules_broken)
    flags = _flags(result)
    by_part = result.parts
    cells = [el("th", linked(result), scope="row"), _number(result.score, el("b", points(result.score)))]
    for part in parts:
        earned, _ = by_part.get(part, (0.0, 0.0))
        cells.append(_number(earned, points(earned) if part in by_part else "–"))
    cells += [
        _number(failed, f"{failed} of {len(result.tests)}"),
        el("td", *([code(clipped(rules[0][0], 60)), f" × {rules[0][1]}"] if rules else [])),
        el(
            "td",
            *(el("span", flag, class_="tag" if flag == _REMARKS else "tag bad") for flag in flags),
            class_="flags",
            data_v=str(len(flags)),
        ),
        _number(result.cpu_s, f"{result.cpu_s:.1f} s"),
    ]
    return el("tr", *cells)


def _number(value: float, shown: str) -> Html:
    return el("td", shown, class_="number", data_v=f"{value:.6g}")


def _most_common(counter: Counter[str]) -> list[tuple[str, int]]:
    """Equal ones by name: the order in which they were met says nothing."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def _flags(result: Result) -> list[str]:
    kinds = _kinds(result)
    found = {
        "tampered": result.tampered,
        "could not be run": bool(result.problem),
        "could not be loaded": UNLOADABLE in kinds,
        f"tried what is not allowed ({len(result.denied)})": bool(result.denied),
        "ended by force": FORCED in kinds,
        "took its process along": DIED in kinds,
        _REMARKS: bool(result.remarks),
    }
    return [flag for flag, given in found.items() if given]


def _bar_row(what: Html, count: int, of: int) -> Html:
    how_many = el("td", f"{count} of {of}", class_="number")
    return el("tr", el("th", what, scope="row"), how_many, el("td", bar(count / of, bad=True)))


def _tests_failing(results: Sequence[Result], shown: int = 15) -> Html:
    hidden = {test.test.name for result in results for test in result.tests if test.test.hidden}
    tag = el("span", "hidden", class_="tag")
    rows = [
        _bar_row(join([code(name), " ", tag if name in hidden else ""]), count, len(results))
        for name, count in _most_common(tests_failed(results))
    ]
    if not rows:
        return el("p", "Every submission passes every test.")
    head = heads("Test", "#Failed by", "")
    rest = ""
    if len(rows) > shown:
        summary = el("summary", f"{len(rows) - shown} more that fail less often")
        rest = el("details", summary, table(head, rows[shown:], class_="bars"))
    return join([table(head, rows[:shown], class_="bars"), rest])


def _rules_broken(results: Sequence[Result]) -> Html:
    broken = Counter(rule for result in results for rule in result.rules_broken)
    said: dict[str, Counter[str]] = {rule: Counter() for rule in broken}
    for result in results:
        for run in (run for test in result.tests for run in test.failures if run.rule and run.cause):
            said[run.rule][run.cause] += 1
    rows = []
    for rule, count in _most_common(broken):
        often = _most_common(said[rule])
        words = clipped(often[0][0], _CAUSE_CHARS_MAX) if often and often[0][0] != rule else ""
        name = join([code(clipped(rule, 60)), el("div", words, class_="faint small cause") if words else ""])
        rows.append(_bar_row(name, count, len(results)))
    if not rows:
        return el("p", "No submission breaks a rule of the protocol.")
    return table(heads("Rule", "#Broken by", ""), rows, class_="bars")


def _time(results: Sequence[Result], linked: Callable[[Result], Html]) -> Html:
    total_s = sum(result.cpu_s for result in results)
    slowest = sorted(results, key=lambda result: -result.cpu_s)[:_SLOWEST_SHOWN]
    most_s = max(slowest[0].cpu_s, 1e-9)
    rows = [
        el(
            "tr",
            el("th", linked(result), scope="row", class_="cause"),
            el("td", duration(result.cpu_s), class_="number"),
            el("td", bar(result.cpu_s / most_s)),
        )
        for result in slowest
    ]
    every = f"{duration(total_s)} in all, {duration(total_s / len(results))} for a submission on average. The slowest:"
    return join([el("p", every), table(heads("Submission", "#CPU time", ""), rows, class_="bars")])
