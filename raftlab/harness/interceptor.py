"""Observes what passes between a peer and a student's service, and changes nothing.

Each message is checked when the service takes it from apply_ch, so apply-order, snapshot-forward and
state-machine-safety hold for any service. The launcher reports the service's calls to its peer (`RaftHooks`).

The contents of a snapshot are opaque. The tester records which bytes were made at which index, so it knows the index
at which a restarted service begins, and the index of a snapshot on apply_ch.

Start at `ApplyInterceptor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn

from raftapi import ApplyMsg
from raftlab.check.harness_rules import SERVICE_LISTENS, SNAPSHOT_FORWARD, SNAPSHOT_OF_APPLIED, HarnessRule
from raftlab.harness.launcher import ApplyChannel
from raftlab.harness.service import ApplyChecker, CommittedCommands

# Before the peer would be reported for applying nothing.
SERVICE_TIMEOUT_S = 0.7
_CHECK_INTERVAL_S = 0.2
_SAVES_IN_A_ROW = 10  # saves that may come first on a slow disk


class SnapshotRegistry:
    """Every snapshot that a service of the cluster has made. Equal bytes may be of several indexes."""

    def __init__(self) -> None:
        self._indexes: dict[bytes, list[int]] = {b"": [0]}

    def add(self, index: int, snapshot: bytes) -> None:
        known = self._indexes.setdefault(snapshot, [])
        if index not in known:
            known.append(index)

    def indexes_of(self, snapshot: bytes) -> list[int]:
        """The indexes at which it may have been taken; empty if no service made it."""
        return self._indexes.get(snapshot, [])


class ApplyInterceptor(ApplyChecker):
    """Checks what one incarnation's service takes from apply_ch, in whichever process the service runs."""

    def __init__(
        self,
        peer: int,
        channel: ApplyChannel,
        committed: CommittedCommands,
        fail: Callable[[str, HarnessRule | None], NoReturn],
        applied: Callable[[ApplyMsg], None],
        snapshots: SnapshotRegistry,
        after: Callable[[float, Callable[[], None]], None],
        stopwatch: Callable[[], Callable[[], float]],
        save_s_max: Callable[[], float],
    ) -> None:
        super().__init__(peer, channel, committed, fail, applied)
        self._snapshots = snapshots
        self._begins_at: Iterable[int] = (0,)
        self._after = after
        self._stopwatch = stopwatch
        self._save_s_max = save_s_max
        self._taken_count = 0  # messages
        self._check_scheduled = False  # a message was put on apply_ch, and a check is due
        self._stopped = False
        self.kill: Callable[[], None] = lambda: None  # the service's, once it exists
        channel.intercept(self._on_take, self._on_put)

    def _on_take(self, message: ApplyMsg) -> None:
        self._taken_count += 1
        self._handle(message)

    def _on_put(self) -> None:
        if not self._check_scheduled:
            self._check_scheduled = True
            self._check_later(self._taken_count)

    def _check_later(self, taken_count: int, since_s: Callable[[], float] | None = None) -> None:
        """While there are messages, check periodically that the service takes them."""
        since_s = since_s or self._stopwatch()

        def check() -> None:
            limit_s = SERVICE_TIMEOUT_S + self._save_s_max() * _SAVES_IN_A_ROW
            if self._stopped or not self._channel.waiting():
                self._check_scheduled = False
            elif self._taken_count != taken_count:
                self._check_later(self._taken_count)
            elif since_s() < limit_s:
                self._check_later(taken_count, since_s)
            else:
                self._fail(
                    f"the service of server {self._peer} has taken nothing from apply_ch for {since_s():.1f} s, "
                    f"although messages wait there; it has applied up to {self.last_applied}. One thread must always "
                    "read apply_ch, even while other threads wait",
                    SERVICE_LISTENS,
                )

        self._after(_CHECK_INTERVAL_S, check)

    def restore(self, snapshot: bytes) -> None:
        """`snapshot`: the one on the disk, which the service will load."""
        self._begins_at = self._snapshots.indexes_of(snapshot)
        if not self._begins_at:
            self._fail(
                f"the disk of server {self._peer} holds a snapshot of {len(snapshot)} bytes that no service passed "
                "to snapshot()",
                None,
            )
        self.last_applied = max(self._begins_at)

    def stop_checking(self) -> None:
        """The server has crashed: the service takes no more messages."""
        self._stopped = True

    def stop(self) -> None:
        self.stop_checking()
        with suppress(Exception):  # the test is over
            self.kill()

    def _apply(self, message: ApplyMsg) -> None:
        # With equal snapshots, the next message tells which one is on the disk.
        if message.command_index - 1 in self._begins_at:
            self.last_applied = message.command_index - 1
        self._begins_at = ()
        super()._apply(message)
        self.commands.clear()  # only the tester's service needs them

    def _install(self, message: ApplyMsg) -> None:
        if message.snapshot_index in self._begins_at:
            self.last_applied = message.snapshot_index
        self._begins_at = ()
        super()._install(message)
        indexes = self._snapshots.indexes_of(message.snapshot)
        if message.snapshot_index not in indexes:
            size = len(message.snapshot)
            origin = (
                f"was taken at index {indexes[-1]}" if indexes else f"consists of {size} bytes that no service made"
            )
            self._fail(
                f"peer {self._peer} put a snapshot on apply_ch with snapshot_index {message.snapshot_index}, but it "
                f"{origin}",
                SNAPSHOT_FORWARD,
            )
        self.last_applied = message.snapshot_index

    def check_snapshot(self, index: int, snapshot: bytes) -> None:
        """The service passes a snapshot to its peer."""
        if self.last_applied < index:
            self._fail(
                f"the service of server {self._peer} passed its peer a snapshot of index {index}, but has received "
                f"only indexes up to {self.last_applied} from apply_ch",
                SNAPSHOT_OF_APPLIED,
            )
        self._snapshots.add(index, snapshot)
