"""Channels as in Go: one thread owns the state, so there is no lock.

One thread owns everything in Figure 2. It is in one of three loops, follower, candidate or leader. Each loop waits for
the next item on any of several channels, or for a point in time, as Go's `select` does. A loop returns the name of the
loop that comes next: that is the only way to change roles. RPC handlers, start(), get_state() and snapshot() send a
request down a channel and wait for the answer on another one. A second thread, the applier, forwards items to apply_ch.
A call to another peer is a thread, which sends its reply back.

Other differences:
- After a restart the peer delivers the saved snapshot on apply_ch first, as if a leader had just sent it.
- Items of one channel keep their order, but which of several channels is served first is random.
- A leader needs no hints to find where two logs diverge: with each rejection it goes back four times as far as before,
  and at least to the beginning of the term (§5.3, last page).
- A leader saves all waiting commands in one save, and sends them in one message.
- After kill() the handlers still answer: with a rejection in term 0, which promises nothing and deposes no leader.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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

HEARTBEAT_S = 0.100
ELECTION_TIMEOUT_S = (0.400, 0.900)
SNAPSHOT_RETRY_S = 0.500  # a snapshot is long: while one is on its way, heartbeats do not repeat it
NOBODY = -1

Role = Callable[[], Any]  # one of the three loops; it returns the next one


# ---- Channels ----------------------------------------------------------------------------------------------


class Closed(Exception):
    """The receiver is gone, and nothing will ever come out of its channels again."""


class Channel:
    """Items in the order in which they were sent. It holds as many as come, so that sending never waits."""

    def __init__(self, receiver: "Receiver") -> None:
        self.receiver = receiver
        self.items: deque[Any] = deque()  # guarded by receiver.changed

    def send(self, item: Any) -> None:
        with self.receiver.changed:
            if self.receiver.closed:
                raise Closed
            self.items.append(item)
            self.receiver.changed.notify()


class Receiver:
    """The one thread that takes items out of some channels, and what it waits on."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.channels: list[Channel] = []
        self.closed = False

    def channel(self) -> Channel:
        channel = Channel(self)
        self.channels.append(channel)
        return channel

    def select(self, until: float | None = None) -> tuple[Channel | None, Any]:
        """The next item of any channel, with that channel; or (None, None) once it is `until`."""
        with self.changed:
            while True:
                if self.closed:
                    raise Closed
                ready: list[Channel | None] = [channel for channel in self.channels if channel.items]
                left_s = None if until is None else until - time.monotonic()
                if left_s is not None and left_s <= 0:
                    ready.append(None)
                if ready:
                    channel = random.choice(ready)  # as in Go, so that a busy channel cannot starve the others
                    return channel, channel.items.popleft() if channel else None
                self.changed.wait(left_s)

    def take_waiting(self, channel: Channel) -> list[Any]:
        """What else is in that channel now, without waiting."""
        with self.changed:
            items = list(channel.items)
            channel.items.clear()
            return items

    def close(self) -> list[Any]:
        """Nothing goes in or comes out any more. Returns what was never received."""
        with self.changed:
            left = [item for channel in self.channels for item in channel.items]
            for channel in self.channels:
                channel.items.clear()
            self.closed = True
            self.changed.notify()
            return left


class Request:
    """A question, and the channel on which its asker waits for the answer."""

    def __init__(self, question: Any) -> None:
        self.question = question
        self._asker = Receiver()
        self._reply = self._asker.channel()

    def answer(self, value: Any) -> None:
        self._reply.send(value)

    def wait(self) -> Any:
        return self._asker.select()[1]


# ---- What the leader keeps ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Progress:
    """What the leader knows of one follower."""

    next_index: int
    match_index: int = 0
    stride: int = 1  # how far the next refusal takes next_index back
    newest_call: int = 0
    waiting: bool = False  # for the answer to newest_call; until it comes, or a heartbeat is due, nothing new is sent
    heartbeat_due: float = 0.0
    snapshot_again: float = 0.0  # when a snapshot that is still unanswered may be sent once more


