"""The harness: a cluster under test, and what must be true of it.

MIT's config.go with Python names. A condition that does not hold ends the test at once with a Failure that says what
was expected and what was seen. What can be done to the servers (start, crash, connect, slow disks, cuts) is inherited
from servers.py.

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


_ACTIVITY = {events.SEND: "sends", events.PERSIST: "saves", events.APPLY: "applies"}


class Config(Servers):
    """A cluster under test. Made by the `make_config` fixture."""

    _long_delays = True  # a call that leads nowhere may take seconds to say so

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
        """Name what is tested now, and count from here."""
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
        """The test has passed: MIT's figures. Called for every test that does not call it itself."""
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
        """A peer told to stop stops: after a second's grace it sends, saves and applies nothing."""
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
                    f"Peer {event.node} was told to stop by kill() and goes on over a second later: it "
                    f"{_ACTIVITY[event.kind]} at {event.at_ns / 1e9:.3f} s. Its threads must look whether it was "
                    "killed",
                    QUIET_DEATH,
                )

    def _kill_peer(self, slot: ServerSlot, peer: Peer) -> None:
        assert slot.server is not None
        slot.server.killed = True
        self._call_peer(slot, "kill()", peer.kill, entry_point="kill")

    def cleanup(self) -> None:
        """Stop all peers; on real threads nothing else would."""
        self._finished = True
        if not isinstance(self._runtime, RealTimeRuntime):
            return
        try:
            for slot in self._slots:
                if slot.peer is not None:
                    with suppress(CallTimeout, TaskFailed):  # the test is over; there is one more peer to stop
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
        """(term, is_leader) as peer i sees it; one that another thread crashes meanwhile leads nothing."""
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
        """A peer says that it leads: a claim like any other, which its messages must prove."""
        if self._virtual is None:
            # On real threads there is no trace, so this is all that is known: elections take messages.
            if self.n > 1 and not self.rpc_total():
                self.fail(f"Peer {slot.name} leads term {term}, and no peer has sent anything (§5.2)")
        elif self.checker is not None and self.checker.claim(slot.name, term, self._virtual.simulation.now_ns):
            self._virtual.simulation.deliver_now()

    def start(self, i: int, command: Any) -> tuple[int, int, bool]:
        """Hand a command to peer i: (index, term, is_leader); one that is crashed meanwhile takes nothing."""
        slot = self._slot(i)
        peer = self._running_peer("start", slot)
        # The peer gets its own, to do with as it likes, and so does the trace, which is read later.
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
        """A call of the peer's start(), with its events. `noted` is for the trace."""

        def start() -> Any:
            """Runs as a task of the peer, so that what it returns is noted before anything else happens."""
            record_result = self._record_start(slot, peer, recorded)
            result = peer.start(given)
            record_result(result)
            return result

        return start

    def _record_start(self, slot: ServerSlot, peer: Peer, recorded: Any) -> Callable[[Any], None]:
        """A call of start() begins; what is returned is told what that came to."""
        i, node, began_s = slot.index, slot.node, self._runtime.now
        self._emit(events.START, node, recorded, 0)

        def record_result(result: Any) -> None:
            if self._virtual is not None and self._virtual.now != began_s:
                # Then it may wait for its own disk, and for who holds the lock meanwhile.
                disks_are_slow = self._slowest_save_ms > 0
                took_s = self._runtime.usable_s(node, began_s)
                if took_s and not disks_are_slow:
                    self.fail(
                        f"start() of peer {i} took {took_s:.3f} s (virtual); it must hand the command "
                        "over and return at once, without waiting for anybody",
                        START_RETURNS_AT_ONCE,
                    )
            match result:
                case (int(), int(), bool()):
                    started = events.Started(recorded, *result)
                    self._emit(events.STARTED, node, started, result[0] & 0xFFFFFFFF)
                    return
            self._fail_wrong_result(peer.start, i, result, "(index: int, term: int, is_leader: bool)")

        return record_result

    def _running_peer(self, what: str, slot: ServerSlot) -> Peer:
        if slot.peer is None:
            raise ValueError(f"{what}(): server {slot.index} is down")
        if slot.paused:
            raise ValueError(f"{what}(): server {slot.index} is paused, and nothing of it runs until resume()")
        return slot.peer

    def _fail_wrong_result(self, method: Callable[..., Any], i: int, result: Any, shape: str) -> NoReturn:
        text = f"{method.__name__}() of peer {i} returned {short(result)}; it must return {shape}"
        self._runtime.fail(Failure(text, [*self._runtime.test_step(), *source_line(method)]))

    def check_one_leader(self) -> int:
        """Within 5 s the connected servers have one leader. Two leaders in one term are always wrong."""
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
        """All connected servers are in the same term: that term."""
        term = None
        for i in range(self.n):
            if self.reachable(i):
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
            if self.reachable(i):
                term, is_leader = self.get_state(i)
                if is_leader:
                    self.fail(f"Expected no leader without a majority, but peer {i} leads in term {term} (§5.2)")

    def _is_running(self, i: int) -> bool:
        return self.is_up(i) and not self.is_paused(i)

    def leader_now(self) -> int | None:
        """A server that believes it leads right now, connected or not; the last such, as in the MIT tests."""
        leader = None
        for i in range(self.n):
            if self._is_running(i) and self.get_state(i)[1]:
                leader = i
        # A crash that is armed may have come while the others were asked.
        return leader if leader is not None and self._is_running(leader) else None

    def wait_for_leader(self, after_term: int = 0) -> tuple[int, int]:
        """Within 5 s some connected server leads a later term than that: it, and its term."""
        for _ in range(1000):
            for i in range(self.n):
                if self.reachable(i):
                    term, leads = self.get_state(i)
                    if leads and term > after_term:
                        return i, term
            time.sleep(0.005)
        self.fail(f"Expected a leader of a term after {after_term}, but there was none for 5 s (§5.2)")

    # ---- agreement -----------------------------------------------------------------------------------------------

    def n_committed(self, index: int) -> tuple[int, Any]:
        """How many servers have applied a command at that index, and the command."""
        self._raise_if_failed()
        count, command = 0, None
        for slot in self._slots:
            if slot.service is not None and index in slot.service.commands:
                # That all of them hold the same one is checked when each is applied.
                count, command = count + 1, slot.service.commands[index]
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
                    if self._is_running(i) and self.get_state(i)[0] > start_term:
                        return None
        count, command = self.n_committed(index)
        if count < servers:
            self.fail(f"Index {index} was applied by {_servers(count)} in the end, expected {servers}", awaited=index)
        return command

    def one(self, command: Any, servers: int, *, retry: bool) -> int:
        """Agree on a command: start it at whoever leads, wait for that many servers to apply it; its index.

        Within 10 s. With `retry`, a command that got lost with its leader is given to the next one.
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
                    # Another thread of the test may have paused it meanwhile.
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
                applied = f"{_servers(count)} applied {short(found)}" if count else "no server applied anything"
                self.fail(
                    f"one({short(command)}): peer {candidate} took the command as index {index}, "
                    f"but after 2 s {applied} there; expected it on {_servers(servers)}"
                )
        if no_leader:
            self.fail(
                f"one({short(command)}): no agreement in 10 s (virtual): no connected peer took the command as leader"
            )
        self.fail(f"one({short(command)}): no agreement in 10 s (virtual); expected it on {_servers(servers)}")

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
