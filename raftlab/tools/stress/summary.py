"""A campaign's result for people (text), programs (JSON) and CI (JUnit XML), and its failures for `lab replay`.

Start at `write_all()`.
"""

from __future__ import annotations

import math
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec

from labsim.stacks import short_path
from raftlab.harness.outcome import Outcome
from raftlab.harness.records import Record
from raftlab.tools.common.text import duration, printable
from raftlab.tools.stress.tally import Cause, Group, Tally, ended_its_process
from raftlab.tools.workers.job_bundle import JobBundle

_CAUSES_SHOWN_MAX = 20
_TEXT, _JSON, _JUNIT = "summary.txt", "summary.json", "junit.xml"
FAILURES = "failures"  # the folder of records, in the output folder
SHRUNK = "shrunk"  # that of what is left of the shortest runs


def headline(tally: Tally) -> str:
    """One line: runs, passed, failed, how long, and what it simulated."""
    total = tally.total
    elapsed_s = max(tally.elapsed_s, 1e-9)
    hours = total.virtual_s / 3600
    unverified = f"{total.unverified:,} unverified, " if total.unverified else ""
    return (
        f"{total.runs:,} runs: {total.passed:,} passed, {total.failed:,} failed, {unverified}in {duration(elapsed_s)} "
        f"({total.runs / elapsed_s:,.1f} runs/s). "
        f"Simulated {hours:,.1f} virtual hours, {hours / elapsed_s * 60:,.1f} hours per minute."
    )


def describe_rate(count: int, runs: int) -> str:
    """`1 run of 200`, as people say it."""
    if count >= runs:
        return f"every one of {runs:,} runs" if runs > 1 else "the only run"
    each = runs / count
    about = f", about one in {math.floor(each + 0.5):,}" if count > 1 and each >= 1.5 else ""
    return f"{count:,} of {runs:,} runs{about}"


def as_text(tally: Tally, bundle: JobBundle, out: Path, width: int | None = None) -> str:
    """Sentences are wrapped to `width`, for a terminal; else every one is a line."""
    lines = wrapped(headline(tally), "", width)
    if tally.ended:
        lines.append(f"The stress run ended {tally.ended}.")
    for line in (*tally.unverified, *tally.checks_off):
        lines += wrapped(f"{line}.", "", width)
    causes = tally.causes
    if causes:
        lines.append("")
        lines.append("One cause of failure:" if len(causes) == 1 else f"{len(causes)} causes of failure:")
    for cause in causes[:_CAUSES_SHOWN_MAX]:
        lines += ["", *_describe(cause, tally, bundle, out, width)]
    if len(causes) > _CAUSES_SHOWN_MAX:
        lines += ["", f"... and {len(causes) - _CAUSES_SHOWN_MAX} more causes; see {short_path(str(out))}/summary.json"]
    return "\n".join(lines)


def wrapped(text: str, indent: str, width: int | None, first: str | None = None) -> list[str]:
    """In lines of at most `width`, whole words alone; one line without a width."""
    first = indent if first is None else first
    if width is None:
        return [f"{first}{text}"]
    how = {"initial_indent": first, "subsequent_indent": indent}
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, **how)  # type: ignore[arg-type]


def _describe(cause: Cause, tally: Tally, bundle: JobBundle, out: Path, width: int | None) -> list[str]:
    """What is wrong, an example, and the tests that show it."""
    indent = " " * 5
    shortest = cause.shortest
    lines = wrapped(cause.headline, indent, width, f"{cause.number:3d}  ")
    if shortest.where:
        lines.append(f"{indent}at {shortest.where}")
    if cause.repeats is False:
        lines += wrapped(
            "NOT REPEATED in a fresh process: the peer or the test keeps state between runs (a module or class "
            "variable), or uses randomness that does not come from the seed; to find the cause, run pytest "
            "--check-determinism",
            indent,
            width,
        )
    lines.append(f"{indent}report  {short_path(str(out / report_name(cause)))}")
    lines.append(f"{indent}replay  {bundle.replay_line(shortest.test, shortest.seed)}")
    lines.append(f"{indent}page    {bundle.replay_line(shortest.test, shortest.seed, does='page')}")
    if cause.recipe:
        lines.append(f"{indent}shrunk  {short_path(str(out / SHRUNK / f'{shortest.test}-{shortest.seed}.txt'))}")
        lines += [f"{indent}{line}" for line in cause.recipe]
    groups = tally.in_order(cause)
    names_width = max(len(group.test) for group in groups)
    for group in groups:
        often = describe_rate(group.count, tally.counts[group.test].runs)
        lines.append(f"{indent}  {group.test:<{names_width}}  {often}; {_seeds(group)}")
    return lines


def _seeds(group: Group) -> str:
    smallest, shortest = group.smallest.seed, group.shortest.seed
    if ended_its_process(group.shortest):
        return f"smallest seed {smallest}"
    if smallest == shortest:
        return f"seed {shortest} ({group.shortest.events:,} events)"
    return f"smallest seed {smallest}, shortest run seed {shortest} ({group.shortest.events:,} events)"


