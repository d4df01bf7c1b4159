"""Runs of one peer with one seed, test after test, for tools that a student uses while writing. Start at `Runs`."""

from __future__ import annotations

import argparse
import io
from contextlib import redirect_stdout

from labsim.stacks import short_path
from raftlab.check.task_errors import pytest_says
from raftlab.harness.lab_test import LabTest, LabTestKind
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.options import RACE, SEED, command_line, given, run_line
from raftlab.harness.run import Run, run_test
from raftlab.sandbox.loader import launcher_for


class Runs:
    """Loads the peer when its first test comes, and again with --race or with the service above it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._launchers: dict[tuple[bool, bool], PeerLauncher] = {}

    def run(self, test: LabTest, *, race: bool = False) -> Run:
        """Run the test, without what it prints. Raises LoadError."""
        how = test.wants_service, race
        if how not in self._launchers:
            kv = self._args.kv if test.wants_service else None
            with redirect_stdout(io.StringIO()):
                self._launchers[how] = launcher_for(self._args.raft, isolated=False, kv=kv, race=race)
        with redirect_stdout(io.StringIO()):
            return run_test(test, self._launchers[how], self._args.seed)

    def replay_line(self, test: LabTest, *, race: bool = False) -> str:
        """The command that repeats the run and shows the whole report."""
        values = {**given(self._args, service=test.wants_service), RACE.name: race}
        if test.kind is not LabTestKind.SCENARIO:
            return run_line("replay", test.name, self._args.seed, values)
        return command_line(f"make scenario FILE={short_path(str(test.file))}", {SEED.name: self._args.seed, **values})


def has_failed(run: Run) -> bool:
    return run.error is not None and not pytest_says(run.error, "Skipped")
