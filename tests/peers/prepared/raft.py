"""Messages are prepared under the lock and sent later.

Ordinary threads and one lock. But no thread calls another peer while it holds the lock, or just after. A message
becomes a letter, with arguments that are true and saved at that moment, and goes into `outbox`. A postman thread
waits half a millisecond for more letters, then gives each letter to a carrier thread that makes the call.

So a letter may leave when the peer's state has changed. A RequestVote may leave after the election is won, or lost to a
higher term; an AppendEntries may leave after its sender has become a follower. The network could have delayed it just
as long, so every receiver must cope anyway (§5.1). What must hold is that a letter was true when it was written, and
that everything in it was saved before.

Other differences:
- Letters to a follower are sent without waiting for the last one's reply, up to two at a time: next_index runs ahead of
  match_index, and a rejection or a lost letter takes it back.
- A letter that has not left yet is rewritten when there is more to send, so many start() at once make one letter.
- start() yields to other threads after it has released the lock. Of several at once, the one with the higher index may
  return first, and a command may be committed before its start() returns.
- Two threads check the clock: one every 10 ms, for elections; one every 50 ms, for heartbeats.

Start reading at _write_to() and _postman().
"""

from dataclasses import dataclass
from enum import Enum
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

ELECTION_LOOK_S = 0.010
HEARTBEAT_LOOK_S = 0.050
HEARTBEAT_S = 0.100
ELECTION_TIMEOUT_S = (0.400, 0.800)
COMPANY_S = 0.0005  # how long a letter waits for others
GIVE_WAY_S = 0.0  # how long start() may dally: 0 is a mere thread switch, and a millisecond would be as right
SNAPSHOT_PATIENCE_S = 0.250  # before a snapshot is sent once more
WINDOW = 2  # letters with entries in flight to one follower
NOBODY = -1


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True, eq=False)
class Letter:
    """A call to make. Its args are never changed: a letter is replaced as a whole, while it is in the outbox."""

    peer: int
    method: str
    args: Any


@dataclass(slots=True)
class Follower:
    """What the leader knows of one other peer."""

    next_index: int  # the first entry that no letter has carried yet
    match_index: int = 0
    under_way: int = 0  # letters without a reply
    written_at: float = 0.0
    snapshot_at: float = float("-inf")  # when it was last sent the snapshot, unless that was answered
    unsent: Letter | None = None  # an AppendEntries that is still in the outbox


