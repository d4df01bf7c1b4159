"""Pull replication, after Kafka's KRaft: followers fetch; the leader only announces itself and its log's end.

AppendEntries has index 0 as the previous entry and carries no entries: its success acknowledges only the leader. A
fetch reports how far the follower's log is saved. The leader counts that where the logs agree.
"""

from typing import Any

import labgob
from labrpc import ClientEnd
from labsim import log, queue, random, threading, time
from raft.messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    ApplyMsg,
    FetchArgs,
    FetchReply,
    FetchSnapshotArgs,
    FetchSnapshotReply,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    LogEntry,
    RequestVoteArgs,
    RequestVoteReply,
)
from raft.persister import Persister

FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"
HEARTBEAT_S = 0.100
FETCH_S = 0.090  # after that a fetch is given up for lost, and made again when the leader speaks
NUDGE_S = 0.003  # announcements of this time are sent together
CHUNK = 1024


class Raft:
    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()
        self.dead = threading.Event()

        self.current_term = 0
        self.voted_for = -1
        self.base_index = 0  # log[0] follows this one
        self.base_term = 0
        self.entries: list[LogEntry] = []
        self.commit_index = 0
        self.last_applied = 0
        self.role = FOLLOWER
        self.leader = -1
        self.votes: list[int] = []
        self.match_index = [0] * len(peers)
        self.deadline = 0.0
        self.next_heartbeat = 0.0
        self.nudge_at = 0.0  # when to send the next announcement; 0: none
        # Of a follower, in this term:
        self.verified = -1  # the log is the leader's up to there, and the leader knows it; -1: nothing is known
        self.fetching_until = 0.0
        self.fetch_again = False
        self.fetch_number = 0
        self.fetch_wanted = False
        self.incoming: ApplyMsg | None = None  # a snapshot to deliver

        self._read_persist(persister.read_raft_state())
        self.commit_index = self.last_applied = self.base_index
        self.changed = threading.Condition(self.mu)
        self._put_off()
        threading.Thread(target=self._ticker, daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()
        threading.Thread(target=self._fetcher, daemon=True).start()

    # ---- the log (all of these expect the lock) ----

    def _last(self) -> int:
        return self.base_index + len(self.entries)

    def _term_at(self, index: int) -> int:
        if index == self.base_index:
            return self.base_term
        return self.entries[index - self.base_index - 1].term

    def _persist(self, snapshot: bytes | None = None) -> None:
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.base_index)
        w.encode(self.base_term)
        w.encode(self.entries)
        self.persister.save(w.bytes(), snapshot)

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        self.voted_for = r.decode(int)
        self.base_index = r.decode(int)
        self.base_term = r.decode(int)
        self.entries = r.decode(list[LogEntry])

    # ---- what the service calls ----

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role != LEADER or self.dead.is_set():
                return -1, self.current_term, False
            self.entries.append(LogEntry(self.current_term, command))
            self._persist()
            self._advance()
            self._nudge()
            return self._last(), self.current_term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role == LEADER

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if index <= self.base_index:
                return
            term = self._term_at(index)
            self.entries = self.entries[index - self.base_index :]
            self.base_index, self.base_term = index, term
            self._persist(snapshot)

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            self.changed.notify_all()

    # ---- roles (with the lock) ----

    def _put_off(self) -> None:
        self.deadline = time.monotonic() + random.uniform(0.35, 0.75)

    def _adopt(self, term: int) -> bool:
        """Become a follower in a higher term. The caller saves."""
        if term <= self.current_term:
            return False
        self.current_term = term
        self.voted_for = -1
        self._follow(-1)
        return True

    def _follow(self, leader: int) -> None:
        if self.role == LEADER:
            self._put_off()
            self.changed.notify_all()
        self.role = FOLLOWER
        if leader != self.leader or leader == -1:
            self.leader = leader
            self.verified = -1
            self.fetching_until = 0.0
            self.fetch_again = False
            self.fetch_number += 1

    def _campaign(self) -> None:
        self.current_term += 1
        self.voted_for = self.me
        self._follow(-1)
        self.role = CANDIDATE
        self.votes = [self.me]
        self._put_off()
        self._persist()
        args = RequestVoteArgs(self.current_term, self.me, self._last(), self._term_at(self._last()))
        self._count_votes()
        for peer in range(len(self.peers)):
            if peer != self.me:
                threading.Thread(target=self._ask_vote, args=(peer, args), daemon=True).start()

    def _ask_vote(self, peer: int, args: RequestVoteArgs) -> None:
        reply = self.peers[peer].call("Raft.request_vote", args)
        if reply is None:
            return
        with self.mu:
            if self.dead.is_set():
                return
            if self._adopt(reply.term):
                self._persist()
            elif (
                self.role == CANDIDATE
                and self.current_term == args.term
                and reply.vote_granted
                and peer not in self.votes
            ):
                self.votes.append(peer)
                self._count_votes()

    def _count_votes(self) -> None:
        if 2 * len(self.votes) <= len(self.peers):
            return
        self.role = LEADER
        self.leader = self.me
        self.match_index = [0] * len(self.peers)
        self._heartbeats()
        self.changed.notify_all()  # the ticker sleeps until an election is due

    # ---- the leader (with the lock) ----

    def _nudge(self) -> None:
        if not self.nudge_at:
            self.nudge_at = time.monotonic() + NUDGE_S
            self.changed.notify_all()

    def _heartbeats(self) -> None:
        self.nudge_at = 0.0
        self.next_heartbeat = time.monotonic() + HEARTBEAT_S
        args = AppendEntriesArgs(self.current_term, self.me, 0, 0, [], self.commit_index, self._last())
        for peer in range(len(self.peers)):
            if peer != self.me:
                threading.Thread(target=self._heartbeat, args=(peer, args), daemon=True).start()

    def _heartbeat(self, peer: int, args: AppendEntriesArgs) -> None:
        reply = self.peers[peer].call("Raft.append_entries", args)
        if reply is None:
            return
        with self.mu:
            if not self.dead.is_set() and self._adopt(reply.term):
                self._persist()

    def _advance(self) -> None:
        self.match_index[self.me] = self._last()
        agreed = sorted(self.match_index, reverse=True)[len(self.peers) // 2]
        if agreed > self.commit_index and self._term_at(agreed) == self.current_term:
            self.commit_index = agreed
            self.changed.notify_all()
            self._nudge()

    def _ticker(self) -> None:
        with self.mu:
            while not self.dead.is_set():
                now = time.monotonic()
                if self.role == LEADER:
                    if now >= self.next_heartbeat or (self.nudge_at and now >= self.nudge_at):
                        self._heartbeats()
                    until = min(self.next_heartbeat, self.nudge_at or self.next_heartbeat)
                else:
                    if now >= self.deadline:
                        self._campaign()
                        continue
                    until = self.deadline
                self.changed.wait(max(0.0005, until - now))

    # ---- what peers ask ----

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            changed = self._adopt(args.term)
            granted = False
            if args.term == self.current_term and self.voted_for in (-1, args.candidate_id):
                mine = (self._term_at(self._last()), self._last())
                if (args.last_log_term, args.last_log_index) >= mine:
                    changed |= self.voted_for == -1
                    self.voted_for = args.candidate_id
                    granted = True
                    self._put_off()
            if changed:
                self._persist()
            return RequestVoteReply(self.current_term, granted)

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        """The leader speaks. It names no entry before its own and brings none: there is nothing to refuse."""
        with self.mu:
            if args.term < self.current_term:
                return AppendEntriesReply(self.current_term, False)
            if self._adopt(args.term):
                self._persist()
            self._follow(args.leader_id)
            self._put_off()
            if self.verified >= 0:
                self._commit(min(args.leader_commit, self.verified))
            if args.log_end > self._last() or self._last() > self.verified or args.leader_commit > self.commit_index:
                self._want()
            return AppendEntriesReply(self.current_term, True)

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        """Not sent by this design: followers fetch snapshots. It still counts as hearing the leader."""
        with self.mu:
            if args.term >= self.current_term:
                if self._adopt(args.term):
                    self._persist()
                self._follow(args.leader_id)
                self._put_off()
                self._want()
            return InstallSnapshotReply(self.current_term)

    def fetch(self, args: FetchArgs) -> FetchReply:
        with self.mu:
            if self._adopt(args.term):
                self._persist()
            if args.term < self.current_term or self.role != LEADER:
                return FetchReply(self.current_term)
            reply = FetchReply(self.current_term, True, commit=self.commit_index)
            at, term = args.saved_index, args.saved_term
            if at < self.base_index:
                reply.snapshot_index = self.base_index
            elif at <= self._last() and self._term_at(at) == term:
                reply.entries = self.entries[at - self.base_index :]
                if at > self.match_index[args.follower_id]:
                    self.match_index[args.follower_id] = at
                    self._advance()
                    reply.commit = self.commit_index
            else:
                at = min(at, self._last())
                while at > self.base_index and self._term_at(at) > term:
                    at -= 1
                if self._term_at(at) > term:
                    reply.snapshot_index = self.base_index
                else:
                    reply.diverge_index, reply.diverge_term = at, self._term_at(at)
            return reply

    def fetch_snapshot(self, args: FetchSnapshotArgs) -> FetchSnapshotReply:
        with self.mu:
            if self._adopt(args.term):
                self._persist()
            if args.term < self.current_term or self.role != LEADER:
                return FetchSnapshotReply(self.current_term)
            data = self.persister.read_snapshot()
            at = args.position if args.snapshot_index == self.base_index else 0
            return FetchSnapshotReply(
                self.current_term, True, self.base_index, self.base_term, data[at : at + CHUNK], len(data)
            )

    # ---- the follower fetches ----

    def _want(self) -> None:
        """With the lock: have the fetcher fetch, now or when the answer that is due has come."""
        if time.monotonic() < self.fetching_until:
            self.fetch_again = True
        else:
            self.fetch_wanted = True
            self.changed.notify_all()

    def _commit(self, index: int) -> None:
        if index > self.commit_index:
            self.commit_index = index
            self.changed.notify_all()

    def _fetcher(self) -> None:
        """Starts a fetch when one is wanted. Each is a thread: an answer may take seconds, or never come."""
        with self.mu:
            while not self.dead.is_set():
                if self.fetch_wanted:
                    self.fetch_wanted = False
                    if self.role == FOLLOWER and self.leader >= 0:
                        self.fetch_again = False
                        self.fetch_number += 1
                        self.fetching_until = time.monotonic() + FETCH_S
                        args = FetchArgs(self.current_term, self.me, self._last(), self._term_at(self._last()))
                        threading.Thread(
                            target=self._fetch, args=(self.leader, args, self.fetch_number), daemon=True
                        ).start()
                else:
                    self.changed.wait()

    def _fetch(self, leader: int, args: FetchArgs, number: int) -> None:
        reply = self.peers[leader].call("Raft.fetch", args)
        if reply is None:
            return
        snapshot_index = 0
        with self.mu:
            if self.dead.is_set():
                return
            if self._adopt(reply.term):
                self._persist()
                return
            if self.current_term != args.term or self.role != FOLLOWER or not reply.leads:
                return
            # An answer is about the log as it was asked about. As long as that ends alike it is the same log.
            if (args.saved_index, args.saved_term) == (self._last(), self._term_at(self._last())):
                self._put_off()
                snapshot_index = reply.snapshot_index
                self._take(args, reply)
            elif number == self.fetch_number:
                self.fetch_again = True
            if number == self.fetch_number and not snapshot_index:
                self.fetching_until = 0.0
                if self.fetch_again:
                    self._want()
        if snapshot_index:
            self._fetch_snapshot(leader, args.term, snapshot_index, number)

    def _take(self, args: FetchArgs, reply: FetchReply) -> None:
        if reply.entries is not None:
            if reply.entries:
                self.entries.extend(reply.entries)
                self._persist()
                self.fetch_again = True  # the fetch reports to the leader that they are saved
            else:
                self.verified = self._last()
            self._commit(min(reply.commit, self._last()))
        elif reply.diverge_index >= 0:
            at = min(reply.diverge_index, self._last())
            while at > self.commit_index and self._term_at(at) > reply.diverge_term:
                at -= 1
            log("diverge", "back from %d to %d", self._last(), at)
            assert at >= self.commit_index
            del self.entries[at - self.base_index :]
            self._persist()
            self.fetch_again = True

    def _fetch_snapshot(self, leader: int, term: int, snapshot_index: int, number: int) -> None:
        data, wanted = b"", snapshot_index
        while True:
            reply = None
            with self.mu:
                if self.dead.is_set() or number != self.fetch_number or self.current_term != term:
                    return
                self.fetching_until = time.monotonic() + FETCH_S
            reply = self.peers[leader].call("Raft.fetch_snapshot", FetchSnapshotArgs(term, self.me, wanted, len(data)))
            if reply is None:
                return
            with self.mu:
                if self.dead.is_set():
                    return
                if self._adopt(reply.term):
                    self._persist()
                    return
                if self.current_term != term or self.role != FOLLOWER or not reply.leads:
                    return
                self._put_off()
                if reply.snapshot_index != wanted:
                    data, wanted = b"", reply.snapshot_index
                data += reply.chunk
                if len(data) < reply.size:
                    continue
                if wanted > self.commit_index:
                    # Either our log ends before it, or it has gone another way: an answer said so of this very log.
                    if wanted <= self._last() and self._term_at(wanted) == reply.snapshot_term:
                        self.entries = self.entries[wanted - self.base_index :]
                    else:
                        self.entries = []
                    self.base_index, self.base_term = wanted, reply.snapshot_term
                    self.commit_index = wanted
                    self._persist(data)
                    self.incoming = ApplyMsg(
                        snapshot_valid=True,
                        snapshot=data,
                        snapshot_term=reply.snapshot_term,
                        snapshot_index=wanted,
                    )
                    self.changed.notify_all()
                if number == self.fetch_number:
                    self.fetching_until = 0.0
                self._want()
                return

    # ---- applying ----

    def _applier(self) -> None:
        while True:
            with self.mu:
                while not self.dead.is_set() and self.incoming is None and self.last_applied >= self.commit_index:
                    self.changed.wait()
                if self.dead.is_set():
                    return
                due = []
                if self.incoming is not None:
                    if self.incoming.snapshot_index > self.last_applied:
                        due.append(self.incoming)
                        self.last_applied = self.incoming.snapshot_index
                    self.incoming = None
                while self.last_applied < self.commit_index:
                    self.last_applied += 1
                    entry = self.entries[self.last_applied - self.base_index - 1]
                    due.append(ApplyMsg(command_valid=True, command=entry.command, command_index=self.last_applied))
            for msg in due:
                self.apply_ch.put(msg)
