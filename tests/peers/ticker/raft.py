"""A core without threads, clock or network, driven by ticks.

`Core` is a library: it is given messages (step, answered), commands (propose), snapshots (compact) and ticks (tick),
and collects the consequences in a `Ready` batch: state to save, messages to send, entries to apply. `Raft` below drives
it, under one lock, and executes every batch in that order.

Differences:

- Time is counted in ticks of 10 ms. A peer that had to wait (for a slow disk) has counted fewer ticks.
- Messages do not leave at once. They wait in a mailbox for each other peer, whose sender checks it every 20 ms. So a
  message may leave when its sender is in another term; to the receiver that is a slow network.
- Each follower has one request at a time that matters, and it is repeated if some ticks brought no reply.
- No fields beyond Figure 2's. A leader that is rejected goes back 1, 4, 16, 64, ... entries, with empty messages, until
  one is accepted; only then does it send entries.
- Followers learn of a commit with the next message they are sent anyway.

Start at Core.step for the protocol, at Raft._carry_out for the order of saving, sending and applying.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import labgob
from labrpc import ClientEnd
from labsim import queue, random, threading, time
from raft.messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    ApplyMsg,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    LogEntry,
    RequestVoteArgs,
    RequestVoteReply,
)
from raft.persister import Persister

TICK_S = 0.010
SENDER_PAUSE_S = 0.020
HEARTBEAT_TICKS = 10
ELECTION_TICKS_MIN, ELECTION_TICKS_MAX = 45, 95
RETRY_TICKS = 15  # more than a mailbox and a slow network there and back
SNAPSHOT_RETRY_TICKS = 30
STRIDE_GROWTH = 4
NOBODY = -1

Request = RequestVoteArgs | AppendEntriesArgs | InstallSnapshotArgs
Reply = RequestVoteReply | AppendEntriesReply | InstallSnapshotReply


@dataclass
class Ready:
    """What is to be done, in this order: save, then send and apply."""

    save: bool = False
    snapshot: bytes | None = None  # to be saved with the state, in the same save
    messages: list[tuple[int, Request]] = field(default_factory=list)
    to_apply: list[ApplyMsg] = field(default_factory=list)


@dataclass
class Progress:
    """What a leader knows of one follower."""

    next_index: int
    match_index: int = 0
    probing: bool = True  # where the logs part is not known yet, so nothing but empty messages
    stride: int = 1  # how far to go back when refused
    awaited: Request | None = None  # the question whose answer lets us ask the next one
    waiting_ticks: int = 0  # until it is asked again


class Core:
    """The protocol, and nothing else. Not for several threads at once."""

    def __init__(self, me: int, size: int, saved: bytes, snapshot: bytes, draw_timeout: Callable[[], int]) -> None:
        self.me = me
        self.others = [peer for peer in range(size) if peer != me]
        self.majority = size // 2 + 1
        self.draw_timeout = draw_timeout

        # Persistent. log[0] represents the snapshot: its term, and no command.
        self.current_term = 0
        self.voted_for = NOBODY
        self.snapshot_index = 0
        self.log = [LogEntry(0, None)]
        self.snapshot = snapshot
        if saved:
            r = labgob.Decoder(saved)
            self.current_term = r.decode(int)
            self.voted_for = r.decode(int)
            self.snapshot_index = r.decode(int)
            self.log = r.decode(list[LogEntry])

        # Volatile. The service starts from the snapshot, so that much is applied.
        self.commit_index = self.snapshot_index
        self.last_applied = self.snapshot_index  # as handed over in a batch
        self.role = "follower"
        self.votes: set[int] = set()
        self.progress: dict[int, Progress] = {}
        self.election_ticks = draw_timeout()
        self.heartbeat_ticks = HEARTBEAT_TICKS
        self._ready = Ready()

    def encoded_state(self) -> bytes:
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.snapshot_index)
        w.encode(self.log)
        return w.bytes()

    def take_ready(self) -> Ready:
        ready, self._ready = self._ready, Ready()
        return ready

    # ---- The log -------------------------------------------------------------------------------------

    @property
    def last_index(self) -> int:
        return self.snapshot_index + len(self.log) - 1

    def term_at(self, index: int) -> int:
        """Of an entry from snapshot_index to last_index."""
        return self.log[index - self.snapshot_index].term

    def holds(self, index: int, term: int) -> bool:
        return self.snapshot_index <= index <= self.last_index and self.term_at(index) == term

    def _commit(self, index: int) -> None:
        """Hand over everything up to this index that was not yet."""
        self.commit_index = max(self.commit_index, index)
        while self.last_applied < self.commit_index:
            self.last_applied += 1
            command = self.log[self.last_applied - self.snapshot_index].command
            self._ready.to_apply.append(ApplyMsg(command_valid=True, command=command, command_index=self.last_applied))

    # ---- What happens to a peer ----------------------------------------------------------------------

    def tick(self) -> None:
        if self.role != "leader":
            self.election_ticks -= 1
            if self.election_ticks <= 0:
                self._campaign()
            return
        self.heartbeat_ticks -= 1
        heartbeat_is_due = self.heartbeat_ticks <= 0
        if heartbeat_is_due:
            self.heartbeat_ticks = HEARTBEAT_TICKS
        for peer, progress in self.progress.items():
            was_waiting = progress.waiting_ticks > 0
            progress.waiting_ticks = max(0, progress.waiting_ticks - 1)
            if was_waiting and not progress.waiting_ticks:
                self._ask(peer)
            elif heartbeat_is_due:
                self._heartbeat(peer)

    def propose(self, command: Any) -> int:
        """The leader takes a command; its index."""
        self.log.append(LogEntry(self.current_term, command))
        self._ready.save = True
        for peer in self.others:
            if not self.progress[peer].waiting_ticks:
                self._ask(peer)
        self._advance_commit()
        return self.last_index

    def compact(self, index: int, snapshot: bytes) -> None:
        """The service's snapshot replaces the log up to this index (§7), unless a later one has done so already."""
        if not self.snapshot_index < index <= self.last_applied:
            return
        self.log = [LogEntry(self.term_at(index), None), *self.log[index - self.snapshot_index + 1 :]]
        self._keep_snapshot(index, snapshot)

    def step(self, request: Request) -> Reply:
        """Another peer asks; our answer, which must not leave before the batch was carried out."""
        if request.term > self.current_term:
            self._follow(request.term)
        if isinstance(request, RequestVoteArgs):
            return self._on_request_vote(request)
        if isinstance(request, AppendEntriesArgs):
            return self._on_append_entries(request)
        return self._on_install_snapshot(request)

    def answered(self, peer: int, request: Request, reply: Reply) -> None:
        """Another peer's answer to what we asked. Either may be from long ago."""
        if reply.term > self.current_term:
            self._follow(reply.term)
            return
        # A peer that accepted a request is in its term; a lower one comes from a killed peer.
        if request.term != self.current_term or reply.term != self.current_term:
            return
        if isinstance(request, RequestVoteArgs):
            if self.role == "candidate" and reply.vote_granted:
                self.votes.add(peer)
                self._count_votes()
        elif self.role == "leader":
            self._on_replication_answer(peer, request, reply)

    # ---- Elections (§5.2, §5.4.1) ----------------------------------------------------------------------

    def _follow(self, term: int) -> None:
        if term > self.current_term:
            self.current_term = term
            self.voted_for = NOBODY
            self._ready.save = True
        if self.role == "leader":
            self.election_ticks = self.draw_timeout()  # it had no timer while it led
        self.role = "follower"
        self.progress = {}

    def _campaign(self) -> None:
        self.role = "candidate"
        self.current_term += 1
        self.voted_for = self.me
        self.votes = {self.me}
        self._ready.save = True
        self.election_ticks = self.draw_timeout()
        last_index = self.last_index
        for peer in self.others:
            request = RequestVoteArgs(self.current_term, self.me, last_index, self.term_at(last_index))
            self._ready.messages.append((peer, request))
        self._count_votes()

    def _count_votes(self) -> None:
        if len(self.votes) < self.majority:
            return
        self.role = "leader"
        self.progress = {peer: Progress(next_index=self.last_index + 1) for peer in self.others}
        self.heartbeat_ticks = HEARTBEAT_TICKS
        for peer in self.others:
            self._ask(peer)

    def _on_request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        ours = (self.term_at(self.last_index), self.last_index)
        granted = (
            args.term == self.current_term
            and self.voted_for in (NOBODY, args.candidate_id)
            and (args.last_log_term, args.last_log_index) >= ours
        )
        if granted:
            self._ready.save = self._ready.save or self.voted_for == NOBODY
            self.voted_for = args.candidate_id
            self.election_ticks = self.draw_timeout()
        return RequestVoteReply(self.current_term, granted)

    # ---- A follower's log (§5.3, §7) -------------------------------------------------------------------

    def _hear_leader(self) -> None:
        self._follow(self.current_term)
        self.election_ticks = self.draw_timeout()

    def _on_append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        if args.term < self.current_term:
            return AppendEntriesReply(self.current_term, False)
        self._hear_leader()
        # Our snapshot is committed, so the leader has the same entries.
        if args.prev_log_index >= self.snapshot_index and not self.holds(args.prev_log_index, args.prev_log_term):
            return AppendEntriesReply(self.current_term, False)
        for index, entry in enumerate(args.entries, start=args.prev_log_index + 1):
            if index > self.snapshot_index and not self.holds(index, entry.term):
                # Only from the first entry that differs: a late request must not cut off what came after it.
                del self.log[index - self.snapshot_index :]
                self.log.extend(args.entries[index - args.prev_log_index - 1 :])
                self._ready.save = True
                break
        self._commit(min(args.leader_commit, args.prev_log_index + len(args.entries)))
        return AppendEntriesReply(self.current_term, True)

    def _on_install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        if args.term < self.current_term:
            return InstallSnapshotReply(self.current_term)
        self._hear_leader()
        index, term = args.last_included_index, args.last_included_term
        if index > self.commit_index:
            # Figure 13, 6 and 7: what follows the same entry stays, any other log goes.
            rest = self.log[index - self.snapshot_index + 1 :] if self.holds(index, term) else []
            self.log = [LogEntry(term, None), *rest]
            self._keep_snapshot(index, args.data)
            self.commit_index = self.last_applied = index
            self._ready.to_apply.append(
                ApplyMsg(snapshot_valid=True, snapshot=args.data, snapshot_term=term, snapshot_index=index)
            )
        return InstallSnapshotReply(self.current_term)

    def _keep_snapshot(self, index: int, snapshot: bytes) -> None:
        self.snapshot_index = index
        self.snapshot = snapshot
        self._ready.snapshot = snapshot
        self._ready.save = True

    # ---- A leader's followers (§5.3, §7) ---------------------------------------------------------------

    def _append(self, peer: int, prev: int, entries: list[LogEntry]) -> AppendEntriesArgs:
        request = AppendEntriesArgs(self.current_term, self.me, prev, self.term_at(prev), entries, self.commit_index)
        self._ready.messages.append((peer, request))
        return request

    def _ask(self, peer: int) -> None:
        """Send what this follower needs next, and wait for its answer if we could not do without."""
        progress = self.progress[peer]
        if progress.next_index <= self.snapshot_index:
            term = self.term_at(self.snapshot_index)
            progress.awaited = InstallSnapshotArgs(self.current_term, self.me, self.snapshot_index, term, self.snapshot)
            progress.waiting_ticks = SNAPSHOT_RETRY_TICKS
            self._ready.messages.append((peer, progress.awaited))
            return
        entries = [] if progress.probing else self.log[progress.next_index - self.snapshot_index :]
        request = self._append(peer, progress.next_index - 1, entries)
        if entries or progress.probing:
            progress.awaited = request
            progress.waiting_ticks = RETRY_TICKS

    def _heartbeat(self, peer: int) -> None:
        progress = self.progress[peer]
        if progress.waiting_ticks:
            # A follower that waits for a snapshot refuses this, and we pay no attention to it.
            self._append(peer, max(progress.next_index - 1, self.snapshot_index), [])
        else:
            self._ask(peer)

    def _on_replication_answer(self, peer: int, request: Request, reply: Reply) -> None:
        progress = self.progress[peer]
        if isinstance(request, InstallSnapshotArgs):
            self._matches(progress, request.last_included_index)
        elif reply.success:
            self._matches(progress, request.prev_log_index + len(request.entries))
        elif progress.probing and request.prev_log_index == progress.next_index - 1:
            # Rejected at the current next_index, so it is not outdated.
            progress.next_index = max(progress.match_index + 1, progress.next_index - progress.stride)
            progress.stride *= STRIDE_GROWTH
            progress.waiting_ticks = 0
        if request is progress.awaited:
            progress.awaited = None
            progress.waiting_ticks = 0
        if not progress.waiting_ticks and (progress.probing or progress.next_index <= self.last_index):
            self._ask(peer)

    def _matches(self, progress: Progress, index: int) -> None:
        """The follower's log is ours up to here; by an old answer we may know more already."""
        if progress.probing:
            progress.probing = False
            progress.waiting_ticks = 0
        progress.match_index = max(progress.match_index, index)
        progress.next_index = progress.match_index + 1
        self._advance_commit()

    def _advance_commit(self) -> None:
        matches = sorted([self.last_index, *(progress.match_index for progress in self.progress.values())])
        index = matches[-self.majority]
        # §5.4.2, Figure 8: a majority is not enough for an older term's entry.
        if index > self.commit_index and self.term_at(index) == self.current_term:
            self._commit(index)


