"""Stubs of a sandboxed peer, service or clerk for the harness: each call is sent to the process.

What a clerk returns is recorded in the history that is checked. Start at `SandboxedPeer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labrpc import ClientEnd, Network, Server
from labsim import Node, Simulation
from raftlab.guest.protocol import PeerSetup
from raftlab.harness.launcher import PeerContext
from raftlab.sandbox.supervisor import Bindings, CallInterceptor, DiskBinding, PeerSupervisor

if TYPE_CHECKING:
    from raftlab.sandbox.launcher import SandboxedLauncher

# A clerk may use this fraction of the memory of all servers together.
_CLERK_MEMORY_DIVISOR = 16


class SandboxedPeer:
    """One incarnation of a server, and of its service if there is one. Nothing is constructed yet."""

    def __init__(self, launcher: SandboxedLauncher, simulation: Simulation, context: PeerContext) -> None:
        node, saved, calls = context.node, context.disk.persister, context.raft_hooks
        self._raft = raft = SandboxedRaft()
        self.server = Server(node)

        def save(number: int, raft_state: bytes, snapshot: bytes | None) -> None:
            if snapshot is None:
                snapshot = saved.read_snapshot()
            if saved.on_save is not None:
                saved.on_save(number, raft_state, snapshot)
            saved._saved = (raft_state, snapshot)  # not save(): its hooks have run

        intercepted = {}
        if calls is not None:
            start, snapshot = calls.start, calls.snapshot
            intercepted = {
                "start": CallInterceptor((object,), lambda command: start(raft, command)),
                "snapshot": CallInterceptor((int, bytes), snapshot),
            }
        disk = DiskBinding(context.disk.begin_save, save, context.disk.is_slow)
        setup = PeerSetup(
            node.name,
            node.incarnation,
            context.index,
            len(context.ends),
            node.stream.getrandbits(63),
            simulation.now_ns,
            saved.read_raft_state(),
            saved.read_snapshot(),
            lockstep=context.reader_may_be_busy,
            has_service=calls is not None,
            memory_mb=max(1, launcher.limits.memory_mb // len(context.ends)),
            cpu_s=launcher.limits.cpu_s,
        )
        bindings = Bindings(context.network, self.server, context.ends, disk, intercepted)
        supervisor = PeerSupervisor(launcher, simulation, node, bindings, setup, f"peer {context.index}")
        raft.supervisor = self.server.remote = supervisor
        self.channel = supervisor.channel
        simulation.spawn(supervisor.drive, node=node, name=f"supervisor of peer {context.index}")

    def construct(self) -> SandboxedRaft:
        self._raft.supervisor.call("Raft.__init__")
        return self._raft

    def construct_service(self, max_raft_state: int | None) -> SandboxedService:
        supervisor = self._raft.supervisor
        supervisor.call("KVServer.__init__", max_raft_state)
        return SandboxedService(supervisor)


class SandboxedRaft:
    supervisor: PeerSupervisor

    def start(self, command: Any) -> Any:
        return self.supervisor.call("Raft.start", command)

    def get_state(self) -> Any:
        return self.supervisor.call("Raft.get_state")

    def snapshot(self, index: int, snapshot: bytes) -> None:
        self.supervisor.call("Raft.snapshot", index, snapshot)

    def kill(self) -> None:
        self.supervisor.call("Raft.kill")


class SandboxedService:
    def __init__(self, supervisor: PeerSupervisor) -> None:
        self._supervisor = supervisor

    def kill(self) -> None:
        self._supervisor.call("KVServer.kill")


class SandboxedClerk:
    """A clerk in its own process, without a disk or a server."""

    def __init__(
        self,
        launcher: SandboxedLauncher,
        simulation: Simulation,
        node: Node,
        network: Network,
        ends: Sequence[ClientEnd],
        number: int,
    ) -> None:
        setup = PeerSetup(
            node.name,
            node.incarnation,
            number,
            len(ends),
            node.stream.getrandbits(63),
            simulation.now_ns,
            b"",
            b"",
            lockstep=False,
            memory_mb=max(1, launcher.limits.memory_mb // _CLERK_MEMORY_DIVISOR),
            cpu_s=launcher.limits.cpu_s,
        )
        # This server is never added to the network.
        bindings = Bindings(network, Server(node), ends)
        self._supervisor = PeerSupervisor(launcher, simulation, node, bindings, setup, f"the clerk of {node.name}")
        simulation.spawn(self._supervisor.drive, node=node, name=f"supervisor of {node.name}")

    def construct(self) -> SandboxedClerk:
        self._supervisor.call("Clerk.__init__")
        return self

    def get(self, key: str) -> Any:
        return self._supervisor.call("Clerk.get", key)

    def put(self, key: str, value: str) -> None:
        self._supervisor.call("Clerk.put", key, value)

    def append(self, key: str, value: str) -> None:
        self._supervisor.call("Clerk.append", key, value)
