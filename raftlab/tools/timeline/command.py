"""`lab timeline`: shows a run as a table with a column per peer.

    lab timeline test_backup_2b --seed 7                 run it and show it
    lab timeline --trace run.jsonl --topic election      show a saved trace
    lab timeline --import old.log                        show another program's log

Other tools (replay, failure reports) call `print_timeline`. model.py decides what is shown, labels.py makes the texts,
table.py the layout.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from labsim import Event
from raftlab.harness.launcher import LoadError
from raftlab.harness.options import FILE, RUN, TRACE, add_options
from raftlab.harness.run import run_test
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.selection import SelectionError, select, service_for
from raftlab.tools.timeline.log_file import LogFileError, read_log
from raftlab.tools.timeline.model import build_model
from raftlab.tools.timeline.rows import TOPICS, Row, RowFilter
from raftlab.tools.timeline.table import Table
from raftlab.trace.events import LOG
from raftlab.trace.trace_file import TraceFileError, read_trace, write_shiviz, write_trace

_PIPED_WIDTH = 120


class TimelineError(Exception):
    """An option names something that the run does not have; the message names what it has."""


def print_timeline(
    events: Sequence[Event],
    *,
    file: IO[str] | None = None,
    width: int | None = None,
    title: str = "",
    everything: bool = False,
    peers: Iterable[int | str] = (),
    topics: Iterable[str] = (),
    from_s: float = 0.0,
    to_s: float | None = None,
    term: int | None = None,
    follow: int | None = None,
    max_rows: int | None = None,
    ending: str = "",
    color: bool | None = None,
    ascii_only: bool | None = None,
    legend: bool = True,
    svg: Path | None = None,
) -> None:
    """Print a run as a table, in color on a terminal (unless NO_COLOR is set), else in ASCII.

    If there are more than `max_rows` rows, those in the middle are omitted; `ending` is a last line across the table.
    """
    row_filter = RowFilter(
        everything=everything or follow is not None,
        peers=frozenset(str(peer) for peer in peers),
        topics=frozenset(topics),
        from_ns=int(from_s * 1e9),
        to_ns=None if to_s is None else int(to_s * 1e9),
        term=term,
        follow=follow,
    )
    _check(events, row_filter)
    model = build_model(events, row_filter)
    rows = model.rows
    notes: list[str] = []
    if max_rows is not None and len(rows) > max_rows:
        rows = _omit_middle(rows, max_rows)
    if ending:
        last_ns = events[-1].at_ns if events else 0
        rows = [*rows, Row(last_ns, rows[-1].marks if rows else {}, banner=ending, tone="fault")]
    notes.insert(0, f"{model.events} events")
    if model.collapsed:
        notes.append(f"{model.collapsed} repetitions collapsed; --all shows every event, with message numbers")
    if model.topics:
        notes.append(f"topics from log(): {', '.join(model.topics)}")
    if not rows:
        notes.append("no event matches the filters")
    print_table(
        Table(model.peers, rows, ascii_only=_ascii(file, ascii_only), legend=legend and bool(rows)),
        title=title,
        footer="; ".join(notes),
        file=file,
        width=width,
        color=color,
        svg=svg,
    )


def _omit_middle(rows: list[Row], most: int) -> list[Row]:
    """The first and last rows, with a note between them."""
    head, tail = rows[: most // 2], rows[most // 2 - most :]
    missing = rows[len(head) : len(rows) - len(tail)]
    span = f"{missing[0].at_ns / 1e9:.4f} s to {missing[-1].at_ns / 1e9:.4f} s"
    text = f"{len(missing):,} rows, {span}, are omitted here; lab timeline shows them all"
    return [*head, Row(missing[0].at_ns, missing[0].marks, banner=text, tone="phase"), *tail]


def print_table(
    table: Table,
    *,
    title: str,
    footer: str,
    file: IO[str] | None = None,
    width: int | None = None,
    color: bool | None = None,
    svg: Path | None = None,
) -> None:
    stream = file or sys.stdout
    if width is None and not stream.isatty() and "COLUMNS" not in os.environ:
        width = _PIPED_WIDTH
    console = Console(
        file=stream,
        width=width,
        force_terminal=color,
        no_color=True if color is False else None,
        color_system=None if color is False else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        record=svg is not None,
    )
    bold = Style(bold=True)
    if title:
        console.print(_PlainLine(title, bold), crop=False, soft_wrap=True)
    console.print(table, crop=False, no_wrap=True)
    if footer:
        console.print(_PlainLine(footer, Style(color="bright_black")), crop=False, soft_wrap=True)
    if svg is not None:
        console.save_svg(str(svg), title="lab timeline")


class _PlainLine:
    """A line that rich neither wraps nor marks up."""

    def __init__(self, text: str, style: Style) -> None:
        self._text = text
        self._style = style

    def __rich_console__(self, console: Console, options: object) -> Iterable[Segment]:
        yield Segment(self._text, self._style)
        yield Segment.line()


def _ascii(file: IO[str] | None, wanted: bool | None) -> bool:
    if wanted is not None:
        return wanted
    stream = file or sys.stdout
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    return not stream.isatty() or not encoding.startswith("utf")


def _check(events: Sequence[Event], row_filter: RowFilter) -> None:
    """Refuse a filter that names something the run does not have, instead of showing an empty table."""
    peers = {event.node for event in events if event.node}
    unknown = sorted(row_filter.peers - peers)
    if unknown and events:
        raise TimelineError(f"--peer must be one of {', '.join(sorted(peers))}, got {unknown[0]}")
    own = {str(event.detail.topic) for event in events if event.kind == LOG}
    unknown = sorted(row_filter.topics - own - set(TOPICS))
    if unknown:
        topics = ", ".join((*TOPICS, *sorted(own)))
        raise TimelineError(f"--topic must be one of {topics}, got {unknown[0]!r}")
    if row_filter.follow is not None and not any(event.message == row_filter.follow for event in events):
        last = max((event.message for event in events), default=0)
        raise TimelineError(f"--follow must be a message number from 1 to {last}, got {row_filter.follow}")


# ---- the command -----------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("test", nargs="?", metavar="TEST", help="name of the test to run")
    add_options(parser.add_argument, *RUN, FILE, TRACE)
    parser.add_argument(
        "--import",
        type=Path,
        dest="import_",
        metavar="FILE",
        help="show another program's log, with lines 'HH:MM:SS.ffffff [id] text'",
    )
    out = parser.add_argument_group("files to write")
    out.add_argument("--save", type=Path, metavar="FILE", help="write the trace as JSON lines; show no table")
    out.add_argument("--shiviz", type=Path, metavar="FILE", help="write the run for ShiViz; show no table")
    out.add_argument("--svg", type=Path, metavar="FILE", help="also write the table as a picture")
    what = parser.add_argument_group("what to show")
    what.add_argument("--all", action="store_true", help="show every event, with message numbers; collapse nothing")
    what.add_argument("--peer", action="append", default=[], metavar="N", help="show only this peer (repeatable)")
    what.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help=f"show only this topic: {', '.join(TOPICS)}, or a topic that the peer passes to log() (repeatable)",
    )
    what.add_argument("--from", type=float, default=0.0, dest="from_s", metavar="S", help="start at this second")
    what.add_argument("--to", type=float, dest="to_s", metavar="S", help="end at this second")
    what.add_argument("--term", type=int, metavar="T", help="show only events of this term")
    what.add_argument(
        "--follow", type=int, metavar="MESSAGE", help="show only the message of this number and its reply"
    )
    how = parser.add_argument_group("how to show it")
    how.add_argument(
        "--width", type=int, metavar="COLUMNS", help="width of the table (default: the terminal's width, or 120)"
    )
    how.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="use colors (default: auto)")
    how.add_argument("--ascii", action="store_true", default=None, help="use ASCII characters (default when piped)")
    how.add_argument("--unicode", action="store_false", dest="ascii", help="use arrows and bars even when piped")


def main(args: argparse.Namespace) -> int:
    try:
        return _main(args)
    except (LoadError, SelectionError, TraceFileError, LogFileError, TimelineError) as error:
        print(f"lab timeline: {error}", file=sys.stderr)
        return 2


def _main(args: argparse.Namespace) -> int:
    sources = [source for source in (args.test, args.trace, args.import_) if source is not None]
    if len(sources) != 1:
        raise TimelineError("name exactly one of TEST, --trace FILE and --import FILE")
    if args.width is not None and args.width < 40:
        raise TimelineError(f"--width must be at least 40, got {args.width}")
    color = {"auto": None, "always": True, "never": False}[args.color]
    ascii_only = False if args.ascii is None and color else args.ascii
    if args.import_ is not None:
        return _show_import(args, color, ascii_only)
    events: Sequence[Event]
    if args.trace is not None:
        header, events = read_trace(args.trace)
        test, seed, digest, ending = header.test, header.seed, header.digest, ""
        outcome = ""
    else:
        test, seed, digest, events, outcome, ending = _run(args)
    if args.save is not None:
        _write(args.save, lambda path: write_trace(path, events, test=test, seed=seed, digest=digest))
    if args.shiviz is not None:
        _write(args.shiviz, lambda path: write_shiviz(path, events))
    if args.save is not None or args.shiviz is not None:
        return 0
    named = [test or str(args.trace), *([] if seed is None else [f"seed {seed}"]), *([outcome] if outcome else [])]
    print_timeline(
        events,
        width=args.width,
        title="  ".join(named),
        everything=args.all,
        peers=args.peer,
        topics=args.topic,
        from_s=args.from_s,
        to_s=args.to_s,
        term=args.term,
        follow=args.follow,
        ending="" if args.to_s is not None or args.follow is not None else ending,
        color=color,
        ascii_only=ascii_only,
        svg=args.svg,
    )
    return 0


def _run(args: argparse.Namespace) -> tuple[str, int, str, Sequence[Event], str, str]:
    tests = select([args.test], args.file)
    if len(tests) != 1:
        names = ", ".join(t.name for t in tests[:5])
        raise TimelineError(f"{args.test} matches {len(tests)} tests; name one: {names} …")
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**31)
    launcher = launcher_for(args.raft, isolated=args.isolated, kv=service_for(tests, args.kv), race=args.race)
    run = run_test(tests[0], launcher, seed)
    assert run.simulation is not None and run.simulation.trace is not None
    ending = ""
    outcome = f"passed, {run.virtual_s:.1f} s (virtual)"
    if run.error is not None:
        outcome = f"failed after {run.virtual_s:.1f} s (virtual)"
        message = (str(run.error).strip() or type(run.error).__name__).splitlines()[0]
        ending = f"FAILED: {message}"
    return tests[0].name, seed, run.digest, run.simulation.trace, outcome, ending


def _write(path: Path, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except OSError as error:
        raise TimelineError(f"{path}: {error.strerror or error}") from None
    print(f"wrote {path}", file=sys.stderr)


def _show_import(args: argparse.Namespace, color: bool | None, ascii_only: bool | None) -> int:
    refused = [
        name
        for name, given in (
            ("--topic", args.topic),
            ("--term", args.term is not None),
            ("--follow", args.follow is not None),
            ("--save", args.save),
            ("--shiviz", args.shiviz),
        )
        if given
    ]
    if refused:
        raise TimelineError(f"{refused[0]} needs a trace, so it is not supported with --import")
    log = read_log(args.import_)
    unknown = sorted(set(args.peer) - set(log.peers))
    if unknown:
        raise TimelineError(f"--peer must be one of {', '.join(log.peers)}, got {unknown[0]}")
    table = Table(
        [peer for peer in log.peers if not args.peer or peer in args.peer],
        log.rows(peers=frozenset(args.peer), from_s=args.from_s, to_s=args.to_s),
        ascii_only=_ascii(None, ascii_only),
        clock=log.clock,
        legend=False,
    )
    print_table(
        table,
        title=str(args.import_.name),
        footer=log.summary(),
        width=args.width,
        color=color,
        svg=args.svg,
    )
    return 0