class Raft:
    """One peer. `peers[me]` is this one; committed commands and received snapshots go to `apply_ch`."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()  # guards everything below
        self.to_send = threading.Condition(self.mu)  # the outbox is not empty
        self.to_apply = threading.Condition(self.mu)  # commit_index has moved, or a snapshot has come
        self.dead = threading.Event()

        # Persistent state (Figure 2, Figure 13).
        self.current_term = 0
        self.voted_for = NOBODY
        # log[0] represents the snapshot's last entry, or index 0, before the first entry.
        self.last_included_index = 0
        self.log = [LogEntry(term=0, command=None)]
        self.snapshot_data = persister.read_snapshot()
        self._read_persist(persister.read_raft_state())

        # Volatile state.
        self.role = Role.FOLLOWER
        self.commit_index = self.last_included_index
        self.last_applied = self.last_included_index
        self.snapshot_to_apply: ApplyMsg | None = None
        self.votes: set[int] = set()
        self.followers: dict[int, Follower] = {}  # while we lead
        self.outbox: list[Letter] = []
        self.election_at = 0.0
        self._reset_election_timer()

        for target in (self._watch_elections, self._watch_heartbeats, self._postman, self._applier):
            threading.Thread(target=target, daemon=True).start()

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role is not Role.LEADER or self.dead.is_set():
                return -1, self.current_term, False
            term = self.current_term
            self.log.append(LogEntry(term, command))
            index = self._last_log_index()
            self._persist()
            for peer, follower in self.followers.items():
                if follower.under_way < WINDOW or follower.unsent is not None:
                    self._write_to(peer)
            self._commit_what_a_majority_has()  # alone, we are the majority
        time.sleep(random.uniform(0, GIVE_WAY_S))  # the lock is free
        return index, term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role is Role.LEADER

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            # Older than the one we have, or not yet applied: not a snapshot of ours.
            if self.last_included_index < index <= self.last_applied:
                self._keep_snapshot(index, self._term_at(index), snapshot)

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            self.outbox.clear()
            self.to_send.notify_all()
            self.to_apply.notify_all()

    # ---- Persistent state; the caller holds self.mu --------------------------------------------------

    def _persist(self, snapshot: bytes | None = None) -> None:
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.last_included_index)
        w.encode(self.log)
        self.persister.save(w.bytes(), snapshot)

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        self.voted_for = r.decode(int)
        self.last_included_index = r.decode(int)
        self.log = r.decode(list[LogEntry])

    def _keep_snapshot(self, index: int, term: int, data: bytes) -> None:
        """Entries after index stay if our log has that entry (§7); state and snapshot are saved together."""
        if index <= self._last_log_index() and self._term_at(index) == term:
            after = self._entries_from(index + 1)
        else:
            after = []
        self.log = [LogEntry(term, None), *after]
        self.last_included_index = index
        self.snapshot_data = data
        self._persist(data)

    # ---- The log; the caller holds self.mu -----------------------------------------------------------

    def _last_log_index(self) -> int:
        return self.last_included_index + len(self.log) - 1

    def _term_at(self, index: int) -> int:
        return self.log[index - self.last_included_index].term

    def _entries_from(self, index: int) -> list[LogEntry]:
        return self.log[index - self.last_included_index :]

    # ---- The outbox ----------------------------------------------------------------------------------

    def _post(self, letter: Letter) -> None:
        """Caller holds self.mu, and has saved everything in the letter."""
        self.outbox.append(letter)
        self.to_send.notify()

    def _postman(self) -> None:
        while True:
            with self.mu:
                while not self.outbox and not self.dead.is_set():
                    self.to_send.wait()
                if self.dead.is_set():
                    return
            time.sleep(COMPANY_S)
            with self.mu:
                letters, self.outbox = self.outbox, []
                for follower in self.followers.values():
                    follower.unsent = None
            for letter in letters:
                threading.Thread(target=self._carry, args=(letter,), daemon=True).start()

    def _carry(self, letter: Letter) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[letter.peer].call(letter.method, letter.args)
        with self.mu:
            if self.dead.is_set():
                return
            if reply is not None and reply.term > self.current_term:
                self._see_term(reply.term)
                self._persist()
            if letter.args.term != self.current_term:
                return  # an answer to what we were in an earlier term
            if isinstance(letter.args, RequestVoteArgs):
                if reply is not None and reply.vote_granted:
                    self._count_vote(letter.peer)
            elif self.role is Role.LEADER:
                follower = self.followers[letter.peer]
                follower.under_way -= 1
                if isinstance(letter.args, InstallSnapshotArgs):
                    self._installed(letter.peer, letter.args, reply)
                else:
                    self._appended(letter.peer, letter.args, reply)

    # ---- Elections (§5.1, §5.2) ----------------------------------------------------------------------

    def _watch_elections(self) -> None:
        while not self.dead.is_set():
            time.sleep(ELECTION_LOOK_S)
            with self.mu:
                if self.role is not Role.LEADER and time.monotonic() >= self.election_at and not self.dead.is_set():
                    self._campaign()

    # The caller of all that follow here holds self.mu.

    def _reset_election_timer(self) -> None:
        self.election_at = time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)

    def _see_term(self, term: int) -> None:
        """A higher term makes a follower of anyone. The caller saves; the timer runs on."""
        self.current_term = term
        self.voted_for = NOBODY
        self.role = Role.FOLLOWER

    def _campaign(self) -> None:
        self.current_term += 1
        self.voted_for = self.me
        self.role = Role.CANDIDATE
        self.votes = set()
        self._reset_election_timer()
        self._persist()
        args = RequestVoteArgs(
            term=self.current_term,
            candidate_id=self.me,
            last_log_index=self._last_log_index(),
            last_log_term=self.log[-1].term,
        )
        for peer in range(len(self.peers)):
            if peer != self.me:
                self._post(Letter(peer, "Raft.request_vote", args))
        self._count_vote(self.me)

    def _count_vote(self, peer: int) -> None:
        """The vote is of our term."""
        self.votes.add(peer)
        if self.role is Role.CANDIDATE and len(self.votes) * 2 > len(self.peers):
            log("leader", "of term %d", self.current_term)
            self.role = Role.LEADER
            next_index = self._last_log_index() + 1
            self.followers = {peer: Follower(next_index) for peer in range(len(self.peers)) if peer != self.me}
            for follower in self.followers:
                self._write_to(follower)

    # ---- The leader's side of the log (§5.3, §5.4.2, §7) ---------------------------------------------

    def _watch_heartbeats(self) -> None:
        while not self.dead.is_set():
            time.sleep(HEARTBEAT_LOOK_S)
            with self.mu:
                if self.role is Role.LEADER and not self.dead.is_set():
                    now = time.monotonic()
                    for peer, follower in self.followers.items():
                        # Half a look early rather than half a look late.
                        if now >= follower.written_at + HEARTBEAT_S - HEARTBEAT_LOOK_S / 2:
                            self._write_to(peer)

    # The caller of all that follow here holds self.mu, and this peer leads.

    def _write_to(self, peer: int) -> None:
        """Whatever the follower has not been sent yet; a heartbeat if that is nothing."""
        follower = self.followers[peer]
        now = time.monotonic()
        next_index = follower.next_index
        waits_for_snapshot = now < follower.snapshot_at + SNAPSHOT_PATIENCE_S
        if next_index <= self.last_included_index and not waits_for_snapshot:
            follower.snapshot_at = follower.written_at = now
            follower.under_way += 1
            snapshot = InstallSnapshotArgs(
                term=self.current_term,
                leader_id=self.me,
                last_included_index=self.last_included_index,
                last_included_term=self.log[0].term,
                data=self.snapshot_data,
            )
            self._post(Letter(peer, "Raft.install_snapshot", snapshot))
            return
        if next_index <= self.last_included_index:
            # A heartbeat, which will be rejected: the snapshot is still on its way.
            next_index, entries = self.last_included_index + 1, []
        else:
            if follower.unsent is not None and follower.unsent.args.prev_log_index >= self.last_included_index:
                # It has not left: one letter instead of two.
                next_index = min(next_index, follower.unsent.args.prev_log_index + 1)
                self.outbox.remove(follower.unsent)
                follower.under_way -= 1
            entries = self._entries_from(next_index)
            follower.next_index = self._last_log_index() + 1
        args = AppendEntriesArgs(
            term=self.current_term,
            leader_id=self.me,
            prev_log_index=next_index - 1,
            prev_log_term=self._term_at(next_index - 1),
            entries=entries,
            leader_commit=self.commit_index,
        )
        follower.written_at = now
        follower.under_way += 1
        follower.unsent = Letter(peer, "Raft.append_entries", args)
        self._post(follower.unsent)

    def _appended(self, peer: int, args: AppendEntriesArgs, reply: AppendEntriesReply | None) -> None:
        """The answer to an AppendEntries of this term, or None if it was lost."""
        follower = self.followers[peer]
        last_index = args.prev_log_index + len(args.entries)
        if reply is not None and reply.success:
            self._matched(peer, last_index)
        elif last_index > follower.match_index:
            # Unless something later has come through, what it carried must be carried again.
            back_to = args.prev_log_index + 1 if reply is None else self._after_conflict(args, reply)
            follower.next_index = max(follower.match_index + 1, min(follower.next_index, back_to))
            # A lost letter waits for the next heartbeat; after a rejection we try on, unless only the snapshot helps
            # and that is on its way.
            in_log = follower.next_index > self.last_included_index
            if reply is not None and (in_log or follower.snapshot_at == float("-inf")):
                self._write_to(peer)

    def _after_conflict(self, args: AppendEntriesArgs, reply: AppendEntriesReply) -> int:
        """The next index to try (§5.3, last page): past our last entry of the follower's term, if we have any."""
        index = min(reply.conflict_index, args.prev_log_index)
        if reply.conflict_term:
            for i in range(min(args.prev_log_index, self._last_log_index()), self.last_included_index - 1, -1):
                if self._term_at(i) == reply.conflict_term:
                    return i + 1
                if self._term_at(i) < reply.conflict_term:
                    break
        return max(index, 1)

    def _installed(self, peer: int, args: InstallSnapshotArgs, reply: InstallSnapshotReply | None) -> None:
        self.followers[peer].snapshot_at = float("-inf")
        if reply is not None:
            self._matched(peer, args.last_included_index)

    def _matched(self, peer: int, index: int) -> None:
        follower = self.followers[peer]
        follower.match_index = max(follower.match_index, index)
        follower.next_index = max(follower.next_index, follower.match_index + 1)
        self._commit_what_a_majority_has()
        if follower.next_index <= self._last_log_index() and follower.under_way < WINDOW:
            self._write_to(peer)

    def _commit_what_a_majority_has(self) -> None:
        have = sorted([self._last_log_index(), *(follower.match_index for follower in self.followers.values())])
        index = have[(len(have) - 1) // 2]  # a majority has this much, or more
        # §5.4.2, Figure 8: an entry of an older term is committed only by one of ours after it.
        if index > self.commit_index and self._term_at(index) == self.current_term:
            self.commit_index = index
            self.to_apply.notify()

    # ---- RPC handlers --------------------------------------------------------------------------------

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            if self.dead.is_set() or args.term < self.current_term:
                return RequestVoteReply(term=self.current_term, vote_granted=False)
            changed = args.term > self.current_term
            if changed:
                self._see_term(args.term)
            # §5.4.1: at least as up to date as our log.
            up_to_date = (args.last_log_term, args.last_log_index) >= (self.log[-1].term, self._last_log_index())
            granted = up_to_date and self.voted_for in (NOBODY, args.candidate_id)
            if granted:
                changed = changed or self.voted_for == NOBODY
                self.voted_for = args.candidate_id
                self._reset_election_timer()
            if changed:
                self._persist()
            return RequestVoteReply(term=self.current_term, vote_granted=granted)

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            if not self._hear_leader(args.term):
                return AppendEntriesReply(term=self.current_term, success=False)
            index, entries = args.prev_log_index + 1, args.entries
            if index <= self.last_included_index:
                # The snapshot is committed, so what it covers is the same in the leader's log.
                entries = entries[self.last_included_index + 1 - index :]
                index = self.last_included_index + 1
            elif args.prev_log_index > self._last_log_index():
                return AppendEntriesReply(
                    term=self.current_term, success=False, conflict_index=self._last_log_index() + 1
                )
            elif self._term_at(args.prev_log_index) != args.prev_log_term:
                return self._conflict_at(args.prev_log_index)
            for i, entry in enumerate(entries, start=index):
                # Only a conflict shortens the log: the message may be older than what we have (§5.3).
                if i > self._last_log_index() or self._term_at(i) != entry.term:
                    del self.log[i - self.last_included_index :]
                    self.log += entries[i - index :]
                    self._persist()
                    break
            last_new_index = args.prev_log_index + len(args.entries)
            if min(args.leader_commit, last_new_index) > self.commit_index:
                self.commit_index = min(args.leader_commit, last_new_index)
                self.to_apply.notify()
            return AppendEntriesReply(term=self.current_term, success=True)

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if self._hear_leader(args.term) and args.last_included_index > self.commit_index:
                self._keep_snapshot(args.last_included_index, args.last_included_term, args.data)
                self.commit_index = self.last_applied = args.last_included_index
                self.snapshot_to_apply = ApplyMsg(
                    snapshot_valid=True,
                    snapshot=args.data,
                    snapshot_term=args.last_included_term,
                    snapshot_index=args.last_included_index,
                )
                self.to_apply.notify()
            return InstallSnapshotReply(term=self.current_term)

    def _hear_leader(self, term: int) -> bool:
        """Whether it is the current leader that speaks. Caller holds self.mu."""
        if self.dead.is_set() or term < self.current_term:
            return False
        if term > self.current_term:
            self._see_term(term)
            self._persist()
        self.role = Role.FOLLOWER
        self._reset_election_timer()
        return True

    def _conflict_at(self, index: int) -> AppendEntriesReply:
        """Our term there, and where it begins. Caller holds self.mu."""
        term = self._term_at(index)
        while index - 1 > self.last_included_index and self._term_at(index - 1) == term:
            index -= 1
        return AppendEntriesReply(term=self.current_term, success=False, conflict_term=term, conflict_index=index)

    # ---- Applying ------------------------------------------------------------------------------------

    def _applier(self) -> None:
        """The only thread that puts into apply_ch."""
        while True:
            with self.mu:
                while not (self.snapshot_to_apply or self.last_applied < self.commit_index or self.dead.is_set()):
                    self.to_apply.wait()
                messages = []
                if self.snapshot_to_apply:
                    messages.append(self.snapshot_to_apply)
                    self.snapshot_to_apply = None
                for i in range(self.last_applied + 1, self.commit_index + 1):
                    command = self.log[i - self.last_included_index].command
                    messages.append(ApplyMsg(command_valid=True, command=command, command_index=i))
                self.last_applied = self.commit_index
            for message in messages:
                if not self._put(message):
                    return
            if self.dead.is_set():
                return

    def _put(self, message: ApplyMsg) -> bool:
        """False if the peer was killed first."""
        while not self.dead.is_set():
            try:
                self.apply_ch.put(message, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False
