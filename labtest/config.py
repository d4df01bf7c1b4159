"""The harness: peers on a network, what can be done to them, and what must then be true of them.

MIT's config.go with Python names. Promise: a crash is real (every task of the peer ends, in the middle of whatever
it was doing) and a restarted peer gets exactly what its Persister had saved. A condition that does not hold ends
the test at once with a Failure that says what was expected and what was seen.

Start reading at `Config.start1()`, then `one()`.
"""

from __future__ import annotations

import time as _time
from collections.abc import Callable
from contextlib import suppress
from copy import copy, deepcopy
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, get_args
from zlib import crc32

from labrpc import ClientEnd, Network, Server
from labrpc import Service as RpcService
from labsim import Node, NodeKilled, TaskFailed, queue, random, time
from labtest.failure import Failure, short
from labtest.report import source_line
from labtest.service import Committed, Service
from labtest.world import Stuck, VirtualWorld, current_world
from raft.messages import ApplyMsg
from raft.persister import Persister

MAX_TEST_S = 120.0
MAX_LOG_SIZE = 2000  # bytes of saved Raft state that a snapshotting peer may keep (2D)

_CALL_LIMIT_S = 10.0
_AGREEMENT_S = 10.0
_DYING_S = 1.0


class Peer(Protocol):
    """What the tester asks of a Raft."""

    def start(self, command: Any) -> tuple[int, int, bool]: ...
    def get_state(self) -> tuple[int, bool]: ...
    def snapshot(self, index: int, snapshot: bytes) -> None: ...
    def kill(self) -> None: ...


PeerClass = Callable[[list[ClientEnd], int, Persister, "queue.Queue[ApplyMsg]"], Peer]


CrashPoint = Literal["before save", "after save", "after reply"]


class Stats(NamedTuple):
    """MIT's line: what a test took."""

    virtual_s: float
    peers: int
    rpcs: int
    bytes: int
    commands: int
    real_s: float

    def __str__(self) -> str:
        return (
            f"... Passed -- {self.virtual_s:5.1f} {self.peers:2d} {self.rpcs:5d} {self.bytes:8d} {self.commands:4d}"
            f"   ({self.real_s:.2f} s real)"
        )


