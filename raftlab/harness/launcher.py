"""How the harness starts what students wrote: a peer, the service above it, a clerk.

Whoever loads a peer chooses the launcher: in_process.py is the one for peers in this process, isolation/ has the one
for peers in a sandbox. The harness launches through it and asks nothing else. Start at `PeerLauncher`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from labrpc import ClientEnd, Network, Server
from labsim import Node, Simulation
from raftapi import Clerk, KVServer, Peer, Persister
from raftlab.harness.producers import ApplyProducers


class ApplyChannel(Protocol):
    """What a peer puts on its apply_ch, as the tester's side has it."""

    @property
    def producers(self) -> ApplyProducers: ...

    def get(self) -> Any:
        """Wait for the next message, where the tester's own service reads it."""

    def intercept(self, on_take: Callable[[Any], None], on_put: Callable[[], None]) -> None:
        """Where a student's service reads it: have it reported what that takes, and that there is something to take."""

    def waiting(self) -> int:
        """How many messages nobody has taken yet, where a student's service reads it."""

    def put(self, message: Any) -> None:
        """As if the peer had put it there, if there is room."""


@dataclass(frozen=True)
class PeerDisk:
    """One incarnation's disk. The persister's hooks report each save."""

    persister: Persister
    is_slow: Callable[[], bool]
    begin_save: Callable[[int], int]  # on a slow disk, with the number of the save: how long it takes, in ns


@dataclass(frozen=True)
class RaftHooks:
    """Who hears what a service asks of its peer."""

    start: Callable[[Peer, Any], Callable[[Any], None]]  # called with the command; what it returns gets the result
    snapshot: Callable[[int, bytes], None]


@dataclass(frozen=True)
class PeerContext:
    """What one incarnation of a server is launched with."""

    index: int
    node: Node
    network: Network
    ends: list[ClientEnd]
    disk: PeerDisk
    reader_may_be_busy: bool  # the tester's own service, which then takes the next message later
    raft_hooks: RaftHooks | None  # with a service above it


class LaunchedPeer(Protocol):
    """One incarnation of a server. Its constructors run on its node: they are the student's."""

    @property
    def channel(self) -> ApplyChannel: ...

    @property
    def server(self) -> Server:
        """Where the RPCs of peer and service arrive."""

    def construct(self) -> Peer:
        """Raft(...)"""

    def construct_service(self, max_raft_state: int | None) -> KVServer:
        """KVServer(...), above that peer."""


class PeerLauncher(Protocol):
    @property
    def has_service(self) -> bool:
        """Whether a service was loaded, and a clerk with it."""

    @property
    def classes(self) -> Sequence[Any]:
        """The student's classes, as far as they are in this process: for a report to point into."""

    @property
    def work_clock(self) -> Callable[[], float]:
        """What measures how long runs take: processor time, where this process does all of the work."""

    @property
    def remarks(self) -> list[str]:
        """With --race: what was unordered in the last run and is no failure, a line each."""

    def has_method(self, name: str) -> bool:
        """Whether its Raft has it."""

    @property
    def renamed_rpcs(self) -> dict[str, str]:
        """By method, as a caller names it: the RPC of the paper that its Raft serves by it."""

    def run(self, simulation: Simulation | None) -> AbstractContextManager[None]:
        """Around each run; on real threads there is no simulation."""

    def launch(self, context: PeerContext) -> LaunchedPeer: ...

    def launch_clerk(self, node: Node, network: Network, ends: Sequence[ClientEnd], number: int) -> Callable[[], Clerk]:
        """What it returns makes the clerk: it runs on its node. `number`: which of the test's clerks it is."""
