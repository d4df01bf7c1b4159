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
from raftlab.check.cluster_snapshot import ClusterSnapshot, State
from raftlab.check.failure import Failure
from raftlab.check.harness_rules import CALLS_RETURN, KeptRule
from raftlab.harness.launcher import ApplyChannel, Disk, LaunchedPeer, PeerContext, PeerLauncher, RaftCalls
from raftlab.harness.runtime import RealTimeRuntime, Runtime, Stuck, VirtualRuntime, current_runtime
from raftlab.harness.service import SNAPSHOT_INTERVAL, Committed, Listener, Service
from raftlab.trace import events

_CALL_LIMIT_S = 10.0
# How long a message takes each way, even when the network is reliable: in no time at all, right peers do impossible
# things in one instant (a command commits, alone, between two calls of start()).
USUAL_LATENCY_MS = (1.0, 3.0)


def _fingerprint(number: Any) -> int:
    """A peer's own number, whatever it is, as the digest can hold it."""
    return number & 0xFFFFFFFF if isinstance(number, int) else 0


CrashMoment = Literal["before save", "after save", "after reply"]


class Seat:
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
        self.service: Listener | None = None
        self.end_names: list[str] = []
        self.last_state: State | None = None
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
        self._committed = Committed()
        self._seats = [Seat(i) for i in range(servers)]
        self._ends_made = 0
        self._save_time = events.SaveTime(0.0, 0.0)
        self._slowest_save_ms = 0.0  # at any time so far
        self._snapshot_every = SNAPSHOT_INTERVAL
        self._announce()

    def _announce(self) -> None:
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

    def _seat(self, i: int) -> Seat:
        if not 0 <= i < self.n:
            raise ValueError(f"there is no server {i}; servers are 0..{self.n - 1}")
        return self._seats[i]

    # ---- start, crash, connect -------------------------------------------------------------------------------

    def start1(self, i: int) -> None:
        """Start server i, or start it again after a crash, with what its disk holds. It is not connected by this."""
        seat = self._seat(i)
        if seat.peer is not None:
            self.crash1(i)
        seat.incarnation += 1
        seat.node = self._runtime.node(seat.name)
        ends = self._make_ends(seat)
        # The old incarnation's hand, on real threads, is still on the old disk.
        seat.persister = seat.persister.copy()
        disk = Disk(seat.persister, lambda: self._save_time.max_ms > 0, self._save_duration(seat))
        seat.persister.before_save = self._slow_disk(disk)
        seat.persister.on_save = self._save_watcher(seat)
        seat.crash_point = None
        context = PeerContext(i, seat.node, self._network, ends, disk, self._snapshots, self._raft_calls(seat))
        launched = self._launcher.launch(context)
        service = seat.service = self._listener(seat, launched.channel)
        began = events.RESTART if seat.incarnation > 1 else events.BOOT
        self._emit(began, seat.node, None, seat.incarnation)
        self._emit(events.RESTORE, seat.node, service.last_applied, service.last_applied)
        seat.peer = self._ask(seat, "Raft(...)", launched.construct, entry_point="__init__", name="Raft()")
        seat.last_state = None
        self._begin_service(seat, launched)
        seat.server = launched.server
        launched.server.on_answer = lambda: self._pass_crash_point(seat, "after reply")
        self._network.add_server(seat.name, launched.server)

    def _listener(self, seat: Seat, channel: ApplyChannel) -> Listener:
        """What reads apply_ch, with what the disk holds, before there is a peer."""
        service = Service(
            seat.index,
            channel,
            self._committed,
            self.fail,
            self._apply_watcher(seat.node),
            seat.persister.read_snapshot,
            lambda: self._slowest_save_ms / 1000,
            self._stopwatch(seat.node),
            snapshots=self._snapshots,
        )
        service.restore(seat.persister.read_snapshot())
        service.snapshot_every = self._snapshot_every
        return service

    def _begin_service(self, seat: Seat, launched: LaunchedPeer) -> None:
        """The peer is there, and reachable once this returns."""
        service, peer = seat.service, seat.peer
        assert isinstance(service, Service) and peer is not None
        if self._snapshots:
            service.take_snapshot = peer.snapshot
        self._runtime.spawn(seat.node, service.run, name=f"service {seat.index}")

    def _raft_calls(self, seat: Seat) -> RaftCalls | None:
        """Who hears what a service of the student's asks of its peer; None: the service is the tester's."""
        return None

    def _make_ends(self, seat: Seat) -> list[ClientEnd]:
        """Fresh ends for each incarnation, so that nothing sent by an old one can come back to the new."""
        for name in seat.end_names:
            self._network.delete_end(name)
        ends = []
        for target in self._seats:
            self._ends_made += 1
            end = self._network.make_end(f"{seat.name}-{target.name} #{self._ends_made}", seat.name)
            self._network.connect(end.name, target.name)
            ends.append(end)
        seat.end_names = [end.name for end in ends]
        return ends

    def _apply_watcher(self, node: Node | None) -> Callable[[ApplyMsg], None]:
        def applied(message: ApplyMsg) -> None:
            # The trace keeps a copy: a peer may use one ApplyMsg again and again.
            if message.snapshot_valid:
                kept = copy(message)
            else:
                kept = ApplyMsg(message.command_valid, message.command, message.command_index)
            index = message.command_index or message.snapshot_index
            self._emit(events.APPLY, node, kept, _fingerprint(index))

        return applied

    def crash1(self, i: int) -> None:
        """Cut the power of server i. What its Persister has saved remains."""
        seat = self._seat(i)
        self.disconnect(i)
        self._network.delete_server(seat.name)
        if seat.peer is not None:
            self._emit(events.CRASH, seat.node, None, 0)
            seat.persister = seat.persister.copy()
            peer, service, seat.peer, seat.service = seat.peer, seat.service, None, None
            seat.paused = seat.clock_frozen = False
            assert service is not None and seat.node is not None
            if self._virtual is not None:
                self._virtual.simulation.kill(seat.node)
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
            self._seat(i).connected = True
            self._emit(events.CONNECT, self._seats[i].node, None, 0)
            self._plug(i)

    def disconnect(self, *indexes: int) -> None:
        """Pull the plug of servers: they run on, alone."""
        for i in indexes:
            self._seat(i).connected = False
            self._emit(events.DISCONNECT, self._seats[i].node, None, 0)
            self._plug(i)

    def _plug(self, i: int) -> None:
        seat = self._seats[i]
        for other in self._seats:
            enabled = seat.connected and other.connected
            if seat.end_names:
                self._network.enable(seat.end_names[other.index], enabled)
            if other.end_names:
                self._network.enable(other.end_names[i], enabled)

    def connected(self, i: int) -> bool:
        return self._seat(i).connected

    def is_up(self, i: int) -> bool:
        return self._seat(i).peer is not None

    def is_armed(self, i: int) -> bool:
        """Whether it will crash in the middle of what it does (crash_at)."""
        return self._seat(i).crash_point is not None

    def is_paused(self, i: int) -> bool:
        return self._seat(i).paused

    def reachable(self, i: int) -> bool:
        """Whether the tester can ask it, and the others too: up, connected and not paused."""
        seat = self._seat(i)
        return seat.peer is not None and seat.connected and not seat.paused

    def others(self, *excluded: int) -> list[int]:
        """All servers but these, beginning after the first of them, round the table."""
        first = excluded[0] if excluded else -1
        return [i for k in range(self.n) if (i := (first + 1 + k) % self.n) not in excluded]

    # ---- stopped, and clocks held ------------------------------------------------------------------------------

    def pause(self, i: int) -> None:
        """Stop server i like a process with SIGSTOP: nothing of it runs, what arrives waits, and its clock goes on.

        It does not know. To the tester it is unreachable until resume().
        """
        simulation, seat, node = self._away_seat("pause", i)
        if seat.paused:
            raise ValueError(f"pause(): server {i} is paused already")
        seat.paused = True
        self._emit(events.PAUSE, node, None, 0)
        simulation.pause(node)

    def resume(self, *indexes: int) -> None:
        """Let paused servers continue: all timers that are overdue fire, and what has arrived arrives now."""
        for i in indexes:
            simulation, seat, node = self._away_seat("resume", i)
            if not seat.paused:
                raise ValueError(f"resume(): server {i} is not paused")
            seat.paused = False
            self._emit(events.RESUME, node, None, 0)
            simulation.resume(node)

    def freeze_clock(self, i: int) -> None:
        """Let no time pass for server i: it runs and answers, but its clock stands still, and its timers with it."""
        simulation, seat, node = self._away_seat("freeze_clock", i)
        if seat.clock_frozen:
            raise ValueError(f"freeze_clock(): the clock of server {i} is frozen already")
        seat.clock_frozen = True
        self._emit(events.FREEZE_CLOCK, node, None, 0)
        simulation.freeze_clock(node)

    def unfreeze_clock(self, i: int) -> None:
        """Let its time go on, from where it was held."""
        simulation, seat, node = self._away_seat("unfreeze_clock", i)
        if not seat.clock_frozen:
            raise ValueError(f"unfreeze_clock(): the clock of server {i} is not frozen")
        seat.clock_frozen = False
        self._emit(events.UNFREEZE_CLOCK, node, None, 0)
        simulation.unfreeze_clock(node)

    def _away_seat(self, what: str, i: int) -> tuple[Simulation, Seat, Node]:
        simulation = self._simulation_for(what, "a server be stopped, or its clock held")
        seat = self._seat(i)
        if seat.peer is None or seat.node is None:
            raise ValueError(f"{what}(): server {i} is down")
        return simulation, seat, seat.node

    def _stopwatch(self, node: Node | None) -> Callable[[], Callable[[], float]]:
        """Each begins when it is made, and tells the seconds since then that the node could use."""

        def begin() -> Callable[[], float]:
            began_s = self._runtime.now
            return lambda: self._runtime.own_s(node, began_s)

        return begin

    # ---- disks, and crashes in the middle of things ------------------------------------------------------------

    def _slow_disk(self, disk: Disk) -> Callable[[int], None]:
        def saving(number: int) -> None:
            """Runs in the peer's own task, at the beginning of a save."""
            if disk.is_slow():
                self._runtime.wait_for_disk(disk.begin_save(number))

        return saving

    def _save_duration(self, seat: Seat) -> Callable[[int], int]:
        """On slow disks a save begins: how long it takes."""
        node, place = seat.node, (ChoiceKind.SAVE, self._network.key_name(seat.name), str(seat.incarnation))

        def begin(number: int) -> int:
            self._emit(events.SAVING, node, number, _fingerprint(number))
            save_time = self._save_time
            chance = UniformInt(int(save_time.min_ms * 1e6), int(save_time.max_ms * 1e6))
            return self._runtime.choose(place, number, chance)

        return begin

    def _save_watcher(self, seat: Seat) -> Callable[[int, bytes, bytes], None]:
        node = seat.node

        def saved(number: int, raft_state: bytes, snapshot: bytes) -> None:
            """Runs in the peer's own task, just before the save takes effect: if it does not return, there was none."""
            if seat.crash_point is not None:
                self._pass_crash_point(seat, "before save")
            self._emit(events.PERSIST, node, events.Saved(raft_state, snapshot, number), crc32(raft_state))
            if seat.crash_point is not None and seat.crash_point[0] == "after save":
                disk = Persister()
                disk.save(raft_state, snapshot)
                self._pass_crash_point(seat, "after save", disk)

        return saved

    def _pass_crash_point(self, seat: Seat, when: CrashMoment, disk: Persister | None = None) -> None:
        if seat.crash_point is None or seat.crash_point[0] != when or seat.peer is None:
            return
        if seat.crash_point[1] > 1:
            seat.crash_point = (when, seat.crash_point[1] - 1)
            return
        if disk is not None:
            seat.persister = disk
        self.crash1(seat.index)  # in the peer's own task: this does not return

    def crash_at(self, i: int, when: CrashMoment | None, *, nth: int = 1) -> None:
        """Have server i crash in the middle of what it does: at its nth save or reply from now on; None: no more.

        "before save": what it is about to save is not on the disk. "after save": it is, and nothing after it has
        happened. "after reply": a reply has just left.
        """
        self._simulation_for("crash_at", "a peer be stopped between two of its lines")
        if when is not None and when not in get_args(CrashMoment):
            raise ValueError(f"crash_at(): when must be one of {', '.join(get_args(CrashMoment))}, got {when!r}")
        seat = self._seat(i)
        crash_point = None
        if when is not None:
            seat.crash_points += 1
            place = (ChoiceKind.CRASH, self._network.key_name(seat.name), when)
            crash_point = (when, self._runtime.choose(place, seat.crash_points, Constant(nth)))
        if crash_point != seat.crash_point:
            seat.crash_point = crash_point
            detail = events.CrashPoint(when, nth if crash_point is None else crash_point[1])
            self._emit(events.CRASH_AT, seat.node, detail, fingerprint_of(when or "", detail.nth))

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
        seat = self._seat(i)
        if seat.service is None:
            raise ValueError(f"slow_snapshots(): server {i} is down")
        if not isinstance(seat.service, Service):
            raise ValueError("slow_snapshots(): only of the tester's own services, not of yours")
        if ms != seat.service.snapshot_ms:
            seat.service.snapshot_ms = ms
            self._emit(events.SLOW_SNAPSHOTS, seat.node, ms, fingerprint_of(ms))

    def busy_service(self, i: int, busy: bool = True) -> None:
        """Have the service of server i, until it restarts, handle nothing that its peer hands up; its peer goes on."""
        self._simulation_for("busy_service", "a service be kept from its work")
        seat = self._seat(i)
        if seat.service is None:
            raise ValueError(f"busy_service(): server {i} is down")
        if not isinstance(seat.service, Service):
            raise ValueError("busy_service(): only of the tester's own services, not of yours")
        if busy != seat.service.busy:
            self._emit(events.BUSY, seat.node, busy, int(busy))
            seat.service.be_busy(busy)

    def snapshot_only_when_asked(self) -> None:
        """No service makes snapshots by itself from now on, only by take_snapshot()."""
        self.snapshot_every(0)

    def snapshot_every(self, commands: int) -> None:
        """Have each service make a snapshot after so many commands from now on; 0: only by take_snapshot()."""
        self._snapshot_every = commands
        for seat in self._seats:
            if isinstance(seat.service, Service):
                seat.service.snapshot_every = commands

    def take_snapshot(self, i: int, index: int) -> None:
        """Have the service of server i make a snapshot of all that it has applied up to that index."""
        seat = self._seat(i)
        if not self._snapshots:
            raise ValueError("take_snapshot(): this cluster was made without snapshots")
        if not isinstance(seat.service, Service):
            raise ValueError(f"take_snapshot(): server {i} is down")
        if not 1 <= index <= seat.service.last_applied:
            raise ValueError(
                f"take_snapshot(): server {i} has applied up to {seat.service.last_applied}, so it has no state at "
                f"index {index}"
            )
        with suppress(NodeKilled):  # by an armed crash, in the middle of it
            self._ask(seat, "snapshot()", seat.service.snapshot, index, entry_point="snapshot")

    def saved_snapshot_index(self, i: int) -> int:
        """The last index of the snapshot on the disk of server i; 0 without one, or while it is down."""
        service = self._seat(i).service
        return service.saved_index() if isinstance(service, Service) else 0

    def applied(self, i: int) -> dict[int, Any]:
        """What the service of server i was handed, by index; nothing while it is down."""
        service = self._seat(i).service
        return {} if service is None else service.commands

    def peer(self, i: int) -> Peer | None:
        """The peer itself, to look at; None while it is down."""
        return self._seat(i).peer

    # ---- the network -------------------------------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The network itself. Servers are named "0", "1", ... there."""
        return self._network

    def partition(self, *groups: Iterable[int]) -> None:
        """Cut every link between servers of different groups, and only those. No groups: no cuts."""
        self._network.partition(*([self._seat(i).name for i in group] for group in groups))

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
        names = self._seat(source).name, self._seat(target).name
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
        return self._network.get_count(self._seat(i).name)

    def rpc_total(self) -> int:
        return self._network.get_total_count()

    def bytes_total(self) -> int:
        return self._network.get_total_bytes()

    def log_size(self) -> int:
        """The largest saved Raft state of all servers, in bytes."""
        return max(seat.persister.raft_state_size() for seat in self._seats)

    # ---- asking a peer, and giving up ----------------------------------------------------------------------------

    def _ask(self, seat: Seat, what: str, fn: Callable[..., Any], *args: Any, entry_point: str, name: str = "") -> Any:
        """Call the peer. `what` is how a report names the call, `entry_point` the method that is called."""
        self._raise_if_failed()
        try:
            return self._runtime.call(seat.node, fn, *args, entry_point=entry_point, name=name, limit_s=_CALL_LIMIT_S)
        except Stuck:
            self.fail(
                f"{what} of peer {seat.index} has not returned for {_CALL_LIMIT_S:g} s{self._runtime.clock}",
                CALLS_RETURN,
            )

    def fail(
        self,
        text: str,
        rule: KeptRule | None = None,
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
        states = {seat.name: seat.last_state for seat in self._seats if seat.peer and seat.last_state}
        return self._runtime.snapshot(states)

    def _evidence(self) -> list[str]:
        lines = [f"Peers at {self._runtime.now:.3f} s:"]
        for seat in self._seats:
            if seat.peer is None:
                lines.append(f"  {seat.name}  down")
                continue
            seen = "not asked yet"
            if seat.last_state is not None:
                leads = "leader" if seat.last_state.is_leader else "not leader"
                seen = f"term {seat.last_state.term}, {leads} when last asked"
            link = "connected" if seat.connected else "cut off"
            if seat.paused:
                link += ", paused"
            if seat.clock_frozen:
                link += ", its clock held"
            restarts = f", incarnation {seat.incarnation}" if seat.incarnation > 1 else ""
            applied = seat.service.last_applied if seat.service is not None else 0
            lines.append(f"  {seat.name}  {link}, {seen}, applied up to {applied}{restarts}")
        return lines
