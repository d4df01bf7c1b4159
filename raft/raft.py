"""A Raft peer: Figure 2 of the paper as ordinary threaded Python, with the snapshots of §7 and Figure 13.

Promise: all peers apply the same commands in the same order, each once, and what is committed stays so,
through loss, delay, reordering, partitions and crashes. Not promised: that a command given to start() is ever
committed; the leader may lose its office first.

How it runs. self.mu guards all state, and nobody waits for a peer or for the service while holding it. Two
threads live as long as the peer: the ticker (elections and heartbeats) and the applier. Every call to another
peer runs in a short thread of its own, because it may take seconds to fail; it looks at the state just before
it speaks, and again after the reply, when everything may have changed.

Start at Raft.__init__, then follow _ticker() for elections and start() for the log. "§" cites the extended
version of "In Search of an Understandable Consensus Algorithm" by Ongaro and Ousterhout.
"""

import enum
from collections.abc import Callable
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

# §5.6: broadcast time << election timeout << time between failures. The shortest timeout outlasts three lost
# heartbeats; the range is many round trips wide, so that two peers seldom campaign at once (§9.3).
HEARTBEAT_S = 0.1
ELECTION_TIMEOUT_S = (0.4, 0.8)


class Role(enum.Enum):
    """Figure 4."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Raft:
    """One peer. `peers[me]` is this one; committed commands and received snapshots go to `apply_ch`."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()
        self.dead = threading.Event()  # set by kill(), under mu

        # Persistent state on all servers (Figure 2), saved by _persist() before anyone can learn of a change.
        self.current_term = 0
        self.voted_for: int | None = None
        # log[0] stands for the last entry the snapshot replaced (§7): it keeps that entry's term, and
        # log[i - last_included_index] is entry i. Without a snapshot it is "entry 0 of term 0".
        self.log = [LogEntry(term=0, command=None)]
        self.last_included_index = 0
        self._read_persist()

        # Volatile state on all servers. What a snapshot covers was committed and applied; after a restart
        # the service reads it from the persister itself.
        self.commit_index = self.last_included_index
        self.last_applied = self.last_included_index
        self.role = Role.FOLLOWER
        self.election_deadline = 0.0
        self.committed = threading.Condition(self.mu)  # there is something to apply, or the peer is dead

        # Volatile state on candidates, new in each campaign: the answers so far, by peer.
        self.votes: dict[int, bool] = {}

        # Volatile state on leaders, new after each election, by peer.
        self.next_index: list[int] = []
        self.match_index: list[int] = []
        self.sender: list[object | None] = []  # who is in charge of sending to that peer now, if anyone
        self.sent_at: list[float] = []  # when it last did

        self._reset_election_timer()
        self._spawn(self._ticker)
        self._spawn(self._applier)

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        """Begin agreement on a command: (its index if ever committed, current term, whether we lead)."""
        with self.mu:
            if self.role is not Role.LEADER:
                return -1, self.current_term, False
            self.log.append(LogEntry(self.current_term, command))
            self._persist()
            self.match_index[self.me] = self._last_log_index()
            self._advance_commit_index()  # a peer alone is its own majority
            self._replicate()
            return self._last_log_index(), self.current_term, True

    def get_state(self) -> tuple[int, bool]:
        """The current term, and whether this peer believes it leads."""
        with self.mu:
            return self.current_term, self.role is Role.LEADER

    def snapshot(self, index: int, snapshot: bytes) -> None:
        """The service's snapshot replaces every entry up to and including index (§7)."""
        with self.mu:
            if index > self.last_applied:
                raise ValueError(f"snapshot(): index must be at most {self.last_applied}, got {index}")
            if index > self.last_included_index and not self.dead.is_set():
                self._discard_log_through(index, self._term_at(index))
                self._persist(snapshot)

    def kill(self) -> None:
        """Stop: all threads end, replies under way are ignored, nothing more is sent, saved or applied.

        One exception: a message that already waits for room in apply_ch may still be taken.
        """
        with self.mu:
            self.dead.set()
            self.role = Role.FOLLOWER
            self.committed.notify_all()

    # ---- Persistent state ----------------------------------------------------------------------------

    def _persist(self, snapshot: bytes | None = None) -> None:
        """Save Figure 2's persistent state, and with it the new snapshot if there is one."""
        # Caller holds self.mu, and lets nobody see the change before this returns: no reply, no call.
        state = labgob.Encoder()
        state.encode(self.current_term)
        state.encode(self.voted_for)
        state.encode(self.last_included_index)
        state.encode(self.log)
        self.persister.save(state.bytes(), snapshot)

    def _read_persist(self) -> None:
        saved = self.persister.read_raft_state()
        if saved:
            state = labgob.Decoder(saved)
            self.current_term = state.decode(int)
            self.voted_for = state.decode(int | None)
            self.last_included_index = state.decode(int)
            self.log = state.decode(list[LogEntry])

    # ---- The log, by the paper's indexes. Caller holds self.mu. --------------------------------------

    def _last_log_index(self) -> int:
        return self.last_included_index + len(self.log) - 1

    def _term_at(self, index: int) -> int:
        return self.log[index - self.last_included_index].term

    def _has_entry(self, index: int, term: int) -> bool:
        return self.last_included_index <= index <= self._last_log_index() and self._term_at(index) == term

    def _discard_log_through(self, index: int, term: int) -> None:
        """Let a snapshot stand for the log up to (index, term); keep what follows if it does follow (§7)."""
        suffix = self.log[index - self.last_included_index + 1 :] if self._has_entry(index, term) else []
        self.log = [LogEntry(term, None), *suffix]
        self.last_included_index = index

    # ---- Rules for all servers -----------------------------------------------------------------------

    def _observe_term(self, term: int) -> bool:
        """§5.1: every request and reply tells a term. Adopt a newer one; true unless the message is stale."""
        # Caller holds self.mu.
        if self.dead.is_set():
            return False
        if term > self.current_term:
            if self.role is Role.LEADER:
                self._reset_election_timer()  # a leader had none running
            self.role = Role.FOLLOWER
            self.current_term = term
            self.voted_for = None
            self._persist()
        return term == self.current_term

    def _commit_through(self, index: int) -> None:
        # Caller holds self.mu. commit_index only grows.
        if index > self.commit_index:
            self.commit_index = index
            self.committed.notify()

    def _applier(self) -> None:
        """If commit_index > last_applied: apply. The only thread that feeds apply_ch, so order is its own."""
        while (msg := self._next_to_apply()) is not None:
            # Without the lock: the service may call snapshot() before it takes the next message.
            # In short waits: a service that has stopped listening must not keep a killed peer alive.
            while not self.dead.is_set():
                try:
                    self.apply_ch.put(msg, timeout=HEARTBEAT_S)
                    break
                except queue.Full:
                    continue

    def _next_to_apply(self) -> ApplyMsg | None:
        """Wait for the next message to the service; None once the peer is dead."""
        with self.mu:
            while self.last_applied == self.commit_index and not self.dead.is_set():
                self.committed.wait()
            if self.dead.is_set():
                return None
            if self.last_applied < self.last_included_index:
                # install_snapshot() has replaced entries the service has not seen (§7).
                self.last_applied = self.last_included_index
                return ApplyMsg(
                    snapshot_valid=True,
                    snapshot=self.persister.read_snapshot(),
                    snapshot_term=self.log[0].term,
                    snapshot_index=self.last_included_index,
                )
            self.last_applied += 1
            entry = self.log[self.last_applied - self.last_included_index]
            return ApplyMsg(command_valid=True, command=entry.command, command_index=self.last_applied)

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()

    # ---- Leader election (§5.2) ----------------------------------------------------------------------

    def _ticker(self) -> None:
        # kill() ends a pause early.
        pause_s = 0.0
        while not self.dead.wait(pause_s):
            pause_s = self._tick()

    def _tick(self) -> float:
        """Do what is due, and return how long to pause. Only here does a peer become a candidate."""
        with self.mu:
            if self.role is Role.LEADER:
                self._replicate(heartbeat=True)
                return HEARTBEAT_S
            if time.monotonic() >= self.election_deadline:
                self._campaign()
            elif self.role is Role.CANDIDATE:
                self._canvass()  # again, where there was no answer (§5.1)
            left_s = self.election_deadline - time.monotonic()
            return left_s if self.role is Role.FOLLOWER else min(left_s, HEARTBEAT_S)

    def _reset_election_timer(self) -> None:
        # Caller holds self.mu. §5.2: random, drawn anew each time. Reset by starting a campaign, granting a
        # vote and hearing the current leader, by nothing else; and a leader that loses office needs a new one.
        self.election_deadline = time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)

    def _campaign(self) -> None:
        """On conversion to candidate: new term, vote for self, reset the timer, ask everyone (Figure 2)."""
        # Caller holds self.mu.
        self.role = Role.CANDIDATE
        self.current_term += 1
        self.voted_for = self.me
        self._persist()
        self.votes = {}
        self._reset_election_timer()
        self._canvass()
        self._count_vote(self.me, granted=True)

    def _canvass(self) -> None:
        # Caller holds self.mu.
        for peer in range(len(self.peers)):
            if peer != self.me and peer not in self.votes:
                self._spawn(self._request_vote_from, peer)

    def _request_vote_from(self, peer: int) -> None:
        with self.mu:
            if self.role is not Role.CANDIDATE:
                return
            last = self._last_log_index()
            args = RequestVoteArgs(self.current_term, self.me, last, self._term_at(last))
        reply: RequestVoteReply | None = self.peers[peer].call("Raft.request_vote", args)
        with self.mu:
            if reply is None or not self._observe_term(reply.term):
                return
            # A vote counts only in the campaign it was asked for.
            if self.role is Role.CANDIDATE and args.term == self.current_term:
                self._count_vote(peer, granted=reply.vote_granted)

    def _count_vote(self, peer: int, *, granted: bool) -> None:
        # Caller holds self.mu.
        self.votes[peer] = granted
        if sum(self.votes.values()) > len(self.peers) // 2:
            self._become_leader()

    def _become_leader(self) -> None:
        # Caller holds self.mu. The log stays as it is: a leader only ever appends (§5.3).
        self.role = Role.LEADER
        self.next_index = [self._last_log_index() + 1] * len(self.peers)
        self.match_index = [0] * len(self.peers)
        self.match_index[self.me] = self._last_log_index()
        self.sender = [None] * len(self.peers)
        self.sent_at = [0.0] * len(self.peers)
        self._replicate()  # §5.2: at once, to prevent new elections

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        """RequestVote RPC, receiver (Figure 2)."""
        with self.mu:
            if not self._observe_term(args.term):
                return RequestVoteReply(self.current_term, False)
            # §5.4.1: up to date means the later last term; of equal terms, the longer log.
            last = self._last_log_index()
            up_to_date = (args.last_log_term, args.last_log_index) >= (self._term_at(last), last)
            granted = up_to_date and self.voted_for in (None, args.candidate_id)
            if granted:
                self._reset_election_timer()
                if self.voted_for is None:
                    self.voted_for = args.candidate_id
                    self._persist()
            return RequestVoteReply(self.current_term, granted)

    # ---- Log replication, the leader's side (§5.3) ---------------------------------------------------

    def _replicate(self, *, heartbeat: bool = False) -> None:
        """Send every follower what it lacks, in threads of their own.

        One sender per follower is in charge. While it waits for a reply, new entries gather for its next
        call. Only a heartbeat does not wait long for it, and takes charge: that reply may be lost, or seconds
        away. A call that has just gone out is heartbeat enough.
        """
        # Caller holds self.mu and leads.
        long_ago = time.monotonic() - HEARTBEAT_S / 2
        for peer in range(len(self.peers)):
            idle = self.sender[peer] is None
            if peer != self.me and (idle or (heartbeat and self.sent_at[peer] < long_ago)):
                self.sender[peer] = sender = object()
                self.sent_at[peer] = time.monotonic()
                self._spawn(self._replicate_to, peer, sender)

    def _replicate_to(self, peer: int, sender: object) -> None:
        """Call one follower until it lacks nothing, a call is lost, or another sender takes charge."""
        lacking = True
        while lacking:
            with self.mu:
                if self.role is not Role.LEADER:
                    return
                self.sent_at[peer] = time.monotonic()
                args = self._replication_args(peer)
            if isinstance(args, AppendEntriesArgs):
                reply = self.peers[peer].call("Raft.append_entries", args)
            else:
                reply = self.peers[peer].call("Raft.install_snapshot", args)
            with self.mu:
                if reply is None or not self._observe_term(reply.term) or args.term != self.current_term:
                    lacking = False  # lost, or the answer to an earlier term's question
                elif isinstance(args, AppendEntriesArgs):
                    lacking = self._append_entries_answered(peer, args, reply)
                else:
                    lacking = self._install_snapshot_answered(peer, args)
                if self.sender[peer] is not sender:
                    return
                if not lacking:
                    self.sender[peer] = None

    def _replication_args(self, peer: int) -> AppendEntriesArgs | InstallSnapshotArgs:
        # Caller holds self.mu and leads.
        term, base, prev = self.current_term, self.last_included_index, self.next_index[peer] - 1
        if prev < base:  # §7: what the follower needs next is no longer in the log
            data = self.persister.read_snapshot()
            return InstallSnapshotArgs(term, self.me, base, self._term_at(base), data)
        entries = self.log[prev + 1 - base :]
        return AppendEntriesArgs(term, self.me, prev, self._term_at(prev), entries, self.commit_index)

    def _append_entries_answered(self, peer: int, args: AppendEntriesArgs, reply: AppendEntriesReply) -> bool:
        """Learn from a reply of this term; true if there is more to send at once."""
        # Caller holds self.mu and leads.
        if not reply.success:
            return self._back_up(peer, args, reply)
        # Replies may be late and out of order: match_index only grows.
        self.match_index[peer] = max(self.match_index[peer], args.prev_log_index + len(args.entries))
        self.next_index[peer] = self.match_index[peer] + 1
        self._advance_commit_index()
        return self.next_index[peer] <= self._last_log_index() or args.leader_commit < self.commit_index

    def _back_up(self, peer: int, args: AppendEntriesArgs, reply: AppendEntriesReply) -> bool:
        """The logs differ at prev_log_index: step back a whole term (§5.3); true if there is more to send at once."""
        # Caller holds self.mu and leads.
        if reply.conflict_index == 0:
            return False  # no hint: a killed peer's last words
        if args.prev_log_index != self.next_index[peer] - 1:
            return self.next_index[peer] <= self._last_log_index()  # a late reply: we have learnt better since
        next_index = reply.conflict_index
        if reply.conflict_term > 0:
            # If we have entries of that term, the logs agree at most through our last one.
            last = args.prev_log_index
            while last > self.last_included_index and self._term_at(last) > reply.conflict_term:
                last -= 1
            if self._has_entry(last, reply.conflict_term):
                next_index = last + 1
        self.next_index[peer] = max(next_index, self.match_index[peer] + 1)
        return self.next_index[peer] <= args.prev_log_index

    def _install_snapshot_answered(self, peer: int, args: InstallSnapshotArgs) -> bool:
        # Caller holds self.mu and leads. Go on behind the snapshot; only AppendEntries proves a match.
        self.next_index[peer] = max(self.next_index[peer], args.last_included_index + 1)
        return True

    def _advance_commit_index(self) -> None:
        """Commit what a majority stores, if it is of our own term (Figure 2, last rule for leaders)."""
        # Caller holds self.mu and leads.
        majority_has = sorted(self.match_index)[(len(self.peers) - 1) // 2]
        # §5.4.2, Figure 8: a majority is not enough for an older term's entry; what follows commits it.
        if majority_has > self.commit_index and self._term_at(majority_has) == self.current_term:
            self._commit_through(majority_has)
            self._replicate()  # let followers apply it now, not a heartbeat later

    # ---- Log replication, the follower's side (§5.3) -------------------------------------------------

    def _hear_leader(self, term: int) -> bool:
        """True if the message is from the current leader: follow it, and give it time."""
        # Caller holds self.mu.
        if not self._observe_term(term):
            return False
        self.role = Role.FOLLOWER  # a candidate has lost (§5.2); its vote in this term stands
        self._reset_election_timer()
        return True

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        """AppendEntries RPC, receiver (Figure 2, steps 1 to 5)."""
        with self.mu:
            if not self._hear_leader(args.term):  # 1
                return AppendEntriesReply(self.current_term, False)
            prev = args.prev_log_index
            # 2. What a snapshot covers is committed, so it matches (§5.4.3) though we cannot look.
            if prev >= self.last_included_index and not self._has_entry(prev, args.prev_log_term):
                return self._conflict(prev)
            self._append_new(prev + 1, args.entries)  # 3, 4
            # 5. Behind the last entry of this message our log may still differ from the leader's.
            self._commit_through(min(args.leader_commit, prev + len(args.entries)))
            return AppendEntriesReply(self.current_term, True)

    def _conflict(self, prev: int) -> AppendEntriesReply:
        # Caller holds self.mu.
        last = self._last_log_index()
        if prev > last:
            return AppendEntriesReply(self.current_term, False, 0, last + 1)
        first, term = prev, self._term_at(prev)
        while first - 1 > self.last_included_index and self._term_at(first - 1) == term:
            first -= 1
        return AppendEntriesReply(self.current_term, False, term, first)

    def _append_new(self, index: int, entries: list[LogEntry]) -> None:
        """Store entries from index on. Only a conflict truncates: the message may be older than our log."""
        # Caller holds self.mu.
        for i, entry in enumerate(entries):
            if index + i > self.last_included_index and not self._has_entry(index + i, entry.term):
                del self.log[index + i - self.last_included_index :]
                self.log.extend(entries[i:])
                self._persist()
                return

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        """InstallSnapshot RPC, receiver (Figure 13). The applier hands the snapshot on."""
        with self.mu:
            # If all of it is committed here, the log brings it to the service, or already has.
            if self._hear_leader(args.term) and args.last_included_index > self.commit_index:
                self._discard_log_through(args.last_included_index, args.last_included_term)
                self._persist(args.data)
                self._commit_through(args.last_included_index)
            return InstallSnapshotReply(self.current_term)
