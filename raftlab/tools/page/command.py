"""`lab page`: writes a run as one HTML file to step through.

    lab page test_backup_2b --seed 7                 run it and write build/pages/test_backup_2b-7.html
    lab page --trace run.jsonl --out run.html        of a saved trace

Other tools call `write_page()`. data.py decides what the page contains, web/ how it looks.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labsim import Event
from raftlab.check.failure import Failure
from raftlab.harness import report
from raftlab.harness.launcher import LoadError
from raftlab.harness.options import FILE, OUT, RUN, TRACE, add_options, given, run_line
from raftlab.harness.run import Run, run_test
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.page.data import find_events, page_data
from raftlab.tools.page.fields import FieldWatcher, run_with_fields
from raftlab.tools.page.html import render_page
from raftlab.tools.page.tables import encodable
from raftlab.tools.selection import SelectionError, select, service_for
from raftlab.trace.trace_file import TraceFileError, read_trace

PAGES = Path("build/pages")
_OUT = replace(OUT, metavar="FILE", help=f"file to write (default: {PAGES}/TEST-SEED.html)")


class PageError(Exception):
    """The page cannot be written; the message names the reason."""


def write_page(
    path: Path, events: Sequence[Event], summary: dict[str, Any], watcher: FieldWatcher | None = None
) -> None:
    """`summary`: from run_summary(), or at least test and seed."""
    data = page_data(events, summary, watcher)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_page(data, f"{summary['test']} {summary['seed']}"), encoding="utf-8")
    except OSError as error:
        raise PageError(f"{path}: {error.strerror or error}") from None


def run_summary(run: Run, test: str, replay: str) -> dict[str, Any]:
    """The page's data about the run as a whole."""
    assert run.simulation is not None and run.simulation.trace is not None
    summary: dict[str, Any] = {"test": test, "seed": run.seed, "digest": run.digest, "replay": replay, "failed": False}
    summary["ends_ns"] = run.simulation.now_ns
    error = run.error
    if error is None:
        return summary
    lines = [encodable(line) for line in report.message_lines(error)]
    summary |= {"failed": True, "headline": lines[0], "evidence": lines[1:]}
    summary["causes"] = [encodable(cause) for cause in run.causes]
    if isinstance(error, Failure):
        summary["rule"] = error.rule
        summary["accused"] = error.peer
        summary["places"] = find_events(run.simulation.trace, error.messages)
    return summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("test", nargs="?", metavar="TEST", help="name of the test to run")
    add_options(parser.add_argument, *RUN, FILE, TRACE, _OUT)
    parser.add_argument(
        "--fields",
        action=argparse.BooleanOptionalAction,
        help="show the peers' own fields (default, except with --isolated)",
    )


def main(args: argparse.Namespace) -> int:
    try:
        return _main(args)
    except (LoadError, SelectionError, TraceFileError, PageError) as error:
        print(f"lab page: {error}", file=sys.stderr)
        return 2


def _main(args: argparse.Namespace) -> int:
    if (args.test is None) == (args.trace is None):
        raise PageError("name either TEST or --trace FILE")
    if args.fields and args.isolated:
        raise PageError("--fields is not supported with --isolated: the peers' fields are in other processes")
    if args.fields and args.trace:
        raise PageError("--fields is not supported with --trace: a trace does not contain the peers' fields")
    if args.fields is None:
        args.fields = not args.isolated
    if args.trace is not None:
        header, events = read_trace(args.trace)
        test = header.test or args.trace.stem
        summary: dict[str, Any] = {"test": test, "seed": header.seed, "digest": header.digest}
        out = args.out or PAGES / f"{args.trace.stem}.html"
        write_page(out, events, summary)
        print(f"wrote {out}")
        return 0
    tests = select([args.test], args.file)
    if len(tests) != 1:
        names = ", ".join(t.name for t in tests[:5])
        raise PageError(f"{args.test} matches {len(tests)} tests; name one: {names} …")
    (test,) = tests
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**31)
    launcher = launcher_for(args.raft, isolated=args.isolated, kv=service_for(tests, args.kv), race=args.race)
    watcher = None
    if args.fields:
        run, watcher = run_with_fields(test, launcher, seed)
    else:
        run = run_test(test, launcher, seed)
    assert run.simulation is not None and run.simulation.trace is not None
    file = str(args.file[0]) if args.file else ""
    replay = run_line("replay", test.name, seed, given(args, service=test.wants_service), file=file)
    out = args.out or PAGES / f"{test.name}-{seed}.html"
    write_page(out, run.simulation.trace, run_summary(run, test.name, replay), watcher)
    print(f"wrote {out}: {'passed' if run.error is None else report.headline(run.error)}")
    return 0
