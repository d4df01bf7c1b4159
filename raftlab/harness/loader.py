"""Loads a student's files into this process. Errors are one sentence, without a stack trace."""

from __future__ import annotations

import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from labsim.stacks import short_path
from raftlab.guest.contract import CLASSES, PEER, ImportTimeout, describe_load_error, missing_members
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.launcher import LoadError, resolve_file
from raftlab.harness.program import Program, execute_program
from raftlab.layout import PEER_FILES

if TYPE_CHECKING:
    from raftlab.races import RaceInstrumentation

# A file that computes has used most of this as processor time. On a busy machine it has not, and gets more time.
IMPORT_LIMIT_S = 10.0
_WALL_CLOCK_FACTOR = 6


def load_peer(path: Path, *, kv: Path | None = None, race: bool = False) -> InProcessLauncher:
    """A launcher for the class Raft in this file, which runs in this process, with new modules for each incarnation.

    A file with a messages.py beside it is loaded with its whole package; otherwise the lab's package is used. `kv`: the
    server.py of the service, if one is tested. `race`: preempt threads at any line and report data races.
    """
    return InProcessLauncher.of_program(load_program(path, kv=kv, race=race))


def load_program(path: Path, *, kv: Path | None = None, race: bool = False) -> Program:
    """The same files as a Program, without a launcher."""
    path = resolve_file(path, "raft.py", "RAFT")
    kv = None if kv is None else resolve_file(kv, "server.py", "KV")
    try:
        # Warnings about the student's file must not fail the lab.
        with warnings.catch_warnings(), _time_limit():
            warnings.simplefilter("ignore")
            program = execute_program(path, kv, _race() if race else None)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise LoadError(describe_load_error(_file_at_fault(path, kv, error), error)) from None
    for name, (class_name, required) in CLASSES.items():
        if name != PEER and kv is None:
            continue
        module = program.template.module(name)
        problem = missing_members(module, getattr(module, class_name, None), class_name, required)
        if problem:
            raise LoadError(f"{short_path(str(module.__file__))}: {problem}")
    return program


def _race() -> RaceInstrumentation:
    from raftlab.races import RaceInstrumentation  # most runs do not need it

    return RaceInstrumentation(PEER_FILES)


def _file_at_fault(path: Path, kv: Path | None, error: BaseException) -> str:
    """The service's file if the error occurred there, else the peer's."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return next((file for file in reversed(files) if kv is not None and Path(file).parent == kv.parent), str(path))


@contextmanager
def _time_limit() -> Iterator[None]:
    """Limits the time of an import, so that it cannot hang the tester. Uses a signal: main thread only."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    used_s = time.process_time()
    alarms = 0

    def on_alarm(signal_number: int, frame: FrameType | None) -> None:
        nonlocal alarms
        alarms += 1
        if time.process_time() - used_s >= IMPORT_LIMIT_S / 2 or alarms >= _WALL_CLOCK_FACTOR:
            raise ImportTimeout(f"{alarms * IMPORT_LIMIT_S:.0f} s")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    # A timer that is already running (a test's time limit) continues afterwards, a little late.
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, IMPORT_LIMIT_S, IMPORT_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)
        signal.signal(signal.SIGALRM, previous)
