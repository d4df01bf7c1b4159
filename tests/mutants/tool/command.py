"""`lab mutants`: incorrect peers (mutants), and how the lab catches each.

`run` runs the lab's tests on each mutant in a process of its own: the tests of its part first, then all others, then
the scenarios, seed after seed, until one fails or the runs are spent. Seeds are fixed, so two runs give one result,
unless --budget-seconds ends one early. A mutant that only makes no progress too often (`liveness`) then runs over more
seeds, to measure how often that is noticed. Correct peers run through everything.

Start reading at `add_arguments()`. mutants.py says what a mutant is; measurement.py judges one, in a process of
worker.py; random_command.py draws random changes; report.py has the texts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from raftlab.harness.options import ISOLATED, JOBS, RACE, RUNS, SEED, Option, add_options, positive, seconds
from raftlab.tools.common.interrupts import defer_interrupts, first_done, result_of, sigterm_as_interrupt
from raftlab.tools.selection import select
from raftlab.tools.workers.pool import LocalPool
from raftlab.tools.workers.process import CannotStart, Lost, WorkerProcess
from tests.mutants.tool import fuzzing
from tests.mutants.tool.measurement import MutantResult
from tests.mutants.tool.mutants import BUILD, Mutant, load_mutants
from tests.mutants.tool.random_command import RANDOM_RUNS, mutate
from tests.mutants.tool.random_mutants import drawn_by_id, is_drawn
from tests.mutants.tool.report import RECORD, overview, record, summary, table
from tests.mutants.tool.shrunk import RECORD as SHRUNK
from tests.mutants.tool.shrunk import ShrinkMeasurement, measure, recorded
from tests.mutants.tool.shrunk import record as record_shrunk
from tests.mutants.tool.shrunk import summary as shrunk_summary
from tests.mutants.tool.shrunk import table as shrunk_table
from tests.mutants.tool.worker import TESTS

TABLE = BUILD / "table.md"
RUNS_EACH = 10
CONTROL_RUNS = 2
# A peer may stop the whole process (a call that blocks in C); nothing that moves needs this long.
_LOST_S = 900
_WORKER = "tests.mutants.tool.worker"


def _parent(*names: str, **how: Any) -> argparse.ArgumentParser:
    """For each sub-command that has this option."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument(*names, **how)
    return parent


def _shared(*options: Option) -> argparse.ArgumentParser:
    parent = argparse.ArgumentParser(add_help=False)
    add_options(parent.add_argument, *options)
    return parent


_IDS = _parent("ids", nargs="*", metavar="ID", help="use only these mutants or correct peers (default: all)")
_TESTS = _parent("--tests", nargs="+", default=[], metavar="TEST", help="run only these tests, parts or scenarios")
_RUNS = _shared(
    replace(RUNS, help=f"seeds per mutant (default: {RUNS_EACH}; correct peers {CONTROL_RUNS}, random {RANDOM_RUNS})"),
    replace(SEED, default=0, help="first seed; for random: the seed that draws the changes"),
    ISOLATED,
    RACE,
)
_JOBS = _shared(replace(JOBS, type=positive, default=2, help="number of worker processes"))
_BUDGET = _parent("--budget-seconds", type=seconds, metavar="S", help="give up on a mutant after S CPU seconds")
_JSON = _parent("--json", type=Path, metavar="FILE", help="write the results to FILE")
_HOW = (_RUNS, _TESTS, _JOBS, _BUDGET, _JSON)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="operation", metavar="COMMAND", required=True, title="commands")

    def add(name: str, text: str, *options: argparse.ArgumentParser, record: Path | None = None) -> Any:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", parents=options)
        if record is not None:
            command.add_argument("--record", action="store_true", help=f"record the results in {record}")
        return command

    add("list", "list the mutants", _IDS)
    add("show", "print mutants as diffs", _IDS)
    add("write", f"write mutants to {BUILD}", _IDS)
    run = add("run", "run the tests on each mutant until one fails", _IDS, *_HOW, record=RECORD)
    run.epilog = (
        "Exit status: 0 every mutant was caught and every correct peer passed, 1 otherwise, 2 could not start, "
        "130 interrupted."
    )
    random = add("random", "run the tests on random changes of raft/raft.py and show those they miss", *_HOW)
    random.add_argument("number", type=positive, metavar="N", help="number of changes to draw")
    random.add_argument("--fuzz", type=seconds, metavar="S", help="fuzz each missed change for S CPU seconds")
    random.add_argument("--list", action="store_true", help="list the changes and exit")
    random.epilog = (
        "Exit status: as for run, except that changes explained in tests/mutants/survivors.toml may be missed."
    )
    add("shrink", f"shrink the failing run that {RECORD} names for each mutant", _IDS, _JSON, record=SHRUNK)
    judge = add(
        "fuzz",
        "fuzz correct peers and each mutant that breaks a safety or durability rule",
        *(_JOBS, _JSON),
        record=fuzzing.RECORD,
    )
    judge.add_argument("seconds", type=seconds, metavar="SECONDS", help="CPU seconds for each mutant and correct peer")
    judge.add_argument("ids", nargs="*", metavar="ID", help="fuzz only these")
    out = add("table", "write a table of all recorded results", _IDS)
    out.add_argument("--out", type=Path, default=TABLE, metavar="FILE", help=f"file to write (default: {TABLE})")


