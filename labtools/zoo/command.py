"""Hunt every wrong Raft of tests/zoo with the lab's own tests: caught by what, after how many runs, how soon.

Each mutant is hunted in a process of its own: the tests of its part first, then all others, seed after seed, until one
fails or the runs are spent. Seeds are fixed, so two hunts give one result, unless --budget-seconds cuts one short. A
mutant that only gets nowhere too often (`liveness`) is then run over more seeds, to say how often that is noticed.
Controls are correct and run through everything.

Exit 0: every mutant was caught and no control accused. Start reading at `main()`. What a mutant is: mutants. One hunt:
hunting, in the process of worker. What is said: telling.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from labtest.rooms import ROOT
from labtools.selecting import select
from labtools.workers.ending import ended_politely
from labtools.workers.process import CannotStart, Lost, WorkerProcess, python_worker
from labtools.zoo.hunting import Result
from labtools.zoo.mutants import Mutant, load_zoo
from labtools.zoo.shrunk import RECORD as SHRUNK
from labtools.zoo.shrunk import Measured, measure, recorded, shrunk_markdown, shrunk_section, without_shrunk
from labtools.zoo.shrunk import record as record_shrunk
from labtools.zoo.shrunk import summary as shrunk_summary
from labtools.zoo.shrunk import table as shrunk_table
from labtools.zoo.telling import RECORD, markdown, record, summary, table

RUNS = 10
CONTROL_RUNS = 2
# A peer may stop the whole process (a call that blocks in C); nothing that moves needs this long.
_LOST_S = 900


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these (default: all, controls included)")
    parser.add_argument("--runs", type=int, metavar="N", help=f"seeds per mutant ({RUNS}; {CONTROL_RUNS} for controls)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (0)")
    parser.add_argument("--tests", nargs="+", default=[], metavar="TEST", help="hunt with these tests or parts only")
    parser.add_argument("--isolated", action="store_true", help="every peer in a process of its own")
    parser.add_argument("--race", action="store_true", help="any line may lose its turn, and races fail, for all")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes at a time (2)")
    parser.add_argument(
        "--budget-seconds", type=float, metavar="S", help="give up on a mutant after so much processor time"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, for people")
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"note in {RECORD} which test and seed caught which; with --shrink, in {SHRUNK} what was left of each",
    )
    parser.add_argument(
        "--shrink", action="store_true", help=f"shrink the run that {RECORD} names for each, and check what is left"
    )
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    parser.add_argument("--show", action="store_true", help="print the mutants as diffs of the reference and stop")


def main(args: argparse.Namespace) -> int:
    try:
        zoo = _chosen(load_zoo(), args.ids)
        select(args.tests)  # the workers do it again; here it is refused once
    except Exception as error:
        print(f"lab zoo: {error}", file=sys.stderr)
        return 2
    if args.list:
        for mutant in zoo:
            print(f"{mutant.id:28} {mutant.part}  a {mutant.kind} that {mutant.what}")
        return 0
    if args.show:
        for mutant in zoo:
            print(mutant.diff() or f"{mutant.id}: the reference itself\n", end="")
        return 0
    if args.shrink:
        return _shrink(zoo, args)
    began_s = time.perf_counter()
    with ended_politely():
        results, interrupted = _hunt_all(zoo, args)
    by_id = {mutant.id: mutant for mutant in zoo}
    print(table(results, by_id))
    print(summary(results, by_id, time.perf_counter() - began_s))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    if args.record:
        record(results)
    if args.markdown is not None and not interrupted:
        args.markdown.write_text(markdown(results, by_id) + shrunk_section(args.markdown))
    if interrupted:
        print(f"interrupted: {len(zoo) - len(results)} of {len(zoo)} not hunted", file=sys.stderr)
        return 130
    return 1 if any(result.bad for result in results) else 0


def _shrink(zoo: list[Mutant], args: argparse.Namespace) -> int:
    """One after another: what is measured is processor time."""
    known = json.loads(RECORD.read_text())
    measured: list[Measured] = []
    mutants = [mutant for mutant in zoo if mutant.id in known]
    try:
        for mutant in mutants:
            one = measure(mutant, known[mutant.id]["test"], known[mutant.id]["seed"], out=Path("build/zoo-shrunk"))
            measured.append(one)
            if args.json is not None:
                args.json.write_text(json.dumps([asdict(one) for one in measured], indent=1) + "\n")
            what = (
                f"{one.rule or one.ending or 'not shrunk'}: {one.before:,} -> {one.after:,} events, {one.lines} lines"
            )
            print(f"[{len(measured)}/{len(mutants)}] {mutant.id}: {what}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(shrunk_table(measured))
    if measured:
        print(f"\n{shrunk_summary(measured)}")
    if args.record:
        record_shrunk(measured)
    if args.markdown is not None:
        known = recorded(measured)
        hunts = args.markdown.read_text() if args.markdown.exists() else ""
        told = [known[mutant.id] for mutant in load_zoo() if mutant.id in known]
        args.markdown.write_text(without_shrunk(hunts) + shrunk_markdown(told))
    return 1 if any(one.rule and not one.same_rule for one in measured) else 0


def _chosen(zoo: list[Mutant], ids: list[str]) -> list[Mutant]:
    known = {mutant.id: mutant for mutant in zoo}
    unknown = [id_ for id_ in ids if id_ not in known]
    if unknown:
        raise ValueError(f"there is no mutant {unknown[0]!r}; see lab zoo --list")
    return [known[id_] for id_ in ids] if ids else zoo


class _Hunters:
    """The processes under way, so that an interrupt can end them: these, and no others."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._lock = Lock()
        self._running: set[WorkerProcess] = set()
        self._stopped = False

    def hunt(self, mutant: Mutant) -> Result:
        args = self._args
        greeting = {"tests": args.tests}
        worker = WorkerProcess(lambda: python_worker("labtools.zoo.worker", greeting, folder=Path.cwd(), lab=ROOT))
        runs = args.runs or (CONTROL_RUNS if mutant.control else RUNS)
        request = {"id": mutant.id, "runs": runs, "first_seed": args.seed, "budget_s": args.budget_seconds}
        request |= {"isolated": args.isolated, "race": args.race}
        with self._lock:
            if self._stopped:
                worker.close()
            self._running.add(worker)
        try:
            (answer,) = worker.ask([json.dumps(request).encode()], _LOST_S)
        except CannotStart as error:
            return Result(mutant.id, "broken", line=_last_line(error.said) or str(error))
        finally:
            with self._lock:
                self._running.discard(worker)
            worker.fresh()
        if isinstance(answer, Lost):
            line = f"no result after {_LOST_S} s" if answer.late else _last_line(answer.said)
            return Result(mutant.id, "broken", line=line or f"its worker {answer.how}, with no result")
        fields = json.loads(answer)
        if fields["failed_of"] is not None:
            fields["failed_of"] = tuple(fields["failed_of"])
        return Result(**fields)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for worker in self._running:
                worker.close()


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _hunt_all(zoo: list[Mutant], args: argparse.Namespace) -> tuple[list[Result], bool]:
    """The results in the zoo's order, and whether Ctrl-C ended it early."""
    hunters = _Hunters(args)
    results: dict[str, Result] = {}
    interrupted = False
    # Controls are the longest; begun last, they would be waited for alone.
    order = sorted(zoo, key=lambda mutant: not mutant.control)
    with _Progress(len(zoo)) as progress, ThreadPoolExecutor(max(1, args.jobs)) as pool:
        pending: set[Future[Result]] = set()
        # From here on: the first worker may be there before all are asked for, and the pool waits for it.
        try:
            pending |= {pool.submit(hunters.hunt, mutant) for mutant in order}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    results[result.id] = result
                    progress.add(result)
        except KeyboardInterrupt:
            interrupted = True
            hunters.stop()
            pool.shutdown(wait=False, cancel_futures=True)
    return [results[mutant.id] for mutant in zoo if mutant.id in results], interrupted


class _Progress:
    """A bar on a terminal, a line per mutant otherwise."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("hunting"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, result: Result) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=f"{result.id}: {result.verdict}")
            if result.bad:
                self._bar.console.print(f"{result.id}: {result.verdict} {result.line}", markup=False)
        else:
            by = f" by {result.by}" if result.by else ""
            print(
                f"[{self._done}/{self._total}] {result.id}: {result.verdict}{by} ({result.seconds:.1f} s)",
                file=sys.stderr,
                flush=True,
            )
