"""`lab stress`: tests over thousands of seeds, in worker processes, failures grouped by cause.

Start at `main()`. Which runs: stress_run. The processes that make them: raftlab/tools/workers, and worker. What came of
them: batch, tally. Output: progress, summary.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from labsim.stacks import short_path
from raftlab.harness import options
from raftlab.harness.options import FILE, FOR, JOBS, OUT, RUN, RUNS, SEED, add_options, given
from raftlab.harness.outcome import Ending, Outcome
from raftlab.tools.common.interrupts import result_of, sigterm_as_interrupt
from raftlab.tools.common.lock import FolderInUse, exclusive_lock
from raftlab.tools.common.text import counted, duration
from raftlab.tools.selection import SelectionError, select, service_for
from raftlab.tools.stress.batch import SeedBatch
from raftlab.tools.stress.progress import watching
from raftlab.tools.stress.stress_run import Plan, run_stress
from raftlab.tools.stress.summary import SHRUNK, as_text, clear, write_all, write_report
from raftlab.tools.stress.tally import Cause, Tally, ended_its_process
from raftlab.tools.workers.job_bundle import JobBundle
from raftlab.tools.workers.pool import LocalPool, Pool, PoolLost
from raftlab.tools.workers.process import CannotStart
from raftlab.tools.workers.shrinker import shrunk_elsewhere

FOLDER = Path("build/stress")
_WORKER = "raftlab.tools.stress.worker"
_RUNS = 100
_REPEATED_MAX = 8
_SHRINK_S = 20.0
_SHRINK_S_MIN = 2.0  # of each
_INTERRUPTED = "when it was interrupted"

_EPILOG = """\
examples:
  lab stress                                every test, 100 seeds each
  lab stress 2c --runs 1000                 part 2C, 1000 seeds each
  lab stress 'test_figure8*' --until-fail   stop at the first failure
  lab stress --grow --for 10m               10 seeds each, 100, 1000, ...
  lab stress --file more_tests.py --raft other/raft.py

Exit status: 0 all runs passed, 1 some failed, 2 could not start,
130 interrupted before any run failed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lab stress [TEST ...] [options]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("tests", nargs="*", metavar="TEST", help="name, glob or part (2a ... 3b) (default: all tests)")
    add_options(
        add,
        FILE,
        *RUN,
        replace(SEED, also=("--seed-start",), help="first seed (default: a new one, which is printed)"),
        replace(RUNS, help=f"seeds per test (default: {_RUNS}; no limit with --until-fail, --for or --grow)"),
        FOR,
        JOBS,
        replace(OUT, default=FOLDER, help="folder for summary and reports"),
    )
    add("--until-fail", action="store_true", help="stop at the first failure")
    add("--grow", action="store_true", help="run rounds of 10, 100, 1000, ... seeds; stop after a round with a failure")
    add("--dask", metavar="ADDRESS", help="run on this Dask cluster: tcp://host:8786")
    add(
        "--run-limit",
        type=options.seconds,
        default=60.0,
        metavar="S",
        help="limit for a run, in real seconds (default: 60)",
    )
    add(
        "--memory-mb",
        type=options.positive,
        default=2048,
        metavar="MB",
        help="memory limit of a worker (default: 2048)",
    )
    add(
        "--shrink",
        type=_budget,
        default=_SHRINK_S,
        metavar="S",
        help=f"CPU seconds to shrink the shortest run of each cause (default: {_SHRINK_S:g}; 0: off)",
    )
    add("--list", action="store_true", help="list the selected tests and exit")


def _budget(text: str) -> float:
    return 0.0 if text == "0" else options.seconds(text)


def main(args: argparse.Namespace) -> int:
    try:
        tests = select(args.tests, args.file)
    except SelectionError as error:
        return _cannot(str(error))
    if not tests:
        return _cannot("found no tests; name a file of tests with --file")
    if args.isolated and args.dask is not None:
        return _cannot("--isolated is not supported with --dask: sandboxes run only on this machine")
    if args.list:
        for test in tests:
            print(f"{test.part:<3} {test.name:<44} {short_path(str(test.file))}")
        return 0
    if not (args.raft / "raft.py" if args.raft.is_dir() else args.raft).is_file():
        return _cannot(f"{args.raft}: no such file; --raft must name a raft.py")
    kv = service_for(tests, args.kv)
    if kv is not None and not (kv / "server.py" if kv.is_dir() else kv).is_file():
        return _cannot(f"{kv}: no such file; --kv must name a server.py")
    seed_start = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    runs = _RUNS if args.runs is None and not (args.until_fail or args.for_s or args.grow) else args.runs
    plan = Plan(runs, until_fail=args.until_fail, for_s=args.for_s, grow=args.grow)
    limits = {"run_limit_s": args.run_limit, "memory_mb": args.memory_mb}
    bundle = JobBundle.of(args.raft, tests, kv=kv, given=given(args), **limits)
    tally = Tally(list(dict.fromkeys(test.name for test in tests)), seed_start)
    try:
        with sigterm_as_interrupt(), exclusive_lock(args.out, "lab stress"):
            return _stress(args, plan, bundle, tally)
    except FolderInUse as error:
        return _cannot(str(error))


