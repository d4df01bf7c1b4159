"""Servers of a cluster: starting, crashing, connecting, pausing, their disks and their network.

Promise: a crash ends every task of the peer at once, wherever it is, and a restarted peer gets exactly what its
Persister had saved. Every operation on servers, disks or network is an event of the trace.

Start reading at `Servers.start1()`. The assertions about servers are in config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Literal, NoReturn, get_args
from zlib import crc32

from labrpc import ClientEnd, Network, Server
from labsim import Event, Node, NodeKilled, Simulation
from labsim.choices import ChoiceKind, Constant, UniformInt
from labsim.trace import fingerprint_of
from raftapi import ApplyMsg, Peer, Persister
from raftlab.check.cluster_snapshot import ClusterSnapshot, ReportedState
from raftlab.check.failure import Failure
from raftlab.check.harness_rules import CALLS_RETURN, HarnessRule
from raftlab.harness.launcher import ApplyChannel, LaunchedPeer, PeerContext, PeerDisk, PeerLauncher, RaftHooks
from raftlab.harness.runtime import CallTimeout, RealTimeRuntime, Runtime, VirtualRuntime, current_runtime
from raftlab.harness.service import SNAPSHOT_INTERVAL, ApplyChecker, CommittedCommands, TesterService
from raftlab.trace import events

_CALL_LIMIT_S = 10.0
# The delay of a message each way, on a reliable network too. Without a delay, correct peers would do the impossible
# in one instant (a command would commit between two calls of start()).
USUAL_LATENCY_MS = (1.0, 3.0)


def _fingerprint(number: Any) -> int:
    """A number from a peer, which may be of any type or size, as a number for the digest."""
    return number & 0xFFFFFFFF if isinstance(number, int) else 0


CrashMoment = Literal["before save", "after save", "after reply"]


class ServerSlot:
    """What the harness keeps for one server over all its incarnations."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = str(index)
        self.incarnation = 0
        self.persister = Persister()
        self.connected = False
        self.paused = False
        self.clock_frozen = False
        self.peer: Peer | None = None  # None while it is down
        self.node: Node | None = None
        self.server: Server | None = None
        self.service: ApplyChecker | None = None
        self.end_names: list[str] = []
        self.last_state: ReportedState | None = None
        self.crash_points = 0  # armed so far
        self.crash_point: tuple[CrashMoment, int] | None = None  # where to crash, and at which occurrence