def report(outcome: Outcome, bundle: JobBundle) -> str:
    """The worker's report. One that died with its run could not add the line."""
    line = bundle.replay_line(outcome.test, outcome.seed)
    return outcome.report if line in outcome.report else f"{outcome.report}\n\n  replay    {line}"


def report_name(cause: Cause) -> str:
    return f"cause-{cause.number}.txt"


def write_report(cause: Cause, bundle: JobBundle, out: Path) -> Path:
    """Of its shortest run so far."""
    path = out / report_name(cause)
    path.write_text(report(cause.shortest, bundle) + "\n", errors="replace")
    return path


def as_dict(tally: Tally, bundle: JobBundle) -> dict[str, Any]:
    total = tally.total
    return {
        "raft": bundle.setup["given"]["raft"],
        "seed_start": tally.seed_start,
        "runs": total.runs,
        "passed": total.passed,
        "failed": total.failed,
        "unverified": total.unverified,
        "real_s": round(tally.elapsed_s, 3),
        "runs_per_s": round(total.runs / max(tally.elapsed_s, 1e-9), 3),
        "virtual_hours": round(total.virtual_s / 3600, 4),
        "virtual_hours_per_minute": round(total.virtual_s / 60 / max(tally.elapsed_s, 1e-9), 4),
        "ended": tally.ended,
        "checks_off": list(tally.checks_off),
        "cannot_verify": list(tally.unverified),
        "tests": {
            test: {
                "runs": c.runs,
                "passed": c.passed,
                "failed": c.failed,
                "unverified": c.unverified,
                "virtual_s": round(c.virtual_s, 3),
                "real_s": round(c.real_s, 3),
            }
            for test, c in tally.counts.items()
        },
        "causes": [
            {
                "number": cause.number,
                "cause": cause.shortest.rule or cause.shortest.cause,
                "where": cause.shortest.where,
                "kind": cause.shortest.kind,
                "count": cause.count,
                "tests": {
                    group.test: {
                        "count": group.count,
                        "smallest_seed": group.smallest.seed,
                        "shortest_seed": group.shortest.seed,
                        "shortest_events": group.shortest.events,
                    }
                    for group in tally.in_order(cause)
                },
                "repeats": cause.repeats,
                "recipe": cause.recipe,
                "replay": bundle.replay_line(cause.shortest.test, cause.shortest.seed),
                "report": report(cause.shortest, bundle),
            }
            for cause in tally.causes
        ],
    }


def as_junit(tally: Tally, bundle: JobBundle) -> bytes:
    """One case for each test, and for a test that failed one for each cause."""
    suite = ElementTree.Element("testsuite", name="lab stress", time=f"{tally.elapsed_s:.3f}", errors="0")
    for test, count in tally.counts.items():
        causes: list[Cause | None] = [cause for cause in tally.causes if test in cause.groups]
        for cause in causes or [None]:
            name = test if cause is None else f"{test}: {cause.headline}"
            case = ElementTree.SubElement(suite, "testcase", classname="stress", name=printable(name))
            case.set("time", f"{count.real_s:.3f}")
            if cause is not None:
                group = cause.groups[test]
                message = f"{describe_rate(group.count, count.runs)}; {bundle.replay_line(test, group.shortest.seed)}"
                failure = ElementTree.SubElement(case, "failure", message=printable(message), type=group.shortest.kind)
                failure.text = printable(report(group.shortest, bundle))
            elif not count.runs:
                ElementTree.SubElement(case, "skipped", message="no run was made")
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(sum(1 for case in suite if case.find("failure") is not None)))
    suite.set("skipped", str(sum(1 for case in suite if case.find("skipped") is not None)))
    ElementTree.indent(suite)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def clear(out: Path) -> None:
    """Make room: what an earlier campaign said there is removed, its records are kept."""
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("cause-*.txt"), *(out / name for name in (_TEXT, _JSON, _JUNIT))]:
        old.unlink(missing_ok=True)


def write_all(tally: Tally, bundle: JobBundle, out: Path) -> None:
    """Everything into `out`."""
    (out / _TEXT).write_text(as_text(tally, bundle, out) + "\n")
    (out / _JSON).write_bytes(msgspec.json.format(msgspec.json.encode(as_dict(tally, bundle))) + b"\n")
    (out / _JUNIT).write_bytes(as_junit(tally, bundle))
    for cause in tally.causes:
        write_report(cause, bundle, out)
        for group in cause.groups.values():
            for outcome in (group.smallest, group.shortest):
                _record(outcome, bundle).write(out / FAILURES)


def _record(outcome: Outcome, bundle: JobBundle) -> Record:
    given = bundle.given(outcome.test)
    return Record(
        test=outcome.test,
        seed=outcome.seed,
        raft=given["raft"],
        kv=given["kv"] or "",
        isolated=given.get("isolated", False),
        race=given.get("race", False),
        digest=outcome.digest,
        report=report(outcome, bundle),
        code=bundle.code[outcome.test],
    )