@dataclass(slots=True)
class Answer:
    """The reply to a call of ours, with what was asked."""

    peer: int
    call: int
    args: Any
    reply: Any


class Raft:
    """One peer. Only the thread of _run() reads or changes what follows "owned by" in __init__."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.others = [peer for peer in range(len(peers)) if peer != me]

        self.inbox = Receiver()
        self.vote_requests = self.inbox.channel()
        self.append_requests = self.inbox.channel()
        self.install_requests = self.inbox.channel()
        self.commands = self.inbox.channel()
        self.state_questions = self.inbox.channel()
        self.own_snapshots = self.inbox.channel()
        self.answers = self.inbox.channel()

        self.applier_inbox = Receiver()
        self.to_apply = self.applier_inbox.channel()

        # Owned by _run(). log[0] represents the last entry of the snapshot, or index 0.
        self.current_term = 0
        self.voted_for = NOBODY
        self.log = [LogEntry(0, None)]
        self.snapshot_index = 0  # the index of log[0]
        self._read_persist(persister.read_raft_state())
        self.commit_index = self.snapshot_index
        self.last_applied = self.snapshot_index  # the last one sent to the applier
        self.leading = False
        self.progress: dict[int, Progress] = {}
        self.calls = 0
        self.election_due = 0.0
        self._restart_election_timer()

        if self.snapshot_index > 0:
            self._send_snapshot_up(persister.read_snapshot())
        threading.Thread(target=self._run, daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()

    # ---- Called by other threads -----------------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        return self._ask(self.commands, command, otherwise=(-1, 0, False))

    def get_state(self) -> tuple[int, bool]:
        return self._ask(self.state_questions, None, otherwise=(0, False))

    def snapshot(self, index: int, snapshot: bytes) -> None:
        self._ask(self.own_snapshots, (index, snapshot), otherwise=None)

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        return self._ask(self.vote_requests, args, otherwise=RequestVoteReply(0, False))

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        return self._ask(self.append_requests, args, otherwise=AppendEntriesReply(0, False))

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        return self._ask(self.install_requests, args, otherwise=InstallSnapshotReply(0))

    def kill(self) -> None:
        self.applier_inbox.close()
        for item in self.inbox.close():
            if isinstance(item, Request):
                item.answer(None)

    def _ask(self, channel: Channel, question: Any, otherwise: Any) -> Any:
        """Ask the owner of the state. `otherwise` is for a peer that was killed, and answers nothing."""
        request = Request(question)
        try:
            channel.send(request)
        except Closed:
            return otherwise
        answer = request.wait()
        return otherwise if answer is None else answer

    # ---- The owner's thread: three loops -------------------------------------------------------------------

    def _run(self) -> None:
        role: Role = self._follower
        try:
            while True:
                role = role()
        except Closed:
            self.leading = False

    def _follower(self) -> Role:
        while True:
            channel, item = self.inbox.select(until=self.election_due)
            if channel is None:
                return self._candidate
            self._serve(channel, item)

    def _candidate(self) -> Role:
        """§5.2. Sends each peer one vote request; without a majority in time, becomes a candidate again."""
        self.current_term += 1
        self.voted_for = self.me
        self._restart_election_timer()
        self._persist()
        votes = {self.me}
        for peer in self.others:
            self._call(
                peer,
                "Raft.request_vote",
                RequestVoteArgs(self.current_term, self.me, self._last_index(), self._term_at(self._last_index())),
            )
        while 2 * len(votes) <= len(self.peers):
            channel, item = self.inbox.select(until=self.election_due)
            if channel is None:
                return self._candidate
            if channel is self.answers and self._is_current(item, RequestVoteArgs):
                if item.reply.vote_granted:
                    votes.add(item.peer)
            elif self._serve(channel, item):
                return self._follower
        return self._leader

    def _leader(self) -> Role:
        """§5.2, §5.3. No peer has had a heartbeat yet, so all are due at once."""
        self.leading = True
        self.progress = {peer: Progress(next_index=self._last_index() + 1) for peer in self.others}
        while True:
            for peer, progress in self.progress.items():
                news = progress.next_index <= self._last_index() and not progress.waiting
                if news or progress.heartbeat_due <= time.monotonic():
                    self._replicate(peer, progress)
            next_heartbeat = min((progress.heartbeat_due for progress in self.progress.values()), default=None)
            channel, item = self.inbox.select(until=next_heartbeat)
            if channel is self.commands:
                self._take_commands([item, *self.inbox.take_waiting(self.commands)])
            elif channel is self.answers and self._is_current(item, AppendEntriesArgs, InstallSnapshotArgs):
                self._learn(item, self.progress[item.peer])
                self._advance_commit_index()
            elif channel is not None and self._serve(channel, item):
                self.leading = False
                self._restart_election_timer()  # a leader has none that could go on
                return self._follower

    # ---- What is the same in every role --------------------------------------------------------------------

    def _serve(self, channel: Channel, item: Any) -> bool:
        """Handle one item. True if a leader or candidate must become a follower (§5.1, §5.2)."""
        if channel is self.answers:
            if self._adopt(item.reply.term):
                self._persist()
                return True
            return False
        if channel is self.state_questions:
            item.answer((self.current_term, self.leading))
            return False
        if channel is self.commands:
            item.answer((-1, self.current_term, False))
            return False
        if channel is self.own_snapshots:
            self._cut_log(*item.question)
            item.answer(True)
            return False
        args = item.question
        newer_term = self._adopt(args.term)
        heard_leader = channel is not self.vote_requests and args.term == self.current_term
        if heard_leader:
            self._restart_election_timer()
        if channel is self.vote_requests:
            item.answer(self._vote(args, newer_term))
        elif channel is self.append_requests:
            item.answer(self._append(args, newer_term))
        else:
            item.answer(self._install(args, newer_term))
        return newer_term or heard_leader

    def _adopt(self, term: int) -> bool:
        """§5.1: a newer term makes this peer a follower in it. The caller saves it, before it answers anyone."""
        if term <= self.current_term:
            return False
        self.current_term = term
        self.voted_for = NOBODY
        self.leading = False
        return True

    def _vote(self, args: RequestVoteArgs, unsaved: bool) -> RequestVoteReply:
        last_index = self._last_index()
        up_to_date = (args.last_log_term, args.last_log_index) >= (self._term_at(last_index), last_index)  # §5.4.1
        granted = args.term == self.current_term and self.voted_for in (NOBODY, args.candidate_id) and up_to_date
        if granted:
            self._restart_election_timer()
            unsaved |= self.voted_for == NOBODY
            self.voted_for = args.candidate_id
        if unsaved:
            self._persist()
        return RequestVoteReply(self.current_term, granted)

    def _append(self, args: AppendEntriesArgs, unsaved: bool) -> AppendEntriesReply:
        """Figure 2, AppendEntries RPC, receiver."""
        matches = args.term == self.current_term and self._has(args.prev_log_index, args.prev_log_term)
        if matches:
            for index, entry in enumerate(args.entries, start=args.prev_log_index + 1):
                # What the snapshot covers is committed, so it is the same. What is there already stays.
                if index > self.snapshot_index and not self._has(index, entry.term):
                    del self.log[index - self.snapshot_index :]
                    self.log += args.entries[index - args.prev_log_index - 1 :]
                    unsaved = True
                    break
        if unsaved:
            self._persist()
        if matches:
            # Not further than what this message vouches for: the rest of our log may be another leader's.
            self._commit(min(args.leader_commit, args.prev_log_index + len(args.entries)))
        return AppendEntriesReply(self.current_term, matches)

    def _install(self, args: InstallSnapshotArgs, unsaved: bool) -> InstallSnapshotReply:
        """Figure 13. A snapshot of what is committed here already brings nothing, and would take the service back."""
        if args.term < self.current_term or args.last_included_index <= self.commit_index:
            if unsaved:
                self._persist()
            return InstallSnapshotReply(self.current_term)
        kept = []
        if args.last_included_index <= self._last_index() and self._has(
            args.last_included_index, args.last_included_term
        ):
            kept = self.log[args.last_included_index - self.snapshot_index + 1 :]
        self.log = [LogEntry(args.last_included_term, None), *kept]
        self.snapshot_index = self.commit_index = self.last_applied = args.last_included_index
        self._persist(args.data)
        self._send_snapshot_up(args.data)
        return InstallSnapshotReply(self.current_term)

    def _cut_log(self, index: int, snapshot: bytes) -> None:
        """§7: the service's own snapshot. It may be older than one that a leader has sent meanwhile."""
        if self.snapshot_index < index <= self.last_applied:
            self.log = [LogEntry(self._term_at(index), None), *self.log[index - self.snapshot_index + 1 :]]
            self.snapshot_index = index
            self._persist(snapshot)

    # ---- The leader's work ---------------------------------------------------------------------------------

    def _take_commands(self, requests: list[Request]) -> None:
        for request in requests:
            self.log.append(LogEntry(self.current_term, request.question))
        self._persist()
        first = self._last_index() - len(requests) + 1
        for index, request in enumerate(requests, start=first):
            request.answer((index, self.current_term, True))
        self._advance_commit_index()  # alone, we are a majority

    def _replicate(self, peer: int, progress: Progress) -> None:
        """Send whatever this follower lacks as far as we know; nothing, if it lacks nothing: a heartbeat."""
        now = time.monotonic()
        progress.heartbeat_due = now + HEARTBEAT_S
        progress.waiting = True
        prev = progress.next_index - 1
        if prev < self.snapshot_index:
            if progress.snapshot_again <= now:
                progress.snapshot_again = now + SNAPSHOT_RETRY_S
                args = InstallSnapshotArgs(
                    self.current_term, self.me, self.snapshot_index, self.log[0].term, self.persister.read_snapshot()
                )
                progress.newest_call = self._call(peer, "Raft.install_snapshot", args)
                return
            # Not the newest call: only the reply to the snapshot shows that it has arrived.
            self._call(peer, "Raft.append_entries", self._append_args(self.snapshot_index, []))
            return
        entries = self.log[progress.next_index - self.snapshot_index :]
        progress.newest_call = self._call(peer, "Raft.append_entries", self._append_args(prev, entries))

    def _append_args(self, prev: int, entries: list[LogEntry]) -> AppendEntriesArgs:
        return AppendEntriesArgs(self.current_term, self.me, prev, self._term_at(prev), entries, self.commit_index)

    def _learn(self, answer: Answer, progress: Progress) -> None:
        """Update what we know of the follower's log from a reply of this term."""
        if answer.call == progress.newest_call:
            progress.waiting = False
        args = answer.args
        if isinstance(args, InstallSnapshotArgs):
            matched = args.last_included_index
        elif answer.reply.success:
            matched = args.prev_log_index + len(args.entries)
        else:
            # Only a rejection of what we would send now counts; others are late, or about a heartbeat
            # that went out while a snapshot was on its way.
            if progress.match_index < args.prev_log_index == progress.next_index - 1:
                self._step_back(progress)
            return
        if matched >= progress.match_index:
            progress.match_index = matched
            progress.next_index = max(progress.next_index, matched + 1)
            progress.stride = 1
            progress.snapshot_again = 0.0

    def _step_back(self, progress: Progress) -> None:
        refused = progress.next_index - 1
        target = max(refused - progress.stride, self.snapshot_index)
        if refused >= self.snapshot_index:
            term = self._term_at(refused)
            while target > self.snapshot_index and self._term_at(target) == term:
                target -= 1
        progress.next_index = max(target, progress.match_index) + 1
        if refused <= self.snapshot_index:
            progress.next_index = self.snapshot_index  # not even our first entry fits: only the snapshot will
        progress.stride *= 4

    def _advance_commit_index(self) -> None:
        matched = sorted([self._last_index(), *(progress.match_index for progress in self.progress.values())])
        on_majority = matched[(len(matched) - 1) // 2]
        # §5.4.2, Figure 8: only an entry of our own term is committed by being on a majority.
        if on_majority > self.commit_index and self._term_at(on_majority) == self.current_term:
            self._commit(on_majority)

    def _call(self, peer: int, method: str, args: Any) -> int:
        """Ask another peer, and go on. The reply, if there is one, comes down self.answers."""
        self.calls += 1
        call = self.calls

        def ask() -> None:
            if self.inbox.closed:
                return
            reply = self.peers[peer].call(method, args)
            if reply is not None:
                with suppress(Closed):
                    self.answers.send(Answer(peer, call, args, reply))

        threading.Thread(target=ask, daemon=True).start()
        return call

    def _is_current(self, answer: Answer, *kinds: type) -> bool:
        """An answer to what was asked in this term, by a peer that was in this term when it answered."""
        return isinstance(answer.args, kinds) and answer.args.term == self.current_term == answer.reply.term

    # ---- The log, the disk, the timer ----------------------------------------------------------------------

    def _last_index(self) -> int:
        return self.snapshot_index + len(self.log) - 1

    def _term_at(self, index: int) -> int:
        return self.log[index - self.snapshot_index].term

    def _has(self, index: int, term: int) -> bool:
        """Whether our entry there has this term. What lies before the snapshot's last entry is committed: it has."""
        if index < self.snapshot_index:
            return True
        return index <= self._last_index() and self._term_at(index) == term

    def _persist(self, snapshot: bytes | None = None) -> None:
        state = labgob.Encoder()
        state.encode(self.current_term)
        state.encode(self.voted_for)
        state.encode(self.snapshot_index)
        state.encode(self.log)
        self.persister.save(state.bytes(), snapshot)

    def _read_persist(self, data: bytes) -> None:
        if data:
            state = labgob.Decoder(data)
            self.current_term = state.decode(int)
            self.voted_for = state.decode(int)
            self.snapshot_index = state.decode(int)
            self.log = state.decode(list[LogEntry])

    def _restart_election_timer(self) -> None:
        self.election_due = time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)

    # ---- Applying ------------------------------------------------------------------------------------------

    def _commit(self, index: int) -> None:
        self.commit_index = max(self.commit_index, index)
        while self.last_applied < self.commit_index:
            self.last_applied += 1
            entry = self.log[self.last_applied - self.snapshot_index]
            self._send_up(ApplyMsg(command_valid=True, command=entry.command, command_index=self.last_applied))

    def _send_snapshot_up(self, snapshot: bytes) -> None:
        self._send_up(
            ApplyMsg(
                snapshot_valid=True,
                snapshot=snapshot,
                snapshot_term=self.log[0].term,
                snapshot_index=self.snapshot_index,
            )
        )

    def _send_up(self, message: ApplyMsg) -> None:
        with suppress(Closed):  # killed just now; our own inbox says so next
            self.to_apply.send(message)

    def _applier(self) -> None:
        try:
            while True:
                _, message = self.applier_inbox.select()
                while not self._put(message):
                    if self.applier_inbox.closed:
                        return
        except Closed:
            pass

    def _put(self, message: ApplyMsg) -> bool:
        """The service may be slow, or gone: now and then we look whether we were killed."""
        try:
            self.apply_ch.put(message, timeout=0.100)
        except queue.Full:
            return False
        return True