def main(args: argparse.Namespace) -> int:
    if args.operation == "random":
        return mutate(args, _judge_all)
    try:
        entries = _chosen(load_mutants(), args.ids)
        select(getattr(args, "tests", []))  # the workers do it again; here it is refused once
    except Exception as error:
        print(f"lab mutants: {error}", file=sys.stderr)
        return 2
    commands = {
        "list": _list,
        "show": _show,
        "write": _write,
        "run": _run,
        "shrink": _shrink,
        "fuzz": _fuzz,
        "table": _table,
    }
    return commands[args.operation](entries, args)


def _list(entries: list[Mutant], _: argparse.Namespace) -> int:
    for mutant in entries:
        print(f"{mutant.id:28} {mutant.part}  a {mutant.kind} that {mutant.what}")
    return 0


def _show(entries: list[Mutant], _: argparse.Namespace) -> int:
    for mutant in entries:
        print(mutant.diff() or f"{mutant.id}: the reference itself\n", end="")
    return 0


def _write(entries: list[Mutant], _: argparse.Namespace) -> int:
    for mutant in entries:
        print(mutant.write())
    return 0


def _table(entries: list[Mutant], args: argparse.Namespace) -> int:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(overview(entries))
    print(args.out)
    return 0


def _run(entries: list[Mutant], args: argparse.Namespace) -> int:
    began_s = time.perf_counter()
    with sigterm_as_interrupt():
        results, interrupted = _judge_all(entries, args)
    by_id = {mutant.id: mutant for mutant in entries}
    print(table(results, by_id))
    print(summary(results, by_id, time.perf_counter() - began_s))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    if args.record:
        record(results)
    if interrupted:
        print(f"interrupted: {len(entries) - len(results)} of {len(entries)} have no result", file=sys.stderr)
        return 130
    return 1 if any(result.bad for result in results) else 0


def _shrink(entries: list[Mutant], args: argparse.Namespace) -> int:
    """One after another: what is measured is processor time."""
    known = json.loads(RECORD.read_text())
    measured: list[ShrinkMeasurement] = []
    mutants = [mutant for mutant in entries if mutant.id in known]
    try:
        for mutant in mutants:
            one = measure(mutant, known[mutant.id]["test"], known[mutant.id]["seed"], out=Path("build/mutants-shrunk"))
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
    return 1 if any(one.rule and not one.same_rule for one in measured) else 0


