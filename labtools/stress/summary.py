"""A campaign's result for people (text), programs (JSON) and CI (JUnit XML), and its failures for `lab replay`.

Start at `write_all()`.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec

from labsim.stacks import short_path
from labtest.records import Record
from labtools.stress.kit import Kit
from labtools.stress.outcome import Outcome
from labtools.stress.tally import Group, Tally, ended_its_process

_GROUPS_SHOWN_MAX = 20
FAILURES = "failures"  # the folder of records, in the output folder


def headline(tally: Tally) -> str:
    """One line: runs, passed, failed, how long, and what it simulated."""
    total = tally.total
    elapsed_s = max(tally.elapsed_s, 1e-9)
    hours = total.virtual_s / 3600
    return (
        f"{total.runs:,} runs: {total.passed:,} passed, {total.failed:,} failed, in {duration(elapsed_s)} "
        f"({total.runs / elapsed_s:,.1f} runs/s). "
        f"Simulated {hours:,.1f} virtual hours, {hours / elapsed_s * 60:,.1f} hours per minute."
    )


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def rate(count: int, runs: int) -> str:
    """`1 run of 200`, as people say it."""
    if count >= runs:
        return f"every one of {runs:,} runs" if runs > 1 else "the one run made"
    each = runs / count
    about = f", about one in {math.floor(each + 0.5):,}" if count > 1 and each >= 1.5 else ""
    return f"{count:,} of {runs:,} runs{about}"


def as_text(tally: Tally, kit: Kit, out: Path) -> str:
    lines = [headline(tally)]
    if tally.ended:
        lines.append(f"It ended {tally.ended}.")
    lines += [f"{line}." for line in tally.checks_off]
    groups = tally.in_order()
    if groups:
        lines.append("")
        lines.append("One cause of failure:" if len(groups) == 1 else f"{len(groups)} causes of failure:")
    for number, group in enumerate(groups[:_GROUPS_SHOWN_MAX], start=1):
        lines += ["", *_describe(number, group, tally, kit, out)]
    if len(groups) > _GROUPS_SHOWN_MAX:
        lines += ["", f"... and {len(groups) - _GROUPS_SHOWN_MAX} more causes, in {short_path(str(out))}/summary.json"]
    return "\n".join(lines)


def _describe(number: int, group: Group, tally: Tally, kit: Kit, out: Path) -> list[str]:
    lines = [
        f"{number:3d}  {group.test}: {rate(group.count, tally.counts[group.test].runs)}",
        f"     {group.words}",
    ]
    if group.where:
        lines.append(f"     at {group.where}")
    if ended_its_process(group):
        lines.append(f"     smallest seed {group.smallest.seed}")
    else:
        lines.append(
            f"     smallest seed {group.smallest.seed}; "
            f"shortest run seed {group.shortest.seed} ({group.shortest.events:,} events)"
        )
    if group.repeats is False:
        lines.append(
            "     NOT REPEATED in a fresh process: something of one run reached the next (a variable of the module or "
            "the class),\n     or chance came from outside the seed; pytest --check-determinism may name it"
        )
    lines.append(f"     report  {short_path(str(out / report_name(number)))}")
    lines.append(f"     replay  {kit.replay_line(group.test, group.shortest.seed)}")
    return lines


def report(outcome: Outcome, kit: Kit) -> str:
    """The worker's report. One that died with its run could not add the line."""
    line = kit.replay_line(outcome.test, outcome.seed)
    return outcome.report if line in outcome.report else f"{outcome.report}\n\n  replay    {line}"


def report_name(number: int) -> str:
    return f"cause-{number}.txt"


def as_dict(tally: Tally, kit: Kit) -> dict[str, Any]:
    total = tally.total
    return {
        "raft": kit.setup["raft_given"],
        "seed_start": tally.seed_start,
        "runs": total.runs,
        "passed": total.passed,
        "failed": total.failed,
        "real_s": round(tally.elapsed_s, 3),
        "runs_per_s": round(total.runs / max(tally.elapsed_s, 1e-9), 3),
        "virtual_hours": round(total.virtual_s / 3600, 4),
        "virtual_hours_per_minute": round(total.virtual_s / 60 / max(tally.elapsed_s, 1e-9), 4),
        "ended": tally.ended,
        "checks_off": list(tally.checks_off),
        "tests": {
            test: {
                "runs": c.runs,
                "passed": c.passed,
                "failed": c.failed,
                "virtual_s": round(c.virtual_s, 3),
                "real_s": round(c.real_s, 3),
            }
            for test, c in tally.counts.items()
        },
        "causes": [
            {
                "test": group.test,
                "cause": group.cause,
                "where": group.where,
                "kind": group.kind,
                "count": group.count,
                "smallest_seed": group.smallest.seed,
                "shortest_seed": group.shortest.seed,
                "shortest_events": group.shortest.events,
                "repeats": group.repeats,
                "replay": kit.replay_line(group.test, group.shortest.seed),
                "report": report(group.shortest, kit),
            }
            for group in tally.in_order()
        ],
    }


def as_junit(tally: Tally, kit: Kit) -> bytes:
    """One case for each test, and for a test that failed one for each cause."""
    groups = tally.in_order()
    suite = ElementTree.Element("testsuite", name="lab stress", time=f"{tally.elapsed_s:.3f}", errors="0")
    for test, count in tally.counts.items():
        causes: list[Group | None] = [group for group in groups if group.test == test]
        for group in causes or [None]:
            name = test if group is None else f"{test}: {group.words}"
            case = ElementTree.SubElement(suite, "testcase", classname="stress", name=printable(name))
            case.set("time", f"{count.real_s:.3f}")
            if group is not None:
                message = f"{rate(group.count, count.runs)}; {kit.replay_line(test, group.shortest.seed)}"
                failure = ElementTree.SubElement(case, "failure", message=printable(message), type=group.kind)
                failure.text = printable(report(group.shortest, kit))
            elif not count.runs:
                ElementTree.SubElement(case, "skipped", message="no run was made")
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(groups)))
    suite.set("skipped", str(sum(1 for case in suite if case.find("skipped") is not None)))
    ElementTree.indent(suite)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def printable(text: str) -> str:
    """As XML can hold it."""
    # XML 1.0 has no way to write other control characters.
    return "".join(c if c in "\t\n\r" or c >= " " else "?" for c in text)


def write_all(tally: Tally, kit: Kit, out: Path) -> str:
    """Everything into `out`; gives the text. Reports of an earlier campaign there are removed, records are kept."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("cause-*.txt"):
        old.unlink()
    text = as_text(tally, kit, out)
    (out / "summary.txt").write_text(text + "\n")
    (out / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(as_dict(tally, kit))) + b"\n")
    (out / "junit.xml").write_bytes(as_junit(tally, kit))
    for number, group in enumerate(tally.in_order(), start=1):
        (out / report_name(number)).write_text(report(group.shortest, kit) + "\n", errors="replace")
        for outcome in (group.smallest, group.shortest):
            _record(outcome, kit).write(out / FAILURES)
    return text


def _record(outcome: Outcome, kit: Kit) -> Record:
    return Record(
        test=outcome.test,
        seed=outcome.seed,
        raft=kit.setup["raft_given"],
        digest=outcome.digest,
        report=report(outcome, kit),
        code=kit.code[outcome.test],
    )
