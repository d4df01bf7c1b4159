"""`lab replay`: replays a run exactly, prints its output and report, and compares it with the recorded run.

Promise: if the failure was recorded and the code has not changed, the digests must agree, and a difference is reported.
If the code has changed, the report names the files.

Start at `main()`.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from labsim.choices import (
    ChoiceKind,
    Choices,
    ChoiceSource,
    DefaultSource,
    OverridingSource,
    RecordingSource,
    SeededSource,
)
from raftlab.harness import records
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import LoadError, PeerLauncher
from raftlab.harness.options import (
    DEFAULT,
    DEFAULT_KV,
    FILE,
    KV,
    RAFT,
    RUN,
    SEED,
    TIMELINE,
    add_options,
    command_line,
    given,
    run_line,
)
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.selection import SCENARIO, SelectionError, select, service_for
from raftlab.trace.choice_file import ChoiceFileError, ChoiceFileHeader, read_choices, write_choices

if TYPE_CHECKING:
    from raftlab.harness.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lab replay [options]\n       lab replay TEST --seed N [options]\n       lab replay FILE [options]"
    parser.epilog = "Exit status: 0 the run passed, 1 it failed, 2 it could not start."
    add = parser.add_argument
    add("test", metavar="TEST", nargs="?", help="name of the test, or a FILE that lab shrink or --write-choices wrote")
    add_options(
        add,
        FILE,
        *RUN,
        replace(SEED, help="seed of the run, as its failure report shows it"),
        replace(RAFT, default=None, help=f"raft.py to test (default: the one in FILE, or {DEFAULT})"),
        replace(KV, default=None, help=f"server.py to test (default: the one in FILE, or {DEFAULT_KV})"),
        TIMELINE,
    )
    add("--write-choices", type=Path, metavar="FILE", help="record the run's choices (docs/student/determinism.md)")
    add("--pdb", action="store_true", help="stop in the debugger at the failure; virtual time stops, too")
    add(
        "--records",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="compare with the failures recorded by lab stress --out DIR",
    )


def main(args: argparse.Namespace) -> int:
    if args.isolated and args.pdb:
        return _cannot("--pdb is not supported with --isolated: the peer runs in another process")
    args.choices = None
    folders = [records.STRESS, records.PYTEST, *(folder / "failures" for folder in args.records)]
    if args.seed is None and args.test is None:
        last = records.latest(folders)
        if last is None:
            return _cannot("no failed run is recorded here; give a TEST with --seed N, or a FILE with recorded choices")
        _take_from(last, args)
    if args.seed is None and args.test is not None:
        # Without a seed it must be a file.
        args.choices, args.test = Path(args.test), None
        if not args.choices.exists():
            return _cannot(f"{args.choices}: no such file (to replay a test, add --seed N)")
    try:
        header, choices = (None, None) if args.choices is None else read_choices(args.choices)
        if header is not None:
            args.test = header.test
        if args.test is None:
            return _cannot("give a TEST with --seed N, or a FILE with recorded choices")
        _fill_in_paths(args, header)
        tests = select([args.test], args.file)
        # The peer is loaded before the tester's messages: it may have its own.
        kv = service_for(tests, args.kv)
        launcher = launcher_for(args.raft, isolated=args.isolated, kv=kv, race=args.race)
    except (LoadError, SelectionError, ChoiceFileError) as error:
        return _cannot(str(error))
    if len(tests) > 1:
        return _cannot(
            f"cannot replay {len(tests)} tests at once: {args.test!r} matches several; name one (lab stress --list)"
        )
    (test,) = tests
    if header is not None and choices is not None:
        test = _with_choices(test, header, choices)
    record = None
    if choices is None:
        how = {"isolated": args.isolated, "race": args.race}
        try:
            record = records.find(folders, test.name, args.seed, args.raft, kv, **how)
        except records.RecordError as error:
            print(f"This run cannot be compared with its record: {error}.\n", flush=True)
    if record is not None and not record.digest:
        # The run may end this process, too, so print this first.
        print(f"When this run was recorded, it ended its process:\n{_indented(record.report)}\n", flush=True)
    faulthandler.enable()
    choice_source: ChoiceSource = (
        SeededSource(args.seed) if choices is None else OverridingSource(DefaultSource(), choices)
    )
    recording = RecordingSource(choice_source)
    run = _run(
        test, launcher, args.seed or 0, choice_source if args.write_choices is None else recording, debug=args.pdb
    )
    if args.timeline:
        _print_timeline(run)
    _report(args, test, run)
    if not args.pdb:  # the debugger ends a run earlier, so digests differ
        if header is not None:
            print(_same_choices(run, header))
        else:
            print(_same_run(run, record, records.code_hashes(args.raft, test.file, kv)))
    if args.write_choices is not None:
        try:
            play = None if header is None else header.play or header.interventions
            write_choices(args.write_choices, recording.choices, test=test.name, digest=run.digest, play=play)
        except OSError as error:
            return _cannot(f"{args.write_choices}: {error.strerror}")
        print(f"  {_count(recording.choices)} written to {args.write_choices}.")
    return 0 if run.error is None else 1


def _fill_in_paths(args: argparse.Namespace, header: ChoiceFileHeader | None) -> None:
    """Paths that are not given come from the choice file, or are the defaults."""
    if args.raft is None:
        args.raft = Path(header.raft) if header is not None and header.raft else DEFAULT
    if args.kv is None:
        args.kv = Path(header.kv) if header is not None and header.kv else DEFAULT_KV
    if not args.file and header is not None and header.file:
        args.file = [Path(header.file)]


def _with_choices(test: LabTest, header: ChoiceFileHeader, choices: Choices) -> LabTest:
    """A shrunk run has a recorded schedule instead of the test's code, or omits some of its faults."""
    from raftlab.scenarios.recorded_schedule import ScheduleRecording, make_schedule_test, record_operations

    if header.interventions is not None:
        from raftlab.scenarios.interventions import with_interventions

        return with_interventions(test, header.interventions)
    if header.play is not None:
        return replace(make_schedule_test(header.play), name=test.name, file=test.file)
    if any(place[0] == ChoiceKind.FAULT for place, _ in choices.chosen):
        return record_operations(test, ScheduleRecording())
    return test


