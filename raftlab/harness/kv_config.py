"""A cluster for parts 3A and 3B: servers with a key/value service above their peers, and clients.

MIT's kvraft config with Python names: a Config with clients whose calls go into a history. At the end of the test, or
when it fails, the history is checked for linearizability.

Start reading at `KVConfig.run_clients()`, then `_check_history()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn
from zlib import crc32

from labsim import threading, time
from raftapi import Peer
from raftlab.check.harness_rules import LINEARIZABILITY, HarnessRule
from raftlab.check.linearizability import CheckResult, History, check
from raftlab.check.service_diagnosis import evidence, explain_wait
from raftlab.harness.clients import Client
from raftlab.harness.config import Config, Stats
from raftlab.harness.interceptor import ApplyInterceptor, SnapshotRegistry
from raftlab.harness.launcher import ApplyChannel, LaunchedPeer, PeerLauncher, RaftHooks
from raftlab.harness.runtime import CallTimeout
from raftlab.harness.servers import ServerSlot
from raftlab.harness.service import ApplyChecker
from raftlab.trace import events

SERVICE = "KVServer"
# After the last fault a new leader is elected within two seconds; a client that still waits has lost its request.
_FINISH_S = 20.0
_CLERK_LIMIT_S = 10.0


class Undecided(Exception):
    """The checker has given up on a history: a defect of the lab, not of the service."""


class KVConfig(Config):
    """A service under test. Made by the `make_kv_config` fixture."""

    # As in MIT's lab: a clerk tries one server after the other, and must not wait seconds for each dead one.
    _long_delays = False

    def __init__(
        self,
        launcher: PeerLauncher,
        *,
        servers: int = 3,
        unreliable: bool = False,
        max_raft_state: int | None = None,
    ) -> None:
        if not launcher.has_service:
            raise ValueError("make_kv_config(): no service is loaded; use load_peer(raft, kv=...)")
        self._max_raft_state = max_raft_state
        self._known_snapshots = SnapshotRegistry()
        self._clients: list[Client] = []
        self._clients_made = 0
        self._history_checked = False
        self.history = History(lambda: self._runtime.now)
        super().__init__(launcher, servers=servers, unreliable=unreliable)

    def _emit_cluster(self) -> None:
        super()._emit_cluster()
        self._emit(events.SERVICE, None, SERVICE, 0)

    # ---- the course of a test ----------------------------------------------------------------------------

    def _begin_counting(self) -> None:
        super()._begin_counting()
        self._operations_before = len(self.history.operations)

    def end(self) -> Stats:
        """The test has passed if its history is linearizable. Its commands are the clients' operations."""
        self._raise_if_failed()
        if self.stats is None:
            self._check_history()
        stats = super().end()
        operations = len(self.history.operations) - self._operations_before
        self.stats = stats._replace(commands=operations)
        return self.stats

    def fail(self, text: str, rule: HarnessRule | None = None, **details: Any) -> NoReturn:
        """Fail the test; a history that is not linearizable is reported instead."""
        if rule is None:
            self._check_history(final=False)
        super().fail(text, rule, **details)

    def fail_timeout(self, text: str) -> NoReturn:
        """A client has waited too long."""
        snapshot = self._snapshot()
        self.fail(text, evidence=explain_wait(snapshot.blocked), snapshot=snapshot)

    def _check_history(self, *, final: bool = True) -> None:
        if self._history_checked:
            return
        self._history_checked = True
        if self._virtual is None:
            verdict = check(self.history.operations)
        else:
            verdict = check(self.history.operations, alive=self._virtual.note_progress)
        if verdict.result is CheckResult.VIOLATION:
            violation = verdict.violation
            assert violation is not None
            lines = evidence(violation, self._trace)
            self.fail(violation.text, LINEARIZABILITY, evidence=lines, variety=violation.anomaly.value)
        if verdict.result is CheckResult.UNKNOWN and final:
            raise Undecided(
                f"the checker gave up on key {verdict.key!r} after {verdict.steps:,} steps, so it is unknown whether "
                f"these {len(self.history.operations):,} operations are linearizable. This is a defect of the test, "
                "not of the service: write unique values, none of which is a prefix of another, so that no search "
                "is needed"
            )

    def _kill_peer(self, slot: ServerSlot, peer: Peer) -> None:
        interceptor = slot.service
        assert isinstance(interceptor, ApplyInterceptor)
        interceptor.stop_checking()
        self._call_peer(slot, "kill()", interceptor.kill, entry_point="kill")
        super()._kill_peer(slot, peer)

    # ---- servers -----------------------------------------------------------------------------------------

    def _make_apply_checker(self, slot: ServerSlot, channel: ApplyChannel) -> ApplyChecker:
        interceptor = ApplyInterceptor(
            slot.index,
            channel,
            self._committed,
            self.fail,
            self._make_apply_hook(slot.node),
            self._known_snapshots,
            self._runtime.after,
            self._make_stopwatch(slot.node),
            lambda: self._slowest_save_ms / 1000,
        )
        interceptor.restore(slot.persister.read_snapshot())
        return interceptor

    def _start_service(self, slot: ServerSlot, launched: LaunchedPeer) -> None:
        interceptor, name = slot.service, f"{SERVICE}()"
        assert isinstance(interceptor, ApplyInterceptor)
        construct = partial(launched.construct_service, self._max_raft_state)
        interceptor.kill = self._call_peer(slot, f"{SERVICE}(...)", construct, entry_point="__init__", name=name).kill

    def _raft_hooks(self, slot: ServerSlot) -> RaftHooks:
        return RaftHooks(partial(self._record_start, slot), partial(self._on_snapshot, slot))

    def _on_snapshot(self, slot: ServerSlot, index: int, snapshot: bytes) -> None:
        """The service passes a snapshot to its peer."""
        interceptor = slot.service
        assert isinstance(interceptor, ApplyInterceptor)
        interceptor.check_snapshot(index, snapshot)
        self._emit(events.SNAPSHOT, slot.node, events.ServiceSnapshot(index, snapshot), crc32(snapshot))

    def crash1(self, i: int) -> None:
        """Crash server i. What its Persister has saved remains."""
        interceptor = self._slot(i).service
        if isinstance(interceptor, ApplyInterceptor):
            interceptor.stop_checking()
        super().crash1(i)

    def _update_links(self, i: int) -> None:
        super()._update_links(i)
        for client in self._clients:
            self._update_client_links(client, i)

    def snapshot_size(self) -> int:
        """The size of the largest snapshot of all servers, in bytes."""
        return max(slot.persister.snapshot_size() for slot in self._slots)

    # ---- clients -----------------------------------------------------------------------------------------

    def make_client(self, reaches: Iterable[int] | None = None) -> Client:
        """A client with its own clerk. `reaches`: the servers it is connected to at first (default: all)."""
        number = self._clients_made
        self._clients_made += 1
        name = f"client {number}"
        node = self._runtime.node(name)
        ends = []
        for slot in self._slots:
            self._ends_made += 1
            end = self._network.make_end(f"{name}-{slot.name} #{self._ends_made}", name)
            self._network.connect(end.name, slot.name)
            ends.append(end)
        first = list(range(self.n)) if reaches is None else [self._slot(i).index for i in reaches]
        client = Client(name, node, ends, first, self.history, self._runtime, self._emit, self.fail, self.fail_timeout)
        self._clients.append(client)
        for i in range(self.n):
            self._update_client_links(client, i)
        construct = self._launcher.launch_clerk(node, self._network, ends, number)
        try:
            client.clerk = self._runtime.call(
                node, construct, entry_point="__init__", name="Clerk()", limit_s=_CLERK_LIMIT_S
            )
        except CallTimeout:
            self.fail(f"Clerk(...) of {name} has not returned for {_CLERK_LIMIT_S:g} s{self._runtime.clock}")
        return client

    def connect_client(self, client: Client, reaches: Iterable[int]) -> None:
        """Connect the client to exactly these servers."""
        client.reaches = [self._slot(i).index for i in reaches]
        for i in range(self.n):
            self._update_client_links(client, i)

    def _update_client_links(self, client: Client, i: int) -> None:
        self._network.enable(client.ends[i].name, self._slots[i].connected and i in client.reaches)

    def spawn_clients(self, count: int, work: Callable[[int, Client], None]) -> RunningClients:
        """Start work(number, client) for `count` new clients, concurrently. Wait for them with finish()."""
        return self.spawn([self.make_client() for _ in range(count)], work)

    def spawn(self, clients: list[Client], work: Callable[[int, Client], None]) -> RunningClients:
        """Start work(number, client) for these clients, concurrently."""
        count = len(clients)
        done = [False] * count

        def run(number: int) -> None:
            work(number, clients[number])
            done[number] = True

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        return RunningClients(self, clients, threads, done)

    def run_clients(self, count: int, work: Callable[[int, Client], None]) -> None:
        """Run work(number, client) for `count` new clients, and wait until all are done."""
        self.spawn_clients(count, work).finish()


class RunningClients:
    """Clients whose work has been started."""

    def __init__(self, cfg: KVConfig, clients: list[Client], threads: list[threading.Thread], done: list[bool]) -> None:
        self._cfg = cfg
        self.clients = clients
        self._threads = threads
        self._done = done

    @property
    def all_done(self) -> bool:
        return all(self._done)

    def finish(self, limit_s: float = _FINISH_S) -> None:
        """Wait until all are done. From now on they must be able to finish."""
        since_s = time.time()
        for thread in self._threads:
            left_s = max(0.0, since_s + limit_s - time.time())
            thread.join(left_s)
        waiting = [client.name for client, done in zip(self.clients, self._done, strict=True) if not done]
        if waiting:
            open_ = [one for one in self._cfg.history.operations if one.pending and one.client in waiting]
            which = ""
            if open_:
                called_s = open_[0].called_s
                which = f": {open_[0].kind}({open_[0].key!r}), called at {called_s:.3f} s, has not returned"
            self._cfg.fail_timeout(
                f"{', '.join(waiting[:5])} cannot finish, although a majority of the servers is up{which}"
            )
