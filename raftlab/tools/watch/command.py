"""`lab watch`: whenever a file of the peer or of its service is saved, run the tests, and print what changed.

Promise: the tests run in a new process each time, so nothing of the old code remains and no peer can end the watching;
what failed the last time runs first. Without a TEST it begins with part 2A, and goes on to the next part when one
passes. Start at `main()`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from labsim import Unresponsive
from labsim.stacks import short_path
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import LoadError, resolve_file
from raftlab.harness.options import KV, RAFT, SEED, add_options, arguments, given
from raftlab.harness.report import headline
from raftlab.tools.common.runs import Runs, has_failed
from raftlab.tools.common.text import duration
from raftlab.tools.selection import SelectionError, select

_PARTS = ("2a", "2b", "2c", "2d", "3a", "3b")
_RESULTS = Path("build/watch.json")
_POLL_S = 0.1
_STATUSES = (0, 1, 2)  # of a run that reported its result

# By test: what was wrong, or "" if it passed.
Results = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Ctrl-C ends it."
    parser.add_argument("tests", metavar="TEST", nargs="*", help="a test, a glob or a part (default: part by part)")
    add_options(parser.add_argument, RAFT, KV, replace(SEED, default=1, help="the seed of the runs"))
    parser.add_argument("--once", action="store_true", help="run the tests now and exit")


def main(args: argparse.Namespace) -> int:
    if args.once:
        return _run(args)
    try:
        resolve_file(args.raft, "raft.py", RAFT.name.upper())
        select(args.tests)
    except (LoadError, SelectionError) as error:
        print(f"lab watch: {error}", file=sys.stderr)
        return 2
    with suppress(OSError):
        _RESULTS.unlink()
    values = {**given(args), SEED.name: args.seed}
    command = [sys.executable, "-m", "raftlab", "watch", "--once", *args.tests, *arguments(values)]
    print(f"watching {' and '.join(short_path(str(folder)) for folder in _folders(args))}; Ctrl-C ends", flush=True)
    seen: dict[Path, int] = {}
    run: subprocess.Popen[bytes] | None = None
    try:
        while True:
            saved = _saved(args)
            if saved != seen:
                seen = saved
                if run is not None:
                    run.kill()
                    run.wait()
                run = subprocess.Popen(command)
            if run is not None and run.poll() not in (None, *_STATUSES):
                print(f"The peer ended the process of the tests (exit status {run.returncode}).", flush=True)
                run = None
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return 0
    finally:
        if run is not None:
            run.kill()
            run.wait()


def _folders(args: argparse.Namespace) -> list[Path]:
    folders = [path if path.is_dir() else path.parent for path in (args.raft, args.kv)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _saved(args: argparse.Namespace) -> dict[Path, int]:
    """When each file was saved last."""
    saved = {}
    for folder in _folders(args):
        for file in sorted(folder.glob("*.py")):
            with suppress(OSError):  # an editor is replacing it, or it is an editor's lock: a link to nowhere
                saved[file] = file.stat().st_mtime_ns
    return saved


# ---- one run of the tests ------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    before = _read_results()
    results: Results = {}
    runs = Runs(args)
    began_s = time.perf_counter()
    try:
        for patterns in [args.tests] if args.tests else [[part] for part in _PARTS]:
            tests = select(patterns)
            failed = _run_tests(sorted(tests, key=lambda test: not before.get(test.name)), runs, before, results)
            if failed:
                break
    except SelectionError as error:
        print(f"lab watch: {error}", file=sys.stderr)
        return 2
    except LoadError as error:
        print(error, flush=True)
        return 1
    name = " ".join(pattern.upper() if pattern in _PARTS else pattern for pattern in patterns)
    passed = sum(results.get(test.name) == "" for test in tests)
    took = duration(time.perf_counter() - began_s)
    print(f"{time.strftime('%H:%M:%S')}  {name}: {passed} of {len(tests)} pass ({took})", flush=True)
    if failed:
        print(f"          {runs.replay_line(failed[0])}", flush=True)
    with suppress(OSError):  # a read-only folder: the next run prints all failures again
        _RESULTS.parent.mkdir(parents=True, exist_ok=True)
        _RESULTS.write_bytes(msgspec.json.encode({**before, **results}))
    return 1 if failed else 0


def _run_tests(tests: Sequence[LabTest], runs: Runs, before: Mapping[str, str], results: Results) -> list[LabTest]:
    """Run them; print each new kind of failure once, and what passes again. Returns the tests that fail."""
    failed: list[LabTest] = []
    fixed: list[str] = []
    printed = set()
    for test in tests:
        run = runs.run(test)
        wrong = results[test.name] = headline(run.error) if run.error is not None and has_failed(run) else ""
        if wrong:
            failed.append(test)
            if before.get(test.name) != wrong and wrong not in printed:
                printed.add(wrong)
                print(f"FAILED    {test.name}: {wrong}", flush=True)
            if isinstance(run.error, Unresponsive):
                break  # each other test would take as long to fail
        elif before.get(test.name):
            fixed.append(test.name)
    if fixed:
        width = shutil.get_terminal_size().columns
        names = ", ".join(fixed)
        print(
            textwrap.fill(names, width, initial_indent="passed    ", subsequent_indent=" " * 10, break_on_hyphens=False)
        )
    return failed


def _read_results() -> Results:
    try:
        return msgspec.json.decode(_RESULTS.read_bytes(), type=Results)
    except (OSError, msgspec.DecodeError):
        return {}
