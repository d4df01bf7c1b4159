"""Commits by gossip: leader_commit is always 0, and peers that know of a commit tell some others.

A gossip message has the index and the term of the committed entry. A peer that has this entry also has all entries
before it (log matching), and may apply them. Heartbeats do not check the log. Entries are sent in bursts of several
messages. One thread saves, for all threads that wait. Every reply waits until the state it was made from is saved, and
a leader counts itself only for entries on its disk.

One lock, self.mu; helpers with `_locked` expect it to be held. No save, put or call happens under it.
"""

from typing import Any

import labgob
from labrpc import ClientEnd
from labsim import queue, random, threading, time
from raft.messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    ApplyMsg,
    GossipArgs,
    GossipReply,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    LogEntry,
    RequestVoteArgs,
    RequestVoteReply,
)
from raft.persister import Persister

HEARTBEAT_S = 0.100
TIMEOUT_S = (0.400, 0.900)
GROUP_S = 0.003  # so long a save waits for more that could go with it
GAP_S = 0.015  # so long a burst's message waits for the one before it
BURST = 40
BURST_S = 0.150
GOSSIP_S = 0.200


class Raft:
    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.others = tuple(p for p in range(len(peers)) if p != me)
        self.majority = len(peers) // 2 + 1
        self.dead = threading.Event()
        self.mu = threading.Lock()
        self.dirty = threading.Condition(self.mu)  # there is something to save
        self.saved = threading.Condition(self.mu)  # something was saved
        self.tick = threading.Condition(self.mu)
        self.due = threading.Condition(self.mu)
        self.rumour = threading.Condition(self.mu)
        self.role = "follower"
        self.current_term = 0
        self.voted_for = -1
        self.log: dict[int, LogEntry] = {}
        self.base = 0
        self.base_term = 0
        self.last = 0
        self._read_persist(persister.read_raft_state())
        self.snap = persister.read_snapshot()
        self.snap_version = 0  # the version in which it changed last
        self.version = 0
        self.saved_version = 0
        self.saved_upto = self.last  # of the log as it is
        self.saving_upto = self.last
        self.commit_index = self.base
        self.last_applied = self.base
        self.handing: ApplyMsg | None = None
        self.next_index = [1] * len(peers)
        self.match_index = [0] * len(peers)
        self.beat_at = [0.0] * len(peers)
        self.burst_at = [0.0] * len(peers)  # 0: none is under way
        self.burst_left = [0] * len(peers)
        self.deadline = 0.0
        self._reset_locked()
        for target in (self._ticker, self._saver, self._applier, self._gossiper):
            threading.Thread(target=target, daemon=True).start()

    # ---- For the service

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role != "leader" or self.dead.is_set():
                return -1, self.current_term, False
            self.last += 1
            self.log[self.last] = LogEntry(self.current_term, command)
            self._changed_locked()
            self.tick.notify_all()
            return self.last, self.current_term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role == "leader"

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if not self.base < index <= self.commit_index:
                return
            self._cut_locked(index, self.log[index].term, snapshot)

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            for condition in (self.dirty, self.saved, self.tick, self.due, self.rumour):
                condition.notify_all()

    # ---- Disk

    def _persist(self) -> bytes:
        """With self.mu held: what to save."""
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.base)
        w.encode(self.base_term)
        w.encode([self.log[i] for i in range(self.base + 1, self.last + 1)])
        return w.bytes()

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        self.voted_for = r.decode(int)
        self.base = r.decode(int)
        self.base_term = r.decode(int)
        entries = r.decode(list[LogEntry])
        self.log = {self.base + 1 + i: entry for i, entry in enumerate(entries)}
        self.last = self.base + len(entries)

    def _changed_locked(self) -> None:
        self.version += 1
        self.dirty.notify_all()

    def _saver(self) -> None:
        while True:
            with self.mu:
                while self.version == self.saved_version and not self.dead.is_set():
                    self.dirty.wait()
                if self.dead.is_set():
                    return
            time.sleep(GROUP_S)
            with self.mu:
                if self.dead.is_set():
                    return
                version, data = self.version, self._persist()
                snap = self.snap if self.snap_version > self.saved_version else None
                self.saving_upto = self.last
            if snap is None:
                self.persister.save(data)
            else:
                self.persister.save(data, snap)
            with self.mu:
                self.saved_version = version
                self.saved_upto = self.saving_upto
                self.saved.notify_all()
                if self.role == "leader":
                    self._count_locked()

    def _settle_locked(self) -> None:
        """Wait until all that there is is on the disk. The lock is let go of meanwhile, and a later term may come:
        what is said then is of that term."""
        while self.saved_version < self.version and not self.dead.is_set():
            self.saved.wait()

    # ---- Helpers

    def _term_locked(self, index: int) -> int:
        return self.base_term if index == self.base else self.log[index].term

    def _reset_locked(self) -> None:
        self.deadline = time.monotonic() + random.uniform(*TIMEOUT_S)

    def _follow_locked(self, term: int) -> None:
        if self.role == "leader":
            self._reset_locked()
        self.role = "follower"
        if term > self.current_term:
            self.current_term = term
            self.voted_for = -1
            self._changed_locked()

    def _cut_locked(self, index: int, term: int, snapshot: bytes) -> None:
        for i in range(self.base + 1, min(index, self.last) + 1):
            del self.log[i]
        self.base, self.base_term = index, term
        self.last = max(self.last, index)
        self.snap = snapshot
        self._changed_locked()
        self.snap_version = self.version

    def _truncate_locked(self, after: int) -> None:
        for i in range(after + 1, self.last + 1):
            del self.log[i]
        self.last = after
        self.saved_upto = min(self.saved_upto, after)
        self.saving_upto = min(self.saving_upto, after)

    def _commit_locked(self, index: int) -> None:
        if index > self.commit_index:
            self.commit_index = index
            self.due.notify_all()
            self.rumour.notify_all()

    # ---- Elections

    def _ticker(self) -> None:
        while True:
            with self.mu:
                self.tick.wait(0.010)
                if self.dead.is_set():
                    return
                now = time.monotonic()
                if self.role == "leader":
                    self._lead_locked(now)
                elif now >= self.deadline:
                    self._follow_locked(self.current_term + 1)
                    self.role = "candidate"
                    self.voted_for = self.me
                    self._changed_locked()
                    self._reset_locked()
                    threading.Thread(target=self._campaign, args=(self.current_term,), daemon=True).start()

    def _campaign(self, term: int) -> None:
        """A thread that asks for votes, and counts them."""
        with self.mu:
            self._settle_locked()
            if self.dead.is_set() or self.role != "candidate" or self.current_term != term:
                return
            args = RequestVoteArgs(term, self.me, self.last, self._term_locked(self.last))
        ballots: queue.Queue[tuple[int, RequestVoteReply]] = queue.Queue()
        for peer in self.others:
            threading.Thread(target=self._ask, args=(peer, args, ballots), daemon=True).start()
        votes = {self.me}
        while True:
            if len(votes) >= self.majority:
                with self.mu:
                    if not self.dead.is_set() and self.role == "candidate" and self.current_term == term:
                        self._win_locked()
                return
            try:
                peer, reply = ballots.get(timeout=TIMEOUT_S[1])
            except queue.Empty:
                return
            if reply.vote_granted and reply.term == term:
                votes.add(peer)
            with self.mu:
                if reply.term > self.current_term:
                    self._follow_locked(reply.term)
                if self.dead.is_set() or self.role != "candidate" or self.current_term != term:
                    return

    def _ask(self, peer: int, args: RequestVoteArgs, ballots: "queue.Queue[tuple[int, RequestVoteReply]]") -> None:
        reply = self.peers[peer].call("Raft.request_vote", args)
        if reply is not None:
            with self.mu:  # whether or not anybody counts any more
                if not self.dead.is_set() and reply.term > self.current_term:
                    self._follow_locked(reply.term)
            ballots.put((peer, reply))

    def _win_locked(self) -> None:
        self.role = "leader"
        for peer in range(len(self.peers)):
            self.next_index[peer] = self.last + 1
            self.match_index[peer] = 0
            self.beat_at[peer] = 0.0
            self.burst_at[peer] = 0.0
            self.burst_left[peer] = 0
        self._count_locked()
        self._lead_locked(time.monotonic())

    # ---- Leading

    def _count_locked(self) -> None:
        matches = sorted([self.saved_upto, *(self.match_index[p] for p in self.others)], reverse=True)
        index = matches[self.majority - 1]
        if index > self.commit_index and self._term_locked(index) == self.current_term:
            self._commit_locked(index)

    def _lead_locked(self, now: float) -> None:
        for peer in self.others:
            if self.match_index[peer] < self.last and now >= self.burst_at[peer] + BURST_S:
                self._burst_locked(peer, now)
            if now >= self.beat_at[peer] + HEARTBEAT_S - 0.001:
                self.beat_at[peer] = now
                args = AppendEntriesArgs(self.current_term, self.me, 0, 0, [], 0)
                threading.Thread(target=self._append, args=(peer, args, 0.0), daemon=True).start()

    def _burst_locked(self, peer: int, now: float) -> None:
        self.burst_at[peer] = now
        first = self.next_index[peer]
        if first <= self.base:
            self.burst_at[peer] = now + 0.150
            install = InstallSnapshotArgs(self.current_term, self.me, self.base, self.base_term, self.snap)
            threading.Thread(target=self._install, args=(peer, install), daemon=True).start()
            return
        # Where the logs part is not known yet: ask, before much is sent.
        upto = self.last if self.match_index[peer] == first - 1 else min(self.last, first - 1 + BURST)
        starts = list(range(first, upto + 1, BURST)) or [first]
        self.burst_left[peer] = len(starts)
        for at in starts:
            entries = [self.log[i] for i in range(at, min(at + BURST, upto + 1))]
            args = AppendEntriesArgs(self.current_term, self.me, at - 1, self._term_locked(at - 1), entries, 0)
            threading.Thread(target=self._append, args=(peer, args, now), daemon=True).start()

    def _append(self, peer: int, args: AppendEntriesArgs, burst: float) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.append_entries", args)
        if reply is None:
            return
        with self.mu:
            if not self._leads_locked(args.term, reply.term) or not burst:
                return
            if reply.success:
                self._matched_locked(peer, args.prev_log_index + len(args.entries))
            elif args.prev_log_index == self.next_index[peer] - 1 > self.match_index[peer]:
                first = reply.conflict_index
                if reply.conflict_term:
                    for index in range(args.prev_log_index, self.base, -1):
                        if self._term_locked(index) == reply.conflict_term:
                            first = index + 1
                        if self._term_locked(index) <= reply.conflict_term:
                            break
                self.next_index[peer] = max(self.match_index[peer] + 1, min(first, args.prev_log_index))
                self.burst_at[peer] = 0.0
                self.tick.notify_all()
            if burst == self.burst_at[peer]:
                self.burst_left[peer] -= 1
                if self.burst_left[peer] == 0:
                    self.burst_at[peer] = 0.0
                    if self.match_index[peer] < self.last:
                        self.tick.notify_all()

    def _install(self, peer: int, args: InstallSnapshotArgs) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.install_snapshot", args)
        if reply is None:
            return
        with self.mu:
            if self._leads_locked(args.term, reply.term):
                self.burst_at[peer] = 0.0
                self._matched_locked(peer, args.last_included_index)
                self.tick.notify_all()

    def _leads_locked(self, term: int, reply_term: int) -> bool:
        if self.dead.is_set():
            return False
        if reply_term > self.current_term:
            self._follow_locked(reply_term)
        return self.role == "leader" and self.current_term == term

    def _matched_locked(self, peer: int, index: int) -> None:
        self.match_index[peer] = max(self.match_index[peer], index)
        self.next_index[peer] = max(self.next_index[peer], self.match_index[peer] + 1)
        self._count_locked()

    # ---- Gossip

    def _gossiper(self) -> None:
        told = 0
        while True:
            with self.mu:
                if self.commit_index <= told:
                    self.rumour.wait(random.uniform(0.5, 1.5) * GOSSIP_S)
                if self.dead.is_set() or not self.others:
                    return
                if not self.commit_index:
                    continue
                new = self.commit_index > told
                told = self.commit_index
                args = GossipArgs(told, self._term_locked(told))
                many = 1 if not new else (len(self.peers) + 1) // 2 if self.role == "leader" else 1
                targets = random.sample(self.others, min(many, len(self.others)))
            for peer in targets:
                threading.Thread(target=self._tell, args=(peer, args), daemon=True).start()
            time.sleep(0.005)  # what is committed meanwhile goes along next time

    def _tell(self, peer: int, args: GossipArgs) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.gossip", args)
        if reply is not None:
            with self.mu:
                self._believe_locked(reply.index, reply.term)

    def gossip(self, args: GossipArgs) -> GossipReply:
        with self.mu:
            self._believe_locked(args.index, args.term)
            return GossipReply(self.commit_index, self._term_locked(self.commit_index))

    def _believe_locked(self, index: int, term: int) -> None:
        """That entry is committed. If it is in this log, so are all entries before it (log matching)."""
        if not self.dead.is_set() and self.commit_index < index <= self.last and self.log[index].term == term:
            self._commit_locked(index)

    # ---- RPCs of the paper

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            if args.term > self.current_term:
                self._follow_locked(args.term)
            granted = False
            free = args.term == self.current_term and self.voted_for in (-1, args.candidate_id)
            up_to_date = (args.last_log_term, args.last_log_index) >= (self._term_locked(self.last), self.last)
            if free and up_to_date and self.role == "follower":
                granted = True
                self._reset_locked()
                if self.voted_for != args.candidate_id:
                    self.voted_for = args.candidate_id
                    self._changed_locked()
            self._settle_locked()
            if self.current_term != args.term:
                granted = False
            return RequestVoteReply(self.current_term, granted)

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            gap = self.base < args.prev_log_index and args.prev_log_index > self.last and args.entries
        if gap:
            time.sleep(GAP_S)  # the message before this one may be on its way
        with self.mu:
            if args.term >= self.current_term:
                self._follow_locked(args.term)
                self._reset_locked()
                success, index, term = self._take_locked(args)
            else:
                success, index, term = False, 0, 0
            self._settle_locked()
            if self.current_term != args.term:  # while this waited for the disk
                success, index, term = False, 0, 0
            return AppendEntriesReply(self.current_term, success, index, term)

    def _take_locked(self, args: AppendEntriesArgs) -> tuple[bool, int, int]:
        prev, entries = args.prev_log_index, args.entries
        if prev == 0 and not entries:
            return True, 0, 0
        if prev > self.last:
            return False, self.last + 1, 0
        if prev < self.base:
            entries = entries[self.base - prev :]
            prev = self.base
        elif self._term_locked(prev) != args.prev_log_term:
            term = self._term_locked(prev)
            while prev - 1 > self.base and self._term_locked(prev - 1) == term:
                prev -= 1
            return False, prev, term
        for i, entry in enumerate(entries, prev + 1):
            if i <= self.last and self.log[i].term == entry.term:
                continue
            if i <= self.last:
                self._truncate_locked(i - 1)
            self.log[i] = entry
            self.last = i
        if entries:
            self._changed_locked()
        return True, 0, 0

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if args.term >= self.current_term:
                self._follow_locked(args.term)
                self._reset_locked()
                index = args.last_included_index
                if index > self.commit_index:
                    if not (index <= self.last and self._term_locked(index) == args.last_included_term):
                        self._truncate_locked(self.base)
                    self._cut_locked(index, args.last_included_term, args.data)
                    self.handing = ApplyMsg(
                        snapshot_valid=True,
                        snapshot=args.data,
                        snapshot_term=args.last_included_term,
                        snapshot_index=index,
                    )
                    self._commit_locked(index)
            self._settle_locked()
            return InstallSnapshotReply(self.current_term)

    # ---- Applying

    def _applier(self) -> None:
        while True:
            with self.mu:
                while not self.dead.is_set() and self.handing is None and self.last_applied >= self.commit_index:
                    self.due.wait()
                if self.dead.is_set():
                    return
                batch = []
                if self.handing is not None and self.handing.snapshot_index > self.last_applied:
                    batch.append(self.handing)
                    self.last_applied = self.handing.snapshot_index
                self.handing = None
                batch += [
                    ApplyMsg(command_valid=True, command=self.log[index].command, command_index=index)
                    for index in range(self.last_applied + 1, self.commit_index + 1)
                ]
                self.last_applied = self.commit_index
            for message in batch:
                while not self.dead.is_set():
                    try:
                        self.apply_ch.put(message, timeout=0.5)
                        break
                    except queue.Full:
                        pass
