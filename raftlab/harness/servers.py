"""The life of servers: they start, crash, are plugged in and out, have disks, and sit on a network.

Promise: a crash is real (every task of the peer ends, in the middle of whatever it was doing) and a restarted peer gets
exactly what its Persister had saved. Whatever is done to servers, disks or network is an event of the trace.

Start reading at `Servers.start1()`. What must be true of the servers is asked in config.py.
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
# How long a message takes each way, even when the network is reliable: in no time at all, right peers do impossible
# things in one instant (a command commits, alone, between two calls of start()).
USUAL_LATENCY_MS = (1.0, 3.0)


def _fingerprint(number: Any) -> int:
    """A peer's own number, whatever it is, as the digest can hold it."""
    return number & 0xFFFFFFFF if isinstance(number, int) else 0


CrashMoment = Literal["before save", "after save", "after reply"]


class ServerSlot:
    """One server's place: what stays while incarnations come and go."""

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
        self.crash_points = 0  # that were armed so far
        self.crash_point: tuple[CrashMoment, int] | None = None  # where to crash, and at which time of coming there


class Servers:
    """A cluster's servers, and all that can be done to them."""

    def __init__(self, launcher: PeerLauncher, *, servers: int, snapshot: bool, long_delays: bool = True) -> None:
        self.n = servers
        self._launcher = launcher
        self._snapshots = snapshot
        self._runtime: Runtime = current_runtime()
        # What only virtual time can do is asked of this.
        self._virtual = self._runtime if isinstance(self._runtime, VirtualRuntime) else None
        # Real threads take their own time.
        latency_ms = USUAL_LATENCY_MS if self._virtual is not None else (0.0, 0.0)
        self._network = Network(long_delays=long_delays, latency_ms=latency_ms)
        self._network.renamed = launcher.renamed_rpcs
        self._committed = CommittedCommands()
        self._slots = [ServerSlot(i) for i in range(servers)]
        self._ends_made = 0
        self._save_time = events.SaveTime(0.0, 0.0)
        self._slowest_save_ms = 0.0  # at any time so far
        self._snapshot_every = SNAPSHOT_INTERVAL
        self._emit_cluster()

    def _emit_cluster(self) -> None:
        """What the trace begins with."""
        self._emit(events.CLUSTER, None, self.n, self.n)

    def _emit(self, kind: str, node: Node | None, detail: Any, fingerprint: int) -> None:
        """An event of the trace, where there is one."""
        if self._virtual is not None:
            self._virtual.emit(kind, node, detail, fingerprint)

    @property
    def _trace(self) -> Sequence[Event]:
        return () if self._virtual is None else self._virtual.trace

    def _simulation_for(self, what: str, can: str) -> Simulation:
        """What only virtual time can do is refused on real threads."""
        if self._virtual is None:
            raise ValueError(f"{what}(): only in virtual time can {can}")
        return self._virtual.simulation

    def _raise_if_failed(self) -> None:
        """In virtual time whatever fails ends the run at once."""
        if isinstance(self._runtime, RealTimeRuntime):
            self._runtime.raise_if_failed()

    def _slot(self, i: int) -> ServerSlot:
        if not 0 <= i < self.n:
            raise ValueError(f"there is no server {i}; servers are 0..{self.n - 1}")
        return self._slots[i]

    # ---- start, crash, connect -------------------------------------------------------------------------------

    def start1(self, i: int) -> None:
        """Start server i, or start it again after a crash, with what its disk holds. It is not connected by this."""
        slot = self._slot(i)
        if slot.peer is not None:
            self.crash1(i)
        slot.incarnation += 1
        slot.node = self._runtime.node(slot.name)
        ends = self._make_ends(slot)
        # The old incarnation's hand, on real threads, is still on the old disk.
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
        """What reads apply_ch, with what the disk holds, before there is a peer."""
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
        """The peer is there, and reachable once this returns."""
        service, peer = slot.service, slot.peer
        assert isinstance(service, TesterService) and peer is not None
        if self._snapshots:
            service.take_snapshot = peer.snapshot
        self._runtime.spawn(slot.node, service.run, name=f"service {slot.index}")

    def _raft_hooks(self, slot: ServerSlot) -> RaftHooks | None:
        """Who hears what a service of the student's asks of its peer; None: the service is the tester's."""
        return None

    def _make_ends(self, slot: ServerSlot) -> list[ClientEnd]:
        """Fresh ends for each incarnation, so that nothing sent by an old one can come back to the new."""
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
            # The trace keeps a copy: a peer may use one ApplyMsg again and again.
            if message.snapshot_valid:
                recorded = copy(message)
            else:
                recorded = ApplyMsg(message.command_valid, message.command, message.command_index)
            index = message.command_index or message.snapshot_index
            self._emit(events.APPLY, node, recorded, _fingerprint(index))

        return applied

    def crash1(self, i: int) -> None:
        """Cut the power of server i. What its Persister has saved remains."""
        slot = self._slot(i)
        self.disconnect(i)
        self._network.delete_server(slot.name)
        if slot.peer is not None:
            self._emit(events.CRASH, slot.node, None, 0)
            slot.persister = slot.persister.copy()
            peer, service, slot.peer, slot.service = slot.peer, slot.service, None, None
            slot.paused = slot.clock_frozen = False
            assert service is not None and slot.node is not None
            if self._virtual is not None:
                self._virtual.simulation.kill(slot.node)
            else:
                # Nothing can end a thread from outside: as in the MIT lab, all are told to stop.
                peer.kill()
                service.stop()

    def restart(self, *indexes: int) -> None:
        """Start these servers again, each from its own disk, and connect them."""
        for i in indexes:
            self.start1(i)
            self.connect(i)

    def connect(self, *indexes: int) -> None:
        """Plug servers in, towards all that are plugged in."""
        for i in indexes:
            self._slot(i).connected = True
            self._emit(events.CONNECT, self._slots[i].node, None, 0)
            self._update_links(i)

    def disconnect(self, *indexes: int) -> None:
        """Pull the plug of servers: they run on, alone."""
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
        """Whether the tester can ask it, and the others too: up, connected and not paused."""
        slot = self._slot(i)
        return slot.peer is not None and slot.connected and not slot.paused

    def others(self, *excluded: int) -> list[int]:
        """All servers but these, beginning after the first of them, round the table."""
        first = excluded[0] if excluded else -1
        return [i for k in range(self.n) if (i := (first + 1 + k) % self.n) not in excluded]

    # ---- stopped, and clocks held ------------------------------------------------------------------------------

    def pause(self, i: int) -> None:
        """Stop server i like a process with SIGSTOP: nothing of it runs, what arrives waits, and its clock goes on.

        It does not know. To the tester it is unreachable until resume().
        """
        simulation, slot, node = self._controllable_slot("pause", i)
        if slot.paused:
            raise ValueError(f"pause(): server {i} is paused already")
        slot.paused = True
        self._emit(events.PAUSE, node, None, 0)
        simulation.pause(node)

    def resume(self, *indexes: int) -> None:
        """Let paused servers continue: all timers that are overdue fire, and what has arrived arrives now."""
        for i in indexes:
            simulation, slot, node = self._controllable_slot("resume", i)
            if not slot.paused:
                raise ValueError(f"resume(): server {i} is not paused")
            slot.paused = False
            self._emit(events.RESUME, node, None, 0)
            simulation.resume(node)

    def freeze_clock(self, i: int) -> None:
        """Let no time pass for server i: it runs and answers, but its clock stands still, and its timers with it."""
        simulation, slot, node = self._controllable_slot("freeze_clock", i)
        if slot.clock_frozen:
            raise ValueError(f"freeze_clock(): the clock of server {i} is frozen already")
        slot.clock_frozen = True
        self._emit(events.FREEZE_CLOCK, node, None, 0)
        simulation.freeze_clock(node)

    def unfreeze_clock(self, i: int) -> None:
        """Let its time go on, from where it was held."""
        simulation, slot, node = self._controllable_slot("unfreeze_clock", i)
        if not slot.clock_frozen:
            raise ValueError(f"unfreeze_clock(): the clock of server {i} is not frozen")
        slot.clock_frozen = False
        self._emit(events.UNFREEZE_CLOCK, node, None, 0)
        simulation.unfreeze_clock(node)

    def _controllable_slot(self, what: str, i: int) -> tuple[Simulation, ServerSlot, Node]:
        simulation = self._simulation_for(what, "a server be stopped, or its clock held")
        slot = self._slot(i)
        if slot.peer is None or slot.node is None:
            raise ValueError(f"{what}(): server {i} is down")
        return simulation, slot, slot.node

    def _make_stopwatch(self, node: Node | None) -> Callable[[], Callable[[], float]]:
        """Each begins when it is made, and tells the seconds since then that the node could use."""

        def begin() -> Callable[[], float]:
            began_s = self._runtime.now
            return lambda: self._runtime.usable_s(node, began_s)

        return begin

    # ---- disks, and crashes in the middle of things ------------------------------------------------------------

    def _make_slow_save(self, disk: PeerDisk) -> Callable[[int], None]:
        def saving(number: int) -> None:
            """Runs in the peer's own task, at the beginning of a save."""
            if disk.is_slow():
                self._runtime.wait_for_disk(disk.begin_save(number))

        return saving

    def _make_save_duration(self, slot: ServerSlot) -> Callable[[int], int]:
        """On slow disks a save begins: how long it takes."""
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
            """Runs in the peer's own task, just before the save takes effect: if it does not return, there was none."""
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
        self.crash1(slot.index)  # in the peer's own task: this does not return

    def crash_at(self, i: int, when: CrashMoment | None, *, nth: int = 1) -> None:
        """Have server i crash in the middle of what it does: at its nth save or reply from now on; None: no more.

        "before save": what it is about to save is not on the disk. "after save": it is, and nothing after it has
        happened. "after reply": a reply has just left.
        """
        self._simulation_for("crash_at", "a peer be stopped between two of its lines")
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
        """This test asks for speed: with --race, no thread gets its turn back late from now on (docs/student/race.md).

        How late a real machine is, nobody can say.
        """
        if self._virtual is not None:
            self._virtual.simulation.no_delays = True

    def slow_disks(self, min_ms: float, max_ms: float) -> None:
        """Have every save take that long from now on, each as long as it is drawn; other threads run meanwhile."""
        if not 0 <= min_ms <= max_ms:
            raise ValueError(f"slow_disks(): need 0 <= min_ms <= max_ms, got {min_ms:g} and {max_ms:g}")
        save_time = events.SaveTime(min_ms, max_ms)
        if save_time != self._save_time:
            self._save_time = save_time
            self._slowest_save_ms = max(self._slowest_save_ms, max_ms)
            self._emit(events.SLOW_DISKS, None, save_time, fingerprint_of(min_ms, max_ms))

    def slow_snapshots(self, i: int, ms: float) -> None:
        """Have the service of server i, until it restarts, take that long to make a snapshot; its peer goes on."""
        slot = self._slot(i)
        if slot.service is None:
            raise ValueError(f"slow_snapshots(): server {i} is down")
        if not isinstance(slot.service, TesterService):
            raise ValueError("slow_snapshots(): only of the tester's own services, not of yours")
        if ms != slot.service.snapshot_ms:
            slot.service.snapshot_ms = ms
            self._emit(events.SLOW_SNAPSHOTS, slot.node, ms, fingerprint_of(ms))

    def busy_service(self, i: int, busy: bool = True) -> None:
        """Have the service of server i, until it restarts, handle nothing that its peer hands up; its peer goes on."""
        self._simulation_for("busy_service", "a service be kept from its work")
        slot = self._slot(i)
        if slot.service is None:
            raise ValueError(f"busy_service(): server {i} is down")
        if not isinstance(slot.service, TesterService):
            raise ValueError("busy_service(): only of the tester's own services, not of yours")
        if busy != slot.service.busy:
            self._emit(events.BUSY, slot.node, busy, int(busy))
            slot.service.set_busy(busy)

    def snapshot_only_when_asked(self) -> None:
        """No service makes snapshots by itself from now on, only by take_snapshot()."""
        self.snapshot_every(0)

    def snapshot_every(self, commands: int) -> None:
        """Have each service make a snapshot after so many commands from now on; 0: only by take_snapshot()."""
        self._snapshot_every = commands
        for slot in self._slots:
            if isinstance(slot.service, TesterService):
                slot.service.snapshot_every = commands

    def take_snapshot(self, i: int, index: int) -> None:
        """Have the service of server i make a snapshot of all that it has applied up to that index."""
        slot = self._slot(i)
        if not self._snapshots:
            raise ValueError("take_snapshot(): this cluster was made without snapshots")
        if not isinstance(slot.service, TesterService):
            raise ValueError(f"take_snapshot(): server {i} is down")
        if not 1 <= index <= slot.service.last_applied:
            raise ValueError(
                f"take_snapshot(): server {i} has applied up to {slot.service.last_applied}, so it has no state at "
                f"index {index}"
            )
        with suppress(NodeKilled):  # by an armed crash, in the middle of it
            self._call_peer(slot, "snapshot()", slot.service.snapshot, index, entry_point="snapshot")

    def saved_snapshot_index(self, i: int) -> int:
        """The last index of the snapshot on the disk of server i; 0 without one, or while it is down."""
        service = self._slot(i).service
        return service.saved_index() if isinstance(service, TesterService) else 0

    def applied(self, i: int) -> dict[int, Any]:
        """What the service of server i was handed, by index; nothing while it is down."""
        service = self._slot(i).service
        return {} if service is None else service.commands

    def peer(self, i: int) -> Peer | None:
        """The peer itself, to look at; None while it is down."""
        return self._slot(i).peer

    # ---- the network -------------------------------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The network itself. Servers are named "0", "1", ... there."""
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
        """Change one direction between two servers: what `source` sends to `target`, requests and replies.

        The latency comes on top of the network's own.
        """
        names = self._slot(source).name, self._slot(target).name
        self._network.link(*names, latency_ms=latency_ms, loss=loss, cut=cut)

    def latency(self, min_ms: float = USUAL_LATENCY_MS[0], max_ms: float = USUAL_LATENCY_MS[1]) -> None:
        """Have messages take that long each way from now on; without arguments, as long as usual."""
        self._network.latency(min_ms, max_ms)

    def duplicates(self, probability: float) -> None:
        """Have that part of the requests arrive a second time, up to 200 ms later."""
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
        """The largest saved Raft state of all servers, in bytes."""
        return max(slot.persister.raft_state_size() for slot in self._slots)

    # ---- asking a peer, and giving up ----------------------------------------------------------------------------

    def _call_peer(
        self, slot: ServerSlot, what: str, fn: Callable[..., Any], *args: Any, entry_point: str, name: str = ""
    ) -> Any:
        """Call the peer. `what` is how a report names the call, `entry_point` the method that is called."""
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
        """End the test: what was expected and what was seen, then what the peers were doing.

        For the likely cause: `awaited` is the index that was to be applied, if that is what the test waited for in
        vain; `costs`, that too many bytes or requests were sent. `variety`: in which way the rule was broken, if there
        are several. `snapshot`: if the caller has taken one already.
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
            state = "not asked yet"
            if slot.last_state is not None:
                leads = "leader" if slot.last_state.is_leader else "not leader"
                state = f"term {slot.last_state.term}, {leads} when last asked"
            link = "connected" if slot.connected else "cut off"
            if slot.paused:
                link += ", paused"
            if slot.clock_frozen:
                link += ", its clock held"
            restarts = f", incarnation {slot.incarnation}" if slot.incarnation > 1 else ""
            applied = slot.service.last_applied if slot.service is not None else 0
            lines.append(f"  {slot.name}  {link}, {state}, applied up to {applied}{restarts}")
        return lines
