"""`lab fuzz`: random runs, until one of them fails or the time is up.

Start at `main()`. The processes: fuzzers, worker. What failed: minimizer. The runs: raftlab/tools/generator.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from shlex import quote

from rich.console import Console

from labsim.stacks import short_path
from raftlab.harness.options import FOR, JOBS, OUT, RUN_OF_PEER, RUNS, SEED, add_options, command_line, given
from raftlab.tools.common.interrupts import sigterm_as_interrupt
from raftlab.tools.common.text import counted, duration
from raftlab.tools.fuzz.fuzzers import Fuzzer, FuzzResult
from raftlab.tools.fuzz.report import Progress, render, scenario_text, statistics
from raftlab.tools.generator.sequence import SEED as PLAYED_WITH
from raftlab.tools.selection import SCENARIO, SCENARIOS, TESTS
from raftlab.tools.workers.job_bundle import JobBundle
from raftlab.tools.workers.pool import LocalPool
from raftlab.tools.workers.process import CannotStart

FOLDER = Path("build/fuzz")
FOUND = TESTS / SCENARIOS / "found"
_FOR_S = 60.0
_SHORTEN_S = 20.0
_MEMORY_MB = 2048
_WORKER = "raftlab.tools.fuzz.worker"

_EPILOG = """\
examples:
  lab fuzz                       fuzz for a minute on all cores
  lab fuzz --for 10m --seed 7    fuzz for ten minutes, with a seed to repeat it

Exit status: 0 no failure found, 1 a failure found, 2 could not start,
130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lab fuzz [options]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add_options(
        add,
        *RUN_OF_PEER,
        replace(SEED, help="repeat the runs of this seed, if --jobs is the same (default: a new seed)"),
        replace(FOR, help="stop after each worker has run this long: 90s, 10m, 1h30m (default: 60s)"),
        replace(RUNS, help="stop after this many runs"),
        JOBS,
        replace(OUT, default=FOLDER, help="folder for the scenario"),
    )
    add("--keep", action="store_true", help=f"also copy the scenario to {FOUND}")
    add("--json", type=Path, metavar="FILE", help="write statistics to FILE: the failure and the number of runs")


def main(args: argparse.Namespace) -> int:
    if not (args.raft / "raft.py" if args.raft.is_dir() else args.raft).is_file():
        return _cannot(f"{args.raft}: no such file; --raft must name a raft.py")
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    jobs = args.jobs or len(os.sched_getaffinity(0))
    for_s = args.for_s or (_FOR_S if args.runs is None else None)
    bundle = JobBundle.of(args.raft, [], run_limit_s=0.0, memory_mb=_MEMORY_MB)
    setup = {
        "raft": bundle.setup["raft"],
        "shown_as": bundle.setup["shown_as"],
        "given": {"isolated": args.isolated, "race": args.race},
        "seed": seed,
        "shorten_s": _SHORTEN_S,
    }
    result = FuzzResult()
    console = Console(highlight=False, soft_wrap=True)
    with sigterm_as_interrupt():
        pool = LocalPool(_WORKER, setup, jobs, files=bundle.files)
        try:
            pool.start()
        except CannotStart as error:
            return _cannot(str(error))
        how = ", sandboxed" if args.isolated else ", checking for races" if args.race else ""
        much = f"for {duration(for_s)}" if for_s is not None else f"{args.runs:,} runs"
        console.print(f"lab fuzz: {args.raft}, seed {seed}, {much}, {counted(jobs, 'worker')}{how}", markup=False)
        progress = Progress(result)
        interrupted = False
        try:
            Fuzzer(pool).run(result, for_s=for_s, runs=args.runs, watch=progress)
        except KeyboardInterrupt:
            interrupted = True
        except CannotStart as error:
            return _cannot(str(error))
        finally:
            pool.shutdown()
            progress.clear()
    if args.json is not None:
        args.json.write_text(json.dumps(statistics(result), indent=1) + "\n")
    return _end(args, result, seed, jobs, progress.elapsed_s, interrupted=interrupted, console=console)


def _end(
    args: argparse.Namespace,
    result: FuzzResult,
    seed: int,
    jobs: int,
    elapsed_s: float,
    *,
    interrupted: bool,
    console: Console,
) -> int:
    repeat_line = command_line("make fuzz", {"seed": seed, "jobs": jobs, **given(args)})
    files: list[Path] = []
    if result.found is not None and result.found.shortened:
        text = scenario_text(result.found, repeat_line)
        for folder in [args.out, *([FOUND] if args.keep else [])]:
            path = folder / f"{result.found.title}{SCENARIO}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                return _cannot(f"{path}: {error.strerror}")
            files.append(path)
    play_line = ""
    if files:
        seed_of_steps = PLAYED_WITH if result.found is None else result.found.outcome.seed
        with_seed = None if seed_of_steps == PLAYED_WITH else seed_of_steps
        play_line = f"make scenario FILE={quote(short_path(str(files[-1].resolve())))}"
        play_line = command_line(play_line, {"seed": with_seed, **given(args)})
    console.print(
        render(result, elapsed_s, files, play_line=play_line, repeat_line=repeat_line, interrupted=interrupted),
        markup=False,
    )
    if result.ours:
        return 2
    if result.over:
        return 1
    return 130 if interrupted else 0


def _cannot(text: str) -> int:
    print(f"lab fuzz: {text}", file=sys.stderr)
    return 2