class Raft:
    """Drives a Core: a thread for the ticks, one for each mailbox, one that applies, a short one for each call."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()  # guards everything below
        self.dead = threading.Event()
        self.core = Core(
            me,
            len(peers),
            persister.read_raft_state(),
            persister.read_snapshot(),
            lambda: random.randint(ELECTION_TICKS_MIN, ELECTION_TICKS_MAX),
        )
        self.mailboxes: dict[int, list[Request]] = {peer: [] for peer in self.core.others}
        self.to_apply: deque[ApplyMsg] = deque()
        self.something_to_apply = threading.Condition(self.mu)

        threading.Thread(target=self._ticker, daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()
        for peer in self.core.others:
            threading.Thread(target=self._sender, args=(peer,), daemon=True).start()

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.dead.is_set() or self.core.role != "leader":
                return -1, self.core.current_term, False
            index = self.core.propose(command)
            self._carry_out()
            return index, self.core.current_term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.core.current_term, self.core.role == "leader"

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if not self.dead.is_set():
                self.core.compact(index, snapshot)
                self._carry_out()

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            self.something_to_apply.notify_all()

    # ---- What other peers call -----------------------------------------------------------------------

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            if self.dead.is_set():
                return RequestVoteReply(self.core.current_term, False)
            reply = self.core.step(args)
            self._carry_out()
            return reply

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            if self.dead.is_set():
                return AppendEntriesReply(self.core.current_term, False)
            reply = self.core.step(args)
            self._carry_out()
            return reply

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if not self.dead.is_set():
                reply = self.core.step(args)
                self._carry_out()
                return reply
        # A dead peer saves nothing; a term in which no peer asks is the only way to reply so.
        return InstallSnapshotReply(0)

    # ---- Carrying out ----------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Nothing of a batch can be seen from outside before it is saved. Caller holds self.mu."""
        ready = self.core.take_ready()
        if ready.save:
            self.persister.save(self.core.encoded_state(), ready.snapshot)
        for peer, request in ready.messages:
            self.mailboxes[peer].append(request)
        if ready.to_apply:
            self.to_apply.extend(ready.to_apply)
            self.something_to_apply.notify_all()

    def _ticker(self) -> None:
        while not self.dead.is_set():
            time.sleep(TICK_S)
            with self.mu:
                if not self.dead.is_set():
                    self.core.tick()
                    self._carry_out()

    def _sender(self, peer: int) -> None:
        while not self.dead.is_set():
            time.sleep(SENDER_PAUSE_S)
            with self.mu:
                mail, self.mailboxes[peer] = self.mailboxes[peer], []
            for request in mail:
                # A call may take seconds to fail, and later mail does not wait for it.
                threading.Thread(target=self._call, args=(peer, request), daemon=True).start()

    def _call(self, peer: int, request: Request) -> None:
        if self.dead.is_set():
            return
        if isinstance(request, RequestVoteArgs):
            method = "Raft.request_vote"
        elif isinstance(request, AppendEntriesArgs):
            method = "Raft.append_entries"
        else:
            method = "Raft.install_snapshot"
        reply = self.peers[peer].call(method, request)
        if reply is None:
            return
        with self.mu:
            if not self.dead.is_set():
                self.core.answered(peer, request, reply)
                self._carry_out()

    def _applier(self) -> None:
        while True:
            with self.mu:
                while not self.to_apply and not self.dead.is_set():
                    self.something_to_apply.wait()
                if self.dead.is_set():
                    return
                message = self.to_apply.popleft()
            while not self.dead.is_set():
                try:
                    self.apply_ch.put(message, timeout=0.1)
                    break
                except queue.Full:
                    continue
