"""Between a peer and a service that is the student's: the tester hears what passes, and changes nothing.

What the peer puts on apply_ch is held against the rules when the service takes it, so apply-order, snapshot-forward and
state-machine-safety hold under any service. What the service asks of its peer its launcher reports (`RaftHooks`).

What a snapshot holds is the service's business. But the tester has seen which bytes it made at which index, and so
knows with what index a service begins after a restart, and what a snapshot that is handed up stands for.

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

# Before its peer would be accused of applying nothing.
SERVICE_TIMEOUT_S = 0.7
_CHECK_INTERVAL_S = 0.2
_SAVES_IN_A_ROW = 10  # that may come first, on a slow disk


class SnapshotRegistry:
    """Every snapshot that some service of the cluster has made. Equal ones may be of several indexes."""

    def __init__(self) -> None:
        self._indexes: dict[bytes, list[int]] = {b"": [0]}

    def add(self, index: int, snapshot: bytes) -> None:
        known = self._indexes.setdefault(snapshot, [])
        if index not in known:
            known.append(index)

    def indexes_of(self, snapshot: bytes) -> list[int]:
        """Where it may have been taken; nowhere if no service has made it."""
        return self._indexes.get(snapshot, [])


class ApplyInterceptor(ApplyChecker):
    """In front of one incarnation's service: it is told what is taken from apply_ch, wherever that is."""

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
        self._check_scheduled = False  # since then something was put there, and somebody will look
        self._stopped = False
        self.kill: Callable[[], None] = lambda: None  # the service's, once it is there
        channel.intercept(self._on_take, self._on_put)

    def _on_take(self, message: ApplyMsg) -> None:
        self._taken_count += 1
        self._handle(message)

    def _on_put(self) -> None:
        if not self._check_scheduled:
            self._check_scheduled = True
            self._check_later(self._taken_count)

    def _check_later(self, taken_count: int, since_s: Callable[[], float] | None = None) -> None:
        """Look now and then, while there is something, whether the service takes it in its own time."""
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
                    f"the service of server {self._peer} has taken nothing from apply_ch for {since_s():.1f} s, though "
                    f"there is something: it has applied up to {self.last_applied}. One thread must take what is "
                    "agreed on, whatever the others wait for",
                    SERVICE_LISTENS,
                )

        self._after(_CHECK_INTERVAL_S, check)

    def restore(self, snapshot: bytes) -> None:
        """What the disk holds, which the service will read."""
        self._begins_at = self._snapshots.indexes_of(snapshot)
        if not self._begins_at:
            self._fail(
                f"the disk of server {self._peer} holds a snapshot of {len(snapshot)} bytes that no service has given "
                "to snapshot()",
                None,
            )
        self.last_applied = max(self._begins_at)

    def stop_checking(self) -> None:
        """Its server has crashed: nobody takes anything any more."""
        self._stopped = True

    def stop(self) -> None:
        self.stop_checking()
        with suppress(Exception):  # the test is over
            self.kill()

    def _apply(self, message: ApplyMsg) -> None:
        # Of equal snapshots nobody knows which one is on the disk, until it goes on.
        if message.command_index - 1 in self._begins_at:
            self.last_applied = message.command_index - 1
        self._begins_at = ()
        super()._apply(message)
        self.commands.clear()  # that is for services of our own

    def _install(self, message: ApplyMsg) -> None:
        if message.snapshot_index in self._begins_at:
            self.last_applied = message.snapshot_index
        self._begins_at = ()
        super()._install(message)
        indexes = self._snapshots.indexes_of(message.snapshot)
        if message.snapshot_index not in indexes:
            size = len(message.snapshot)
            taken_count = (
                f"was taken at index {indexes[-1]}" if indexes else f"is {size} bytes that no service has made"
            )
            self._fail(
                f"peer {self._peer} handed up a snapshot as index {message.snapshot_index}, but it {taken_count}",
                SNAPSHOT_FORWARD,
            )
        self.last_applied = message.snapshot_index

    def check_snapshot(self, index: int, snapshot: bytes) -> None:
        """The service gives its peer a snapshot."""
        if self.last_applied < index:
            self._fail(
                f"the service of server {self._peer} gave its peer a snapshot of index {index}, but has taken up to "
                f"{self.last_applied} from apply_ch",
                SNAPSHOT_OF_APPLIED,
            )
        self._snapshots.add(index, snapshot)
