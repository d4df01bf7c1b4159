"""`lab shrink`: minimizes a failing run and writes reproduction steps, a timeline, a choice file and a scenario.

Start at `main()`. search.py: the algorithm. attempts.py: one run. reproduction_steps.py: what is left, as text.
scenario_writer.py: the run as a scenario.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

from raftlab.harness.launcher import LoadError
from raftlab.harness.options import FILE, OUT, RUN, SEED, TIMELINE, add_options, given
from raftlab.harness.records import place_of_peer
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.selection import SCENARIO, SelectionError, select, service_for

_WIDTH = 112
_LIMIT_S = 50.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lab shrink TEST --seed N [options]"
    parser.epilog = (
        "Ctrl-C stops the search and writes the best result so far. "
        "Exit status: 0 the run was shrunk, 1 there is nothing to shrink, 2 it could not start."
    )
    add = parser.add_argument
    add("test", metavar="TEST", help="name of the failing test")
    add_options(
        add,
        FILE,
        *RUN,
        replace(SEED, required=True, help="seed of the failing run"),
        TIMELINE,
        replace(OUT, default=Path("build/shrunk")),
    )
    add("--limit", type=float, default=_LIMIT_S, metavar="S", help=f"CPU seconds to spend (default: {_LIMIT_S:g})")
    add("--json", type=Path, metavar="FILE", help="write statistics to FILE: events before and after, lines, steps")


def main(args: argparse.Namespace) -> int:
    if args.limit <= 0:
        return _cannot(f"--limit must be a number of seconds above 0, got {args.limit:g}")
    try:
        tests = select([args.test], args.file)
        kv = service_for(tests, args.kv)
        # The peer is loaded before the tester's messages: it may have its own.
        launcher = launcher_for(args.raft, isolated=args.isolated, kv=kv, race=args.race)
    except (LoadError, SelectionError) as error:
        return _cannot(str(error))
    if len(tests) > 1:
        return _cannot(
            f"cannot shrink {len(tests)} tests at once: {args.test!r} matches several; name one (lab stress --list)"
        )
    (test,) = tests
    if test.file.suffix == SCENARIO:
        return _cannot(f"{test.name} is a scenario; to shrink it, remove steps from the file and run lab scenario")
    from raftlab.tools.shrink.shrinker import NothingToShrink, shrink, write

    progress = _ProgressLine()
    try:
        files = place_of_peer(args.raft, kv)
        shrunk = shrink(test, launcher, args.seed, files, limit_s=args.limit, progress=progress)
    except NothingToShrink as error:
        progress.clear()
        print(textwrap.fill(f"{error}.", _WIDTH))
        return 1
    progress.clear()
    paths = {
        "raft": str(args.raft),
        "kv": "" if kv is None else str(kv),
        "file": str(args.file[0]) if args.file else "",
    }
    try:
        written = write(shrunk, test, args.seed, args.out, **paths)
    except OSError as error:
        return _cannot(f"{args.out}: {error.strerror}")
    from raftlab.tools.shrink.report import render, statistics

    if args.json is not None:
        args.json.write_text(json.dumps(statistics(shrunk, written), indent=1) + "\n")
    print(render(shrunk, written, test.name, args.seed, given(args)))
    if args.timeline:
        from raftlab.tools.timeline.command import print_timeline

        print_timeline(shrunk.best.trace)
    return 0


class _ProgressLine:
    """Progress in one line, on a terminal only."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()

    def __call__(self, best: object, runs: int) -> None:
        if self._shows:
            events = getattr(best, "events", 0)
            print(f"\r  {runs:,} runs, {events:,} events remain \033[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shows:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _cannot(text: str) -> int:
    print(f"lab shrink: {text}", file=sys.stderr)
    return 2
