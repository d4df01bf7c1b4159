"""`lab scenario`: play files of steps on a peer, or walk through one at a prompt.

Promise: a mistake in a file is told with its line, and nothing runs then. What `show` shows is printed under its step.

Start at `main()`.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from labsim.stacks import short_path
from raftlab.harness.launcher import LoadError, PeerLauncher
from raftlab.harness.options import OUT, RUN_OF_PEER, SEED, TIMELINE, add_options, command_line, given
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.selection import SCENARIO, TESTS, SelectionError, scenario_files, select
from raftlab.trace.events import STEP

if TYPE_CHECKING:
    from raftlab.harness.run import Run
    from raftlab.scenarios.text import Script, Step

PLAYED_WITH = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit status: 0 all passed, 1 at least one failed, 2 nothing could run."
    add = parser.add_argument
    add(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help=f"scenario, or folder of scenarios (default: {TESTS}/scenarios)",
    )
    seed = replace(SEED, default=PLAYED_WITH, help="seed that decides timeouts and scheduling")
    add_options(add, *RUN_OF_PEER, seed, TIMELINE)
    add(
        "--from",
        dest="from_",
        metavar="TEST",
        help="convert the run of this test with --seed, which must break a rule, to a scenario",
    )
    out = "file that --from writes (default: build/shrunk/TEST-SEED.scenario)"
    add_options(add, replace(OUT, metavar="FILE", help=out))
    add("--step", action="store_true", help="make one step at a time, at a prompt")
    add("--compare", action="store_true", help="compare the output of `show` with the lines under ----")
    add("--rewrite", action="store_true", help="replace the lines under ---- with the output of `show`")


def main(args: argparse.Namespace) -> int:
    if args.from_ is not None:
        return _write(args)
    try:
        # First, before anything imports the messages that the tester knows: the peer may bring its own.
        launcher = launcher_for(args.raft, isolated=args.isolated, race=args.race)
        files = list(_files(args.files))
    except (LoadError, _NoFiles) as error:
        return _cannot(str(error))
    from raftlab.scenarios.text import ScriptError, read_script

    if args.step and (args.compare or args.rewrite):
        return _cannot("--step is not supported with --compare or --rewrite")
    if args.step and len(files) != 1:
        return _cannot(f"--step needs exactly one FILE, got {len(files)}")
    try:
        scripts = [read_script(file) for file in files]
    except ScriptError as error:
        return _cannot(str(error))
    if args.step:
        return _walk(args, scripts[0], launcher)
    failed = skipped = 0
    for script in scripts:
        outputs, run = _play(args, script, launcher)
        problem = _report(args, script, run, outputs, alone=len(scripts) == 1)
        failed += problem
        skipped += _is_skipped(run)
    if len(scripts) > 1:
        print(f"{len(scripts)} scenarios: {len(scripts) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def _write(args: argparse.Namespace) -> int:
    """A run of a test, as a scenario that breaks the same rule."""
    if args.files:
        return _cannot("--from TEST and FILE are not supported together")
    try:
        tests = select([args.from_])
        if len(tests) > 1:
            return _cannot(f"--from {args.from_!r} matches {len(tests)} tests; name one (lab stress --list)")
        if tests[0].wants_service or tests[0].file.suffix == SCENARIO:
            return _cannot(f"--from must be a test of parts 2A to 2D, got {args.from_}")
        launcher = launcher_for(args.raft, isolated=args.isolated, race=args.race)
    except (LoadError, SelectionError) as error:
        return _cannot(str(error))
    from raftlab.tools.shrink.shrinker import OUT, NothingToShrink, as_scenario

    (test,) = tests
    try:
        text = as_scenario(test, launcher, args.seed)
    except NothingToShrink as error:
        print(f"{error}.")
        return 1
    path = args.out or OUT / f"{test.name}-{args.seed}{SCENARIO}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return _cannot(f"{path}: {error.strerror}")
    print(f"{text}\nwrote {short_path(str(path.resolve()))}")
    return 0


class _NoFiles(Exception):
    pass


def _files(given: list[Path]) -> Iterator[Path]:
    if not given:
        files = scenario_files()
        if not files:
            raise _NoFiles(f"no scenarios in {TESTS}/scenarios; name a FILE")
        yield from files
    for path in given:
        if path.is_dir():
            files = sorted(path.rglob(f"*{SCENARIO}"))
            if not files:
                raise _NoFiles(f"{path}: no *{SCENARIO} files in this folder")
            yield from files
        elif path.is_file():
            yield path
        else:
            raise _NoFiles(f"{path}: no such file")


def _play(args: argparse.Namespace, script: Script, launcher: PeerLauncher) -> tuple[dict[int, list[str]], Run]:
    """What each `show` showed, by its line, and the run."""
    from raftlab.harness.run import run_test
    from raftlab.scenarios.runner import make_lab_test

    outputs: dict[int, list[str]] = {}

    def keep(step: Step, output: str) -> None:
        outputs[step.line] = output.splitlines()

    return outputs, run_test(make_lab_test(script, on_output=keep), launcher, args.seed)


def _walk(args: argparse.Namespace, script: Script, launcher: PeerLauncher) -> int:
    from raftlab.tools.scenario.prompt import walk

    run, left = walk(script, launcher, args.seed)
    if run.error is None and left:
        print(f"{short_path(script.file)}: {left} of {len(script.steps)} steps were skipped")
        return 0
    return int(_report(args, script, run, {}, alone=True))


def _report(args: argparse.Namespace, script: Script, run: Run, outputs: dict[int, list[str]], *, alone: bool) -> bool:
    """Whether it failed."""
    from raftlab.harness import report

    if args.timeline:
        _print_timeline(run)
    if alone and not args.step and not args.timeline:
        _print_steps(script, run, outputs)
    name = short_path(script.file)
    if _is_skipped(run):
        print(f"SKIPPED {name}: {run.error}")
        return False
    if run.error is not None:
        seed = None if args.seed == PLAYED_WITH else args.seed
        line = command_line(f"make scenario FILE={quote(name)}", {"seed": seed, **given(args)})
        print(f"FAILED {report.describe(run.error, script.name, args.seed, line, causes=run.causes)}")
        return True
    broken = f", breaks {script.breaks} as expected" if script.breaks else ""
    print(f"PASSED {name}{broken}  ({len(script.steps)} steps, {run.real_s * 1000:.0f} ms)")
    for off in (*run.unverified, *run.checks_off) if alone else ():
        print(f"{off}.")
    if args.rewrite:
        _rewrite(script, outputs)
    return bool(args.compare and _differs(script, outputs))


def _is_skipped(run: Run) -> bool:
    from raftlab.check.task_errors import pytest_says

    return run.error is not None and pytest_says(run.error, "Skipped")


def _print_steps(script: Script, run: Run, outputs: dict[int, list[str]]) -> None:
    """The steps that were begun, each with what it showed."""
    print(script.title or script.name)
    if script.why:
        print(textwrap.fill(script.why, 100))
    trace = (run.simulation.trace if run.simulation is not None else None) or ()
    begun = sum(event.kind == STEP for event in trace)
    width = len(str(script.steps[-1].line)) if script.steps else 1
    for step in script.steps[:begun]:
        print(f"  {step.line:>{width}}  {step.text}")
        for line in outputs.get(step.line, ()):
            print(f"  {'':>{width}}    {line}".rstrip())


def _print_timeline(run: Run) -> None:
    from raftlab.tools.timeline.command import print_timeline

    assert run.simulation is not None and run.simulation.trace is not None
    print_timeline(run.simulation.trace)


def _differs(script: Script, outputs: dict[int, list[str]]) -> bool:
    for line, expected in script.expected.items():
        output = outputs.get(line, [])
        if output != expected:
            print(
                f"FAILED {short_path(script.file)}:{line}: the output of `show` differs from the expected lines. It is:"
            )
            print(textwrap.indent("\n".join(output), "  "))
            return True
    return False


def _rewrite(script: Script, outputs: dict[int, list[str]]) -> None:
    """The last first, so that the lines before it stay where they are."""
    from raftlab.scenarios.text import OUTPUT

    path = Path(script.file)
    lines = path.read_text(encoding="utf-8").splitlines()
    for line, expected in sorted(script.expected.items(), reverse=True):
        # The line of dashes may stand a little below the step, after comments.
        begin = (
            next(number for number in range(line, len(lines)) if lines[number].partition("#")[0].strip() == OUTPUT) + 1
        )
        lines[begin : begin + len(expected)] = outputs.get(line, expected)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cannot(text: str) -> int:
    print(f"lab scenario: {text}", file=sys.stderr)
    return 2
