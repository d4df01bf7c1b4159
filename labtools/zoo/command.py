"""Hunt every wrong Raft of tests/zoo with the lab's own tests: caught by what, after how many runs, how soon.

Each mutant is hunted in a process of its own: the tests of its part first, then all others, seed after seed, until one
fails or the runs are spent. Seeds are fixed, so two hunts give one result, unless --budget-seconds cuts one short. A
mutant that only gets nowhere too often (`liveness`) is then run over more seeds, to say how often that is noticed.
Controls are correct and run through everything.

Exit 0: every mutant was caught and no control accused. Start reading at `main()`; `hunt()` is what a worker does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any

from labtest.loading import load_peer_class
from labtest.running import run_test
from labtest.verdict import verdict_of
from labtools.selecting import LabTest, select
from labtools.zoo.mutants import BUILD, ZOO, Mutant, StaleMutant, load_zoo

RECORD = ZOO / "caught.json"
PARTS = ("2a", "2b", "2c", "2d")
RUNS = 10
CONTROL_RUNS = 2
RATE_SEEDS = 20
# A peer may stop the whole process (a call that blocks in C); nothing that moves needs this long.
_LOST_S = 900


@dataclass
class Result:
    """What came of one hunt. `verdict`: caught, escaped; for a control passed, accused; or broken, stale."""

    id: str
    verdict: str
    by: str = ""  # a rule's name, a class of SimulationError, or "test: " and its name
    test: str = ""
    seed: int = 0
    runs: int = 0  # of the suite, begun ones included
    tests: int = 0  # single tests run
    seconds: float = 0.0  # of processor time
    failed_of: tuple[int, int] | None = None  # for a liveness mutant: seeds that fail, of how many
    line: str = ""

    @property
    def bad(self) -> bool:
        return self.verdict not in ("caught", "passed")


# ---- one hunt, in a worker process -------------------------------------------------------------------------


def suite_for(mutant: Mutant, tests: list[LabTest]) -> list[LabTest]:
    """Its own part first, then the others in order."""
    parts = [mutant.part, *(part for part in (*PARTS, "") if part != mutant.part)]
    return sorted(tests, key=lambda test: parts.index(test.part))


def hunt(
    mutant: Mutant,
    tests: list[LabTest],
    *,
    runs: int,
    budget_s: float | None = None,
    first_seed: int = 0,
    build: Path = BUILD,
    measure_rate: bool = True,
) -> Result:
    """Run the suite over seeds until a test fails."""
    # Processor time: a busy machine changes no verdict.
    began_s = time.process_time()
    result = Result(mutant.id, "passed" if mutant.control else "escaped")
    try:
        peer_class = load_peer_class(mutant.write(build))
    except StaleMutant as error:
        result.verdict, result.line = "stale", str(error)
        return result
    suite = suite_for(mutant, tests)
    for seed in range(first_seed, first_seed + runs):
        result.runs += 1
        for test in suite:
            if budget_s is not None and time.process_time() - began_s > budget_s:
                result.line = f"the budget of {budget_s:g} s is spent"
                result.seconds = time.process_time() - began_s
                return result
            result.tests += 1
            run = run_test(test.function, peer_class, seed)
            if run.error is not None:
                result.verdict = "accused" if mutant.control else "caught"
                result.by, result.line = classify(run.error, test.name)
                result.test, result.seed = test.name, seed
                result.seconds = time.process_time() - began_s
                if mutant.liveness and measure_rate:
                    own_part = [other for other in suite if other.part == mutant.part and other is not test]
                    result.failed_of = _rate([test, *own_part], peer_class, first_seed)
                return result
    result.seconds = time.process_time() - began_s
    return result


def _rate(tests: list[LabTest], peer_class: Any, first_seed: int) -> tuple[int, int]:
    """With how many seeds at least one of the tests fails."""
    failed = 0
    for seed in range(first_seed, first_seed + RATE_SEEDS):
        failed += any(run_test(test.function, peer_class, seed).error is not None for test in tests)
    return failed, RATE_SEEDS


def classify(error: BaseException, test: str) -> tuple[str, str]:
    """By what a failure was noticed, and its first line."""
    verdict = verdict_of(error)
    return verdict.caught_by or f"test: {test}", verdict.text


# ---- all hunts ---------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these (default: all, controls included)")
    parser.add_argument("--runs", type=int, metavar="N", help=f"seeds per mutant ({RUNS}; {CONTROL_RUNS} for controls)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (0)")
    parser.add_argument("--tests", nargs="+", default=[], metavar="TEST", help="hunt with these tests or parts only")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes at a time (2)")
    parser.add_argument(
        "--budget-seconds", type=float, metavar="S", help="give up on a mutant after so much processor time"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, for people")
    parser.add_argument("--record", action="store_true", help=f"note in {RECORD} which test and seed caught which")
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    parser.add_argument("--show", action="store_true", help="print the mutants as diffs of the reference and stop")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    try:
        zoo = _chosen(load_zoo(), args.ids)
        tests = select(args.tests)
    except Exception as error:
        print(f"lab zoo: {error}", file=sys.stderr)
        return 2
    if args.list:
        for mutant in zoo:
            print(f"{mutant.id:28} {mutant.part}  a peer that {mutant.what}")
        return 0
    if args.show:
        for mutant in zoo:
            print(mutant.diff() or f"{mutant.id}: the reference itself\n", end="")
        return 0
    if args.worker:
        return _work(zoo[0], tests, args)
    began_s = time.perf_counter()
    results, interrupted = _hunt_all(zoo, args)
    by_id = {mutant.id: mutant for mutant in zoo}
    print(_table(results, by_id))
    print(_summary(results, by_id, time.perf_counter() - began_s))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    if args.record:
        record(results)
    if args.markdown is not None and not interrupted:
        args.markdown.write_text(markdown(results, by_id))
    if interrupted:
        print(f"interrupted: {len(zoo) - len(results)} of {len(zoo)} not hunted", file=sys.stderr)
        return 130
    return 1 if any(result.bad for result in results) else 0


def _chosen(zoo: list[Mutant], ids: list[str]) -> list[Mutant]:
    known = {mutant.id: mutant for mutant in zoo}
    unknown = [id_ for id_ in ids if id_ not in known]
    if unknown:
        raise ValueError(f"there is no mutant {unknown[0]!r}; see lab zoo --list")
    return [known[id_] for id_ in ids] if ids else zoo


def _work(mutant: Mutant, tests: list[LabTest], args: argparse.Namespace) -> int:
    try:
        result = hunt(mutant, tests, runs=args.runs, budget_s=args.budget_seconds, first_seed=args.seed)
    except KeyboardInterrupt:
        return 130
    print(json.dumps(asdict(result)))
    return 0


class _Workers:
    """The processes under way, so that an interrupt can end them: these, and no others."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._lock = Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def hunt(self, mutant: Mutant) -> Result:
        args = self._args
        runs = args.runs or (CONTROL_RUNS if mutant.control else RUNS)
        command = [sys.executable, "-m", "labtools", "zoo", mutant.id, "--worker"]
        command += ["--runs", str(runs), "--seed", str(args.seed)]
        if args.budget_seconds is not None:
            command += ["--budget-seconds", str(args.budget_seconds)]
        if args.tests:
            command += ["--tests", *args.tests]
        with self._lock:
            if self._stopped:
                return Result(mutant.id, "broken", line="stopped")
            # A group of its own: Ctrl-C reaches us alone, and we end the workers in order.
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            self._running.add(process)
        try:
            out, err = process.communicate(timeout=_LOST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err = f"no result after {_LOST_S} s\n{err}"
        finally:
            with self._lock:
                self._running.discard(process)
        try:
            fields = json.loads(out.splitlines()[-1])
        except (ValueError, IndexError):
            last = err.strip().splitlines()[-1:] or [f"its worker ended with {process.returncode} and no result"]
            return Result(mutant.id, "broken", line=last[0])
        if fields["failed_of"] is not None:
            fields["failed_of"] = tuple(fields["failed_of"])
        return Result(**fields)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def _hunt_all(zoo: list[Mutant], args: argparse.Namespace) -> tuple[list[Result], bool]:
    """The results in the zoo's order, and whether Ctrl-C ended it early."""
    workers = _Workers(args)
    results: dict[str, Result] = {}
    interrupted = False
    # Controls are the longest; begun last, they would be waited for alone.
    order = sorted(zoo, key=lambda mutant: not mutant.control)
    with _Progress(len(zoo)) as progress, ThreadPoolExecutor(max(1, args.jobs)) as pool:
        pending: set[Future[Result]] = {pool.submit(workers.hunt, mutant) for mutant in order}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    results[result.id] = result
                    progress.add(result)
        except KeyboardInterrupt:
            interrupted = True
            for future in pending:
                future.cancel()
            workers.stop()
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


# ---- telling -----------------------------------------------------------------------------------------------


def _by(result: Result) -> str:
    if not result.by:
        return result.verdict.upper() if result.bad else result.verdict
    rate = "" if result.failed_of is None else f", {result.failed_of[0]} of {result.failed_of[1]} seeds"
    return f"{'ACCUSED ' if result.verdict == 'accused' else ''}{result.by}{rate}"


def _table(results: list[Result], zoo: dict[str, Mutant]) -> str:
    rows = [("id", "part", "caught by", "runs", "tests", "s", "first line of the report")]
    rows += [
        (r.id, zoo[r.id].part, _by(r), str(r.runs), str(r.tests), f"{r.seconds:.1f}", _short(r.line, 100))
        for r in results
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    right = (3, 4, 5)
    lines = [
        "  ".join([*(row[k].rjust(widths[k]) if k in right else row[k].ljust(widths[k]) for k in range(6)), row[6]])
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _summary(results: list[Result], zoo: dict[str, Mutant], seconds: float) -> str:
    mutants = [r for r in results if not zoo[r.id].control]
    controls = [r for r in results if zoo[r.id].control]
    caught = [r for r in mutants if r.verdict == "caught"]
    named = [r for r in caught if not r.by.startswith("test: ")]
    lines = [f"{len(caught)} of {len(mutants)} mutants caught, {len(named)} of them by name, in {seconds:.0f} s"]
    if caught:
        lines[0] += (
            f"; runs of the suite: median {median(r.runs for r in caught):g}, most {max(r.runs for r in caught)}"
        )
    away = [r.id for r in mutants if r.verdict != "caught"]
    if away:
        lines.append(f"got away: {', '.join(away)}")
    if controls:
        passed = sum(r.verdict == "passed" for r in controls)
        lines.append(f"{passed} of {len(controls)} controls passed")
    return "\n".join(lines)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


_GO = {"A": "always", "S": "sometimes", "R": "rarely", "N": "never", "": "-"}


def markdown(results: list[Result], zoo: dict[str, Mutant]) -> str:
    """The table beside what the classical Go suite notices."""
    out = [
        "# Wrong Rafts, and what catches them",
        "",
        "Written by `lab zoo --markdown docs/zoo.md`; edit tests/zoo, not this file.",
        "",
        "Each line is the reference peer with one mistake put in (`lab zoo --show ID` prints it as a diff), hunted",
        "with the lab's own tests over fixed seeds. *Caught by* is the rule whose check noticed, the error the",
        "simulation ended with, or the test that failed. *Runs* counts runs of the whole suite, *s* is processor time.",
        "For mistakes that only cost time: with how many seeds that test, or one of the mutant's own part, fails.",
        "",
        "*Go* is how often the classical Go suite would notice (a judgement: always, sometimes, rarely, never);",
        "**caught** and **missed** say what one full run of that suite did say, where we have one.",
        "",
        _summary_markdown(results, zoo),
        "",
    ]
    mutants = [r for r in results if not zoo[r.id].control]
    for part in PARTS:
        chosen = [r for r in mutants if zoo[r.id].part == part]
        if not chosen:
            continue
        out += [f"## Part {part.upper()}", "", "| id | a peer that | rule | caught by | runs | s | Go |"]
        out.append("|---|---|---|---|---:|---:|---|")
        for r in chosen:
            m = zoo[r.id]
            go = _GO[m.go]
            if m.go_caught is not None:
                go += ", **caught**" if m.go_caught else ", **missed**"
            by = _by(r).replace("test: ", "")
            cells = (f"`{m.id}`", m.what, m.rule, by, str(r.runs), f"{r.seconds:.1f}", go)
            out.append(f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |")
        out.append("")
    controls = [r for r in results if zoo[r.id].control]
    if controls:
        out += ["## Controls", "", "Correct Rafts of other kinds. They must pass.", ""]
        out += ["| id | a peer that | verdict | runs |", "|---|---|---|---:|"]
        out += [f"| `{r.id}` | {zoo[r.id].what} | {_by(r)} | {r.runs} |" for r in controls]
        out.append("")
    return "\n".join(out)


def _summary_markdown(results: list[Result], zoo: dict[str, Mutant]) -> str:
    return "\n".join(f"{line}." for line in _summary(results, zoo, sum(r.seconds for r in results)).splitlines())


def record(results: Iterable[Result], file: Path = RECORD) -> None:
    """Note what caught which, beside what is noted already; the quick zoo begins there."""
    known: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for result in results:
        if result.verdict == "caught":
            known[result.id] = {"test": result.test, "seed": result.seed}
    file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
