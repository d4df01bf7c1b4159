"""Launches peers, services and clerks in this process, which is fastest: used for students' own runs.

Not promised: protection of the tester from them. For grades raftlab/sandbox launches them in a sandbox.

Start at `InProcessLauncher`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from labrpc import ClientEnd, Network, Server
from labrpc import Service as RpcService
from labsim import Node, Simulation, current_simulation, queue
from raftapi import KVServer, Peer
from raftlab.guest.contract import check_snapshot_arguments, renamed_rpcs
from raftlab.harness.launcher import PeerContext, RaftHooks
from raftlab.harness.producers import ApplyProducers
from raftlab.harness.program import Program, forget_earlier_runs

if TYPE_CHECKING:
    from raftapi import Clerk
    from raftlab.races import RaceInstrumentation


class ServiceProgram(Protocol):
    """Constructs services and clerks."""

    def make_service(self, *args: Any) -> Any: ...
    def make_clerk(self, *args: Any) -> Any: ...


class InProcessLauncher:
    """Each launch calls `make_raft` with Raft's arguments. A Program executes its modules anew each time."""

    work_clock = staticmethod(time.process_time)

    def __init__(
        self,
        make_raft: Callable[..., Peer],
        peer_class: Any = None,
        *,
        service: ServiceProgram | None = None,
        race: RaceInstrumentation | None = None,
    ) -> None:
        """`peer_class`: the class to inspect, if `make_raft` is not the class itself."""
        self._make_raft = make_raft
        self._service = service
        self._race = race
        self.classes: Sequence[Any] = (make_raft if peer_class is None else peer_class,)
        self.renamed_rpcs = renamed_rpcs(self.classes[0])

    @classmethod
    def of_program(cls, program: Program) -> InProcessLauncher:
        service = program if program.has_service else None
        return cls(program, program.peer_class, service=service, race=program.race)

    @property
    def has_service(self) -> bool:
        return self._service is not None

    @property
    def remarks(self) -> list[str]:
        return [] if self._race is None else self._race.remarks

    def has_method(self, name: str) -> bool:
        return callable(getattr(self.classes[0], name, None))

    @contextmanager
    def run(self, simulation: Simulation | None) -> Iterator[None]:
        forget_earlier_runs()
        if self._race is not None and simulation is not None:
            self._race.begin_run(simulation)
        yield

    def launch(self, context: PeerContext) -> InProcessPeer:
        return InProcessPeer(context, self._make_raft, self._service)

    def launch_clerk(self, node: Node, network: Network, ends: Sequence[ClientEnd], number: int) -> Callable[[], Clerk]:
        assert self._service is not None
        return partial(self._service.make_clerk, list(ends))


class InProcessPeer:
    """One incarnation, in this process."""

    def __init__(self, context: PeerContext, make_raft: Callable[..., Peer], service: ServiceProgram | None) -> None:
        self._context = context
        self._make_raft = make_raft
        self._service = service
        self._raft: Peer | None = None
        self.channel = QueueChannel()
        self.server = Server(context.node)

    def construct(self) -> Peer:
        context = self._context
        raft = self._make_raft(context.ends, context.index, context.disk.persister, self.channel.queue)
        self.server.add_service(RpcService(raft, "Raft"))
        self._raft = raft
        return raft

    def construct_service(self, max_raft_state: int | None) -> KVServer:
        context, hooks = self._context, self._context.raft_hooks
        assert hooks is not None and self._service is not None and self._raft is not None
        raft, disk = TracedPeer(self._raft, hooks), context.disk.persister
        args = (context.ends, context.index, raft, self.channel.queue, disk, max_raft_state)
        service: KVServer = self._service.make_service(*args)
        self.server.add_service(RpcService(service, "KVServer"))
        return service


class QueueChannel:
    """An apply_ch. Methods are replaced because a subclass of Queue would have a mutex, and another schedule."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue(1)
        self.producers = ApplyProducers()
        simulation = current_simulation()
        if simulation is not None:
            self.producers.watch(self.queue, simulation)
        # The queue's methods themselves: a wrapper would double the cost.
        self.get = self.queue.get
        self.waiting = self.queue.qsize

    def put(self, message: Any) -> None:
        with suppress(queue.Full):
            self.queue.put_nowait(message)

    def intercept(self, on_take: Callable[[Any], None], on_put: Callable[[], None]) -> None:
        get, put = self.queue.get, self.queue.put

        def intercepted_get(block: bool = True, timeout: float | None = None) -> Any:
            message = get(block, timeout)
            on_take(message)
            return message

        def intercepted_put(item: Any, block: bool = True, timeout: float | None = None) -> None:
            on_put()
            put(item, block, timeout)

        intercepted_get.__name__, intercepted_put.__name__ = get.__name__, put.__name__
        self.queue.get, self.queue.put = intercepted_get, intercepted_put  # type: ignore[method-assign]  # see above


class TracedPeer:
    """A service's Raft: forwards to the peer, and calls the hooks for start() and snapshot()."""

    def __init__(self, peer: Peer, hooks: RaftHooks) -> None:
        self._peer = peer
        self._hooks = hooks

    def start(self, command: Any) -> tuple[int, int, bool]:
        """The trace keeps a copy, because the service may change the command."""
        recorded = command if isinstance(command, int | str | bytes) else copy(command)
        record_result = self._hooks.start(self._peer, recorded)
        result = self._peer.start(command)
        record_result(result)
        index, term, is_leader = result
        return index, term, is_leader

    def get_state(self) -> tuple[int, bool]:
        term, is_leader = self._peer.get_state()
        return term, is_leader

    def snapshot(self, index: int, snapshot: bytes) -> None:
        check_snapshot_arguments(index, snapshot)
        self._hooks.snapshot(index, snapshot)
        self._peer.snapshot(index, snapshot)

    def kill(self) -> None:
        self._peer.kill()

    def __getattr__(self, name: str) -> Any:
        """Other attributes of the student's Raft."""
        return getattr(self._peer, name)
