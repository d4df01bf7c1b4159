"""The overview of a graded class: figures, scores, a sortable table, the most frequent failures, times.

Promise: equal results give equal bytes, except times, which only this page has. All text from submissions is escaped
(html.py). The page hides nothing, so it is not for students.

Start at `class_page()`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from types import MappingProxyType

from raftlab.harness.outcome import Ending
from raftlab.tools.common.text import counted, duration
from raftlab.tools.grade.pages.html import Html, bar, clipped, code, el, heads, join, local_link, page, part_name, table
from raftlab.tools.grade.pages.style import SORT_JS
from raftlab.tools.grade.values.class_list import NO_CLASS_LIST, ClassList, several
from raftlab.tools.grade.values.results import (
    PROVENANCE,
    Result,
    has_other_name_than_file,
    points,
    tests_failed,
)

_NAME_CHARS_MAX = 80
_CAUSE_CHARS_MAX = 600
_SLOWEST_SHOWN = 5
# Flags that are not defects.
_REMARKS, _SKIPPED, _OVERRIDDEN, _NOT_COUNTED = "remarks", "skipped tests", "overridden", "another submission counts"
_NO_DEFECTS = (_REMARKS, _SKIPPED, _OVERRIDDEN, _NOT_COUNTED)


def class_page(
    results: Sequence[Result],
    title: str,
    *,
    page_of: Callable[[Result], str],
    class_list: ClassList = NO_CLASS_LIST,
    ignored: Mapping[str, str] = MappingProxyType({}),
    provenance: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """`page_of` gives the path of a submission's full page, relative to this one, or "".

    `ignored`: other entries of the folder, and why they are not submissions. `provenance`: a summary of the file
    provenance.json beside the page.
    """

    def linked(result: Result) -> Html:
        name = clipped(result.name, _NAME_CHARS_MAX)
        whole = clipped(result.name, 500) if name != result.name else ""
        path = page_of(result) if result.tests else ""
        if not path:
            return el("bdi", name or "(no name)", title=whole)
        return el("a", el("bdi", name or "(no name)"), href=local_link(path), title=whole)

    body = [el("header", el("p", "Class overview", class_="over"), el("h1", clipped(title, 200))), _figures(results)]
    ran = [result for result in results if result.in_statistics]
    if results:
        body += [
            el("section", el("h2", "Scores"), _histogram(ran)),
            el("section", el("h2", "Submissions"), _submissions(results, linked), class_="class-scroll"),
            _roster(results, class_list),
            _overrides([*results, *class_list.missing(results)], linked),
            el("section", el("h2", "Tests that fail most often"), _tests_failing(ran)),
            el("section", el("h2", "Rules broken most often"), _rules_broken(ran)),
            el("section", el("h2", "Time of all runs"), _time(results, linked)),
        ]
    else:
        body.append(el("section", el("p", "There are no submissions.")))
    if ignored:
        body.append(el("section", el("h2", "Ignored"), _ignored(ignored)))
    if provenance:
        body.append(el("section", el("h2", "Provenance"), _provenance(provenance)))
    return page(title, body, SORT_JS)


def _share(result: Result) -> float:
    return result.score / result.score_max if result.score_max else 0.0


def _full_marks(result: Result) -> bool:
    return (
        bool(result.tests)
        and result.score >= result.score_max
        and all(
            test.skipped or (test.passed and test.earned >= test.possible) for test in result.tests if test.test.counts
        )
    )


def _endings(result: Result) -> set[Ending]:
    return {run.ending for test in result.tests for run in test.runs}


def _figures(results: Sequence[Result]) -> Html:
    ran = [result for result in results if result.in_statistics]
    scores = [result.score for result in ran]
    figures = {
        "Submissions": str(len(results)),
        "Mean score": points(mean(scores)) if scores else "–",
        "Median score": points(median(scores)) if scores else "–",
        "Full marks": str(sum(map(_full_marks, ran))),
        "Could not run": str(sum(bool(result.problem) for result in results)),
    }
    shown = el(
        "dl", *(el("div", el("dt", what), el("dd", figure)) for what, figure in figures.items()), class_="figures"
    )
    left_out = len(results) - len(ran)
    why = "not runnable, excused or superseded"
    note = f"The statistics leave out {counted(left_out, 'submission')}: {why}." if left_out else ""
    return join([shown, el("p", note, class_="faint small")]) if note else shown


def _histogram(results: Sequence[Result]) -> Html:
    """Ten steps by the share of points, and a separate one for full marks."""
    # The small term corrects sums that should be 0.3 of the points and are just below.
    steps = Counter(min(9, int(10 * _share(result) + 1e-9)) for result in results if not _full_marks(result))
    counts = [steps[step] for step in range(10)] + [sum(map(_full_marks, results))]
    labels = [(f"{10 * step}", f"–{10 * step + 9}") for step in range(10)] + [("all", "")]
    most = max(1, *counts)
    columns = [
        el(
            "li",
            el("b", str(count), class_="" if count else "none"),
            el("span", el("i", style=f"height:{100 * count / most:.1f}%"), aria_hidden="true"),
            el("small", low, el("span", high)),
        )
        for count, (low, high) in zip(counts, labels, strict=True)
    ]
    under = el("p", "Submissions by the percentage of the points they earned.", class_="faint small")
    return join([el("ol", *columns, class_="hist"), under])


def _submissions(results: Sequence[Result], linked: Callable[[Result], Html]) -> Html:
    parts = sorted({part for result in results for part in result.parts})
    columns = [
        ("Name", "name"),
        ("Score", "score"),
        *((part_name(part).removeprefix("Part "), part) for part in parts),
        ("Failed", "failed"),
        ("Rule broken most often", "rule"),
        ("Flags", "flags"),
        ("Time", "time"),
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
    counting = [test for test in result.tests if test.test.counts]
    failed = sum(not test.passed and not test.skipped for test in counting)
    rules = _most_common(result.rules_broken)
    flags = _flags(result)
    by_part = result.parts
    file = clipped(result.file, _NAME_CHARS_MAX) if has_other_name_than_file(result.name, result.file) else ""
    under = [el("div", "submitted as ", el("bdi", file), class_="faint small")] if file else []
    if result.student is not None:
        student = ", ".join(filter(None, (result.student.name, result.student.id, result.student.section)))
        under.insert(0, el("div", el("bdi", clipped(student, 200)), class_="faint small"))
    cells = [
        el("th", linked(result), *under, scope="row"),
        _number(result.score, el("b", _score(result))),
    ]
    for part in parts:
        earned, _ = by_part.get(part, (0.0, 0.0))
        cells.append(_number(earned, points(earned) if part in by_part else "–"))
    cells += [
        _number(failed, f"{failed} of {len(counting)}"),
        el("td", *([code(clipped(rules[0][0], 60)), f" × {rules[0][1]}"] if rules else [])),
        el(
            "td",
            *(el("span", flag, class_="tag" if flag in _NO_DEFECTS else "tag bad") for flag in flags),
            class_="flags",
            data_v=str(len(flags)),
        ),
        _number(result.real_s, duration(result.real_s)),
    ]
    return el("tr", *cells)


def _score(result: Result) -> str:
    return "excused" if result.excused else points(result.score)


def _number(value: float, shown: str) -> Html:
    return el("td", shown, class_="number", data_v=f"{value:.6g}")


def _most_common(counter: Counter[str]) -> list[tuple[str, int]]:
    """Ties are sorted by name, to be independent of the order of submissions."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def _flags(result: Result) -> list[str]:
    endings = _endings(result)
    found = {
        "violated the sandbox protocol": result.misbehaved,
        "could not be run": bool(result.problem) and Ending.UNLOADABLE not in endings,
        "could not be loaded": Ending.UNLOADABLE in endings,
        "killed at a limit": Ending.FORCED in endings,
        "process died": Ending.DIED in endings,
        "score capped: safety violated": result.cap is not None,
        "unverified": result.unverified,
        _OVERRIDDEN: result.override is not None,
        _NOT_COUNTED: bool(result.instead),
        _SKIPPED: any(test.skipped for test in result.tests),
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
        summary = el("summary", f"{len(rows) - shown} more tests that fail less often")
        rest = el("details", summary, table(head, rows[shown:], class_="bars"))
    return join([table(head, rows[:shown], class_="bars"), rest])


def _rules_broken(results: Sequence[Result]) -> Html:
    broken = Counter(rule for result in results for rule in result.rules_broken)
    causes: dict[str, Counter[str]] = {rule: Counter() for rule in broken}
    for result in results:
        for run in (run for test in result.tests for run in test.failures if run.rule and run.cause):
            causes[run.rule][run.cause] += 1
    rows = []
    for rule, count in _most_common(broken):
        often = _most_common(causes[rule])
        words = clipped(often[0][0], _CAUSE_CHARS_MAX) if often and often[0][0] != rule else ""
        name = join([code(clipped(rule, 60)), el("div", words, class_="faint small cause") if words else ""])
        rows.append(_bar_row(name, count, len(results)))
    if not rows:
        return el("p", "No submission breaks a rule of the protocol.")
    return table(heads("Rule", "#Broken by", ""), rows, class_="bars")


def _ignored(names: Mapping[str, str]) -> Html:
    under = el("p", "These entries of the folder are not submissions.", class_="faint small")
    return join([under, _facts(heads("Name", "Why"), names)])


def _roster(results: Sequence[Result], class_list: ClassList) -> Html:
    """The students and submissions that do not fit one to one."""
    missing = class_list.missing(results)
    differences = {
        **{f"{m.name} ({m.student.id})": m.problem for m in missing if m.student is not None},
        **dict.fromkeys(class_list.unknown(results), "not in the roster; add the name to the aliases of a student"),
        **{
            f"{student.name} ({student.id})": f"several submissions: {', '.join(names)}; remove all but one, or "
            "choose one with submission = in overrides.toml"
            for student, names in several(results).items()
        },
    }
    if not differences:
        return Html("")
    return el("section", el("h2", "Roster"), _facts(heads("Name", "Problem"), differences))


def _overrides(results: Sequence[Result], linked: Callable[[Result], Html]) -> Html:
    rows = [
        el(
            "tr",
            el("th", linked(result), scope="row", class_="cause"),
            _number(result.earned, points(result.earned)),
            _number(result.score, _score(result)),
            el("td", result.override.comment, class_="cause"),
        )
        for result in results
        if result.override is not None
    ]
    if not rows:
        return Html("")
    return el("section", el("h2", "Overrides"), table(heads("Submission", "#Earned", "#Score", "Comment"), rows))


def _provenance(facts: Mapping[str, str]) -> Html:
    link = el("a", PROVENANCE, href=local_link(PROVENANCE))
    return join(
        [_facts([], facts), el("p", link, " contains the rubric, all seeds and the commands.", class_="small under")]
    )


def _facts(head: Sequence[str], facts: Mapping[str, str]) -> Html:
    rows = [
        el("tr", el("th", el("bdi", clipped(what, 500)), scope="row", class_="cause"), el("td", fact, class_="cause"))
        for what, fact in facts.items()
    ]
    return table(head, rows)


def _time(results: Sequence[Result], linked: Callable[[Result], Html]) -> Html:
    total_s = sum(result.real_s for result in results)
    slowest = sorted(results, key=lambda result: -result.real_s)[:_SLOWEST_SHOWN]
    most_s = max(slowest[0].real_s, 1e-9)
    rows = [
        el(
            "tr",
            el("th", linked(result), scope="row", class_="cause"),
            el("td", duration(result.real_s), class_="number"),
            el("td", bar(result.real_s / most_s)),
        )
        for result in slowest
    ]
    every = f"{duration(total_s)} in total, {duration(total_s / len(results))} per submission on average. The slowest:"
    return join([el("p", every), table(heads("Submission", "#Time", ""), rows, class_="bars")])
