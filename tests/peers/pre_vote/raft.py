"""Pre-vote, disregarding RequestVote while a leader is heard, and check-quorum.

The three belong together (Ongaro's dissertation, §4.2.3, §6.2, §9.6; the paper's §6):

- Pre-vote. A peer whose election timer runs out stays in its term and asks the others, by an additional RPC, whether
  they would vote for it. Only if a majority would, it takes a new term and campaigns. So a peer that was cut off
  comes back in its old term, and does not depose the leader.
- Disregarding RequestVote. A peer that has heard from the leader of its term within the shortest election timeout
  does not vote, and does not adopt the candidate's term. A leader counts as hearing itself. The reply is a rejection
  in a term lower than the requested one, which means only "not now".
- Check-quorum. A leader that has had no reply from a majority within an election timeout becomes a follower in the
  same term, without a leader. Otherwise peers that hear it, but are not heard by it, would follow it forever.

Replication is pipelined. next_index moves on when entries are sent, not when they are acknowledged, and a thread per
follower sends new entries without waiting for replies. The next message, at the latest a heartbeat, reveals lost ones:
its rejection moves next_index back.

Threads: a ticker, an applier, while leading a feeder for each other peer, and a short one for each call. One lock.
"""

import enum
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
    PreVoteArgs,
    PreVoteReply,
    RequestVoteArgs,
    RequestVoteReply,
)
from raft.persister import Persister

HEARTBEAT_S = 0.100
ELECTION_TIMEOUT_MIN_S = 0.350
ELECTION_TIMEOUT_MAX_S = 0.800
QUORUM_TIMEOUT_S = ELECTION_TIMEOUT_MAX_S  # a leader that hears fewer than a majority for so long follows
SNAPSHOT_PATIENCE_S = 0.300  # how long a feeder waits for word of a snapshot before it goes on
NEVER = float("-inf")


class Role(enum.Enum):
    FOLLOWER = enum.auto()
    PRE_CANDIDATE = enum.auto()
    CANDIDATE = enum.auto()
    LEADER = enum.auto()


@dataclass(slots=True)
class Follower:
    """What a leader knows of one other peer, during one leadership."""

    next_index: int  # what is sent next; everything before was sent, if perhaps in vain
    heard_at: float  # when the last answer came, for check-quorum
    match_index: int = 0
    sent: int = 0  # messages so far; each has its number
    moved_back_at: int = (
        0  # `sent` when next_index was last moved back: rejections of these and earlier ones are outdated
    )
    heartbeat_due: float = NEVER
    snapshot_until: float = NEVER  # a snapshot is on its way: only heartbeats until then


