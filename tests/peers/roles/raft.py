"""Roles as objects: Follower, Candidate and Leader replace each other, and each handles its own messages.

Timeouts are threading.Timers. A leader has one replicator thread per follower, which ends with its leadership. Every
change of persistent state increments `version`. One thread saves, and threads that must not answer before a save wait
until that version is saved, so all waiting threads share one save. The applier computes what is committed when it looks
for work. Everything is under raft.mu except calls, saves and apply_ch.put().
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

HEARTBEAT_S = 0.100
NOBODY = -1


class Role:
    """What a peer is in one term. All methods expect the lock."""

    def __init__(self, raft: "Raft") -> None:
        self.raft = raft

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    def saved(self, version: int, last: int) -> None: ...

    def committed(self) -> int:
        return self.raft.commit_index

    def start(self, command: Any) -> tuple[int, int, bool]:
        return -1, self.raft.term, False

    def grants(self, args: RequestVoteArgs) -> bool:
        """In our own term."""
        return False


class Timed(Role):
    """A role that ends at its timeout unless that is postponed."""

    def __init__(self, raft: "Raft", deadline: float | None) -> None:
        super().__init__(raft)
        self.deadline = deadline
        self.timer: threading.Timer | None = None

    def enter(self) -> None:
        if self.deadline is None:
            self.put_off()
        else:
            self._set()

    def leave(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def put_off(self) -> None:
        self.deadline = time.monotonic() + random.uniform(0.35, 0.75)
        self._set()

    def _set(self) -> None:
        self.leave()
        assert self.deadline is not None
        timer = threading.Timer(max(0.0, self.deadline - time.monotonic()), self._ring)
        timer.daemon = True
        timer.args = (timer,)
        self.timer = timer
        timer.start()

    def _ring(self, timer: threading.Timer) -> None:
        with self.raft.mu:
            # Cancelled too late, it rings all the same.
            if self.raft.role is self and self.timer is timer and not self.raft.dead.is_set():
                self.raft.become(Candidate(self.raft))


class Follower(Timed):
    def grants(self, args: RequestVoteArgs) -> bool:
        raft = self.raft
        if raft.voted_for not in (NOBODY, args.candidate_id):
            return False
        if (args.last_log_term, args.last_log_index) < (raft.term_at(raft.last), raft.last):
            return False
        if raft.voted_for == NOBODY:
            raft.voted_for = args.candidate_id
            raft.touch()
        self.put_off()
        return True

    def append(self, args: AppendEntriesArgs) -> bool:
        raft = self.raft
        self.put_off()
        prev = args.prev_log_index
        if prev > raft.last or (prev >= raft.base and raft.term_at(prev) != args.prev_log_term):
            return False
        for index, entry in enumerate(args.entries, prev + 1):
            if index <= raft.base:
                continue
            mine = raft.log.get(index)
            if mine is not None and mine.term != entry.term:
                raft.cut(index)
                mine = None
            if mine is None:
                raft.log[index] = entry
                raft.last = index
                raft.touch()
        told = min(args.leader_commit, prev + len(args.entries))
        if told > raft.commit_index:
            raft.commit_index = told
            raft.changed.notify_all()
        return True

    def install(self, args: InstallSnapshotArgs) -> None:
        raft = self.raft
        self.put_off()
        index = args.last_included_index
        if index <= raft.commit_index:
            return
        if index <= raft.last and raft.term_at(index) == args.last_included_term:
            raft.forget(index)
        else:
            raft.log = {}
            raft.last = index
            raft.base = index
        raft.base_term = args.last_included_term
        raft.commit_index = index
        raft.snap, raft.snap_is_new = args.data, True
        raft.incoming = ApplyMsg(
            snapshot_valid=True, snapshot=args.data, snapshot_term=args.last_included_term, snapshot_index=index
        )
        raft.touch()
        raft.changed.notify_all()


class Candidate(Timed):
    def __init__(self, raft: "Raft") -> None:
        super().__init__(raft, None)
        self.votes: list[int] = []
        self.version = 0

    def enter(self) -> None:
        raft = self.raft
        raft.term += 1
        raft.voted_for = raft.me
        self.version = raft.touch()
        super().enter()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        """Term and vote are sent only after they are saved."""
        raft = self.raft
        with raft.mu:
            raft.until_saved(self.version)
            if raft.role is not self or raft.dead.is_set():
                return
            args = RequestVoteArgs(raft.term, raft.me, raft.last, raft.term_at(raft.last))
            for peer in raft.others:
                threading.Thread(target=self._ask, args=(peer, args), daemon=True).start()
            self._count(raft.me)

    def _ask(self, peer: int, args: RequestVoteArgs) -> None:
        reply = self.raft.peers[peer].call("Raft.request_vote", args)
        if reply is None:
            return
        with self.raft.mu:
            self.raft.observe_term(reply.term)
            if self.raft.role is self and reply.vote_granted:
                self._count(peer)

    def _count(self, peer: int) -> None:
        if peer not in self.votes:
            self.votes.append(peer)
            if 2 * len(self.votes) > len(self.raft.peers):
                self.raft.become(Leader(self.raft, self.version))


class Leader(Role):
    def __init__(self, raft: "Raft", version: int) -> None:
        super().__init__(raft)
        self.term = raft.term
        self.version = version  # saves from here on are of this leader's log
        self.saved_index = raft.last  # nothing has come since the campaign, and that was saved
        self.replicators = [Replicator(self, peer) for peer in raft.others]

    def enter(self) -> None:
        for replicator in self.replicators:
            threading.Thread(target=replicator.run, daemon=True).start()

    def saved(self, version: int, last: int) -> None:
        if version >= self.version and last > self.saved_index:
            self.saved_index = last
            self.raft.changed.notify_all()

    def committed(self) -> int:
        raft = self.raft
        have = sorted([r.match for r in self.replicators] + [self.saved_index], reverse=True)
        index = have[len(raft.peers) // 2]
        return index if index > raft.commit_index and raft.term_at(index) == self.term else raft.commit_index

    def start(self, command: Any) -> tuple[int, int, bool]:
        raft = self.raft
        raft.last += 1
        raft.log[raft.last] = LogEntry(self.term, command)
        raft.touch()
        raft.changed.notify_all()
        return raft.last, self.term, True


class Replicator:
    """Brings one follower what it lacks, for one term."""

    def __init__(self, leader: Leader, peer: int) -> None:
        self.leader = leader
        self.raft = leader.raft
        self.peer = peer
        self.next = self.raft.last + 1
        self.match = 0
        self.stride = 1  # how far to go back at the next refusal
        self.speak_at = 0.0
        self.waiting = False  # for the answer to what was sent last

    def run(self) -> None:
        raft = self.raft
        with raft.mu:
            while raft.role is self.leader and not raft.dead.is_set():
                now = time.monotonic()
                if now >= self.speak_at or (not self.waiting and raft.last >= self.next):
                    self._speak(now)
                else:
                    raft.changed.wait(self.speak_at - now)

    def _speak(self, now: float) -> None:
        raft = self.raft
        self.speak_at = now + HEARTBEAT_S
        self.waiting = True
        args: AppendEntriesArgs | InstallSnapshotArgs
        if self.next <= raft.base:
            args = InstallSnapshotArgs(self.leader.term, raft.me, raft.base, raft.base_term, raft.snap)
        else:
            entries = [raft.log[index] for index in range(self.next, raft.last + 1)]
            prev = self.next - 1
            args = AppendEntriesArgs(self.leader.term, raft.me, prev, raft.term_at(prev), entries, raft.commit_index)
        threading.Thread(target=self._send, args=(args,), daemon=True).start()

    def _send(self, args: AppendEntriesArgs | InstallSnapshotArgs) -> None:
        raft = self.raft
        method = "Raft.append_entries" if isinstance(args, AppendEntriesArgs) else "Raft.install_snapshot"
        reply = raft.peers[self.peer].call(method, args)
        if reply is None:
            return
        with raft.mu:
            raft.observe_term(reply.term)
            if raft.role is not self.leader:
                return
            if isinstance(args, InstallSnapshotArgs):
                self._has(args.last_included_index)
            elif reply.success:
                self._has(args.prev_log_index + len(args.entries))
            elif args.prev_log_index == self.next - 1 and self.next > self.match + 1:
                back = max(self.match + 1, self.next - self.stride)
                # What we still have of the log is tried before the snapshot is.
                self.next = max(back, raft.base + 1) if self.next > raft.base + 1 else back
                self.stride *= 2
                self.waiting = False
                self.speak_at = 0.0
                raft.changed.notify_all()

    def _has(self, index: int) -> None:
        self.waiting = False
        self.stride = 1
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        self.raft.changed.notify_all()


class Raft:
    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()
        self.changed = threading.Condition(self.mu)
        self.dead = threading.Event()
        self.others = [peer for peer in range(len(peers)) if peer != me]

        self.term = 0
        self.voted_for = NOBODY
        self.log: dict[int, LogEntry] = {}
        self.base = 0
        self.base_term = 0
        self.last = 0
        self._read_persist(persister.read_raft_state())
        self.commit_index = self.last_applied = self.base
        self.snap = persister.read_snapshot()
        self.snap_is_new = False
        self.incoming: ApplyMsg | None = None
        self.version = 0
        self.saved_version = 0

        self.role: Role = Follower(self, None)
        with self.mu:
            self.role.enter()
        threading.Thread(target=self._saver, daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()

    # ---- for the roles; all with the lock ----

    def become(self, role: Role) -> None:
        self.role.leave()
        self.role = role
        log("role", "%s in term %d", type(role).__name__, self.term)
        role.enter()
        self.changed.notify_all()

    def observe_term(self, term: int) -> None:
        """§5.1. A new term by itself puts no election off."""
        if term > self.term:
            self.term = term
            self.voted_for = NOBODY
            self.touch()
            if not isinstance(self.role, Follower):
                self.become(Follower(self, getattr(self.role, "deadline", None)))

    def follow(self, term: int) -> Follower | None:
        """A leader of that term speaks: follow it, if it is not of the past."""
        self.observe_term(term)
        if term < self.term or self.dead.is_set():
            return None
        if not isinstance(self.role, Follower):
            self.become(Follower(self, None))
        assert isinstance(self.role, Follower)
        return self.role

    def term_at(self, index: int) -> int:
        return self.base_term if index == self.base else self.log[index].term

    def cut(self, first: int) -> None:
        for index in range(first, self.last + 1):
            del self.log[index]
        self.last = first - 1

    def forget(self, upto: int) -> None:
        for index in range(self.base + 1, upto + 1):
            del self.log[index]
        self.base = upto

    # ---- saving ----

    def touch(self) -> int:
        """Persistent state has changed: it is to be saved."""
        self.version += 1
        self.changed.notify_all()
        return self.version

    def until_saved(self, version: int) -> None:
        while self.saved_version < version and not self.dead.is_set():
            self.changed.wait()

    def _saver(self) -> None:
        while True:
            with self.mu:
                while self.saved_version >= self.version and not self.dead.is_set():
                    self.changed.wait()
                if self.dead.is_set():
                    return
                version, last = self.version, self.last
                w = labgob.Encoder()
                w.encode(self.term)
                w.encode(self.voted_for)
                w.encode(self.base)
                w.encode(self.base_term)
                w.encode([self.log[index] for index in range(self.base + 1, self.last + 1)])
                snap = self.snap if self.snap_is_new else None
                self.snap_is_new = False
            self.persister.save(w.bytes(), snap)
            with self.mu:
                self.saved_version = version
                self.role.saved(version, last)
                self.changed.notify_all()

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.term = r.decode(int)
        self.voted_for = r.decode(int)
        self.base = r.decode(int)
        self.base_term = r.decode(int)
        for index, entry in enumerate(r.decode(list[LogEntry]), self.base + 1):
            self.log[index] = entry
        self.last = self.base + len(self.log)

    # ---- what the service calls ----

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.dead.is_set():
                return -1, self.term, False
            return self.role.start(command)

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.term, isinstance(self.role, Leader)

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if index > self.base:
                term = self.term_at(index)
                self.forget(index)
                self.base_term = term
                self.snap, self.snap_is_new = snapshot, True
                self.touch()

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            self.role.leave()
            self.changed.notify_all()

    # ---- what peers ask: the answer is made at once, and leaves when all that it builds on is saved ----

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            self.observe_term(args.term)
            granted = args.term == self.term and self.role.grants(args)
            reply = RequestVoteReply(self.term, granted)
            self.until_saved(self.version)
            return reply

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            follower = self.follow(args.term)
            success = follower is not None and follower.append(args)
            reply = AppendEntriesReply(self.term, success)
            self.until_saved(self.version)
            return reply

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            follower = self.follow(args.term)
            if follower is not None:
                follower.install(args)
            reply = InstallSnapshotReply(self.term)
            self.until_saved(self.version)
            return reply

    # ---- applying ----

    def _applier(self) -> None:
        while True:
            with self.mu:
                while not self.dead.is_set():
                    self.commit_index = self.role.committed()
                    if self.incoming is not None or self.last_applied < self.commit_index:
                        break
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
                    command = self.log[self.last_applied].command
                    due.append(ApplyMsg(command_valid=True, command=command, command_index=self.last_applied))
            for msg in due:
                self.apply_ch.put(msg)
