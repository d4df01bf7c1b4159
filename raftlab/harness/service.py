"""The tester's service above each peer: it reads apply_ch, stores the commands, and compares them across peers.

Each applied command is checked as it arrives: the indexes of one incarnation increase by one, and one index holds
one command on all peers, across restarts and snapshots. A restarted service has only its snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import labgob
from labsim import current_simulation, queue, time
from labsim.stacks import user_frames
from raftapi import ApplyMsg
from raftlab.check.failure import short
from raftlab.check.harness_rules import APPLY_ORDER, SNAPSHOT_FORWARD, SNAPSHOT_SAVED, STATE_MACHINE_SAFETY, HarnessRule
from raftlab.check.rules.facts import same_command
from raftlab.harness.launcher import ApplyChannel

# As in the MIT lab: a service that snapshots does so at every tenth command.
SNAPSHOT_INTERVAL = 10
_SAVED_WITHIN_S = 0.2
_SAVES_IN_A_ROW = 10  # saves that may come first on a slow disk


class CommittedCommands:
    """The command that any peer has ever applied at each index. Not affected by crashes."""

    def __init__(self) -> None:
        self._commands: dict[int, tuple[Any, int]] = {}
        self.max_index = 0

    def add(self, index: int, command: Any, peer: int) -> str | None:
        """None, or the text of a violation."""
        known = self._commands.get(index)
        if known is None:
            self._commands[index] = (command, peer)
            self.max_index = max(self.max_index, index)
        elif not same_command(known[0], command):
            return (
                f"State machine safety (§5.4.3) is violated: at index {index} peer {peer} applied {short(command)}, "
                f"but peer {known[1]} had applied {short(known[0])} there"
            )
        return None


class ApplyChecker:
    """Checks all messages on one incarnation's apply_ch: the tester's service, or an interceptor before a student's."""

    def __init__(
        self,
        peer: int,
        channel: ApplyChannel,
        committed: CommittedCommands,
        fail: Callable[[str, HarnessRule | None], NoReturn],
        applied: Callable[[ApplyMsg], None],
    ) -> None:
        self._peer = peer
        self._channel = channel
        self._committed = committed
        self._fail = fail
        self._applied = applied
        self.commands: dict[int, Any] = {}
        self.last_applied = 0

    def stop(self) -> None:
        """Stop on real threads, where a crash ends no thread."""
        raise NotImplementedError

    def _handle(self, message: ApplyMsg) -> None:
        """Check anything that the peer put on apply_ch."""
        # By name: a submission with its own messages.py has its own ApplyMsg.
        if type(message).__name__ != ApplyMsg.__name__:
            self._fail(f"peer {self._peer} put {short(message)} on apply_ch; it must be an ApplyMsg", None)
        self._applied(message)
        if message.snapshot_valid:
            self._install(message)
        elif message.command_valid:
            self._apply(message)
        else:
            self._fail(
                f"peer {self._peer} put an ApplyMsg on apply_ch with neither command_valid nor snapshot_valid",
                None,
            )

    def _apply(self, message: ApplyMsg) -> None:
        index = message.command_index
        if index != self.last_applied + 1:
            self._fail(
                f"peer {self._peer} applied index {index}; expected index {self.last_applied + 1} "
                f"(All Servers, Figure 2: apply log[last_applied])"
                f"{self._describe_lost_put(self.last_applied + 1) or self._describe_producers(index)}",
                APPLY_ORDER,
            )
        violation = self._committed.add(index, message.command, self._peer)
        if violation is not None:
            self._fail(violation, STATE_MACHINE_SAFETY)
        self.commands[index] = message.command
        self.last_applied = index

    def _install(self, message: ApplyMsg) -> None:
        # After a restart the snapshot on disk may be installed again: it does not roll the state back.
        if message.snapshot_index < self.last_applied:
            self._fail(
                f"peer {self._peer} put a snapshot of index {message.snapshot_index} on apply_ch, but its service is "
                f"already at {self.last_applied}: a snapshot must never roll the state back (§7)",
                SNAPSHOT_FORWARD,
            )

    def _describe_lost_put(self, index: int) -> str:
        """If a put of this index timed out: a sentence about it, else ""."""
        given_up = self._channel.producers.given_up
        if index not in given_up:
            return ""
        producer, at_s = given_up[index]
        return (
            f". {producer} tried to put {index} on apply_ch, which was full, and gave up at {at_s:.3f} s (queue.Full): "
            "retry until there is room, and only then put the next one"
        )

    def _describe_producers(self, index: int) -> str:
        """If another thread also puts messages on apply_ch: a sentence about it, else ""."""
        latest = self._channel.producers.latest
        producer = next((name for name, last in latest.items() if last == index), None)
        if producer is None:
            return ""
        other = next((name for name in reversed(latest) if name != producer), None)
        other_action = "" if other is None else f"{other} put index {latest[other]}"
        holder = self._task_with_message(self.last_applied + 1)
        if holder not in (None, producer):
            other_action = f"{holder} has yet to put index {self.last_applied + 1}"
        if not other_action:
            return ""
        return (
            f". {producer} put index {index} on apply_ch, {other_action}: the order of two threads is random, so let "
            "one thread put all messages on apply_ch"
        )

    def _task_with_message(self, index: int) -> str | None:
        """The task of this peer that has a message with this index among its local variables."""
        simulation = current_simulation()
        for task in () if simulation is None else simulation.tasks():
            if simulation is None or task is simulation.current or task.node is not simulation.current.node:
                continue
            for frame in user_frames(simulation.frames_of(task)):
                for value in frame.f_locals.values():
                    if type(value).__name__ == ApplyMsg.__name__ and getattr(value, "command_index", 0) == index:
                        return task.name
        return None


