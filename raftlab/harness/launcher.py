"""The interface through which the harness starts students' code: a peer, the service above it, a clerk.

in_process.py launches peers in this process, raftlab/sandbox sandboxed peers. The harness does not know which.
Start at `PeerLauncher`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from labrpc import ClientEnd, Network, Server
from labsim import Node, Simulation
from labsim.stacks import short_path
from raftapi import Clerk, KVServer, Peer, Persister
from raftlab.harness.producers import ApplyProducers


class LoadError(Exception):
    """The student's file cannot be tested. The text names the place and the reason."""


class ApplyChannel(Protocol):
    """A peer's apply_ch, as the tester sees it."""

    @property
    def producers(self) -> ApplyProducers: ...

    def get(self) -> Any:
        """Wait for the next message. For the tester's service."""

    def intercept(self, on_take: Callable[[Any], None], on_put: Callable[[], None]) -> None:
        """For a student's service: call `on_take` with each message it takes, and `on_put` at each put."""

    def waiting(self) -> int:
        """The number of messages that the student's service has not taken yet."""

    def put(self, message: Any) -> None:
        """Put a message as the peer does, if there is room."""


@dataclass(frozen=True)
class PeerDisk:
    """One incarnation's disk. The persister's hooks report each save."""

    persister: Persister
    is_slow: Callable[[], bool]
    begin_save: Callable[[int], int]  # on a slow disk, with the number of the save: how long it takes, in ns


@dataclass(frozen=True)
class RaftHooks:
    """Called when a student's service calls its peer."""

    start: Callable[[Peer, Any], Callable[[Any], None]]  # gets the command; the returned function gets the result
    snapshot: Callable[[int, bytes], None]


@dataclass(frozen=True)
class PeerContext:
    """The parameters of one incarnation of a server."""

    index: int
    node: Node
    network: Network
    ends: list[ClientEnd]
    disk: PeerDisk
    reader_may_be_busy: bool  # the tester's service may take messages late
    raft_hooks: RaftHooks | None  # with a student's service


class LaunchedPeer(Protocol):
    """One incarnation of a server. Its constructors are the student's, so they run on its node."""

    @property
    def channel(self) -> ApplyChannel: ...

    @property
    def server(self) -> Server:
        """The server for RPCs to peer and service."""

    def construct(self) -> Peer:
        """Raft(...)"""

    def construct_service(self, max_raft_state: int | None) -> KVServer:
        """KVServer(...), above that peer."""


class PeerLauncher(Protocol):
    @property
    def has_service(self) -> bool:
        """Whether a service and a clerk were loaded."""

    @property
    def classes(self) -> Sequence[Any]:
        """The student's classes that are in this process, for source lines in reports."""

    @property
    def work_clock(self) -> Callable[[], float]:
        """The clock for measuring runs: processor time if this process does all the work."""

    @property
    def remarks(self) -> list[str]:
        """With --race: unordered accesses in the last run that are not failures, one line each."""

    def has_method(self, name: str) -> bool:
        """Whether Raft has this method."""

    @property
    def renamed_rpcs(self) -> dict[str, str]:
        """By the name of a method that callers use: the paper's RPC that it implements."""

    def run(self, simulation: Simulation | None) -> AbstractContextManager[None]:
        """Entered around each run. `simulation`: None on real threads."""

    def launch(self, context: PeerContext) -> LaunchedPeer: ...

    def launch_clerk(self, node: Node, network: Network, ends: Sequence[ClientEnd], number: int) -> Callable[[], Clerk]:
        """A function that constructs the clerk, to be called on its node. `number`: of the clerk, in the test."""


def resolve_file(path: Path, file: str, option: str) -> Path:
    """The absolute path of the file, or of `file` in that folder. LoadError if there is no such file."""
    path = path / file if path.is_dir() else path
    if not path.is_file():
        raise LoadError(f"{short_path(str(path))}: no such file; {option} must name a {file}")
    return path.resolve()
