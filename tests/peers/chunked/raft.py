"""Figure 2, §6 (disregarding RequestVote, check-quorum) and §7 with snapshots in chunks, as in Figure 13.

The leader finds where a follower's log matches by binary search with empty AppendEntries. Only then does it send
entries, a few in each message.
"""

from typing import Any

import labgob
from labrpc import ClientEnd
from labsim import log, queue, random, threading, time
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

FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"

HEARTBEAT_S = 0.100  # also after which something unanswered is sent again
ELECTION_MIN_S = 0.400
ELECTION_MAX_S = 0.900
TICK_S = 0.025
BATCH = 20  # entries in one AppendEntries
WINDOW = 200  # entries sent and not yet acknowledged
PACE_S = 0.030  # after which the next entries are sent without an acknowledgement: messages sent together overtake
FRESH_S = 0.090  # a rejection that took longer says little about the follower's current log
CHUNK = 40  # bytes of a snapshot in one InstallSnapshot
NEVER = -1e9


class Transfer:
    """A snapshot on its way to one follower."""

    def __init__(self, index: int, term: int, data: bytes) -> None:
        self.index = index
        self.term = term
        self.data = data
        self.offset = 0


class Raft:
    """One peer. `peers[me]` is this one; committed commands and received snapshots go to `apply_ch`."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()  # guards everything below
        self.dead = threading.Event()
        self.work = threading.Condition(self.mu)  # for the threads of the followers
        self.tick = threading.Condition(self.mu)  # for the ticker
        self.to_apply = threading.Condition(self.mu)  # for the applier

        # Persistent.
        self.current_term = 0
        self.voted_for = -1
        self.log: dict[int, LogEntry] = {}  # contiguous, from base_index + 1
        self.base_index = 0  # the last entry of the snapshot
        self.base_term = 0
        self.snapshot_data = b""

        # Volatile.
        self.role = FOLLOWER
        self.commit_index = 0
        self.last_applied = 0
        self.handed_up: ApplyMsg | None = None  # a snapshot from the leader that the applier has not taken yet
        self.leader_heard = NEVER  # when the leader of the current term was heard last
        self.deadline = 0.0  # of the election timeout
        self.incoming_key: tuple[int, int, int, int] | None = None
        self.incoming = b""

        # A candidate's.
        self.votes: dict[int, bool] = {}  # replies of this term, by peer
        n = len(peers)
        self.due = [0.0] * n  # when to ask, or to send a heartbeat, next
        self.sent_at = [NEVER] * n

        # A leader's. The last entry that matches lies in [match_index, next_index - 1].
        self.next_index = [1] * n
        self.match_index = [0] * n
        self.sent_index = [0] * n  # entries up to here are on their way
        self.halving = [False] * n  # the first probe, at the end of the log, was refused
        self.waiting: list[Any] = [None] * n  # the probe or chunk whose answer we wait for
        self.transfer: list[Transfer | None] = [None] * n
        self.heard = [NEVER] * n

        self._read_persist(persister.read_raft_state())
        self.snapshot_data = persister.read_snapshot()
        self.commit_index = self.last_applied = self.base_index
        self._reset_timer()

        threading.Thread(target=self._ticker, daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()
        for i in range(n):
            if i != me:
                threading.Thread(target=self._follower_loop, args=(i,), daemon=True).start()

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role is not LEADER or self.dead.is_set():
                return -1, self.current_term, False
            index, term = self._last_index() + 1, self.current_term
            self.log[index] = LogEntry(term, command)
            self._persist()
            self._advance_commit()
            self.work.notify_all()
            return index, term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role is LEADER

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if index <= self.base_index or index > self.last_applied:
                return
            term = self._term_at(index)
            for i in range(self.base_index + 1, index + 1):
                del self.log[i]
            self.base_index, self.base_term = index, term
            self.snapshot_data = snapshot
            self._persist(snapshot)

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            self.work.notify_all()
            self.tick.notify_all()
            self.to_apply.notify_all()

    # ---- Persistent state; the caller of everything with an underscore holds the lock, but for threads ------

    def _persist(self, snapshot: bytes | None = None) -> None:
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.base_index)
        w.encode(self.base_term)
        w.encode([self.log[i] for i in range(self.base_index + 1, self._last_index() + 1)])
        self.persister.save(w.bytes(), snapshot)

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        self.voted_for = r.decode(int)
        self.base_index = r.decode(int)
        self.base_term = r.decode(int)
        entries = r.decode(list[LogEntry])
        self.log = {self.base_index + 1 + k: entry for k, entry in enumerate(entries)}

    # ---- Helpers -------------------------------------------------------------------------------------

    def _last_index(self) -> int:
        return self.base_index + len(self.log)

    def _term_at(self, index: int) -> int:
        return self.base_term if index == self.base_index else self.log[index].term

    def _majority(self) -> int:
        return len(self.peers) // 2 + 1

    def _others(self) -> list[int]:
        return [i for i in range(len(self.peers)) if i != self.me]

    def _reset_timer(self) -> None:
        self.deadline = time.monotonic() + random.uniform(ELECTION_MIN_S, ELECTION_MAX_S)

    def _adopt(self, term: int) -> None:
        """A higher term (§5.1). The caller saves."""
        self.current_term = term
        self.voted_for = -1
        self.leader_heard = NEVER
        self._follow()

    def _follow(self) -> None:
        if self.role is LEADER:
            self._reset_timer()
        self.role = FOLLOWER

    def _adopt_from_reply(self, term: int) -> bool:
        if term <= self.current_term:
            return False
        self._adopt(term)
        self._persist()
        return True

    def _quorum_heard(self, within_s: float) -> bool:
        since = time.monotonic() - within_s
        return 1 + sum(self.heard[i] >= since for i in self._others()) >= self._majority()

    # ---- Elections -----------------------------------------------------------------------------------

    def _ticker(self) -> None:
        with self.mu:
            while not self.dead.is_set():
                if self.role is LEADER:
                    if not self._quorum_heard(ELECTION_MAX_S):
                        log("quorum", "steps down")
                        self._follow()
                elif time.monotonic() >= self.deadline:
                    self._campaign()
                self.tick.wait(TICK_S)

    def _campaign(self) -> None:
        self.role = CANDIDATE
        self.current_term += 1
        self.voted_for = self.me
        self.leader_heard = NEVER
        self.votes = {self.me: True}
        self.due = [0.0] * len(self.peers)
        self._persist()
        self._reset_timer()
        self._count_votes()
        self.work.notify_all()

    def _count_votes(self) -> None:
        if sum(self.votes.values()) < self._majority():
            return
        self.role = LEADER
        n, now = len(self.peers), time.monotonic()
        self.next_index = [self._last_index() + 1] * n
        self.match_index = [0] * n
        self.sent_index = [0] * n
        self.halving = [False] * n
        self.waiting = [None] * n
        self.transfer = [None] * n
        self.heard = [now] * n
        self.due = [0.0] * n
        self._advance_commit()
        self.work.notify_all()

    # ---- What goes to one other peer -----------------------------------------------------------------

    def _follower_loop(self, i: int) -> None:
        """The thread of one other peer: decides what to send it. Each call has a thread, for it may take seconds."""
        with self.mu:
            while not self.dead.is_set():
                now = time.monotonic()
                job = self._next_job(i, now)
                if job is not None:
                    self.sent_at[i] = now
                    self.due[i] = now + HEARTBEAT_S
                    threading.Thread(target=self._exchange, args=(i, *job), daemon=True).start()
                elif self.role is FOLLOWER or (self.role is CANDIDATE and i in self.votes):
                    self.work.wait()
                else:
                    soon = self.sent_at[i] + PACE_S
                    self.work.wait(max((soon if now < soon else self.due[i]) - now, 0.001))

    def _exchange(self, i: int, method: str, args: Any, handle: Any) -> None:
        asked = time.monotonic()
        reply = self.peers[i].call(method, args)
        if reply is None:
            return
        with self.mu:
            if self.dead.is_set() or self._adopt_from_reply(reply.term) or self.current_term != args.term:
                return
            handle(i, args, reply, time.monotonic() - asked)

    def _next_job(self, i: int, now: float) -> tuple[str, Any, Any] | None:
        due = now >= self.due[i]
        if self.role is CANDIDATE:
            if not due or i in self.votes:
                return None
            last = self._last_index()
            vote = RequestVoteArgs(self.current_term, self.me, last, self._term_at(last))
            return "Raft.request_vote", vote, self._on_vote
        if self.role is not LEADER:
            return None

        if due:  # whatever was not answered may be lost
            self.waiting[i] = None
            self.sent_index[i] = self.match_index[i]
        match, high = self.match_index[i], self.next_index[i] - 1
        if match == high and match >= self.base_index:
            sent = max(self.sent_index[i], match)
            until = min(self._last_index(), sent + BATCH, match + WINDOW)
            if until <= sent:
                return self._append(match, match) if due else None
            if sent > match and now < self.sent_at[i] + PACE_S:
                return None
            self.sent_index[i] = until
            return self._append(sent, until)
        if self.waiting[i] is not None:
            return None
        if high >= self.base_index:
            low = max(match, self.base_index - 1)
            probe = (low + high + 1) // 2 if self.halving[i] else high
            job = self._append(probe, probe)
        else:
            job = self._chunk(i)
        self.waiting[i] = job[1]
        return job

    def _append(self, prev: int, until: int) -> tuple[str, Any, Any]:
        entries = [self.log[k] for k in range(prev + 1, until + 1)]
        args = AppendEntriesArgs(self.current_term, self.me, prev, self._term_at(prev), entries, self.commit_index)
        return "Raft.append_entries", args, self._on_append

    def _chunk(self, i: int) -> tuple[str, Any, Any]:
        t = self.transfer[i]
        if t is None:
            t = self.transfer[i] = Transfer(self.base_index, self.base_term, self.snapshot_data)
        data = t.data[t.offset : t.offset + CHUNK]
        done = t.offset + len(data) >= len(t.data)
        args = InstallSnapshotArgs(self.current_term, self.me, t.index, t.term, data, t.offset, done)
        return "Raft.install_snapshot", args, self._on_chunk

    def _on_vote(self, i: int, args: RequestVoteArgs, reply: RequestVoteReply, took_s: float) -> None:
        if self.role is not CANDIDATE or self.votes.get(i):
            return
        # A peer that disregards us (§6) replies in its own term, and is asked again.
        if reply.vote_granted or reply.term == self.current_term:
            self.votes[i] = reply.vote_granted
            self._count_votes()

    def _on_append(self, i: int, args: AppendEntriesArgs, reply: AppendEntriesReply, took_s: float) -> None:
        if self.role is not LEADER:
            return
        self.heard[i] = time.monotonic()
        prev = args.prev_log_index
        if reply.success:
            self._matches(i, prev + len(args.entries))
        elif self.match_index[i] < prev < self.next_index[i]:
            self.next_index[i] = prev
            self.halving[i] = True
        elif prev > self.match_index[i] and took_s < FRESH_S:  # what was sent before it is lost, or late
            self.sent_index[i] = min(self.sent_index[i], max(self.match_index[i], prev - BATCH))
        self._answered(i, args)

    def _on_chunk(self, i: int, args: InstallSnapshotArgs, reply: InstallSnapshotReply, took_s: float) -> None:
        if self.role is not LEADER:
            return
        self.heard[i] = time.monotonic()
        t = self.transfer[i]
        if t is not None and t.index == args.last_included_index:
            if reply.installed:
                self.transfer[i] = None
            elif reply.expects == 0:
                t.offset = 0
            else:
                t.offset = max(t.offset, reply.expects)
        if reply.installed:
            self._matches(i, args.last_included_index)
        self._answered(i, args)

    def _matches(self, i: int, index: int) -> None:
        if index > self.match_index[i]:
            self.match_index[i] = index
            self.next_index[i] = max(self.next_index[i], index + 1)
            self._advance_commit()

    def _answered(self, i: int, args: Any) -> None:
        if self.waiting[i] is args:
            self.waiting[i] = None
        self.work.notify_all()

    def _advance_commit(self) -> None:
        self.match_index[self.me] = self._last_index()
        index = sorted(self.match_index, reverse=True)[self._majority() - 1]
        if index > self.commit_index and self._term_at(index) == self.current_term:
            self.commit_index = index
            self.to_apply.notify_all()

    # ---- The applier ---------------------------------------------------------------------------------

    def _applier(self) -> None:
        while True:
            with self.mu:
                while not self.dead.is_set() and self.handed_up is None and self.last_applied >= self.commit_index:
                    self.to_apply.wait()
                if self.dead.is_set():
                    return
                if self.handed_up is not None:
                    message, self.handed_up = self.handed_up, None
                    if message.snapshot_index <= self.last_applied:
                        continue
                    self.last_applied = message.snapshot_index
                else:
                    self.last_applied += 1
                    command = self.log[self.last_applied].command
                    message = ApplyMsg(command_valid=True, command=command, command_index=self.last_applied)
            while not self.dead.is_set():
                try:
                    self.apply_ch.put(message, timeout=0.2)
                    break
                except queue.Full:
                    pass

    # ---- RPC handlers --------------------------------------------------------------------------------

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            if args.term < self.current_term or self._has_leader():
                return RequestVoteReply(self.current_term, False)
            changed = args.term > self.current_term
            if changed:
                self._adopt(args.term)
            last = self._last_index()
            good = (args.last_log_term, args.last_log_index) >= (self._term_at(last), last)
            granted = good and self.voted_for in (-1, args.candidate_id)
            if granted:
                changed = changed or self.voted_for != args.candidate_id
                self.voted_for = args.candidate_id
                self._reset_timer()
            if changed:
                self._persist()
            return RequestVoteReply(self.current_term, granted)

    def _has_leader(self) -> bool:
        """§6: whether RequestVote is to be disregarded."""
        if self.role is LEADER:
            return len(self.peers) > 1 and self._quorum_heard(ELECTION_MIN_S)
        return time.monotonic() - self.leader_heard < ELECTION_MIN_S

    def _hear_leader(self, term: int) -> bool:
        """A word from the leader of a term that is not over. True if something is to be saved."""
        changed = term > self.current_term
        if changed:
            self._adopt(term)
        self._follow()
        self.leader_heard = time.monotonic()
        self._reset_timer()
        return changed

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            if args.term < self.current_term:
                return AppendEntriesReply(self.current_term, False)
            changed = self._hear_leader(args.term)
            prev, entries = args.prev_log_index, args.entries
            if prev < self.base_index:
                # What the snapshot holds is committed, and so the leader has the same.
                entries = entries[self.base_index - prev :]
                prev = self.base_index
                success = True
            else:
                success = prev <= self._last_index() and self._term_at(prev) == args.prev_log_term
            if success:
                for index, entry in enumerate(entries, prev + 1):
                    mine = self.log.get(index)
                    if mine is not None and mine.term != entry.term:
                        for k in range(index, self._last_index() + 1):
                            del self.log[k]
                        mine = None
                    if mine is None:
                        self.log[index] = entry
                        changed = True
            if changed:
                self._persist()
            if success:
                commit = min(args.leader_commit, args.prev_log_index + len(args.entries))
                if commit > self.commit_index:
                    self.commit_index = commit
                    self.to_apply.notify_all()
            return AppendEntriesReply(self.current_term, success)

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if args.term < self.current_term:
                return InstallSnapshotReply(self.current_term)
            if self._hear_leader(args.term):
                self._persist()
            if args.last_included_index <= self.commit_index:
                return InstallSnapshotReply(self.current_term, installed=True)
            key = (args.term, args.leader_id, args.last_included_index, args.last_included_term)
            if key != self.incoming_key:
                self.incoming_key, self.incoming = key, b""
            if args.offset > len(self.incoming):  # one is missing
                self.incoming = b""
                return InstallSnapshotReply(self.current_term)
            if args.offset + len(args.data) > len(self.incoming):  # else it came again
                self.incoming = self.incoming[: args.offset] + args.data
            if not args.done:
                return InstallSnapshotReply(self.current_term, expects=len(self.incoming))
            self._install(args.last_included_index, args.last_included_term, self.incoming)
            return InstallSnapshotReply(self.current_term, installed=True)

    def _install(self, index: int, term: int, data: bytes) -> None:
        mine = self.log.get(index)
        if mine is not None and mine.term == term:
            for k in range(self.base_index + 1, index + 1):
                del self.log[k]
        else:
            self.log = {}
        self.base_index, self.base_term = index, term
        self.snapshot_data = data
        self.incoming_key, self.incoming = None, b""
        self._persist(data)
        self.commit_index = index
        self.handed_up = ApplyMsg(snapshot_valid=True, snapshot=data, snapshot_term=term, snapshot_index=index)
        self.to_apply.notify_all()
