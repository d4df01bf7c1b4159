"""A cluster under test and the assertions that tests make about it: MIT's config.go with Python names.

A failed assertion ends the test at once with a Failure that names the expected and the observed state. Operations on
servers (start, crash, connect, slow disks, cuts) are inherited from servers.py.

Start reading at `Config.one()`.
"""

from __future__ import annotations

import time as _time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple, NoReturn

from labsim import NodeKilled, TaskFailed, random, time
from raftapi import Peer
from raftlab.check.cluster_snapshot import ReportedState
from raftlab.check.failure import Failure, short
from raftlab.check.harness_rules import QUIET_DEATH, START_RETURNS_AT_ONCE
from raftlab.check.rules import RuleChecker
from raftlab.check.task_errors import source_line
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.runtime import CallTimeout, RealTimeRuntime
from raftlab.harness.servers import Servers, ServerSlot
from raftlab.trace import events

MAX_TEST_S = 120.0
MAX_LOG_SIZE = 2000  # bytes of saved Raft state that a snapshotting peer may keep (2D)

_AGREEMENT_S = 10.0
_KILL_GRACE_S = 1.0


class Stats(NamedTuple):
    """MIT's line of figures for a test."""

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


_ACTIVITY = {events.SEND: "sends", events.PERSIST: "saves", events.APPLY: "applies"}