def _stress(args: argparse.Namespace, plan: Plan, bundle: JobBundle, tally: Tally) -> int:
    console = Console(highlight=False)
    try:
        pool = _open_pool(args, bundle)
    except (CannotStart, PoolLost) as error:
        return _cannot(str(error))
    console.print(_opening(args, plan, tally, pool), markup=False, soft_wrap=True)
    trouble = ""
    written = 0

    def write_reports() -> None:
        """A report is there before anybody names it."""
        nonlocal written
        for cause in tally.causes[written:]:
            write_report(cause, bundle, args.out)
            written += 1
        watch()

    clear(args.out)
    try:
        with watching(tally, console, args.out) as watch:
            tally.began_s += tally.elapsed_s  # the workers have started; what follows is work
            run_stress(pool, bundle.setup, plan, tally, write_reports)
    except KeyboardInterrupt:
        tally.ended = _INTERRUPTED
    except (CannotStart, PoolLost) as error:
        tally.ended = "because its workers were lost"
        trouble = str(error)
    finally:
        pool.shutdown()
    if tally.found and not trouble and tally.ended != _INTERRUPTED:
        _repeat(tally, bundle)
        _shrink(tally, bundle, args.out, args.shrink)
    write_all(tally, bundle, args.out)
    text = as_text(tally, bundle, args.out, console.width if console.is_terminal else None)
    console.print(f"\n{text}", markup=False, soft_wrap=True)
    if trouble:
        return _cannot(trouble)
    if tally.found:
        return 1
    return 130 if tally.ended == _INTERRUPTED else 0


def _open_pool(args: argparse.Namespace, bundle: JobBundle) -> Pool:
    if args.dask is None:
        pool = LocalPool(_WORKER, bundle.setup, args.jobs or len(os.sched_getaffinity(0)), files=bundle.files)
        pool.start()
        return pool
    from raftlab.tools.workers.dask import DaskPool  # only here: dask is an extra

    return DaskPool(_WORKER, bundle.setup, args.dask, files=bundle.files)


def _opening(args: argparse.Namespace, plan: Plan, tally: Tally, pool: Pool) -> str:
    tests = tally.tests[0] if len(tally.tests) == 1 else f"{len(tally.tests)} tests"
    much = f"{plan.runs:,} seeds each" if plan.runs is not None else "seed after seed"
    limit = f", for {duration(plan.for_s)}" if plan.for_s is not None else ""
    where = f"on {args.dask}" if args.dask else counted(pool.slots, "worker")
    modes = (", sandboxed" if args.isolated else "") + (", checking for races" if args.race else "")
    return f"lab stress: {args.raft}, {tests}, {much} from {tally.seed_start}{limit}, {where}{modes}"


def _repeat(tally: Tally, bundle: JobBundle) -> None:
    """Run each cause's example once more, here and in a new process: only then its replay line is a promise."""
    causes = [cause for cause in tally.causes if cause.shortest.ending is not Ending.LATE][:_REPEATED_MAX]
    pool = LocalPool(_WORKER, bundle.setup, 1, files=bundle.files, reuse=False)
    try:
        for cause in causes:
            batch = SeedBatch(cause.shortest.test, [cause.shortest.seed])
            answers = result_of(pool.ask(batch.requests, bundle.setup["run_limit_s"]))
            cause.repeats = [_key(one) for one in batch.outcomes(answers, bundle.setup)] == [_key(cause.shortest)]
    except (KeyboardInterrupt, CannotStart):
        pass  # then it is not known
    finally:
        pool.shutdown()


def _key(outcome: Outcome) -> tuple[str, ...]:
    return outcome.ending, outcome.name, outcome.cause, outcome.digest


def _shrink(tally: Tally, bundle: JobBundle, out: Path, budget_s: float) -> None:
    """What the shortest run of each cause needs; of as many as there is time for. One that does not repeat is left
    alone."""
    causes = [cause for cause in tally.causes if cause.repeats and not ended_its_process(cause.shortest)]
    causes = causes[: int(budget_s / _SHRINK_S_MIN)]
    with tempfile.TemporaryDirectory(prefix="lab-stress-") as folder:
        bundle.unpack(Path(folder))
        try:
            for cause in causes:
                cause.recipe = _needs(cause, bundle, Path(folder), out.resolve() / SHRUNK, budget_s / len(causes))
        except KeyboardInterrupt:
            pass  # then those that are left are not shrunk


def _needs(cause: Cause, bundle: JobBundle, folder: Path, out: Path, limit_s: float) -> list[str]:
    run, setup = cause.shortest, bundle.setup
    files = {"raft": setup["raft"], "kv": setup["kv"], "file": setup["tests"][run.test]}
    figures = folder / "figures.json"
    left = shrunk_elsewhere(
        run.test,
        run.seed,
        {**bundle.given(run.test), **files},
        limit_s=limit_s,
        out=out,
        folder=folder,
        figures=figures,
    )
    return [] if left is None else left["told"]


def _cannot(text: str) -> int:
    print(f"lab stress: {text}", file=sys.stderr)
    return 2