class Servers:
    """The servers of a cluster and the operations on them."""

    def __init__(self, launcher: PeerLauncher, *, servers: int, snapshot: bool, long_delays: bool = True) -> None:
        self.n = servers
        self._launcher = launcher
        self._snapshots = snapshot
        self._runtime: Runtime = current_runtime()
        # For what only virtual time supports.
        self._virtual = self._runtime if isinstance(self._runtime, VirtualRuntime) else None
        # Real threads have delays anyway.
        latency_ms = USUAL_LATENCY_MS if self._virtual is not None else (0.0, 0.0)
        self._network = Network(long_delays=long_delays, latency_ms=latency_ms)
        self._network.renamed = launcher.renamed_rpcs
        self._committed = CommittedCommands()
        self._slots = [ServerSlot(i) for i in range(servers)]
        self._ends_made = 0
        self._save_time = events.SaveTime(0.0, 0.0)
        self._slowest_save_ms = 0.0  # the largest setting so far
        self._snapshot_every = SNAPSHOT_INTERVAL
        self._emit_cluster()

    def _emit_cluster(self) -> None:
        """The first event of the trace."""
        self._emit(events.CLUSTER, None, self.n, self.n)

    def _emit(self, kind: str, node: Node | None, detail: Any, fingerprint: int) -> None:
        """Emit an event if there is a trace."""
        if self._virtual is not None:
            self._virtual.emit(kind, node, detail, fingerprint)

    @property
    def _trace(self) -> Sequence[Event]:
        return () if self._virtual is None else self._virtual.trace

    def _simulation_for(self, what: str) -> Simulation:
        """Raises ValueError on real threads."""
        if self._virtual is None:
            raise ValueError(f"{what}() needs virtual time; it is not supported with --realtime")
        return self._virtual.simulation

    def _raise_if_failed(self) -> None:
        """Raise the failure of another real thread. In virtual time a failure ends the run at once."""
        if isinstance(self._runtime, RealTimeRuntime):
            self._runtime.raise_if_failed()

    def _slot(self, i: int) -> ServerSlot:
        if not 0 <= i < self.n:
            raise ValueError(f"there is no server {i}; servers are 0..{self.n - 1}")
        return self._slots[i]

    # ---- start, crash, connect -------------------------------------------------------------------------------

    def start1(self, i: int) -> None:
        """Start or restart server i from its disk. This does not connect it."""
        slot = self._slot(i)
        if slot.peer is not None:
            self.crash1(i)
        slot.incarnation += 1
        slot.node = self._runtime.node(slot.name)
        ends = self._make_ends(slot)
        # On real threads the old incarnation may still write to the old disk.
        slot.persister = slot.persister.copy()
        disk = PeerDisk(slot.persister, lambda: self._save_time.max_ms > 0, self._make_save_duration(slot))
        slot.persister.before_save = self._make_slow_save(disk)
        slot.persister.on_save = self._make_save_hook(slot)
        slot.crash_point = None
        context = PeerContext(i, slot.node, self._network, ends, disk, self._snapshots, self._raft_hooks(slot))
        launched = self._launcher.launch(context)
        service = slot.service = self._make_apply_checker(slot, launched.channel)
        began = events.RESTART if slot.incarnation > 1 else events.BOOT
        self._emit(began, slot.node, None, slot.incarnation)
        self._emit(events.RESTORE, slot.node, service.last_applied, service.last_applied)
        slot.peer = self._call_peer(slot, "Raft(...)", launched.construct, entry_point="__init__", name="Raft()")
        slot.last_state = None
        self._start_service(slot, launched)
        slot.server = launched.server
        launched.server.on_answer = lambda: self._reach_crash_point(slot, "after reply")
        self._network.add_server(slot.name, launched.server)

    def _make_apply_checker(self, slot: ServerSlot, channel: ApplyChannel) -> ApplyChecker:
        """The reader of apply_ch, restored from the disk before the peer exists."""
        service = TesterService(
            slot.index,
            channel,
            self._committed,
            self.fail,
            self._make_apply_hook(slot.node),
            slot.persister.read_snapshot,
            lambda: self._slowest_save_ms / 1000,
            self._make_stopwatch(slot.node),
            snapshots=self._snapshots,
        )
        service.restore(slot.persister.read_snapshot())
        service.snapshot_every = self._snapshot_every
        return service

    def _start_service(self, slot: ServerSlot, launched: LaunchedPeer) -> None:
        """Called when the peer is constructed, before it gets requests."""
        service, peer = slot.service, slot.peer
        assert isinstance(service, TesterService) and peer is not None
        if self._snapshots:
            service.take_snapshot = peer.snapshot
        self._runtime.spawn(slot.node, service.run, name=f"service {slot.index}")

    def _raft_hooks(self, slot: ServerSlot) -> RaftHooks | None:
        """Hooks for the calls of a student's service to its peer; None for the tester's service."""
        return None

    def _make_ends(self, slot: ServerSlot) -> list[ClientEnd]:
        """New ends for each incarnation, so that no reply to an old incarnation reaches the new one."""
        for name in slot.end_names:
            self._network.delete_end(name)
        ends = []
        for target in self._slots:
            self._ends_made += 1
            end = self._network.make_end(f"{slot.name}-{target.name} #{self._ends_made}", slot.name)
            self._network.connect(end.name, target.name)
            ends.append(end)
        slot.end_names = [end.name for end in ends]
        return ends

    def _make_apply_hook(self, node: Node | None) -> Callable[[ApplyMsg], None]:
        def applied(message: ApplyMsg) -> None:
            # The trace keeps a copy: a peer may reuse one ApplyMsg.
            if message.snapshot_valid:
                recorded = copy(message)
            else:
                recorded = ApplyMsg(message.command_valid, message.command, message.command_index)
            index = message.command_index or message.snapshot_index
            self._emit(events.APPLY, node, recorded, _fingerprint(index))

        return applied

    def crash1(self, i: int) -> None:
        """Crash server i. What its Persister has saved remains."""
        slot = self._slot(i)
        self.disconnect(i)
        self._network.delete_server(slot.name)
        if slot.peer is not None:
            self._emit(events.CRASH, slot.node, None, 0)
            slot.persister = slot.persister.copy()
            peer, service, slot.peer, slot.service = slot.peer, slot.service, None, None
            slot.paused = slot.clock_frozen = False
            assert service is not None and slot.node is not None and slot.server is not None
            if self._virtual is not None:
                self._virtual.simulation.kill(slot.node)
            else:
                # A thread cannot be ended from outside: as in MIT's lab, kill() asks them to stop.
                slot.server.killed = True
                peer.kill()
                service.stop()

    def restart(self, *indexes: int) -> None:
        """Start these servers again, each from its own disk, and connect them."""
        for i in indexes:
            self.start1(i)
            self.connect(i)

    def connect(self, *indexes: int) -> None:
        """Connect servers to all other connected servers."""
        for i in indexes:
            self._slot(i).connected = True
            self._emit(events.CONNECT, self._slots[i].node, None, 0)
            self._update_links(i)

    def disconnect(self, *indexes: int) -> None:
        """Disconnect servers from all others. They continue to run."""
        for i in indexes:
            self._slot(i).connected = False
            self._emit(events.DISCONNECT, self._slots[i].node, None, 0)
            self._update_links(i)

    def _update_links(self, i: int) -> None:
        slot = self._slots[i]
        for other in self._slots:
            enabled = slot.connected and other.connected
            if slot.end_names:
                self._network.enable(slot.end_names[other.index], enabled)
            if other.end_names:
                self._network.enable(other.end_names[i], enabled)

    def connected(self, i: int) -> bool:
        return self._slot(i).connected

    def is_up(self, i: int) -> bool:
        return self._slot(i).peer is not None

    def is_armed(self, i: int) -> bool:
        """Whether it will crash in the middle of what it does (crash_at)."""
        return self._slot(i).crash_point is not None

    def is_paused(self, i: int) -> bool:
        return self._slot(i).paused

    def reachable(self, i: int) -> bool:
        """Whether server i is up, connected and not paused."""
        slot = self._slot(i)
        return slot.peer is not None and slot.connected and not slot.paused

    def others(self, *excluded: int) -> list[int]:
        """All servers except these, in cyclic order, beginning after the first of them."""
        first = excluded[0] if excluded else -1
        return [i for k in range(self.n) if (i := (first + 1 + k) % self.n) not in excluded]

    # ---- pausing, and freezing clocks --------------------------------------------------------------------------

    def pause(self, i: int) -> None:
        """Stop server i as SIGSTOP stops a process: no thread runs, messages to it wait, and its clock goes on.

        The server does not notice. The tester cannot reach it until resume().
        """
        simulation, slot, node = self._controllable_slot("pause", i)
        if slot.paused:
            raise ValueError(f"pause(): server {i} is already paused")
        slot.paused = True
        self._emit(events.PAUSE, node, None, 0)
        simulation.pause(node)

    def resume(self, *indexes: int) -> None:
        """Let paused servers continue: overdue timers fire, and waiting messages arrive."""
        for i in indexes:
            simulation, slot, node = self._controllable_slot("resume", i)
            if not slot.paused:
                raise ValueError(f"resume(): server {i} is not paused")
            slot.paused = False
            self._emit(events.RESUME, node, None, 0)
            simulation.resume(node)

    def freeze_clock(self, i: int) -> None:
        """Stop the clock of server i and its timers: its threads run and answer, but its time does not pass."""
        simulation, slot, node = self._controllable_slot("freeze_clock", i)
        if slot.clock_frozen:
            raise ValueError(f"freeze_clock(): the clock of server {i} is already frozen")
        slot.clock_frozen = True
        self._emit(events.FREEZE_CLOCK, node, None, 0)
        simulation.freeze_clock(node)

    def unfreeze_clock(self, i: int) -> None:
        """Let the time of server i go on from where it was frozen."""
        simulation, slot, node = self._controllable_slot("unfreeze_clock", i)
        if not slot.clock_frozen:
            raise ValueError(f"unfreeze_clock(): the clock of server {i} is not frozen")
        slot.clock_frozen = False
        self._emit(events.UNFREEZE_CLOCK, node, None, 0)
        simulation.unfreeze_clock(node)

    def _controllable_slot(self, what: str, i: int) -> tuple[Simulation, ServerSlot, Node]:
        simulation = self._simulation_for(what)
        slot = self._slot(i)
        if slot.peer is None or slot.node is None:
            raise ValueError(f"{what}(): server {i} is down")
        return simulation, slot, slot.node

    def _make_stopwatch(self, node: Node | None) -> Callable[[], Callable[[], float]]:
        """Calling the result starts a stopwatch; calling that gives the seconds that the node could run since."""

        def begin() -> Callable[[], float]:
            began_s = self._runtime.now
            return lambda: self._runtime.usable_s(node, began_s)

        return begin

    # ---- disks, and crashes at saves and replies ---------------------------------------------------------------

    def _make_slow_save(self, disk: PeerDisk) -> Callable[[int], None]:
        def saving(number: int) -> None:
            """Runs in the peer's task, at the beginning of a save."""
            if disk.is_slow():
                self._runtime.wait_for_disk(disk.begin_save(number))

        return saving

    def _make_save_duration(self, slot: ServerSlot) -> Callable[[int], int]:
        """A function that begins a save on a slow disk, and returns how long it takes."""
        node, point = slot.node, (ChoiceKind.SAVE, self._network.key_name(slot.name), str(slot.incarnation))

        def begin(number: int) -> int:
            self._emit(events.SAVING, node, number, _fingerprint(number))
            save_time = self._save_time
            distribution = UniformInt(int(save_time.min_ms * 1e6), int(save_time.max_ms * 1e6))
            return self._runtime.choose(point, number, distribution)

        return begin

    def _make_save_hook(self, slot: ServerSlot) -> Callable[[int, bytes, bytes], None]:
        node = slot.node

        def saved(number: int, raft_state: bytes, snapshot: bytes) -> None:
            """Runs in the peer's task just before the save takes effect. If it does not return, nothing is saved."""
            if slot.crash_point is not None:
                self._reach_crash_point(slot, "before save")
            self._emit(events.PERSIST, node, events.PersistedState(raft_state, snapshot, number), crc32(raft_state))
            if slot.crash_point is not None and slot.crash_point[0] == "after save":
                disk = Persister()
                disk.save(raft_state, snapshot)
                self._reach_crash_point(slot, "after save", disk)

        return saved

    def _reach_crash_point(self, slot: ServerSlot, when: CrashMoment, disk: Persister | None = None) -> None:
        if slot.crash_point is None or slot.crash_point[0] != when or slot.peer is None:
            return
        if slot.crash_point[1] > 1:
            slot.crash_point = (when, slot.crash_point[1] - 1)
            return
        if disk is not None:
            slot.persister = disk
        self.crash1(slot.index)  # in the peer's task: this does not return

    def crash_at(self, i: int, when: CrashMoment | None, *, nth: int = 1) -> None:
        """Crash server i at its nth save or reply from now on. None: do not crash it after all.

        "before save": the save does not reach the disk. "after save": it does, and nothing else has happened since.
        "after reply": a reply has just been sent.
        """
        self._simulation_for("crash_at")
        if when is not None and when not in get_args(CrashMoment):
            raise ValueError(f"crash_at(): when must be one of {', '.join(get_args(CrashMoment))}, got {when!r}")
        slot = self._slot(i)
        crash_point = None
        if when is not None:
            slot.crash_points += 1
            point = (ChoiceKind.CRASH, self._network.key_name(slot.name), when)
            crash_point = (when, self._runtime.choose(point, slot.crash_points, Constant(nth)))
        if crash_point != slot.crash_point:
            slot.crash_point = crash_point
            detail = events.CrashPoint(when, nth if crash_point is None else crash_point[1])
            self._emit(events.CRASH_AT, slot.node, detail, fingerprint_of(when or "", detail.nth))

    def no_delays(self) -> None:
        """Preempt threads without delaying them from now on (--race): this test measures speed (docs/student/races.md).

        A real machine's delays are not bounded.
        """
        if self._virtual is not None:
            self._virtual.simulation.no_delays = True

    def slow_disks(self, min_ms: float, max_ms: float) -> None:
        """Make every save take a random time in this range from now on; other threads run meanwhile."""
        if not 0 <= min_ms <= max_ms:
            raise ValueError(f"slow_disks(): need 0 <= min_ms <= max_ms, got {min_ms:g} and {max_ms:g}")
        save_time = events.SaveTime(min_ms, max_ms)
        if save_time != self._save_time:
            self._save_time = save_time
            self._slowest_save_ms = max(self._slowest_save_ms, max_ms)
            self._emit(events.SLOW_DISKS, None, save_time, fingerprint_of(min_ms, max_ms))

    def slow_snapshots(self, i: int, ms: float) -> None:
        """Make the service of server i, until it restarts, take that long for a snapshot; its peer goes on."""
        slot = self._slot(i)
        if slot.service is None:
            raise ValueError(f"slow_snapshots(): server {i} is down")
        if not isinstance(slot.service, TesterService):
            raise ValueError("slow_snapshots(): works for the tester's services only (part 2D)")
        if ms != slot.service.snapshot_ms:
            slot.service.snapshot_ms = ms
            self._emit(events.SLOW_SNAPSHOTS, slot.node, ms, fingerprint_of(ms))

    def busy_service(self, i: int, busy: bool = True) -> None:
        """Make the service of server i, until it restarts, handle no message from its peer; the peer goes on."""
        self._simulation_for("busy_service")
        slot = self._slot(i)
        if slot.service is None:
            raise ValueError(f"busy_service(): server {i} is down")
        if not isinstance(slot.service, TesterService):
            raise ValueError("busy_service(): works for the tester's services only (part 2)")
        if busy != slot.service.busy:
            self._emit(events.BUSY, slot.node, busy, int(busy))
            slot.service.set_busy(busy)

    def snapshot_only_when_asked(self) -> None:
        """From now on services make snapshots only when take_snapshot() is called."""
        self.snapshot_every(0)

    def snapshot_every(self, commands: int) -> None:
        """Make each service take a snapshot after so many commands from now on; 0: only in take_snapshot()."""
        self._snapshot_every = commands
        for slot in self._slots:
            if isinstance(slot.service, TesterService):
                slot.service.snapshot_every = commands

    def take_snapshot(self, i: int, index: int) -> None:
        """Make the service of server i take a snapshot of its state at this index."""
        slot = self._slot(i)
        if not self._snapshots:
            raise ValueError("take_snapshot(): this cluster has no snapshots; use make_config(snapshot=True)")
        if not isinstance(slot.service, TesterService):
            raise ValueError(f"take_snapshot(): server {i} is down")
        if not 1 <= index <= slot.service.last_applied:
            raise ValueError(
                f"take_snapshot(): server {i} has applied up to {slot.service.last_applied}, so it has no state at "
                f"index {index}"
            )
        with suppress(NodeKilled):  # an armed crash happened in it
            self._call_peer(slot, "snapshot()", slot.service.snapshot, index, entry_point="snapshot")

    def saved_snapshot_index(self, i: int) -> int:
        """The last index of the snapshot on the disk of server i; 0 without one, or while it is down."""
        service = self._slot(i).service
        return service.saved_index() if isinstance(service, TesterService) else 0

    def applied(self, i: int) -> dict[int, Any]:
        """The commands that the service of server i has received, by index; empty while the server is down."""
        service = self._slot(i).service
        return {} if service is None else service.commands

    def peer(self, i: int) -> Peer | None:
        """The Raft object of server i, for inspection; None while the server is down."""
        return self._slot(i).peer

    # ---- the network -------------------------------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The network. Its servers are named "0", "1", ..."""
        return self._network

    def partition(self, *groups: Iterable[int]) -> None:
        """Cut every link between servers of different groups, and only those. No groups: no cuts."""
        self._network.partition(*([self._slot(i).name for i in group] for group in groups))

    def link(
        self,
        source: int,
        target: int,
        *,
        latency_ms: tuple[float, float] | None = None,
        loss: float | None = None,
        cut: bool | None = None,
    ) -> None:
        """Change one direction between two servers: requests and replies that `source` sends to `target`.

        This latency is added to the network's latency.
        """
        names = self._slot(source).name, self._slot(target).name
        self._network.link(*names, latency_ms=latency_ms, loss=loss, cut=cut)

    def latency(self, min_ms: float = USUAL_LATENCY_MS[0], max_ms: float = USUAL_LATENCY_MS[1]) -> None:
        """Set the latency of messages each way; without arguments, the default."""
        self._network.latency(min_ms, max_ms)

    def duplicates(self, probability: float) -> None:
        """Deliver this fraction of the requests a second time, up to 200 ms later."""
        self._network.duplicates(probability)

    def set_unreliable(self, unreliable: bool) -> None:
        self._network.reliable(not unreliable)

    def set_long_reordering(self, long_reordering: bool) -> None:
        self._network.long_reordering(long_reordering)

    def rpc_count(self, i: int) -> int:
        """Requests that reached server i since it was started."""
        return self._network.get_count(self._slot(i).name)

    def rpc_total(self) -> int:
        return self._network.get_total_count()

    def bytes_total(self) -> int:
        return self._network.get_total_bytes()

    def log_size(self) -> int:
        """The size of the largest saved Raft state of all servers, in bytes."""
        return max(slot.persister.raft_state_size() for slot in self._slots)

    # ---- calling a peer, and failing -----------------------------------------------------------------------------

    def _call_peer(
        self, slot: ServerSlot, what: str, fn: Callable[..., Any], *args: Any, entry_point: str, name: str = ""
    ) -> Any:
        """Call the peer. `what`: the call in a report; `entry_point`: the method that is called."""
        self._raise_if_failed()
        try:
            return self._runtime.call(slot.node, fn, *args, entry_point=entry_point, name=name, limit_s=_CALL_LIMIT_S)
        except CallTimeout:
            self.fail(
                f"{what} of peer {slot.index} has not returned for {_CALL_LIMIT_S:g} s{self._runtime.clock}",
                CALLS_RETURN,
            )

    def fail(
        self,
        text: str,
        rule: HarnessRule | None = None,
        *,
        awaited: int | None = None,
        costs: bool = False,
        evidence: Sequence[str] = (),
        variety: str = "",
        snapshot: ClusterSnapshot | None = None,
    ) -> NoReturn:
        """Fail the test. The report also lists the state of the peers.

        For the diagnosis: `awaited` is the index that the test waited for; `costs`: too many bytes or requests were
        sent. `variety`: how the rule was violated, if there are several ways. `snapshot`: if the caller has taken one.
        """
        failure = Failure(
            text,
            [*self._runtime.test_step(), *evidence, *self._evidence()],
            rule=None if rule is None else rule.name,
            variety=variety,
            awaited=awaited,
            costs=costs,
            snapshot=snapshot or self._snapshot(),
        )
        self._runtime.fail(failure)

    def _snapshot(self) -> ClusterSnapshot:
        states = {slot.name: slot.last_state for slot in self._slots if slot.peer and slot.last_state}
        return self._runtime.snapshot(states)

    def _evidence(self) -> list[str]:
        lines = [f"Peers at {self._runtime.now:.3f} s:"]
        for slot in self._slots:
            if slot.peer is None:
                lines.append(f"  {slot.name}  down")
                continue
            state = "state not requested yet"
            if slot.last_state is not None:
                leads = "leader" if slot.last_state.is_leader else "not leader"
                state = f"term {slot.last_state.term}, {leads} when last asked"
            link = "connected" if slot.connected else "disconnected"
            if slot.paused:
                link += ", paused"
            if slot.clock_frozen:
                link += ", clock frozen"
            restarts = f", incarnation {slot.incarnation}" if slot.incarnation > 1 else ""
            applied = slot.service.last_applied if slot.service is not None else 0
            lines.append(f"  {slot.name}  {link}, {state}, applied up to {applied}{restarts}")
        return lines