class Config(Servers):
    """A cluster under test. Made by the `make_config` fixture."""

    _long_delays = True  # a call that gets no reply may take seconds to return

    def __init__(
        self, launcher: PeerLauncher, *, servers: int = 3, unreliable: bool = False, snapshot: bool = False
    ) -> None:
        if servers < 1:
            raise ValueError(f"make_config(): servers must be at least 1, got {servers}")
        if snapshot and not launcher.has_method("snapshot"):
            raise Failure("Raft has no method snapshot(index, snapshot); part 2D needs it")
        super().__init__(launcher, servers=servers, snapshot=snapshot, long_delays=self._long_delays)
        self.description = ""
        self.stats: Stats | None = None
        self.checker: RuleChecker | None = None  # of the run, set by run_test()
        self._finished = False
        self.set_unreliable(unreliable)
        self._runtime.after(MAX_TEST_S, self._on_timeout)
        self._begin_counting()
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
        """Describe the test, and reset its counters."""
        self.description = description
        self._emit(events.PHASE, None, description, 0)
        self._begin_counting()

    def _begin_counting(self) -> None:
        self._began_s = self._runtime.now
        self._began_real_s = _time.perf_counter()
        self._rpcs_before = self.rpc_total()
        self._bytes_before = self.bytes_total()
        self._max_index_before = self._committed.max_index

    def end(self) -> Stats:
        """The test has passed: return its figures. run_test() calls this if the test does not."""
        self._raise_if_failed()
        self._finished = True
        for slot in self._slots:
            if slot.paused:
                self.resume(slot.index)
            if slot.clock_frozen:
                self.unfreeze_clock(slot.index)
        if self.stats is None:
            self.stats = Stats(
                self._runtime.now - self._began_s,
                self.n,
                self.rpc_total() - self._rpcs_before,
                self.bytes_total() - self._bytes_before,
                self._committed.max_index - self._max_index_before,
                _time.perf_counter() - self._began_real_s,
            )
            self._check_quiet_after_kill()
        return self.stats

    def _check_quiet_after_kill(self) -> None:
        """One second after kill() a peer must not send, save or apply anything."""
        if self._virtual is None:
            return
        self._emit(events.STOP, None, None, 0)
        for slot in self._slots:
            if slot.peer is not None:
                self._kill_peer(slot, slot.peer)
        time.sleep(_KILL_GRACE_S)
        mark = len(self._trace)
        time.sleep(_KILL_GRACE_S)
        for event in self._trace[mark:]:
            if event.kind in _ACTIVITY:
                self.fail(
                    f"Peer {event.node} is still active more than a second after kill(): it "
                    f"{_ACTIVITY[event.kind]} at {event.at_ns / 1e9:.3f} s. Its threads must check whether kill() was "
                    "called",
                    QUIET_DEATH,
                )

    def _kill_peer(self, slot: ServerSlot, peer: Peer) -> None:
        assert slot.server is not None
        slot.server.killed = True
        self._call_peer(slot, "kill()", peer.kill, entry_point="kill")

    def cleanup(self) -> None:
        """Stop all peers. Needed on real threads only."""
        self._finished = True
        if not isinstance(self._runtime, RealTimeRuntime):
            return
        try:
            for slot in self._slots:
                if slot.peer is not None:
                    with suppress(CallTimeout, TaskFailed):  # the test is over; stop the other peers too
                        self._runtime.call(slot.node, slot.peer.kill, entry_point="kill", limit_s=1.0)
                if slot.service is not None:
                    slot.service.stop()
            self._network.cleanup()
        finally:
            self._runtime.close()

    def _on_timeout(self) -> None:
        if not self._finished:
            self.fail(f"The test took longer than {MAX_TEST_S:.0f} s{self._runtime.clock}")

    # ---- asking peers ----------------------------------------------------------------------------------------------

    def get_state(self, i: int) -> tuple[int, bool]:
        """(term, is_leader) according to peer i; (0, False) if another thread crashes it meanwhile."""
        slot = self._slot(i)
        peer = self._running_peer("get_state", slot)
        try:
            state = self._call_peer(slot, "get_state()", peer.get_state, entry_point="get_state")
        except NodeKilled:
            return 0, False
        match state:
            case (int(term), bool(is_leader)) if not isinstance(term, bool):
                slot.last_state = ReportedState(term, is_leader, round(self._runtime.now * 1e9))
                if is_leader:
                    self._check_claim(slot, term)
                return term, is_leader
        self._fail_wrong_result(peer.get_state, i, state, "(term: int, is_leader: bool)")

    def _check_claim(self, slot: ServerSlot, term: int) -> None:
        """A peer says that it leads. Like a claim in a message, this needs votes on the wire."""
        if self._virtual is None:
            # Without a trace (real threads) this is all that can be checked: elections take messages.
            if self.n > 1 and not self.rpc_total():
                self.fail(f"Peer {slot.name} leads term {term}, but no peer has sent anything (§5.2)")
        elif self.checker is not None and self.checker.claim(slot.name, term, self._virtual.simulation.now_ns):
            self._virtual.simulation.deliver_now()

    def start(self, i: int, command: Any) -> tuple[int, int, bool]:
        """Call start() of peer i: (index, term, is_leader); (-1, 0, False) if the peer crashes meanwhile."""
        slot = self._slot(i)
        peer = self._running_peer("start", slot)
        # Copies for the peer, which may change its own, and for the trace, which is read later.
        given, recorded = command, command
        if not isinstance(command, int | str):
            given, recorded = deepcopy(command), deepcopy(command)
        start = self._make_traced_start(slot, peer, given, recorded)
        try:
            index, term, is_leader = self._call_peer(slot, "start()", start, entry_point="start")
        except NodeKilled:
            return -1, 0, False
        return index, term, is_leader

    def _make_traced_start(self, slot: ServerSlot, peer: Peer, given: Any, recorded: Any) -> Callable[[], Any]:
        """A function that calls the peer's start() and emits its events. `recorded` is for the trace."""

        def start() -> Any:
            """Runs as a task of the peer, so that its result is recorded before anything else happens."""
            record_result = self._record_start(slot, peer, recorded)
            result = peer.start(given)
            record_result(result)
            return result

        return start

    def _record_start(self, slot: ServerSlot, peer: Peer, recorded: Any) -> Callable[[Any], None]:
        """Record that a call of start() begins. The returned function records its result."""
        i, node, began_s = slot.index, slot.node, self._runtime.now
        self._emit(events.START, node, recorded, 0)

        def record_result(result: Any) -> None:
            if self._virtual is not None and self._virtual.now != began_s:
                # On slow disks start() may wait for its own save, or for a lock that is held during a save.
                disks_are_slow = self._slowest_save_ms > 0
                took_s = self._runtime.usable_s(node, began_s)
                if took_s and not disks_are_slow:
                    self.fail(
                        f"start() of peer {i} took {took_s:.3f} s (virtual); it must append the command and "
                        "return immediately, without waiting for anything",
                        START_RETURNS_AT_ONCE,
                    )
            match result:
                case (int(), int(), bool()):
                    started = events.StartResult(recorded, *result)
                    self._emit(events.STARTED, node, started, result[0] & 0xFFFFFFFF)
                    return
            self._fail_wrong_result(peer.start, i, result, "(index: int, term: int, is_leader: bool)")

        return record_result

    def _running_peer(self, what: str, slot: ServerSlot) -> Peer:
        if slot.peer is None:
            raise ValueError(f"{what}(): server {slot.index} is down")
        if slot.paused:
            raise ValueError(f"{what}(): server {slot.index} is paused; call resume() first")
        return slot.peer

    def _fail_wrong_result(self, method: Callable[..., Any], i: int, result: Any, shape: str) -> NoReturn:
        text = f"{method.__name__}() of peer {i} returned {short(result)}; it must return {shape}"
        self._runtime.fail(Failure(text, [*self._runtime.test_step(), *source_line(method)]))

    def check_one_leader(self) -> int:
        """Within 5 s there is a leader among the connected servers: its index. Fails if one term has two leaders."""
        for _ in range(10):
            time.sleep(random.uniform(0.450, 0.550))
            leaders: dict[int, list[int]] = {}
            for i in range(self.n):
                if self.reachable(i):
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
        """The term of the connected servers. Fails if they differ."""
        term = None
        for i in range(self.n):
            if self.reachable(i):
                its_term, _ = self.get_state(i)
                if term is None:
                    term = its_term
                elif term != its_term:
                    self.fail(
                        f"Connected servers disagree about the term: peer {i} is in term {its_term}, another peer is "
                        f"in term {term}"
                    )
        if term is None:
            raise ValueError("check_terms(): no server is connected")
        return term

    def check_no_leader(self) -> None:
        """Fails if a connected server believes that it leads."""
        for i in range(self.n):
            if self.reachable(i):
                term, is_leader = self.get_state(i)
                if is_leader:
                    self.fail(f"Expected no leader without a majority, but peer {i} leads in term {term} (§5.2)")

    def _is_running(self, i: int) -> bool:
        return self.is_up(i) and not self.is_paused(i)

    def leader_now(self) -> int | None:
        """A server that believes it leads, connected or not: the last such server, as in MIT's tests."""
        leader = None
        for i in range(self.n):
            if self._is_running(i) and self.get_state(i)[1]:
                leader = i
        # An armed crash may have happened while the other servers were asked.
        return leader if leader is not None and self._is_running(leader) else None

    def wait_for_leader(self, after_term: int = 0) -> tuple[int, int]:
        """Within 5 s a connected server leads a term after `after_term`: (server, term)."""
        for _ in range(1000):
            for i in range(self.n):
                if self.reachable(i):
                    term, leads = self.get_state(i)
                    if leads and term > after_term:
                        return i, term
            time.sleep(0.005)
        self.fail(f"Expected a leader in a term after {after_term}, but there was none for 5 s (§5.2)")

    # ---- agreement -----------------------------------------------------------------------------------------------

    def n_committed(self, index: int) -> tuple[int, Any]:
        """How many servers have applied a command at this index, and the command."""
        self._raise_if_failed()
        count, command = 0, None
        for slot in self._slots:
            if slot.service is not None and index in slot.service.commands:
                # ApplyChecker checks that all of them applied the same command.
                count, command = count + 1, slot.service.commands[index]
        return count, command

    def wait(self, index: int, servers: int, start_term: int | None = None) -> Any:
        """Wait until this many servers have applied `index`: the command, or None if a later term began first."""
        pause_s = 0.010
        for _ in range(30):
            if self.n_committed(index)[0] >= servers:
                break
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)
            if start_term is not None:
                for i in range(self.n):
                    if self._is_running(i) and self.get_state(i)[0] > start_term:
                        return None
        count, command = self.n_committed(index)
        if count < servers:
            self.fail(f"Index {index} was applied by {_servers(count)}; expected {servers}", awaited=index)
        return command

    def one(self, command: Any, servers: int, *, retry: bool) -> int:
        """Start a command at the leader and wait until this many servers have applied it: its index.

        Fails after 10 s. With `retry`, a command that its leader lost is started again at the next leader.
        """
        if not 1 <= servers <= self.n:
            raise ValueError(f"one(): servers must be 1..{self.n}, got {servers}")
        give_up_s = self._runtime.now + _AGREEMENT_S
        no_leader = True
        candidate = 0
        while self._runtime.now < give_up_s:
            index = None
            for _ in range(self.n):
                candidate = (candidate + 1) % self.n
                if self.reachable(candidate):
                    node, asked_s = self._slots[candidate].node, self._runtime.now
                    its_index, _, accepted = self.start(candidate, command)
                    # Another thread of the test may have paused this server meanwhile.
                    give_up_s += self._runtime.now - asked_s - self._runtime.usable_s(node, asked_s)
                    if accepted:
                        index, no_leader = its_index, False
                        break
            if index is None:
                time.sleep(0.050)
                continue
            if self._committed_within(index, command, servers, 2.0):
                return index
            if not retry:
                count, found = self.n_committed(index)
                applied = f"{_servers(count)} had applied {short(found)}" if count else "no server had applied anything"
                self.fail(
                    f"one({short(command)}): peer {candidate} accepted the command at index {index}, but 2 s later "
                    f"{applied} at that index; expected this command on {_servers(servers)}"
                )
        if no_leader:
            self.fail(
                f"one({short(command)}): no agreement in 10 s (virtual): no connected peer accepted the command as "
                "leader"
            )
        self.fail(f"one({short(command)}): no agreement in 10 s (virtual); expected the command on {_servers(servers)}")

    def _committed_within(self, index: int, command: Any, servers: int, limit_s: float) -> bool:
        until_s = self._runtime.now + limit_s
        while self._runtime.now < until_s:
            count, found = self.n_committed(index)
            if count >= servers and found == command:
                return True
            time.sleep(0.020)
        return False


def _servers(count: int) -> str:
    return "1 server" if count == 1 else f"{count} servers"
