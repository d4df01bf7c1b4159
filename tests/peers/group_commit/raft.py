"""Group commit: one log-writer thread does all saves, never with the lock held.

Figure 2's state changes in memory, under the lock, and every change raises `version`. The writer takes the newest
version, saves it without the lock, and then raises `saved_version`; changes made meanwhile share the next save (group
commit). So messages wait for the disk, and work does not:

- start() appends and returns. The entry goes to the followers while the leader's own disk still writes it, and the
  leader counts itself towards a majority only for what its disk holds (dissertation §10.2.1). A majority of followers
  may commit an entry before. A leader that crashes first forgets entries that others may have: it cannot lead that
  term again, so no other entries of that term can ever have the same indexes.
- A reply leaves when a save has covered the state in which it was decided. A candidate requests votes, and counts
  its own, when its term and its vote are saved. By then the peer may be in a later term; the reply is as valid as
  one that the network had delayed.
- snapshot() truncates the log in memory and returns. State and snapshot go to the disk in one save, with the next
  version.
- Entries are applied when they are committed, saved here or not: a crash loses the service's memory anyway.

Replies have only Figure 2's fields, so a leader finds where logs diverge by going back 1, 2, 4, 8… entries.
Start at _writer() and _wait_saved().
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
)
from raft.persister import Persister

HEARTBEAT_S = 0.100
ELECTION_TIMEOUT_S = (0.350, 0.750)
DEAD_POLL_S = 0.200  # how long the applier waits for its service before it checks for kill()

FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"


class Raft:
    """One peer. Methods whose names begin with an underscore expect the caller to hold self.mu, threads apart."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()
        self.changed = threading.Condition(self.mu)  # version grew: for the writer
        self.saved = threading.Condition(self.mu)  # saved_version grew: for answers held back
        self.news = threading.Condition(self.mu)  # there may be something to send
        self.due = threading.Condition(self.mu)  # there may be something to apply
        self.dead = threading.Event()

        # Persistent, as Figure 2 has it; log[0] has index base_index + 1.
        self.current_term = 0
        self.voted_for: int | None = None
        self.log: list[LogEntry] = []
        self.base_index = 0
        self.base_term = 0
        self.snapshot_data = b""
        self._read_persist(persister.read_raft_state())
        self.version = 0
        self.saved_version = 0
        self.saved_term = self.current_term

        self.role = FOLLOWER
        self.commit_index = self.base_index
        self.last_applied = self.base_index
        self.snapshot_to_apply: ApplyMsg | None = None
        self.votes: set[int] = set()
        self.next_index: list[int] = []
        self.match_index: list[int] = []  # our own is what our disk holds
        self.step_back: list[int] = []  # how far the next refusal takes next_index back
        self.awaits_reply: list[bool] = []
        self._reset_election_timer()

        threading.Thread(target=self._writer, daemon=True).start()
        threading.Thread(target=self._ticker, daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role != LEADER or self.dead.is_set():
                return -1, self.current_term, False
            self.log.append(LogEntry(self.current_term, command))
            self._change()
            self.news.notify_all()
            return self._last_index(), self.current_term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role == LEADER

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if not self.base_index < index <= self.last_applied:
                return  # a later one came from the leader meanwhile
            self._cut_log(index, self._term_at(index), snapshot)
            self._change()

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            for condition in (self.changed, self.saved, self.news, self.due):
                condition.notify_all()

    # ---- The disk ------------------------------------------------------------------------------------

    def _change(self) -> None:
        """Persistent state has changed: the writer must save it, and answers given from now on wait for that."""
        self.version += 1
        self.changed.notify()

    def _writer(self) -> None:
        """The thread that saves, always everything, so that one save covers every change before it."""
        while True:
            with self.mu:
                while self.saved_version == self.version and not self.dead.is_set():
                    self.changed.wait()
                if self.dead.is_set():
                    return
                version, term, last_index = self.version, self.current_term, self._last_index()
                state = self._encode_state()
                snapshot = self.snapshot_data
            self.persister.save(state, snapshot)
            with self.mu:
                self.saved_version = version
                self.saved_term = term
                self.saved.notify_all()
                # A leader's log only grows in its term, so what was saved in this term is still there.
                if self.role == LEADER and self.current_term == term:
                    self.match_index[self.me] = max(self.match_index[self.me], last_index)
                    self._advance_commit()

    def _wait_saved(self, version: int) -> bool:
        """Wait, without the lock, until the disk holds this version or a later one; False if the peer ends first."""
        while self.saved_version < version and not self.dead.is_set():
            self.saved.wait()
        return self.saved_version >= version

    def _encode_state(self) -> bytes:
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(-1 if self.voted_for is None else self.voted_for)
        w.encode(self.base_index)
        w.encode(self.base_term)
        w.encode(self.log)
        return w.bytes()

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        voted_for = r.decode(int)
        self.voted_for = None if voted_for < 0 else voted_for
        self.base_index = r.decode(int)
        self.base_term = r.decode(int)
        self.log = r.decode(list[LogEntry])
        self.snapshot_data = self.persister.read_snapshot()

    # ---- The log -------------------------------------------------------------------------------------

    def _last_index(self) -> int:
        return self.base_index + len(self.log)

    def _term_at(self, index: int) -> int:
        """The term of an entry from base_index to the last one."""
        return self.base_term if index == self.base_index else self.log[index - self.base_index - 1].term

    def _entries_after(self, index: int) -> list[LogEntry]:
        return self.log[index - self.base_index :]

    def _has(self, index: int, term: int) -> bool:
        return self.base_index <= index <= self._last_index() and self._term_at(index) == term

    def _cut_log(self, index: int, term: int, snapshot: bytes) -> None:
        """The snapshot replaces the log up to index; what follows stays if it follows that very entry (Figure 13)."""
        self.log = self._entries_after(index) if self._has(index, term) else []
        self.base_index, self.base_term = index, term
        self.snapshot_data = snapshot

    # ---- Terms and elections -------------------------------------------------------------------------

    def _reset_election_timer(self) -> None:
        self.election_due_s = time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)

    def _follow(self, term: int) -> None:
        """Become a follower, in this term if it is a later one (§5.1)."""
        if self.role == LEADER:
            self._reset_election_timer()  # a leader had none
            self.news.notify_all()  # its senders have nothing left to do
        self.role = FOLLOWER
        if term > self.current_term:
            self.current_term = term
            self.voted_for = None
            self._change()

    def _ticker(self) -> None:
        while not self.dead.is_set():
            with self.mu:
                now_s = time.monotonic()
                if self.role == LEADER:
                    pause_s = ELECTION_TIMEOUT_S[0]
                elif now_s >= self.election_due_s:
                    self._campaign()
                    pause_s = self.election_due_s - now_s
                else:
                    pause_s = self.election_due_s - now_s
            time.sleep(pause_s)

    def _campaign(self) -> None:
        self.role = CANDIDATE
        self.current_term += 1
        self.voted_for = self.me
        self.votes = set()
        self._change()
        self._reset_election_timer()
        args = RequestVoteArgs(
            term=self.current_term,
            candidate_id=self.me,
            last_log_index=self._last_index(),
            last_log_term=self._term_at(self._last_index()),
        )
        threading.Thread(target=self._canvass, args=(args, self.version), daemon=True).start()

    def _canvass(self, args: RequestVoteArgs, version: int) -> None:
        """A thread of one campaign: once term and vote are saved, count our own vote and ask for the others."""
        with self.mu:
            if not self._wait_saved(version) or not self._is_candidate(args.term):
                return
            self._count_vote(self.me)
        for peer in range(len(self.peers)):
            if peer != self.me:
                threading.Thread(target=self._ask_vote, args=(peer, args), daemon=True).start()

    def _ask_vote(self, peer: int, args: RequestVoteArgs) -> None:
        """A thread of one call."""
        with self.mu:
            if not self._is_candidate(args.term):
                return
        reply = self.peers[peer].call("Raft.request_vote", args)
        if reply is None:
            return
        with self.mu:
            if reply.term > self.current_term:
                self._follow(reply.term)
            elif reply.vote_granted and self._is_candidate(args.term):
                self._count_vote(peer)

    def _is_candidate(self, term: int) -> bool:
        return self.role == CANDIDATE and self.current_term == term and not self.dead.is_set()

    def _count_vote(self, voter: int) -> None:
        self.votes.add(voter)
        if len(self.votes) > len(self.peers) // 2:
            self._lead()

    def _lead(self) -> None:
        self.role = LEADER
        count = len(self.peers)
        self.next_index = [self._last_index() + 1] * count
        self.match_index = [0] * count
        self.step_back = [1] * count
        self.awaits_reply = [False] * count
        # Our log was saved with our vote, and has not changed since.
        self.match_index[self.me] = self._last_index()
        for peer in range(count):
            if peer != self.me:
                threading.Thread(target=self._replicate, args=(peer, self.current_term), daemon=True).start()

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            if args.term > self.current_term:
                self._follow(args.term)
            granted = False
            last_index = self._last_index()
            # §5.4.1: the later last term wins, then the longer log.
            up_to_date = (args.last_log_term, args.last_log_index) >= (self._term_at(last_index), last_index)
            if args.term == self.current_term and self.voted_for in (None, args.candidate_id) and up_to_date:
                granted = True
                self._reset_election_timer()
                if self.voted_for is None:
                    self.voted_for = args.candidate_id
                    self._change()
            answer = RequestVoteReply(term=self.current_term, vote_granted=granted)
            if not self._wait_saved(self.version):
                return RequestVoteReply(term=self.saved_term, vote_granted=False)
            return answer

    # ---- Replication: the leader's side --------------------------------------------------------------

    def _leads(self, term: int) -> bool:
        return self.role == LEADER and self.current_term == term and not self.dead.is_set()

    def _replicate(self, peer: int, term: int) -> None:
        """A thread for one follower in one term.

        It sends when there are entries and no answer is awaited, so that commands that come meanwhile go together,
        and whenever a heartbeat is due, answer or not: what has had none by then goes again.
        """
        heartbeat_due_s = 0.0
        with self.mu:
            while self._leads(term):
                now_s = time.monotonic()
                has_more = self.next_index[peer] <= self._last_index() and not self.awaits_reply[peer]
                if has_more or now_s >= heartbeat_due_s:
                    self._send(peer)
                    heartbeat_due_s = now_s + HEARTBEAT_S
                self.news.wait(heartbeat_due_s - now_s)

    def _send(self, peer: int) -> None:
        prev_index = self.next_index[peer] - 1
        self.awaits_reply[peer] = True
        if prev_index < self.base_index:
            snapshot = InstallSnapshotArgs(
                term=self.current_term,
                leader_id=self.me,
                last_included_index=self.base_index,
                last_included_term=self.base_term,
                data=self.snapshot_data,
            )
            threading.Thread(target=self._call_install_snapshot, args=(peer, snapshot), daemon=True).start()
            return
        args = AppendEntriesArgs(
            term=self.current_term,
            leader_id=self.me,
            prev_log_index=prev_index,
            prev_log_term=self._term_at(prev_index),
            entries=self._entries_after(prev_index),
            leader_commit=self.commit_index,
        )
        threading.Thread(target=self._call_append_entries, args=(peer, args), daemon=True).start()

    def _call_append_entries(self, peer: int, args: AppendEntriesArgs) -> None:
        """A thread of one call."""
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.append_entries", args)
        with self.mu:
            if not self._may_learn(peer, reply, args.term):
                return
            if reply.success:
                self._matches(peer, args.prev_log_index + len(args.entries))
                self.step_back[peer] = 1
            elif args.prev_log_index == self.next_index[peer] - 1:  # else an answer to an earlier guess
                self._go_back(peer)

    def _call_install_snapshot(self, peer: int, args: InstallSnapshotArgs) -> None:
        """A thread of one call."""
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.install_snapshot", args)
        with self.mu:
            if self._may_learn(peer, reply, args.term):
                self._matches(peer, args.last_included_index)

    def _may_learn(self, peer: int, reply: AppendEntriesReply | InstallSnapshotReply | None, term: int) -> bool:
        """Look at a reply's term; whether we still lead in the term in which we asked."""
        if reply is not None and reply.term > self.current_term:
            self._follow(reply.term)
        if reply is None or not self._leads(term):
            return False
        self.awaits_reply[peer] = False
        self.news.notify_all()
        return True

    def _matches(self, peer: int, index: int) -> None:
        self.match_index[peer] = max(self.match_index[peer], index)
        self.next_index[peer] = max(self.next_index[peer], self.match_index[peer] + 1)
        self._advance_commit()

    def _go_back(self, peer: int) -> None:
        """The entry before next_index is not theirs: try twice as far back as the last time (§5.3).

        Our first entry, whose predecessor is the snapshot's last, is tried before the snapshot is sent.
        """
        first_index = self.base_index + 1
        if self.next_index[peer] > first_index:
            self.next_index[peer] = max(self.next_index[peer] - self.step_back[peer], first_index)
        else:
            self.next_index[peer] = self.base_index
        self.next_index[peer] = max(self.next_index[peer], self.match_index[peer] + 1)
        self.step_back[peer] *= 2

    def _advance_commit(self) -> None:
        """§5.3, §5.4.2: a majority's disks hold it, and it is of our own term."""
        index = sorted(self.match_index)[(len(self.peers) - 1) // 2]
        if index > self.commit_index and self._term_at(index) == self.current_term:
            self.commit_index = index
            self.due.notify()

    # ---- Replication: the follower's side ------------------------------------------------------------

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            success = args.term >= self.current_term and self._take_entries(args)
            answer = AppendEntriesReply(term=self.current_term, success=success)
            if not self._wait_saved(self.version):
                return AppendEntriesReply(term=self.saved_term, success=False)
            return answer

    def _take_entries(self, args: AppendEntriesArgs) -> bool:
        """Figure 2, AppendEntries 2 to 5, from the leader of this term or a later one."""
        self._follow(args.term)
        self._reset_election_timer()
        prev_index, entries = args.prev_log_index, args.entries
        if prev_index < self.base_index:
            # Our snapshot holds committed entries alone, so the leader's are the same as far as it goes.
            entries = entries[self.base_index - prev_index :]
            prev_index = self.base_index
        elif not self._has(prev_index, args.prev_log_term):
            return False
        for index, entry in enumerate(entries, start=prev_index + 1):
            if not self._has(index, entry.term):
                # Only a conflict cuts the log: a request that comes late must not.
                self.log[index - self.base_index - 1 :] = entries[index - prev_index - 1 :]
                self._change()
                break
        last_known = args.prev_log_index + len(args.entries)
        if min(args.leader_commit, last_known) > self.commit_index:
            self.commit_index = min(args.leader_commit, last_known)
            self.due.notify()
        return True

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if args.term >= self.current_term:
                self._follow(args.term)
                self._reset_election_timer()
                # What is committed here already is as good as the snapshot; an older one must change nothing.
                if args.last_included_index > self.commit_index:
                    self._take_snapshot(args)
            answer = InstallSnapshotReply(term=self.current_term)
            if not self._wait_saved(self.version):
                return InstallSnapshotReply(term=self.saved_term)
            return answer

    def _take_snapshot(self, args: InstallSnapshotArgs) -> None:
        self._cut_log(args.last_included_index, args.last_included_term, args.data)
        self._change()
        self.commit_index = args.last_included_index
        self.snapshot_to_apply = ApplyMsg(
            snapshot_valid=True,
            snapshot=args.data,
            snapshot_term=args.last_included_term,
            snapshot_index=args.last_included_index,
        )
        self.due.notify()

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
            ApplyMsg(command_valid=True, command=self.log[index - self.base_index - 1].command, command_index=index)
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