class TesterService(ApplyChecker):
    """One incarnation's state machine: the list of all commands, with periodic snapshots."""

    def __init__(
        self,
        peer: int,
        channel: ApplyChannel,
        committed: CommittedCommands,
        fail: Callable[[str, HarnessRule | None], NoReturn],
        applied: Callable[[ApplyMsg], None],
        saved_snapshot: Callable[[], bytes],
        save_s_max: Callable[[], float],
        stopwatch: Callable[[], Callable[[], float]],
        *,
        snapshots: bool,
    ) -> None:
        super().__init__(peer, channel, committed, fail, applied)
        self._saved_snapshot = saved_snapshot
        self._save_s_max = save_s_max
        self._stopwatch = stopwatch
        self._snapshots = snapshots
        self.snapshot_every = SNAPSHOT_INTERVAL  # commands; 0: only when asked
        # Snapshots that were not on the disk at the last check, and how long ago they were passed to the peer.
        self._unsaved_snapshots: list[tuple[int, Callable[[], float]]] = []
        self._stopped = False
        self.take_snapshot: Callable[[int, bytes], None] = lambda index, data: None  # the peer's, once it exists
        self.snapshot_ms = 0.0  # how long a snapshot takes
        self._idle: queue.Queue[None] | None = None  # while busy: gets an item when it becomes idle

    def restore(self, snapshot: bytes) -> None:
        """Load the snapshot on the disk, as a restarted process must."""
        if snapshot:
            self._load(snapshot, "the snapshot on its disk")

    def stop(self) -> None:
        """Stop on real threads, where a crash ends no thread."""
        self._stopped = True
        self._channel.put(ApplyMsg())  # wakes run(); if the queue is full, the message there does

    def run(self) -> None:
        while True:
            message = self._channel.get()
            if self._stopped:
                return
            while self._idle is not None:
                self._idle.get()
            self._handle(message)

    @property
    def busy(self) -> bool:
        return self._idle is not None

    def set_busy(self, yes: bool) -> None:
        """While busy, it handles no message."""
        idle, self._idle = self._idle, queue.Queue() if yes else None
        if idle is not None:
            idle.put(None)

    def _apply(self, message: ApplyMsg) -> None:
        super()._apply(message)
        index = message.command_index
        if self._snapshots and self.snapshot_every and index % self.snapshot_every == self.snapshot_every - 1:
            self.snapshot(index)

    def snapshot(self, index: int) -> None:
        self._check_saved()
        data = labgob.Encoder()
        data.encode(index)
        data.encode([self.commands.get(i) for i in range(1, index + 1)])
        if self.snapshot_ms:
            time.sleep(self.snapshot_ms / 1000)
        self._unsaved_snapshots.append((index, self._stopwatch()))
        self.take_snapshot(index, data.bytes())

    def saved_index(self) -> int:
        """The last index of the snapshot on the disk; 0 without one."""
        saved = self._saved_snapshot()
        return labgob.Decoder(saved).decode(int) if saved else 0

    def _check_saved(self) -> None:
        """Check that earlier snapshots are on the disk. A peer may save them in another thread, a little later."""
        saved_index = self.saved_index()
        self._unsaved_snapshots = [snapshot for snapshot in self._unsaved_snapshots if snapshot[0] > saved_index]
        for index, since_s in self._unsaved_snapshots[:1]:
            waited_s = since_s()
            if waited_s > _SAVED_WITHIN_S + _SAVES_IN_A_ROW * self._save_s_max():
                self._fail(
                    f"snapshot() of peer {self._peer} received a snapshot of index {index}, but {waited_s:.1f} s "
                    f"later the disk has one of index {saved_index}: save it together with the shorter log (§7)",
                    SNAPSHOT_SAVED,
                )

    def _install(self, message: ApplyMsg) -> None:
        super()._install(message)
        self._load(message.snapshot, "a snapshot on apply_ch")
        if self.last_applied != message.snapshot_index:
            self._fail(
                f"peer {self._peer} put a snapshot on apply_ch with snapshot_index {message.snapshot_index}, "
                f"but it was taken at index {self.last_applied}",
                SNAPSHOT_FORWARD,
            )

    def _load(self, snapshot: bytes, which: str) -> None:
        try:
            data = labgob.Decoder(snapshot)
            index = data.decode(int)
            commands = data.decode(list[Any])
        except labgob.DecodeError as error:
            self._fail(f"peer {self._peer}: {which} was not made by the service: {error}", None)
        self.commands = dict(enumerate(commands, start=1))
        self.last_applied = index
        for i, command in self.commands.items():
            violation = self._committed.add(i, command, self._peer)
            if violation is not None:
                self._fail(violation, STATE_MACHINE_SAFETY)
