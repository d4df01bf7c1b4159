"""Acknowledges by an additional RPC: a follower answers AppendEntries first and saves later.

One lock, a short thread for every call, saving with the lock held. Only new entries are treated differently:

- A follower takes entries into its memory and answers at once. It must not answer success, because they are not saved.
  It answers False without a conflict (messages.py: AppendEntriesReply), so the leader continues after them.
- A moment later one save covers all entries that arrived meanwhile. Then the follower tells its leader by the
  additional RPC Raft.saved_up_to which prefix of the leader's log it has saved, with the leader's term, the index and
  its own number packed into one. The leader commits by these.
- If that RPC is lost, the next reply to a heartbeat has the same in its field saved_index.

So match_index follows saved_index, and the leader's next_index runs ahead of it. A follower that crashes before it has
saved has acknowledged nothing. After its restart it rejects, and the leader goes back to the missing entries.
Terms and votes are saved before they are sent, and a leader saves its own entries in start().

Start at append_entries() and _saver(); the leader's side is _learn_saved().
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
    RequestVoteArgs,
    RequestVoteReply,
    from_mark,
    to_mark,
)
from raft.persister import Persister

HEARTBEAT_S = 0.100
ELECTION_TIMEOUT_S = (0.350, 0.750)
TICK_S = 0.010
GATHER_S = 0.002  # how long a follower waits for more entries before it saves
DEAD_POLL_S = 0.200  # how long the applier waits for its service before it checks for kill()


class Raft:
    """One peer. Methods whose names begin with an underscore expect the caller to hold self.mu, threads apart."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()
        self.unsaved = threading.Condition(self.mu)  # there is something to save and to acknowledge
        self.due = threading.Condition(self.mu)  # there may be something to apply
        self.dead = threading.Event()

        # Persistent. log[0] represents the snapshot's last entry, or index 0, before the first.
        self.current_term = 0
        self.voted_for = -1
        self.log = [LogEntry(0, None)]
        self.first_index = 0  # of log[0]
        self.snapshot_data = b""
        self._read_persist(persister.read_raft_state())

        # A follower's view of its leader's log, in this term alone. Both only grow in a term.
        self.leader_id = -1
        self.matched_index = 0  # our log is the leader's up to here
        self.saved_index = 0  # and on our disk up to here
        self.log_is_saved = True  # false while the disk lacks entries that came
        self.owes_ack = False  # whether the leader waits for an acknowledgment

        self.is_leader = False
        self.is_candidate = False
        self.votes = 0
        self.commit_index = self.first_index
        self.last_applied = self.first_index
        self.snapshot_to_apply: ApplyMsg | None = None
        self.next_index = [0] * len(peers)
        self.match_index = [0] * len(peers)
        self.calls_open = [0] * len(peers)  # the number of the call whose answer is awaited, or 0
        self.call_number = 0
        self.heartbeat_due_s = 0.0
        self._reset_election_timer()

        for loop in (self._ticker, self._saver, self._applier):
            threading.Thread(target=loop, daemon=True).start()

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if not self.is_leader or self.dead.is_set():
                return -1, self.current_term, False
            self.log.append(LogEntry(self.current_term, command))
            self._persist()
            self.match_index[self.me] = self._last_index()
            self._advance_commit()  # alone, one is a majority
            for peer in self._others():
                if not self.calls_open[peer]:
                    self._send(peer)
            return self._last_index(), self.current_term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.is_leader

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if not self.first_index < index <= self.last_applied:
                return  # a later one came from the leader meanwhile
            self._cut_log(index, self._term_at(index), snapshot)
            self._persist()

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            self.unsaved.notify_all()
            self.due.notify_all()

    # ---- The disk ------------------------------------------------------------------------------------

    def _persist(self) -> None:
        """Save everything, entries that wait to be saved among it."""
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.first_index)
        w.encode(self.log)
        self.persister.save(w.bytes(), self.snapshot_data)
        self.log_is_saved = True
        self.saved_index = self.matched_index

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        self.voted_for = r.decode(int)
        self.first_index = r.decode(int)
        self.log = r.decode(list[LogEntry])
        self.snapshot_data = self.persister.read_snapshot()

    def _saver(self) -> None:
        """The thread that saves what append_entries() took, and acknowledges it."""
        while not self.dead.is_set():
            with self.mu:
                while not self.owes_ack and not self.dead.is_set():
                    self.unsaved.wait()
            time.sleep(GATHER_S)
            with self.mu:
                if self.dead.is_set():
                    return
                if not self.log_is_saved:
                    self._persist()
                if self.owes_ack:  # else another term has come, and its leader has not asked
                    self.owes_ack = False
                    mark = to_mark(self.current_term, self.saved_index, self.me)
                    threading.Thread(target=self._acknowledge, args=(self.leader_id, mark), daemon=True).start()

    def _acknowledge(self, leader_id: int, mark: int) -> None:
        """The thread of one call. It may be lost: the next reply to a heartbeat repeats it."""
        if not self.dead.is_set():
            self.peers[leader_id].call("Raft.saved_up_to", mark)

    # ---- The log -------------------------------------------------------------------------------------

    def _last_index(self) -> int:
        return self.first_index + len(self.log) - 1

    def _term_at(self, index: int) -> int:
        return self.log[index - self.first_index].term

    def _has(self, index: int, term: int) -> bool:
        return self.first_index <= index <= self._last_index() and self._term_at(index) == term

    def _first_of_term(self, index: int) -> int:
        """The first entry, as far as the log goes back, that is of the same term as this one."""
        term = self._term_at(index)
        while index > self.first_index + 1 and self._term_at(index - 1) == term:
            index -= 1
        return index

    def _cut_log(self, index: int, term: int, snapshot: bytes) -> None:
        """The snapshot replaces the log up to index; what follows stays if it follows that very entry (Figure 13)."""
        tail = self.log[index - self.first_index + 1 :] if self._has(index, term) else []
        self.log = [LogEntry(term, None), *tail]
        self.first_index = index
        self.snapshot_data = snapshot

    # ---- Terms and elections -------------------------------------------------------------------------

    def _others(self) -> list[int]:
        return [peer for peer in range(len(self.peers)) if peer != self.me]

    def _reset_election_timer(self) -> None:
        self.election_due_s = time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)

    def _enter_term(self, term: int, voted_for: int = -1) -> None:
        """Adopt a later term, saved before it is sent. Matches with the last term's leader no longer count."""
        if self.is_leader:
            self._reset_election_timer()  # a leader had none
        self.is_leader = self.is_candidate = False
        self.current_term = term
        self.voted_for = voted_for
        self.leader_id = -1
        self.matched_index = 0
        self.owes_ack = False
        self._persist()

    def _ticker(self) -> None:
        while not self.dead.is_set():
            with self.mu:
                now_s = time.monotonic()
                if self.is_leader and now_s >= self.heartbeat_due_s:
                    self._send_heartbeats()
                elif not self.is_leader and now_s >= self.election_due_s:
                    self._campaign()
            time.sleep(TICK_S)

    def _campaign(self) -> None:
        self._reset_election_timer()
        self._enter_term(self.current_term + 1, voted_for=self.me)
        self.is_candidate = True
        self.votes = 1
        if self.votes > len(self.peers) // 2:
            self._lead()
        args = RequestVoteArgs(
            term=self.current_term,
            candidate_id=self.me,
            last_log_index=self._last_index(),
            last_log_term=self._term_at(self._last_index()),
        )
        for peer in self._others():
            threading.Thread(target=self._ask_vote, args=(peer, args), daemon=True).start()

    def _ask_vote(self, peer: int, args: RequestVoteArgs) -> None:
        """A thread of one call."""
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.request_vote", args)
        if reply is None:
            return
        with self.mu:
            if self.dead.is_set():
                return
            if reply.term > self.current_term:
                self._enter_term(reply.term)
            elif reply.vote_granted and self.is_candidate and self.current_term == args.term:
                self.votes += 1
                if self.votes > len(self.peers) // 2:
                    self._lead()

    def _lead(self) -> None:
        self.is_leader, self.is_candidate = True, False
        self.next_index = [self._last_index() + 1] * len(self.peers)
        self.match_index = [0] * len(self.peers)
        self.match_index[self.me] = self._last_index()  # saved with our vote
        self.calls_open = [0] * len(self.peers)
        self._send_heartbeats()

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            if args.term > self.current_term:
                self._enter_term(args.term)
            last_index = self._last_index()
            # §5.4.1: the later last term wins, then the longer log.
            up_to_date = (args.last_log_term, args.last_log_index) >= (self._term_at(last_index), last_index)
            granted = args.term == self.current_term and self.voted_for in (-1, args.candidate_id) and up_to_date
            if granted:
                self._reset_election_timer()
                if self.voted_for != args.candidate_id:
                    self.voted_for = args.candidate_id
                    self._persist()
            return RequestVoteReply(term=self.current_term, vote_granted=granted)

    # ---- Replication: the leader's side --------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        """To all peers, even while a reply is pending. Entries without a reply are sent again."""
        self.heartbeat_due_s = time.monotonic() + HEARTBEAT_S
        for peer in self._others():
            self._send(peer)

    def _send(self, peer: int) -> None:
        self.call_number += 1
        self.calls_open[peer] = self.call_number
        prev_index = self.next_index[peer] - 1
        if prev_index < self.first_index:
            snapshot = InstallSnapshotArgs(
                term=self.current_term,
                leader_id=self.me,
                last_included_index=self.first_index,
                last_included_term=self.log[0].term,
                data=self.snapshot_data,
            )
            call, args = self._call_install_snapshot, (peer, self.call_number, snapshot)
        else:
            entries = AppendEntriesArgs(
                term=self.current_term,
                leader_id=self.me,
                prev_log_index=prev_index,
                prev_log_term=self._term_at(prev_index),
                entries=self.log[prev_index - self.first_index + 1 :],
                leader_commit=self.commit_index,
            )
            call, args = self._call_append_entries, (peer, self.call_number, entries)
        threading.Thread(target=call, args=args, daemon=True).start()

    def _call_append_entries(self, peer: int, number: int, args: AppendEntriesArgs) -> None:
        """A thread of one call."""
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.append_entries", args)
        with self.mu:
            if not self._may_learn(peer, number, args.term, reply):
                return
            if not reply.conflict_index:
                # It has them all, saved or not, and need not get them again.
                self.next_index[peer] = max(self.next_index[peer], args.prev_log_index + len(args.entries) + 1)
            elif args.prev_log_index == self.next_index[peer] - 1:  # else an answer to an earlier guess
                self._go_back(peer, reply.conflict_term, reply.conflict_index)
            self._learn_saved(peer, reply.saved_index)
            self._send_more(peer)

    def _call_install_snapshot(self, peer: int, number: int, args: InstallSnapshotArgs) -> None:
        """A thread of one call."""
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.install_snapshot", args)
        with self.mu:
            if self._may_learn(peer, number, args.term, reply):
                self.next_index[peer] = max(self.next_index[peer], args.last_included_index + 1)
                self._learn_saved(peer, reply.saved_index)
                self._send_more(peer)

    def _may_learn(
        self, peer: int, number: int, term: int, reply: AppendEntriesReply | InstallSnapshotReply | None
    ) -> bool:
        """Look at a reply's term; whether we still lead in the term in which we asked."""
        if self.dead.is_set():
            return False
        if reply is not None and reply.term > self.current_term:
            self._enter_term(reply.term)
        if not self.is_leader or self.current_term != term:
            return False
        if self.calls_open[peer] == number:
            self.calls_open[peer] = 0
        return reply is not None

    def _go_back(self, peer: int, conflict_term: int, conflict_index: int) -> None:
        """§5.3, last page: to the end of that term in our log, or else past the whole term in theirs."""
        index = min(conflict_index, self.next_index[peer] - 1)
        if conflict_term:
            above = self.next_index[peer] - 1
            while above > self.first_index and self._term_at(above) > conflict_term:
                above -= 1
            if above > self.first_index and self._term_at(above) == conflict_term:
                index = above + 1
        self.next_index[peer] = max(index, self.match_index[peer] + 1)

    def _send_more(self, peer: int) -> None:
        if self.next_index[peer] <= self._last_index() and not self.calls_open[peer]:
            self._send(peer)

    def _learn_saved(self, peer: int, index: int) -> None:
        """This follower's disk holds our log up to index: the one way in which match_index grows."""
        self.match_index[peer] = max(self.match_index[peer], index)
        self.next_index[peer] = max(self.next_index[peer], self.match_index[peer] + 1)
        self._advance_commit()

    def _advance_commit(self) -> None:
        """§5.3, §5.4.2: a majority has saved it, and it is of our own term."""
        index = sorted(self.match_index)[(len(self.peers) - 1) // 2]
        if index > self.commit_index and self._term_at(index) == self.current_term:
            self.commit_index = index
            self.due.notify()

    def saved_up_to(self, mark: int) -> bool:
        """A follower has saved more. True if the leader of that term did not know it."""
        with self.mu:
            term, index, follower_id = from_mark(mark)
            if not self.is_leader or term != self.current_term or index <= self.match_index[follower_id]:
                return False
            self._learn_saved(follower_id, index)
            return True

    # ---- Replication: the follower's side ------------------------------------------------------------

    def _hear_leader(self, term: int, leader_id: int) -> None:
        if term > self.current_term:
            self._enter_term(term)
        self.is_candidate = False
        self.leader_id = leader_id
        self._reset_election_timer()

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            if args.term < self.current_term:
                return AppendEntriesReply(term=self.current_term, success=False)
            self._hear_leader(args.term, args.leader_id)
            reply = AppendEntriesReply(term=self.current_term, success=False)
            if args.prev_log_index > self._last_index():
                reply.conflict_index = self._last_index() + 1
            elif args.prev_log_index > self.first_index and not self._has(args.prev_log_index, args.prev_log_term):
                reply.conflict_term = self._term_at(args.prev_log_index)
                reply.conflict_index = self._first_of_term(args.prev_log_index)
            else:
                # What the log begins with is committed, so a leader's entries up to there are ours.
                self._take_entries(args)
                last_index = args.prev_log_index + len(args.entries)
                self._matches(last_index)
                self._commit_up_to(min(args.leader_commit, last_index))
                reply.success = last_index <= self.saved_index
            reply.saved_index = self.saved_index
            return reply

    def _take_entries(self, args: AppendEntriesArgs) -> None:
        for offset, entry in enumerate(args.entries):
            index = args.prev_log_index + 1 + offset
            if index > self.first_index and not self._has(index, entry.term):
                # Only a conflict cuts the log: a request that comes late must not.
                self.log[index - self.first_index :] = args.entries[offset:]
                self.log_is_saved = False
                return

    def _matches(self, index: int) -> None:
        """Our log is the leader's up to index. If it is not on the disk yet, the leader will hear when it is."""
        self.matched_index = max(self.matched_index, index)
        if self.log_is_saved:
            self.saved_index = self.matched_index
        elif self.matched_index > self.saved_index:
            self.owes_ack = True
            self.unsaved.notify()

    def _commit_up_to(self, index: int) -> None:
        if index > self.commit_index:
            self.commit_index = index
            self.due.notify()

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if args.term < self.current_term:
                return InstallSnapshotReply(term=self.current_term)
            self._hear_leader(args.term, args.leader_id)
            index = args.last_included_index
            # What is committed here already is as good as the snapshot; an older one must change nothing.
            if index > self.commit_index:
                self._cut_log(index, args.last_included_term, args.data)
                self.commit_index = index
                self._persist()
                self.snapshot_to_apply = ApplyMsg(
                    snapshot_valid=True,
                    snapshot=args.data,
                    snapshot_term=args.last_included_term,
                    snapshot_index=index,
                )
                self.due.notify()
            self._matches(index)
            return InstallSnapshotReply(term=self.current_term, saved_index=self.saved_index)

    # ---- Applying ------------------------------------------------------------------------------------

    def _applier(self) -> None:
        """The thread that delivers committed entries, in order."""
        while True:
            with self.mu:
                while self.commit_index == self.last_applied and not self.dead.is_set():
                    self.due.wait()
                if self.dead.is_set():
                    return
                messages = self._take_due()
            for message in messages:
                if not self._hand_up(message):
                    return

    def _take_due(self) -> list[ApplyMsg]:
        if self.snapshot_to_apply is not None:
            message, self.snapshot_to_apply = self.snapshot_to_apply, None
            self.last_applied = message.snapshot_index
            return [message]
        first, end = self.last_applied + 1, self.commit_index + 1
        self.last_applied = self.commit_index
        return [
            ApplyMsg(command_valid=True, command=self.log[index - self.first_index].command, command_index=index)
            for index in range(first, end)
        ]

    def _hand_up(self, message: ApplyMsg) -> bool:
        """Without the lock; False if the peer ended before its service took the message."""
        while not self.dead.is_set():
            try:
                self.apply_ch.put(message, timeout=DEAD_POLL_S)
                return True
            except queue.Full:
                continue
        return False
