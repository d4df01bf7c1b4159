"""Replication by relay: the leader sends AppendEntries to one follower, which forwards it to the next, and so on.

A follower forwards it in the leader's name, by an additional RPC, and reports to the leader which follower has accepted
it. The leader itself sends to followers that it has not heard from for a while.

self.mu guards everything below it in __init__. Helpers that expect it to be held have names ending in `_locked`.
"""

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
    RelayedArgs,
    RelayedReply,
    RequestVoteArgs,
    RequestVoteReply,
)
from raft.persister import Persister

HEARTBEAT_S = 0.100
SILENT_S = 0.130
RESEND_S = 0.080
TICK_S = 0.010
TIMEOUT_S = (0.450, 0.950)
FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"


class Raft:
    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.others = tuple(i for i in range(len(peers)) if i != me)
        self.dead = threading.Event()
        self.mu = threading.Lock()
        self.news = threading.Condition(self.mu)  # for the ticker
        self.due = threading.Condition(self.mu)  # for the applier
        self.role = FOLLOWER
        self.current_term = 0
        self.voted_for = -1
        self.log: list[LogEntry] = []  # from base_index + 1 on
        self.base_index = 0
        self.base_term = 0
        self.snapshot_bytes = persister.read_snapshot()
        self.verified = 0  # how far this log is known to be that of the leader of current_term
        self.votes: dict[int, bool] = {}
        self._read_persist(persister.read_raft_state())
        self.commit_index = self.base_index
        self.last_applied = self.base_index
        self.handing_up: InstallSnapshotArgs | None = None
        self.next_index = [1] * len(peers)
        self.match_index = [0] * len(peers)
        self.heard = [0.0] * len(peers)
        self.sent = [0.0] * len(peers)  # when it was last sent something directly
        self.busy = [0.0] * len(peers)  # until when it is not sent more, unless it answers
        self.round_at = 0.0
        self.deadline = 0.0
        self._reset_timer_locked()
        threading.Thread(target=self._ticker, daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()

    # ---- What the service calls

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role != LEADER or self.dead.is_set():
                return -1, self.current_term, False
            self.log.append(LogEntry(self.current_term, command))
            self._persist()
            self._advance_commit_locked()
            self.news.notify_all()
            return self._last_locked(), self.current_term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role == LEADER

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if index <= self.base_index or index > self._last_locked():
                return
            term = self._term_at_locked(index)
            self.log = self.log[index - self.base_index :]
            self.base_index, self.base_term = index, term
            self.snapshot_bytes = snapshot
            self._persist(with_snapshot=True)

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            self.news.notify_all()
            self.due.notify_all()

    # ---- Persistent state

    def _persist(self, with_snapshot: bool = False) -> None:
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.base_index)
        w.encode(self.base_term)
        w.encode(self.log)
        if with_snapshot:
            self.persister.save(w.bytes(), self.snapshot_bytes)
        else:
            self.persister.save(w.bytes())

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        self.voted_for = r.decode(int)
        self.base_index = r.decode(int)
        self.base_term = r.decode(int)
        self.log = r.decode(list[LogEntry])

    # ---- Helpers

    def _last_locked(self) -> int:
        return self.base_index + len(self.log)

    def _term_at_locked(self, index: int) -> int:
        return self.base_term if index == self.base_index else self.log[index - self.base_index - 1].term

    def _reset_timer_locked(self) -> None:
        self.deadline = time.monotonic() + random.uniform(*TIMEOUT_S)

    def _follow_locked(self, term: int) -> bool:
        """Whether there is something to save."""
        newer = term > self.current_term
        if newer:
            self.current_term = term
            self.voted_for = -1
            self.verified = 0
        if self.role == LEADER:
            self._reset_timer_locked()
        self.role = FOLLOWER
        return newer

    def _majority(self) -> int:
        return len(self.peers) // 2 + 1

    # ---- Applying

    def _applier(self) -> None:
        while not self.dead.is_set():
            with self.mu:
                while not self.dead.is_set() and self.handing_up is None and self.last_applied >= self.commit_index:
                    self.due.wait()
                if self.dead.is_set():
                    return
                messages = []
                if self.handing_up is not None:
                    up, self.handing_up = self.handing_up, None
                    if up.last_included_index > self.last_applied:
                        messages.append(
                            ApplyMsg(
                                snapshot_valid=True,
                                snapshot=up.data,
                                snapshot_term=up.last_included_term,
                                snapshot_index=up.last_included_index,
                            )
                        )
                        self.last_applied = up.last_included_index
                else:
                    # One at a time, so that a snapshot that comes meanwhile goes first.
                    self.last_applied += 1
                    entry = self.log[self.last_applied - self.base_index - 1]
                    messages.append(
                        ApplyMsg(command_valid=True, command=entry.command, command_index=self.last_applied)
                    )
            for message in messages:
                while not self.dead.is_set():
                    try:
                        self.apply_ch.put(message, timeout=0.5)
                        break
                    except queue.Full:
                        pass

    # ---- Ticking

    def _ticker(self) -> None:
        while not self.dead.is_set():
            with self.mu:
                self.news.wait(TICK_S)
                if self.dead.is_set():
                    return
                now = time.monotonic()
                if self.role == LEADER:
                    self._lead_locked(now)
                elif now >= self.deadline:
                    self._campaign_locked()

    def _campaign_locked(self) -> None:
        self._follow_locked(self.current_term + 1)
        self.role = CANDIDATE
        self.voted_for = self.me
        self.votes = {self.me: True}
        self._reset_timer_locked()
        self._persist()
        if len(self.votes) >= self._majority():
            self._win_locked()
            return
        last = self._last_locked()
        args = RequestVoteArgs(self.current_term, self.me, last, self._term_at_locked(last))
        for peer in self.others:
            threading.Thread(target=self._ask_vote, args=(peer, args), daemon=True).start()

    def _ask_vote(self, peer: int, args: RequestVoteArgs) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.request_vote", args)
        if reply is None:
            return
        with self.mu:
            if self.dead.is_set():
                return
            if reply.term > self.current_term:
                if self._follow_locked(reply.term):
                    self._persist()
                return
            if self.role != CANDIDATE or self.current_term != args.term or not reply.vote_granted:
                return
            self.votes[peer] = True
            if len(self.votes) >= self._majority():
                self._win_locked()

    def _win_locked(self) -> None:
        self.role = LEADER
        now = time.monotonic()
        for peer in range(len(self.peers)):
            self.next_index[peer] = self._last_locked() + 1
            self.match_index[peer] = 0
            self.heard[peer] = now - SILENT_S + 0.060  # the chain has 60 ms to get there
            self.sent[peer] = 0.0
            self.busy[peer] = 0.0
        self.round_at = 0.0
        self._advance_commit_locked()
        for peer in self.others:  # Figure 2: upon election to each server
            self._send_locked(peer, 0, now)
        self.round_at = now

    # ---- Leading

    def _advance_commit_locked(self) -> None:
        """As a leader."""
        matches = sorted([self._last_locked()] + [self.match_index[peer] for peer in self.others], reverse=True)
        index = matches[self._majority() - 1]
        if index > self.commit_index and self._term_at_locked(index) == self.current_term:
            self.commit_index = index
            self.due.notify_all()

    def _lead_locked(self, now: float) -> None:
        last = self._last_locked()
        beat = now >= self.round_at + HEARTBEAT_S - 0.001
        live = [p for p in self.others if now - self.heard[p] <= SILENT_S and self.next_index[p] > self.base_index]
        head = max(live, key=lambda p: (self.match_index[p], -((p - self.me) % len(self.peers))), default=None)
        if head is not None:
            more = self.next_index[head] <= last and now >= self.busy[head]
            if beat or more:
                self._send_locked(head, sum(1 << p for p in live if p != head), now)
                self.round_at = now
        elif beat:
            self.round_at = now
        for peer in self.others:
            if peer not in live and now >= self.sent[peer] + HEARTBEAT_S - 0.001:
                self._send_locked(peer, 0, now)

    def _send_locked(self, peer: int, rest: int, now: float) -> None:
        self.sent[peer] = now
        first = self.next_index[peer]
        if first <= self.base_index:
            snapshot = InstallSnapshotArgs(
                self.current_term, self.me, self.base_index, self.base_term, self.snapshot_bytes
            )
            self.sent[peer] = now + 0.100
            threading.Thread(target=self._send_snapshot, args=(peer, snapshot), daemon=True).start()
            return
        entries = self.log[first - self.base_index - 1 :] if now >= self.busy[peer] else []
        if entries:
            self.busy[peer] = now + RESEND_S
        args = AppendEntriesArgs(
            self.current_term,
            self.me,
            first - 1,
            self._term_at_locked(first - 1),
            entries,
            self.commit_index,
            rest,
        )
        threading.Thread(target=self._send_entries, args=(peer, args), daemon=True).start()

    def _send_entries(self, peer: int, args: AppendEntriesArgs) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.append_entries", args)
        if reply is None:
            return
        with self.mu:
            if self.dead.is_set() or not self._still_leads_locked(args.term, reply.term):
                return
            now = time.monotonic()
            self.heard[peer] = now
            if args.entries:
                self.busy[peer] = 0.0
            if reply.success:
                self._matched_locked(peer, args.prev_log_index + len(args.entries))
                self._lead_locked(now)
            elif args.prev_log_index == self.next_index[peer] - 1:
                first = reply.conflict_index
                if reply.conflict_term:
                    for index in range(args.prev_log_index, self.base_index, -1):
                        if self._term_at_locked(index) <= reply.conflict_term:
                            if self._term_at_locked(index) == reply.conflict_term:
                                first = index + 1
                            break
                self.next_index[peer] = max(self.match_index[peer] + 1, min(first, args.prev_log_index), 1)
                self.busy[peer] = 0.0
                self._send_locked(peer, 0, now)

    def _send_snapshot(self, peer: int, args: InstallSnapshotArgs) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.install_snapshot", args)
        if reply is None:
            return
        with self.mu:
            if self.dead.is_set() or not self._still_leads_locked(args.term, reply.term):
                return
            self.heard[peer] = time.monotonic()
            self._matched_locked(peer, args.last_included_index)
            self._lead_locked(time.monotonic())

    def _still_leads_locked(self, asked_in: int, answered_in: int) -> bool:
        if answered_in > self.current_term:
            if self._follow_locked(answered_in):
                self._persist()
            return False
        return self.role == LEADER and self.current_term == asked_in

    def _matched_locked(self, peer: int, match: int) -> None:
        if match > self.match_index[peer]:
            self.match_index[peer] = match
            self._advance_commit_locked()
        self.next_index[peer] = max(self.next_index[peer], self.match_index[peer] + 1)

    # ---- RPC handlers

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            changed = args.term > self.current_term and self._follow_locked(args.term)
            granted = False
            if args.term == self.current_term and self.voted_for in (-1, args.candidate_id) and self.role == FOLLOWER:
                last = self._last_locked()
                mine = (self._term_at_locked(last), last)
                if (args.last_log_term, args.last_log_index) >= mine:
                    granted = True
                    changed = changed or self.voted_for != args.candidate_id
                    self.voted_for = args.candidate_id
                    self._reset_timer_locked()
            if changed:
                self._persist()
            return RequestVoteReply(self.current_term, granted)

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            if args.term < self.current_term:
                return AppendEntriesReply(self.current_term, False)
            changed = self._follow_locked(args.term)
            self._reset_timer_locked()
            reply, took = self._take_locked(args)
            if changed or took:
                self._persist()
            if reply.success:
                end = args.prev_log_index + len(args.entries)
                self.verified = max(self.verified, end)
                if min(args.leader_commit, end) > self.commit_index:
                    self.commit_index = min(args.leader_commit, end)
                    self.due.notify_all()
            if args.relay and not self.dead.is_set():
                threading.Thread(target=self._relay, args=(args,), daemon=True).start()
            return reply

    def pass_on(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        """The leader's AppendEntries, from another follower."""
        return self.append_entries(args)

    def _take_locked(self, args: AppendEntriesArgs) -> tuple[AppendEntriesReply, bool]:
        """The answer, and whether the log has changed."""
        prev, entries = args.prev_log_index, args.entries
        if prev > self._last_locked():
            return AppendEntriesReply(self.current_term, False, self._last_locked() + 1), False
        if prev < self.base_index:
            # What is behind the snapshot is committed, and the same everywhere.
            entries = entries[self.base_index - prev :]
            prev = self.base_index
        elif self._term_at_locked(prev) != args.prev_log_term:
            term, first = self._term_at_locked(prev), prev
            while first - 1 > self.base_index and self._term_at_locked(first - 1) == term:
                first -= 1
            return AppendEntriesReply(self.current_term, False, first, term), False
        took = False
        for offset, entry in enumerate(entries):
            index = prev + 1 + offset
            if index > self._last_locked() or self._term_at_locked(index) != entry.term:
                self.log = self.log[: index - self.base_index - 1] + entries[offset:]
                took = True
                break
        return AppendEntriesReply(self.current_term, True), took

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if args.term < self.current_term:
                return InstallSnapshotReply(self.current_term)
            changed = self._follow_locked(args.term)
            self._reset_timer_locked()
            index = args.last_included_index
            if index <= self.commit_index:
                if changed:
                    self._persist()
                return InstallSnapshotReply(self.current_term)
            if index <= self._last_locked() and self._term_at_locked(index) == args.last_included_term:
                self.log = self.log[index - self.base_index :]
            else:
                self.log = []
            self.base_index, self.base_term = index, args.last_included_term
            self.snapshot_bytes = args.data
            self.commit_index = index
            self.verified = max(self.verified, index)
            self.handing_up = args
            self._persist(with_snapshot=True)
            self.due.notify_all()
            return InstallSnapshotReply(self.current_term)

    # ---- Relaying

    def _relay(self, came: AppendEntriesArgs) -> None:
        """Pass on what came from the leader, in its name. Whom that reaches is served from this log, as far as it is
        known to be the leader's."""
        n = len(self.peers)
        target = next(p for p in ((self.me + i) % n for i in range(1, n)) if came.relay >> p & 1)
        args = AppendEntriesArgs(
            came.term,
            came.leader_id,
            came.prev_log_index,
            came.prev_log_term,
            came.entries,
            came.leader_commit,
            came.relay & ~(1 << target),
        )
        for _ in range(8):
            if self.dead.is_set():
                return
            reply = self.peers[target].call("Raft.pass_on", args)
            if reply is None:
                return
            with self.mu:
                if self.dead.is_set():
                    return
                if reply.term > self.current_term:
                    if self._follow_locked(reply.term):
                        self._persist()
                    return
                if self.current_term != came.term or self.role != FOLLOWER:
                    return
                if reply.success:
                    break
                # It lacks something that this peer may have.
                prev = min(reply.conflict_index, args.prev_log_index) - 1
                if prev < self.base_index or prev >= self.verified or prev >= args.prev_log_index:
                    return
                args = AppendEntriesArgs(
                    came.term,
                    came.leader_id,
                    prev,
                    self._term_at_locked(prev),
                    self.log[prev - self.base_index : self.verified - self.base_index],
                    came.leader_commit,
                    0,
                )
        else:
            return
        told = RelayedArgs(came.term, target, args.prev_log_index + len(args.entries))
        if self.dead.is_set():
            return
        reply = self.peers[came.leader_id].call("Raft.relayed", told)
        if reply is not None:
            with self.mu:
                if not self.dead.is_set() and reply.term > self.current_term and self._follow_locked(reply.term):
                    self._persist()

    def relayed(self, args: RelayedArgs) -> RelayedReply:
        """One follower reports to the leader what another has acknowledged to it."""
        with self.mu:
            if args.term > self.current_term and self._follow_locked(args.term):
                self._persist()
            if self.role == LEADER and self.current_term == args.term and not self.dead.is_set():
                self.heard[args.peer] = time.monotonic()
                self._matched_locked(args.peer, args.match)
            return RelayedReply(self.current_term)