class Raft:
    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()  # guards everything below
        self.changed = threading.Condition(self.mu)  # role, log, commit_index, a pending snapshot, or death
        self.dead = False

        # Persistent state (Figure 2). log[0] represents the last entry that the snapshot covers.
        self.current_term = 0
        self.voted_for: int | None = None
        self.log = [LogEntry(0, None)]
        self.log_start = 0  # the index of log[0]
        self._read_persist(persister.read_raft_state())

        self.commit_index = self.log_start
        self.last_applied = self.log_start
        self.pending_snapshot: ApplyMsg | None = None  # received, and not yet delivered

        self.role = Role.FOLLOWER
        self.votes: set[int] = set()  # or pre-votes, for a pre-candidate
        self.round = 0  # counts pre-votes and elections, so that an answer finds out whether anybody still waits for it
        self.followers: dict[int, Follower] = {}
        self.leader_heard_at = NEVER  # the leader of current_term
        self.election_due = 0.0
        self._restart_timer()

        threading.Thread(target=self._ticker, daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()

    # ---- What the service calls ----------------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role is not Role.LEADER or self.dead:
                return -1, self.current_term, False
            self.log.append(LogEntry(self.current_term, command))
            index, term = self._last_index(), self.current_term
            self._persist()
            self._advance_commit_index()  # alone, a leader is a majority
            self.changed.notify_all()
            return index, term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role is Role.LEADER

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if self.dead or not self.log_start < index <= self.last_applied:
                return  # a leader's snapshot has overtaken it
            self._drop_log_before(index, self._term_at(index))
            self._persist(snapshot)

    def kill(self) -> None:
        with self.mu:
            self.dead = True
            self.changed.notify_all()

    # ---- Persistent state. Callers hold self.mu ------------------------------------------------------------

    def _persist(self, snapshot: bytes | None = None) -> None:
        state = labgob.Encoder()
        state.encode(self.current_term)
        state.encode(self.voted_for)
        state.encode(self.log_start)
        state.encode(self.log)
        self.persister.save(state.bytes(), snapshot)

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        state = labgob.Decoder(data)
        self.current_term = state.decode(int)
        self.voted_for = state.decode(int | None)
        self.log_start = state.decode(int)
        self.log = state.decode(list[LogEntry])

    # ---- The log. Callers hold self.mu ---------------------------------------------------------------------

    def _last_index(self) -> int:
        return self.log_start + len(self.log) - 1

    def _term_at(self, index: int) -> int:
        return self.log[index - self.log_start].term

    def _last(self) -> tuple[int, int]:
        """The last entry's term and index, in the order in which §5.4.1 compares them."""
        return self.log[-1].term, self._last_index()

    def _drop_log_before(self, index: int, term: int) -> None:
        """What the snapshot up to index replaces. Entries behind it stay, if ours at index is the same (Figure 13)."""
        fits = index <= self._last_index() and self._term_at(index) == term
        self.log = [LogEntry(term, None), *(self.log[index - self.log_start + 1 :] if fits else [])]
        self.log_start = index

    # ---- Roles and terms. Callers hold self.mu -------------------------------------------------------------

    def _restart_timer(self) -> None:
        self.election_due = time.monotonic() + random.uniform(ELECTION_TIMEOUT_MIN_S, ELECTION_TIMEOUT_MAX_S)

    def _follow(self) -> None:
        if self.role is Role.LEADER:
            self._restart_timer()  # a leader has none that could go on
        self.role = Role.FOLLOWER
        self.changed.notify_all()

    def _adopt(self, term: int) -> bool:
        """§5.1: a newer term makes a follower. True if so; the caller saves before anyone can learn of it."""
        if term <= self.current_term:
            return False
        self.current_term = term
        self.voted_for = None
        self.leader_heard_at = NEVER  # an earlier leader does not count
        self._follow()
        return True

    def _is_loyal(self) -> bool:
        """Whether there is a leader, as far as we know; if so, we grant no vote (§6)."""
        if self.role is Role.LEADER:
            return True
        return time.monotonic() - self.leader_heard_at < ELECTION_TIMEOUT_MIN_S

    def _is_majority(self, count: int) -> bool:
        return 2 * count > len(self.peers)

    # ---- Elections -----------------------------------------------------------------------------------------

    def _ticker(self) -> None:
        with self.mu:
            while not self.dead:
                now = time.monotonic()
                if self.role is Role.LEADER:
                    self._check_quorum(now)
                elif now >= self.election_due:
                    self._ask_whether_to_campaign()
                due = now + HEARTBEAT_S if self.role is Role.LEADER else self.election_due
                self.changed.wait(max(0.0, due - time.monotonic()))

    def _check_quorum(self, now: float) -> None:
        heard = sum(now - follower.heard_at < QUORUM_TIMEOUT_S for follower in self.followers.values())
        if not self._is_majority(1 + heard):
            self._follow()

    def _ask_whether_to_campaign(self) -> None:
        """The pre-vote. Nothing changes that is worth saving, and the term stays."""
        self.role = Role.PRE_CANDIDATE
        self._restart_timer()
        term, index = self._last()
        self._poll("Raft.pre_vote", PreVoteArgs(self.current_term + 1, self.me, index, term))

    def _campaign(self) -> None:
        self.role = Role.CANDIDATE
        self.current_term += 1
        self.voted_for = self.me
        self.leader_heard_at = NEVER
        self._restart_timer()
        self._persist()
        term, index = self._last()
        self._poll("Raft.request_vote", RequestVoteArgs(self.current_term, self.me, index, term))

    def _poll(self, method: str, args: PreVoteArgs | RequestVoteArgs) -> None:
        """Our own vote first, which is enough in a cluster of one; then those of the others."""
        self.round += 1
        self.votes = set()
        for peer in range(len(self.peers)):
            if peer != self.me:
                self._spawn(self._ask_for_vote, peer, method, args, self.round)
        self._count_vote(self.me)

    def _ask_for_vote(self, peer: int, method: str, args: PreVoteArgs | RequestVoteArgs, asked_in: int) -> None:
        reply = self._call(peer, method, args)
        if reply is None:
            return
        with self.mu:
            if self.dead:
                return
            if self._adopt(reply.term):
                self._persist()
            # Hearing from a leader, voting for another peer or a new campaign ends the wait for this reply.
            waiting = self.role in (Role.PRE_CANDIDATE, Role.CANDIDATE) and self.round == asked_in
            if waiting and reply.vote_granted:
                self._count_vote(peer)

    def _count_vote(self, peer: int) -> None:
        # Caller holds self.mu.
        self.votes.add(peer)
        if not self._is_majority(len(self.votes)):
            return
        if self.role is Role.PRE_CANDIDATE:
            self._campaign()
        else:
            self._lead()

    def pre_vote(self, args: PreVoteArgs) -> PreVoteReply:
        """Would we vote for it? Answering changes nothing here: no term, no vote, no timer."""
        with self.mu:
            up_to_date = (args.last_log_term, args.last_log_index) >= self._last()
            granted = args.term > self.current_term and up_to_date and not self._is_loyal() and not self.dead
            return PreVoteReply(self.current_term, granted)

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            if self.dead or self._is_loyal():
                return RequestVoteReply(self.current_term, False)
            unsaved = self._adopt(args.term)
            up_to_date = (args.last_log_term, args.last_log_index) >= self._last()
            free = self.voted_for in (None, args.candidate_id)
            granted = args.term == self.current_term and free and up_to_date
            if granted:
                unsaved |= self.voted_for is None
                self.voted_for = args.candidate_id
                self._restart_timer()
                self._follow()  # a pre-candidate gives up its own plans
            if unsaved:
                self._persist()
            return RequestVoteReply(self.current_term, granted)

    # ---- Leading -------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        # Caller holds self.mu.
        self.role = Role.LEADER
        now = time.monotonic()
        self.followers = {
            peer: Follower(next_index=self._last_index() + 1, heard_at=now)
            for peer in range(len(self.peers))
            if peer != self.me
        }
        for peer, follower in self.followers.items():
            self._spawn(self._feeder, peer, follower, self.current_term)
        self.changed.notify_all()

    def _leads(self, term: int) -> bool:
        # Caller holds self.mu.
        return not self.dead and self.role is Role.LEADER and self.current_term == term

    def _feeder(self, peer: int, follower: Follower, term: int) -> None:
        """Sends one follower what is new, at once, and heartbeats in between; as long as we lead this term."""
        with self.mu:
            while self._leads(term):
                now = time.monotonic()
                news = follower.next_index <= self._last_index() and now >= follower.snapshot_until
                if news or now >= follower.heartbeat_due:
                    self._feed(peer, follower, now)
                due = follower.heartbeat_due
                if now < follower.snapshot_until:
                    due = min(due, follower.snapshot_until)
                self.changed.wait(max(0.0, due - time.monotonic()))

    def _feed(self, peer: int, follower: Follower, now: float) -> None:
        # Caller holds self.mu.
        follower.sent += 1
        follower.heartbeat_due = now + HEARTBEAT_S
        if now >= follower.snapshot_until and follower.next_index <= self.log_start:
            follower.snapshot_until = now + SNAPSHOT_PATIENCE_S
            follower.next_index = self.log_start + 1
            snapshot = self.persister.read_snapshot()
            install = InstallSnapshotArgs(self.current_term, self.me, self.log_start, self.log[0].term, snapshot)
            self._spawn(self._send_snapshot, peer, follower, install)
            return
        prev = max(follower.next_index - 1, self.log_start)
        entries = self.log[prev - self.log_start + 1 :] if now >= follower.snapshot_until else []
        append = AppendEntriesArgs(self.current_term, self.me, prev, self._term_at(prev), entries, self.commit_index)
        follower.next_index = max(follower.next_index, prev + len(entries) + 1)
        self._spawn(self._send_entries, peer, follower, append, follower.sent)

    def _send_entries(self, peer: int, follower: Follower, args: AppendEntriesArgs, number: int) -> None:
        reply = self._call(peer, "Raft.append_entries", args)
        if reply is None:
            return
        with self.mu:
            if not self._is_news(args.term, reply.term, follower):
                return
            if reply.success:
                self._matched(follower, args.prev_log_index + len(args.entries))
            elif number > follower.moved_back_at and args.prev_log_index > follower.match_index:
                if time.monotonic() < follower.snapshot_until:
                    return  # of course it does not fit yet
                follower.next_index = max(follower.match_index + 1, self._where_to_resume(args.prev_log_index, reply))
                follower.moved_back_at = follower.sent
                self.changed.notify_all()

    def _send_snapshot(self, peer: int, follower: Follower, args: InstallSnapshotArgs) -> None:
        reply = self._call(peer, "Raft.install_snapshot", args)
        if reply is None:
            return
        with self.mu:
            if self._is_news(args.term, reply.term, follower):
                follower.snapshot_until = NEVER
                follower.moved_back_at = follower.sent  # whatever was refused until now lacked this snapshot
                self._matched(follower, args.last_included_index)

    def _is_news(self, asked_in_term: int, reply_term: int, follower: Follower) -> bool:
        """Whether a reply belongs to our current leadership; it shows that the follower is up."""
        # Caller holds self.mu.
        if self.dead:
            return False
        if self._adopt(reply_term):
            self._persist()
        if not self._leads(asked_in_term):
            return False
        follower.heard_at = time.monotonic()
        return reply_term == asked_in_term

    def _matched(self, follower: Follower, index: int) -> None:
        # Caller holds self.mu.
        follower.match_index = max(follower.match_index, index)
        follower.next_index = max(follower.next_index, follower.match_index + 1)
        self._advance_commit_index()
        self.changed.notify_all()

    def _where_to_resume(self, refused: int, reply: AppendEntriesReply) -> int:
        """§5.3, last page. At log_start or before, the feeder sends the snapshot."""
        # Caller holds self.mu.
        if reply.x_term == 0:
            return reply.x_len
        for index in range(refused - 1, self.log_start - 1, -1):
            if self._term_at(index) == reply.x_term:
                return index + 1
            if self._term_at(index) < reply.x_term:
                break
        return reply.x_index

    def _advance_commit_index(self) -> None:
        # Caller holds self.mu.
        matched = sorted([self._last_index(), *(follower.match_index for follower in self.followers.values())])
        index = matched[(len(matched) - 1) // 2]
        # §5.4.2, Figure 8: older entries are committed only by one of this term behind them.
        if index > self.commit_index and self._term_at(index) == self.current_term:
            self.commit_index = index
            self.changed.notify_all()

    # ---- Following -----------------------------------------------------------------------------------------

    def _hear_leader(self, term: int) -> bool:
        """A leader of our term, or of a newer one, has spoken. True if there is something to be saved."""
        # Caller holds self.mu, and has refused older terms.
        unsaved = self._adopt(term)
        self._follow()
        self.leader_heard_at = time.monotonic()
        self._restart_timer()
        return unsaved

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            if self.dead or args.term < self.current_term:
                return AppendEntriesReply(self.current_term, False)
            unsaved = self._hear_leader(args.term)
            # What the snapshot covers is committed, and so the same in the leader's log.
            covered = max(0, self.log_start - args.prev_log_index)
            prev = args.prev_log_index + covered
            entries = args.entries[covered:]
            if prev > self._last_index() or (not covered and self._term_at(prev) != args.prev_log_term):
                if unsaved:
                    self._persist()
                return self._refusal(prev)
            for index, entry in enumerate(entries, start=prev + 1):
                if index > self._last_index() or self._term_at(index) != entry.term:
                    self.log[index - self.log_start :] = entries[index - prev - 1 :]
                    unsaved = True
                    break
            if unsaved:
                self._persist()
            # Only up to the last entry that this message vouches for (Figure 2, AppendEntries 5).
            known = min(args.leader_commit, args.prev_log_index + len(args.entries))
            if known > self.commit_index:
                self.commit_index = known
                self.changed.notify_all()
            return AppendEntriesReply(self.current_term, True)

    def _refusal(self, prev: int) -> AppendEntriesReply:
        # Caller holds self.mu.
        if prev > self._last_index():
            return AppendEntriesReply(self.current_term, False, x_len=self._last_index() + 1)
        first = prev
        while first > self.log_start + 1 and self._term_at(first - 1) == self._term_at(prev):
            first -= 1
        return AppendEntriesReply(self.current_term, False, x_term=self._term_at(prev), x_index=first)

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if self.dead or args.term < self.current_term:
                return InstallSnapshotReply(self.current_term)
            unsaved = self._hear_leader(args.term)
            if args.last_included_index > self.commit_index:
                self._drop_log_before(args.last_included_index, args.last_included_term)
                self.commit_index = args.last_included_index
                self.pending_snapshot = ApplyMsg(
                    snapshot_valid=True,
                    snapshot=args.data,
                    snapshot_term=args.last_included_term,
                    snapshot_index=args.last_included_index,
                )
                self._persist(args.data)
                self.changed.notify_all()
            elif unsaved:
                self._persist()
            return InstallSnapshotReply(self.current_term)

    # ---- Applying and calling ------------------------------------------------------------------------------

    def _applier(self) -> None:
        while True:
            for message in self._due_messages():
                while not self._put(message):
                    if self.dead:
                        return
            if self.dead:
                return

    def _due_messages(self) -> list[ApplyMsg]:
        """Wait for something to deliver. last_applied runs ahead of the service by what is returned."""
        with self.mu:
            while not self.dead and self.last_applied >= self.commit_index:
                self.changed.wait()
            if self.dead:
                return []
            messages = []
            if self.pending_snapshot is not None:
                messages.append(self.pending_snapshot)
                self.last_applied = self.pending_snapshot.snapshot_index
                self.pending_snapshot = None
            for index in range(self.last_applied + 1, self.commit_index + 1):
                command = self.log[index - self.log_start].command
                messages.append(ApplyMsg(command_valid=True, command=command, command_index=index))
            self.last_applied = self.commit_index
            return messages

    def _put(self, message: ApplyMsg) -> bool:
        try:
            self.apply_ch.put(message, timeout=0.100)  # not forever: the service may be gone, and we be killed
        except queue.Full:
            return False
        return True

    def _spawn(self, target: Any, *args: Any) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()

    def _call(self, peer: int, method: str, args: Any) -> Any:
        """The reply, or None. A dead peer asks nothing."""
        return None if self.dead else self.peers[peer].call(method, args)