class _Seat:
    """One server's place: what stays while incarnations come and go."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = str(index)
        self.incarnation = 0
        self.persister = Persister()
        self.connected = False
        self.peer: Peer | None = None  # None while it is down
        self.node: Node | None = None
        self.service: Service | None = None
        self.end_names: list[str] = []
        self.last_state: tuple[int, bool] | None = None
        self.crash_point: tuple[CrashPoint, int] | None = None  # where to crash, and at which time of coming there


class Config:
    """A cluster under test. Made by the `make_config` fixture."""

    def __init__(
        self, peer_class: PeerClass, *, servers: int = 3, unreliable: bool = False, snapshot: bool = False
    ) -> None:
        if servers < 1:
            raise ValueError(f"make_config(): servers must be at least 1, got {servers}")
        if snapshot and not hasattr(peer_class, "snapshot"):
            raise Failure("Raft has no method snapshot(index, snapshot); part 2D needs it")
        self.n = servers
        self.description = ""
        self.stats: Stats | None = None
        self._peer_class = peer_class
        self._snapshots = snapshot
        self._world = current_world()
        self._network = Network()
        self._committed = Committed()
        self._seats = [_Seat(i) for i in range(servers)]
        self._ends_made = 0
        self._save_ms = (0.0, 0.0)  # how long a save takes, from and to
        self._finished = False
        self.set_unreliable(unreliable)
        self._network.long_delays(True)
        self._world.after(MAX_TEST_S, self._out_of_time)
        self._begin_counting()
        self._world.emit("cluster", None, servers, servers)
        try:
            for i in range(servers):
                self.start1(i)
        except BaseException:
            self.cleanup()  # on real threads the first peers run already
            raise
        for i in range(servers):
            self.connect(i)

    # ---- the course of a test ----------------------------------------------------------------------------

    def begin(self, description: str) -> None:
        """Name what is tested now, and count from here."""
        self.description = description
        self._world.emit("phase", None, description, crc32(description.encode()))
        self._begin_counting()

    def _begin_counting(self) -> None:
        self._began_s = self._world.now
        self._began_real_s = _time.perf_counter()
        self._rpcs_before = self.rpc_total()
        self._bytes_before = self.bytes_total()
        self._max_index_before = self._committed.max_index

    def end(self) -> Stats:
        """The test has passed: MIT's figures. Called for every test that does not call it itself."""
        self._world.raise_if_failed()
        self._finished = True
        if self.stats is None:
            self.stats = Stats(
                self._world.now - self._began_s,
                self.n,
                self.rpc_total() - self._rpcs_before,
                self.bytes_total() - self._bytes_before,
                self._committed.max_index - self._max_index_before,
                _time.perf_counter() - self._began_real_s,
            )
            self._check_quiet_death()
        return self.stats

    def _check_quiet_death(self) -> None:
        """A peer told to stop stops: after a second's grace it sends, saves and applies nothing."""
        if not isinstance(self._world, VirtualWorld):
            return
        self._world.emit("stop", None, None, 0)
        for seat in self._seats:
            if seat.peer is not None:
                self._ask(seat, "kill()", seat.peer.kill)
        time.sleep(_DYING_S)
        # Without a trace the run is the same, only nobody looks.
        trace = self._world.simulation.trace or []
        mark = len(trace)
        time.sleep(_DYING_S)
        for event in trace[mark:]:
            if event.kind in ("send", "persist", "apply"):
                self.fail(
                    f"Peer {event.node} was told to stop by kill() and goes on over a second later: it "
                    f"{ {'send': 'sends', 'persist': 'saves', 'apply': 'applies'}[event.kind] } "
                    f"at {event.at_ns / 1e9:.3f} s. Its threads must look whether it was killed",
                    rule="quiet-death",
                )

    def cleanup(self) -> None:
        """Stop all peers; on real threads nothing else would."""
        self._finished = True
        if isinstance(self._world, VirtualWorld):
            return
        try:
            for seat in self._seats:
                if seat.peer is not None:
                    with suppress(Stuck, TaskFailed):  # the test is over; there is one more peer to stop
                        self._world.call(seat.node, seat.peer.kill, limit_s=1.0)
                if seat.service is not None:
                    seat.service.stop()
            self._network.cleanup()
        finally:
            self._world.close()

    def fail(self, text: str, rule: str | None = None) -> NoReturn:
        """End the test: what was expected and what was seen, then what the peers were doing."""
        self._world.fail(Failure(text, self._evidence(), rule=rule))

    def _evidence(self) -> list[str]:
        lines = [f"Peers at {self._world.now:.3f} s:"]
        for seat in self._seats:
            if seat.peer is None:
                lines.append(f"  {seat.name}  down")
                continue
            seen = "not asked yet"
            if seat.last_state is not None:
                seen = f"term {seat.last_state[0]}, {'leader' if seat.last_state[1] else 'not leader'} when last asked"
            link = "connected" if seat.connected else "cut off"
            restarts = f", incarnation {seat.incarnation}" if seat.incarnation > 1 else ""
            applied = seat.service.last_applied if seat.service is not None else 0
            lines.append(f"  {seat.name}  {link}, {seen}, applied up to {applied}{restarts}")
        stuck = self._world.stuck_tasks()
        if stuck:
            lines.append("Stuck (a peer that waits while it holds its lock stops altogether):")
            lines.extend(line for task in stuck[:4] for line in task.splitlines())
        return lines

    def _out_of_time(self) -> None:
        if not self._finished:
            self.fail(f"The test took longer than {MAX_TEST_S:.0f} s{self._world.clock}")

    # ---- peers: start, crash, connect ------------------------------------------------------------------------

    def start1(self, i: int) -> None:
        """Start server i, or start it again after a crash, with what its disk holds. It is not connected by this."""
        seat = self._seat(i)
        if seat.peer is not None:
            self.crash1(i)
        seat.incarnation += 1
        seat.node = self._world.node(seat.name)
        ends = self._make_ends(seat)
        # The old incarnation's hand, on real threads, is still on the old disk.
        seat.persister = seat.persister.copy()
        seat.persister.on_save = self._save_watcher(seat)
        seat.crash_point = None
        apply_ch: queue.Queue[ApplyMsg] = queue.Queue(1)
        service = Service(
            i,
            apply_ch,
            self._committed,
            self.fail,
            self._apply_watcher(seat.node),
            seat.persister.read_snapshot,
            snapshots=self._snapshots,
        )
        service.restore(seat.persister.read_snapshot())
        seat.service = service
        self._world.emit("restart" if seat.incarnation > 1 else "boot", seat.node, None, seat.incarnation)
        self._world.emit("restore", seat.node, service.last_applied, service.last_applied)
        peer = self._ask(seat, "Raft(...)", self._peer_class, ends, i, seat.persister, apply_ch)
        if self._snapshots:
            service.take_snapshot = peer.snapshot
        seat.peer = peer
        seat.last_state = None
        self._world.spawn(seat.node, service.run, name=f"service {i}")
        server = Server(seat.node)
        server.on_answer = lambda: self._pass_crash_point(seat, "after reply")
        server.add_service(RpcService(peer, "Raft"))
        self._network.add_server(seat.name, server)

    def _make_ends(self, seat: _Seat) -> list[ClientEnd]:
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

    def _save_watcher(self, seat: _Seat) -> Callable[[bytes, bytes], None]:
        node = seat.node

        def saving(raft_state: bytes, snapshot: bytes) -> None:
            """Runs in the peer's own task, just before the save takes effect: if it does not return, there was none."""
            if self._save_ms[1]:
                self._world.emit("saving", node, None, 0)
                time.sleep(random.uniform(*self._save_ms) / 1000)
            self._pass_crash_point(seat, "before save")
            self._world.emit("persist", node, (raft_state, snapshot), crc32(raft_state))
            if seat.crash_point is not None and seat.crash_point[0] == "after save":
                disk = Persister()
                disk.save(raft_state, snapshot)
                self._pass_crash_point(seat, "after save", disk)

        return saving

    def _pass_crash_point(self, seat: _Seat, when: CrashPoint, disk: Persister | None = None) -> None:
        if seat.crash_point is None or seat.crash_point[0] != when or seat.peer is None:
            return
        if seat.crash_point[1] > 1:
            seat.crash_point = (when, seat.crash_point[1] - 1)
            return
        if disk is not None:
            seat.persister = disk
        self.crash1(seat.index)  # in the peer's own task: this does not return

    def _apply_watcher(self, node: Node | None) -> Callable[[ApplyMsg], None]:
        def applied(message: ApplyMsg) -> None:
            # The trace keeps a copy: a peer may use one ApplyMsg again and again.
            if message.snapshot_valid:
                kept = copy(message)
            else:
                kept = ApplyMsg(message.command_valid, message.command, message.command_index)
            self._world.emit("apply", node, kept, message.command_index or message.snapshot_index)

        return applied

    def crash1(self, i: int) -> None:
        """Cut the power of server i. What its Persister has saved remains."""
        seat = self._seat(i)
        self.disconnect(i)
        self._network.delete_server(seat.name)
        if seat.peer is not None:
            self._world.emit("crash", seat.node, None, 0)
            seat.persister = seat.persister.copy()
            peer, service, seat.peer, seat.service = seat.peer, seat.service, None, None
            self._world.kill(seat.node, peer.kill)
            if service is not None and not isinstance(self._world, VirtualWorld):
                service.stop()

    def crash_at(self, i: int, when: CrashPoint | None, *, nth: int = 1) -> None:
        """Have server i crash in the middle of what it does: at its nth save or reply from now on; None: no more.

        "before save": what it is about to save is not on the disk. "after save": it is, and nothing after it has
        happened. "after reply": a reply has just left, and on an instant network has arrived.
        """
        if not isinstance(self._world, VirtualWorld):
            raise ValueError("crash_at(): only in virtual time can a peer be stopped between two of its lines")
        if when is None:
            self._seat(i).crash_point = None
            return
        if when not in get_args(CrashPoint):
            raise ValueError(f"crash_at(): when must be one of {', '.join(get_args(CrashPoint))}, got {when!r}")
        self._seat(i).crash_point = (when, nth)

    def slow_disks(self, min_ms: float, max_ms: float) -> None:
        """Have every save take that long from now on, each as long as it is drawn; other threads run meanwhile."""
        if not 0 <= min_ms <= max_ms:
            raise ValueError(f"slow_disks(): need 0 <= min_ms <= max_ms, got {min_ms:g} and {max_ms:g}")
        self._save_ms = (min_ms, max_ms)

    def slow_snapshots(self, i: int, ms: float) -> None:
        """Have the service of server i, until it restarts, take that long to make a snapshot; its peer goes on."""
        service = self._seat(i).service
        if service is None:
            raise ValueError(f"slow_snapshots(): server {i} is down")
        service.snapshot_s = ms / 1000

    def restart(self, *indexes: int) -> None:
        """Start these servers again, each from its own disk, and connect them."""
        for i in indexes:
            self.start1(i)
            self.connect(i)

    def connect(self, *indexes: int) -> None:
        """Plug servers in, towards all that are plugged in."""
        for i in indexes:
            self._seat(i).connected = True
            self._world.emit("connect", self._seats[i].node, None, 0)
            self._plug(i)

    def disconnect(self, *indexes: int) -> None:
        """Pull the plug of servers: they run on, alone."""
        for i in indexes:
            self._seat(i).connected = False
            self._world.emit("disconnect", self._seats[i].node, None, 0)
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

    def others(self, *excluded: int) -> list[int]:
        """All servers but these, beginning after the first of them, round the table."""
        first = excluded[0] if excluded else -1
        return [i for k in range(self.n) if (i := (first + 1 + k) % self.n) not in excluded]

    def _seat(self, i: int) -> _Seat:
        if not 0 <= i < self.n:
            raise ValueError(f"there is no server {i}; servers are 0..{self.n - 1}")
        return self._seats[i]

    # ---- the network -------------------------------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The network itself, for latencies, duplicates and one-way cuts. Servers are named "0", "1", ..."""
        return self._network

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

    # ---- asking peers ----------------------------------------------------------------------------------------------

    def _ask(self, seat: _Seat, what: str, fn: Callable[..., Any], *args: Any) -> Any:
        self._world.raise_if_failed()
        try:
            return self._world.call(seat.node, fn, *args, limit_s=_CALL_LIMIT_S)
        except Stuck:
            self.fail(
                f"{what} of peer {seat.index} has not returned for {_CALL_LIMIT_S:g} s{self._world.clock}",
                rule="calls-return",
            )

    def get_state(self, i: int) -> tuple[int, bool]:
        """(term, is_leader) as peer i sees it; one that another thread crashes meanwhile leads nothing."""
        seat = self._seat(i)
        if seat.peer is None:
            raise ValueError(f"get_state(): server {i} is down")
        try:
            state = self._ask(seat, "get_state()", seat.peer.get_state)
        except NodeKilled:
            return 0, False
        match state:
            case (int(), bool()) if not isinstance(state[0], bool):
                seat.last_state = (state[0], state[1])
                return seat.last_state
        self._wrong_shape(seat.peer.get_state, i, state, "(term: int, is_leader: bool)")

    def start(self, i: int, command: Any) -> tuple[int, int, bool]:
        """Hand a command to peer i: (index, term, is_leader); one that is crashed meanwhile takes nothing."""
        seat = self._seat(i)
        if seat.peer is None:
            raise ValueError(f"start(): server {i} is down")
        peer, node = seat.peer, seat.node
        # The peer gets its own, to do with as it likes, and so does the trace, which is read later.
        given, noted = command, command
        if not isinstance(command, int | str):
            given, noted = deepcopy(command), deepcopy(command)

        def start() -> Any:
            """Runs as a task of the peer, so that what it returns is noted before anything else happens."""
            began_s = self._world.now
            self._world.emit("start", node, noted, 0)
            result = peer.start(given)
            disks_are_slow = self._save_ms[1] > 0  # then it may wait for its own, and for who holds the lock meanwhile
            if isinstance(self._world, VirtualWorld) and self._world.now != began_s and not disks_are_slow:
                self.fail(
                    f"start() of peer {i} took {self._world.now - began_s:.3f} s (virtual); it must hand the command "
                    "over and return at once, without waiting for anybody",
                    rule="start-returns-at-once",
                )
            match result:
                case (int(), int(), bool()):
                    self._world.emit("started", node, (noted, *result), result[0] & 0xFFFFFFFF)
                    return result
            self._wrong_shape(peer.start, i, result, "(index: int, term: int, is_leader: bool)")

        try:
            index, term, is_leader = self._ask(seat, "start()", start)
        except NodeKilled:
            return -1, 0, False
        return index, term, is_leader

    def _wrong_shape(self, method: Callable[..., Any], i: int, result: Any, shape: str) -> NoReturn:
        text = f"{method.__name__}() of peer {i} returned {short(result)}; it must return {shape}"
        self._world.fail(Failure(text, source_line(method)))

    def check_one_leader(self) -> int:
        """Within 5 s the connected servers have one leader. Two leaders in one term are always wrong."""
        for _ in range(10):
            time.sleep(random.uniform(0.450, 0.550))
            leaders: dict[int, list[int]] = {}
            for i in range(self.n):
                if self.connected(i) and self.is_up(i):
                    term, is_leader = self.get_state(i)
                    if is_leader:
                        leaders.setdefault(term, []).append(i)
            for term in sorted(leaders):
                if len(leaders[term]) > 1:
                    self.fail(
                        f"Term {term} has {len(leaders[term])} leaders, peers {leaders[term]} (election safety, §5.2)"
                    )
            if leaders:
                return leaders[max(leaders)][0]
        self.fail("Expected one leader among the connected servers, but there was none for 5 s (§5.2)")

    def check_terms(self) -> int:
        """All connected servers are in the same term: that term."""
        term = None
        for i in range(self.n):
            if self.connected(i) and self.is_up(i):
                its_term, _ = self.get_state(i)
                if term is None:
                    term = its_term
                elif term != its_term:
                    self.fail(
                        f"Connected servers disagree about the term: peer {i} is in {its_term}, another in {term}"
                    )
        if term is None:
            raise ValueError("check_terms(): no server is connected")
        return term

    def check_no_leader(self) -> None:
        """No connected server believes it leads."""
        for i in range(self.n):
            if self.connected(i) and self.is_up(i):
                term, is_leader = self.get_state(i)
                if is_leader:
                    self.fail(f"Expected no leader without a majority, but peer {i} leads in term {term} (§5.2)")

    def leader_now(self) -> int | None:
        """A server that believes it leads right now, connected or not; the last such, as in the MIT tests."""
        leader = None
        for i in range(self.n):
            if self.is_up(i) and self.get_state(i)[1]:
                leader = i
        return leader

    def wait_for_leader(self, after_term: int = 0) -> tuple[int, int]:
        """Within 5 s some connected server leads a later term than that: it, and its term."""
        for _ in range(1000):
            for i in range(self.n):
                if self.is_up(i) and self.connected(i):
                    term, leads = self.get_state(i)
                    if leads and term > after_term:
                        return i, term
            time.sleep(0.005)
        self.fail(f"Expected a leader of a term after {after_term}, but there was none for 5 s (§5.2)")

    # ---- agreement -----------------------------------------------------------------------------------------------

    def n_committed(self, index: int) -> tuple[int, Any]:
        """How many servers have applied a command at that index, and the command."""
        self._world.raise_if_failed()
        count, command = 0, None
        for seat in self._seats:
            if seat.service is not None and index in seat.service.commands:
                # That all of them hold the same one is checked when each is applied.
                count, command = count + 1, seat.service.commands[index]
        return count, command

    def wait(self, index: int, servers: int, start_term: int | None = None) -> Any:
        """Wait until that many servers have applied index: the command; None if the term moved on first."""
        pause_s = 0.010
        for _ in range(30):
            if self.n_committed(index)[0] >= servers:
                break
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)
            if start_term is not None:
                for i in range(self.n):
                    if self.is_up(i) and self.get_state(i)[0] > start_term:
                        return None
        count, command = self.n_committed(index)
        if count < servers:
            self.fail(f"Index {index} was applied by {count} servers in the end, expected {servers}")
        return command

    def one(self, command: Any, servers: int, *, retry: bool) -> int:
        """Agree on a command: start it at whoever leads, wait for that many servers to apply it; its index.

        Within 10 s. With `retry`, a command that got lost with its leader is given to the next one.
        """
        if not 1 <= servers <= self.n:
            raise ValueError(f"one(): servers must be 1..{self.n}, got {servers}")
        give_up_s = self._world.now + _AGREEMENT_S
        nobody_led = True
        candidate = 0
        while self._world.now < give_up_s:
            index = None
            for _ in range(self.n):
                candidate = (candidate + 1) % self.n
                if self.connected(candidate) and self.is_up(candidate):
                    its_index, _, accepted = self.start(candidate, command)
                    if accepted:
                        index, nobody_led = its_index, False
                        break
            if index is None:
                time.sleep(0.050)
                continue
            if self._committed_within(index, command, servers, 2.0):
                return index
            if not retry:
                count, found = self.n_committed(index)
                seen = f"{count} servers applied {found!r}" if count else "no server applied anything"
                self.fail(
                    f"one({short(command)}): peer {candidate} took the command as index {index}, "
                    f"but after 2 s {seen} there; expected it on {servers} servers"
                )
        if nobody_led:
            self.fail(
                f"one({short(command)}): no agreement in 10 s (virtual): no connected peer took the command as leader"
            )
        self.fail(f"one({short(command)}): no agreement in 10 s (virtual); expected it on {servers} servers")

    def _committed_within(self, index: int, command: Any, servers: int, limit_s: float) -> bool:
        until_s = self._world.now + limit_s
        while self._world.now < until_s:
            count, found = self.n_committed(index)
            if count >= servers and found == command:
                return True
            time.sleep(0.020)
        return False
