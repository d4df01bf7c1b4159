"""The harness of parts 3A and 3B: servers with a key/value service above their peers, and clients.

MIT's kvraft config with Python names. All that can be done to servers, disks and network is Config's; beyond it there
are clients, whose every call is taken down. When the test is over, or fails for a reason of its own, the history is
checked for linearizability.

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
# After the last act a new leader is elected within a second or two; whoever still waits then waits in vain.
_FINISH_S = 20.0
_CLERK_LIMIT_S = 10.0


class Undecided(Exception):
    """The checker has given up on a history. That is the lab's failure, and says nothing about the service."""


class KVConfig(Config):
    """A service under test. Made by the `make_kv_config` fixture."""

    # As in the MIT lab: a clerk asks one server after the other, and must not wait for seconds at each that is gone.
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
            raise ValueError("make_kv_config(): a service was not loaded; load_peer(raft, kv=...) does both")
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
        """The test has passed, if its history is right. Counted as commands: what clients asked for."""
        self._raise_if_failed()
        if self.stats is None:
            self._check_history()
        stats = super().end()
        operations = len(self.history.operations) - self._operations_before
        self.stats = stats._replace(commands=operations)
        return self.stats

    def fail(self, text: str, rule: HarnessRule | None = None, **told: Any) -> NoReturn:
        """Whatever a test has noticed: if the history is wrong already, that comes first."""
        if rule is None:
            self._check_history(final=False)
        super().fail(text, rule, **told)

    def fail_timeout(self, text: str) -> NoReturn:
        """A client waits, and should not have to."""
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
            text = f"{LINEARIZABILITY.title} ({LINEARIZABILITY.section}): {violation.text}"
            told = evidence(violation, self._trace)
            self.fail(text, LINEARIZABILITY, evidence=told, variety=violation.anomaly.value)
        if verdict.result is CheckResult.UNKNOWN and final:
            raise Undecided(
                f"the checker gave up on key {verdict.key!r} after {verdict.steps:,} steps, so nobody knows whether "
                f"these {len(self.history.operations):,} operations are linearizable. This is a failure of the lab, "
                "and none of the service: let no two writes of a key in this test be alike, and none begin with "
                "another, and nothing has to be searched"
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
        """The service gives its peer a snapshot."""
        interceptor = slot.service
        assert isinstance(interceptor, ApplyInterceptor)
        interceptor.check_snapshot(index, snapshot)
        self._emit(events.SNAPSHOT, slot.node, events.ServiceSnapshot(index, snapshot), crc32(snapshot))

    def crash1(self, i: int) -> None:
        """Cut the power of server i. What its Persister has saved remains."""
        interceptor = self._slot(i).service
        if isinstance(interceptor, ApplyInterceptor):
            interceptor.stop_checking()
        super().crash1(i)

    def _update_links(self, i: int) -> None:
        super()._update_links(i)
        for client in self._clients:
            self._update_client_links(client, i)

    def snapshot_size(self) -> int:
        """The largest snapshot of all servers, in bytes."""
        return max(slot.persister.snapshot_size() for slot in self._slots)

    # ---- clients -----------------------------------------------------------------------------------------

    def make_client(self, reaches: Iterable[int] | None = None) -> Client:
        """A client with a clerk of its own. `reaches`: the servers that it is plugged to, at first (all)."""
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
        """Plug the client to these servers and no others."""
        client.reaches = [self._slot(i).index for i in reaches]
        for i in range(self.n):
            self._update_client_links(client, i)

    def _update_client_links(self, client: Client, i: int) -> None:
        self._network.enable(client.ends[i].name, self._slots[i].connected and i in client.reaches)

    def spawn_clients(self, count: int, work: Callable[[int, Client], None]) -> RunningClients:
        """Begin work(number, client) for each of so many new clients, all at once; finish() waits for them."""
        return self.spawn([self.make_client() for _ in range(count)], work)

    def spawn(self, clients: list[Client], work: Callable[[int, Client], None]) -> RunningClients:
        """The same for clients that are there already."""
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
        """The same, and wait."""
        self.spawn_clients(count, work).finish()


class RunningClients:
    """Clients at work."""

    def __init__(self, cfg: KVConfig, clients: list[Client], threads: list[threading.Thread], done: list[bool]) -> None:
        self._cfg = cfg
        self.clients = clients
        self._threads = threads
        self._done = done

    @property
    def all_done(self) -> bool:
        return all(self._done)

    def finish(self, limit_s: float = _FINISH_S) -> None:
        """Wait until all have done their work, which they can from now on."""
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
                f"{', '.join(waiting[:5])} cannot finish, though a majority of the servers is up{which}"
            )