def _fuzz(entries: list[Mutant], args: argparse.Namespace) -> int:
    """Mutants that break a rule of safety or durability, and variants."""
    rules = {id_: one.rule for id_, one in recorded().items()}
    chosen = [m for m in entries if not m.of_service and not m.races]
    if not args.ids:
        chosen = [m for m in chosen if m.correct or fuzzing.is_asked_for(rules.get(m.id, ""))]
    measured: list[fuzzing.FuzzMeasurement] = []
    out, interrupted = Path("build/mutants-fuzzed"), False
    with ThreadPoolExecutor(max(1, args.jobs)) as pool:
        try:
            with defer_interrupts():
                pending = [pool.submit(fuzzing.measure, mutant, limit_s=args.seconds, out=out) for mutant in chosen]
            for future in pending:
                one = result_of(future)
                measured.append(one)
                print(f"[{len(measured)}/{len(chosen)}] {one.id}: {one.summary}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            interrupted = True
            pool.shutdown(wait=False, cancel_futures=True)
    wrong = [one for one in measured if not one.correct]
    print(fuzzing.table(measured))
    print(f"\n{fuzzing.summary(measured)}")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(one) for one in measured], indent=1) + "\n")
    if args.record:
        fuzzing.record(wrong)
    if interrupted:
        print(f"interrupted: {len(chosen) - len(measured)} of {len(chosen)} have no result", file=sys.stderr)
        return 130
    return 1 if any(one.correct and one.found for one in measured) else 0


def _chosen(entries: list[Mutant], ids: list[str]) -> list[Mutant]:
    known = {mutant.id: mutant for mutant in entries}
    known |= {id_: drawn_by_id(id_) for id_ in ids if is_drawn(id_)}
    unknown = [id_ for id_ in ids if id_ not in known]
    if unknown:
        raise ValueError(f"there is no mutant {unknown[0]!r}; see lab mutants list")
    return [known[id_] for id_ in ids] if ids else entries


def _judge(worker: WorkerProcess, mutant: Mutant, args: argparse.Namespace, judge: str) -> MutantResult:
    runs = args.runs or (CONTROL_RUNS if mutant.correct else RUNS_EACH)
    request = {"id": mutant.id, "runs": runs, "first_seed": args.seed, "budget_s": args.budget_seconds}
    request |= {"isolated": args.isolated, "race": args.race, "judge": judge}
    try:
        (answer,) = worker.ask([json.dumps(request).encode()], _LOST_S)
    except CannotStart as error:
        return MutantResult(mutant.id, "broken", line=_last_line(error.output) or str(error))
    if isinstance(answer, Lost):
        line = f"no result after {_LOST_S} s" if answer.late else _last_line(answer.output)
        return MutantResult(mutant.id, "broken", line=line or f"its worker {answer.how}, with no result")
    fields = json.loads(answer)
    if fields["failed_of"] is not None:
        fields["failed_of"] = tuple(fields["failed_of"])
    return MutantResult(**fields)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _judge_all(
    entries: Sequence[Mutant],
    args: argparse.Namespace,
    judge: str = TESTS,
    on_result: Callable[[MutantResult], None] = lambda _: None,
) -> tuple[list[MutantResult], bool]:
    """The results in the mutants's order, and whether Ctrl-C ended it early."""
    results: dict[str, MutantResult] = {}
    interrupted = False
    # Controls are the longest; begun last, they would be waited for alone.
    order = sorted(entries, key=lambda mutant: not mutant.correct)
    pool = LocalPool(_WORKER, {"tests": args.tests}, max(1, args.jobs), folder=Path.cwd(), reuse=False)
    with _Progress(len(entries)) as progress:
        try:
            pending = {pool.submit(partial(_judge, mutant=mutant, args=args, judge=judge)) for mutant in order}
            while pending:
                done = first_done(pending)
                pending -= done
                for future in done:
                    result = future.result()
                    results[result.id] = result
                    on_result(result)
                    progress.add(result)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            pool.shutdown()
    return [results[mutant.id] for mutant in entries if mutant.id in results], interrupted


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
                TextColumn("judging"),
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

    def add(self, result: MutantResult) -> None:
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
