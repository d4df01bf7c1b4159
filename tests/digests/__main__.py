"""python -m tests.digests record | compare | events"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from .base import FILE, MODES, Base, BaseError, read_base
from .compare import ROOT, Difference, differences, explain, recorded_tree
from .runs import all_tests, digests_of, events_of

_SEEDS = (7, 8, 9)
_EXPLAINED = 3  # differences that are explained
PYTHON = ".".join(platform.python_version_tuple()[:2])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.digests", description="Record and compare digests of many runs."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    record = commands.add_parser(
        "record", help=f"run every test over {len(_SEEDS)} seeds in each mode and write the digests"
    )
    compare = commands.add_parser("compare", help="repeat the recorded runs and report which differ")
    events = commands.add_parser("events", help="print one run as JSON, event by event")
    for each in (record, compare):
        each.add_argument("--file", type=Path, default=FILE, help="the file of digests (tests/digests/base.txt)")
        each.add_argument("--mode", action="append", choices=MODES, help="only this mode; may be repeated")
        each.add_argument(
            "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one per core)"
        )
    compare.add_argument("--sample", type=int, default=1, metavar="N", help="only every N-th test")
    compare.add_argument("--seed", type=int, action="append", metavar="N", help="only this seed; may be repeated")
    compare.add_argument("--test", action="append", metavar="NAME", help="only this test; may be repeated")
    events.add_argument("test")
    events.add_argument("--seed", type=int, required=True)
    events.add_argument("--mode", choices=MODES, default=MODES[0])
    args = parser.parse_args()
    os.chdir(ROOT)
    try:
        if args.command == "record":
            return _record(args)
        if args.command == "compare":
            return _compare(args)
        json.dump(events_of(args.test, args.seed, args.mode), sys.stdout)
    except BaseError as error:
        print(f"digests: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("digests: interrupted", file=sys.stderr)
        return 130
    return 0


def _record(args: argparse.Namespace) -> int:
    began_s = time.monotonic()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    base = Base(PYTHON, commit)
    keys = []
    for test in all_tests().values():
        seeds = _SEEDS[:1] if test.file.suffix == ".scenario" else _SEEDS
        keys += [(test.name, seed) for seed in seeds]
    runs = [(test, seed, mode) for mode in args.mode or MODES for test, seed in keys]
    for count, (run, digest) in enumerate(zip(runs, digests_of(runs, args.jobs), strict=True), start=1):
        base.digests.setdefault(run[:2], [""] * len(MODES))[MODES.index(run[2])] = digest
        _progress(count, len(runs), 0)
    base.write(args.file)
    print(f"{len(keys)} runs in {len(args.mode or MODES)} modes recorded in {args.file}, {_took(began_s)}.")
    return 0


def _compare(args: argparse.Namespace) -> int:
    began_s = time.monotonic()
    base = read_base(args.file)
    keys = list(base.digests)
    tests = args.test or list(dict.fromkeys(test for test, _ in keys))[:: args.sample]
    keys = [key for key in keys if key[0] in tests and key[1] in (args.seed or [key[1]])]
    if base.python != PYTHON:
        print(f"Recorded with Python {base.python}, this is {PYTHON}: runs may differ between versions.")
    wanted = [(*key, mode) for mode in args.mode or MODES for key in keys]
    found: list[Difference] = []
    count = 0
    for count, difference in enumerate(differences(base, wanted, args.jobs), start=1):
        found += [difference] if difference is not None else []
        _progress(count, len(wanted), len(found))
    for each in found:
        print(f"{each.test} seed {each.seed} {each.mode}: differs")
    try:
        if found:
            with recorded_tree(base.commit) as tree:
                for each in found[:_EXPLAINED]:
                    print(f"\n{each.test} seed {each.seed} {each.mode}\n{explain(each, tree)}")
    except LookupError as error:
        print(f"Cannot find the first difference: {error}")
    print(f"{len(found)} of {count} runs differ, {_took(began_s)}.")
    return 1 if found else 0


def _progress(count: int, of: int, differ: int) -> None:
    if sys.stderr.isatty() and (count % 8 == 0 or count == of):
        end = "\n" if count == of else ""
        print(f"\r{count} of {of} runs, {differ} differ", end=end, file=sys.stderr, flush=True)


def _took(began_s: float) -> str:
    return f"{time.monotonic() - began_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