def _run(test: LabTest, launcher: PeerLauncher, seed: int, choice_source: ChoiceSource, *, debug: bool) -> Run:
    from raftlab.harness.run import run_test

    if not debug:
        return run_test(test, launcher, seed, choice_source=choice_source)
    from raftlab.tools.replay.debugger import DebuggedSimulation

    simulation = DebuggedSimulation(seed, choice_source, launcher.classes[0], test.file)
    return run_test(test, launcher, seed, simulation=simulation)


def _print_timeline(run: Run) -> None:
    try:
        timeline = importlib.import_module("raftlab.tools.timeline.command")
        print_timeline = timeline.print_timeline
    except (ImportError, AttributeError):
        print("(there is no timeline in this version)")
        return
    assert run.simulation is not None
    print_timeline(run.simulation.trace)


def _report(args: argparse.Namespace, test: LabTest, run: Run) -> None:
    from raftlab.harness import report

    which = f"seed {run.seed}" if args.choices is None else f"choices of {args.choices}"
    if run.error is None:
        print("\n".join(run.lines))
        print(f"\nPASSED {test.name}  {which}")
    else:
        file = str(args.file[0]) if args.file else ""
        how = given(args, service=test.wants_service)
        shrink = ""
        if args.choices is not None:
            line = command_line(f"lab replay {quote(str(args.choices))}", {"file": file, **how})
        else:
            line = run_line("replay", test.name, run.seed, how, file=file)
        if args.choices is None and test.file.suffix != SCENARIO:  # choice files and scenarios are minimal already
            shrink = run_line("shrink", test.name, run.seed, how, file=file)
        print(f"FAILED {report.describe(run.error, test.name, which, line, causes=run.causes, shrink=shrink)}")
    for off in (*run.unverified, *run.checks_off):
        print(f"{off}.")
    for remark in run.remarks:
        print(f"Remark: {remark}.")


def _same_choices(run: Run, header: ChoiceFileHeader) -> str:
    if run.digest == header.digest:
        return f"  Same run as recorded (digest {run.digest})."
    return (
        f"  Not the recorded run (digest {run.digest}, recorded {header.digest}): the choices, the peer, the test or "
        "the lab\n  have changed. A recorded choice that no longer fits is replaced by its default."
    )


def _count(choices: Choices) -> str:
    return f"{len(choices.chosen) + len(choices.picked):,} choices"


def _same_run(run: Run, record: records.Record | None, code: dict[str, str]) -> str:
    """Whether this is the recorded run, as text."""
    if record is None:
        return f"  No recorded failure to compare with (digest {run.digest})."
    changed = records.changes(record.code, code)
    if changed and run.digest == record.digest:
        return f"  Same run as recorded, although these parts have changed since the recording: {', '.join(changed)}."
    if changed:
        return f"  Not the recorded run: these parts have changed since the recording: {', '.join(changed)}."
    if not record.digest:
        return "  When this run was recorded, it ended its process; this time it did not."
    if run.digest == record.digest:
        return f"  Same run as recorded (digest {run.digest})."
    return (
        f"  NOT THE RECORDED RUN, although no file has changed (digest {run.digest}, recorded {record.digest}).\n"
        "  The peer or the test keeps state between runs (a module or class variable), or uses randomness that does\n"
        "  not come from the seed. To find the cause, run pytest --check-determinism."
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def _take_from(last: records.Record, args: argparse.Namespace) -> None:
    """Replay this run, on the peer that is given or on its own."""
    args.test, args.seed = last.test, last.seed
    args.raft = args.raft or Path(last.raft)
    args.kv = args.kv or (Path(last.kv) if last.kv else None)
    args.isolated, args.race = args.isolated or last.isolated, args.race or last.race


def _cannot(text: str) -> int:
    print(f"lab replay: {text}", file=sys.stderr)
    return 2
