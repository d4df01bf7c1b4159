"""Starts a worker process whose peers run in the worker itself, or in processes sandboxed by it.

The peer's output is discarded; what C code writes at a crash goes to the file that process.py reads. Workers that grade
start in grade/runs/worker.py: nothing in them can load a peer. Start at `serve_peer()`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from raftlab.harness.launcher import LoadError, PeerLauncher
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.workers.process import restore_paths
from raftlab.tools.workers.server import Refusal, dump_stack_on_crash, serve


class WorkerSetup(msgspec.Struct, kw_only=True):
    """The first line that a worker gets. Paths are relative to the working directory."""

    raft: str
    kv: str = ""  # the service, if one is run
    memory_mb: int = 0  # 0: no limit
    given: dict[str, Any] = {}  # how runs are made, with paths as the reader typed them
    shown_as: dict[str, str] = {}  # paths here -> where these files are

    @property
    def raft_path(self) -> Path:
        return Path(self.raft).resolve()

    @property
    def kv_path(self) -> Path | None:
        return Path(self.kv).resolve() if self.kv else None


Setup = TypeVar("Setup", bound=WorkerSetup)
Answers = Callable[[bytes], Iterable[bytes]]


def serve_peer(setup_type: type[Setup], prepare: Callable[[Setup, PeerLauncher], Answers]) -> NoReturn:
    """Load the peer, answer requests with what `prepare` returns, and end the process.

    `prepare` imports the harness itself: the tester must know the messages of the peer's own package, if it has one.
    """

    def begin(greeting: bytes, _: int) -> Answers:
        # Thousands of runs of a peer that prints would fill the disk. A replay shows what it prints.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # for as long as the process lives
        dump_stack_on_crash()
        setup = msgspec.json.decode(greeting, type=setup_type)
        if setup.memory_mb:
            limit_memory(setup.memory_mb)
        isolated, race = setup.given.get("isolated", False), setup.given.get("race", False)
        try:
            return prepare(setup, launcher_for(setup.raft_path, kv=setup.kv_path, isolated=isolated, race=race))
        except LoadError as error:
            raise Refusal(restore_paths(str(error), setup.shown_as).encode(errors="replace").decode()) from None

    status = serve(begin)
    # Not sys.exit(): a peer's atexit functions and threads have no say in how this ends.
    os._exit(status)


def limit_memory(memory_mb: int | None) -> None:
    """None lifts the limit again."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard if memory_mb is None else memory_mb << 20, hard))
    except (ImportError, ValueError, OSError):
        pass  # not on this system, or more than it allows anyway
