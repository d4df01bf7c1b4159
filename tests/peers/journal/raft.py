"""A journal of changes: a thread for each other peer, one message of each in flight, no next_index.

The journal includes changes of the commit index. One thread writes it, and replies wait for it. A follower reports its
commit index in its replies, and a leader learns from it. A restarted candidate continues in its term if that term had
no leader.

self.mu guards all state; self.ballot is an immutable record that may be read without it.
"""

import heapq
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import labgob
from labrpc import ClientEnd
from labsim import log as note
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

BEAT = 0.110
PATIENCE = 0.100
SNAP_PATIENCE = 0.250
WINDOW = 64
BALLOT, PUT, BASE, COMMIT, LED = 1, 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class Ballot:
    term: int
    voted_for: int
    role: str


class Ledger:
    """The log as runs of one term: [first index, term, commands]."""

    def __init__(self) -> None:
        self.base = 0
        self.base_term = 0
        self.runs: list[list[Any]] = []

    @property
    def last(self) -> int:
        return self.runs[-1][0] + len(self.runs[-1][2]) - 1 if self.runs else self.base

    def term(self, index: int) -> int:
        if index == self.base:
            return self.base_term
        return self._run(index)[1]

    def _run(self, index: int) -> list[Any]:
        return self.runs[bisect_right([r[0] for r in self.runs], index) - 1]

    def command(self, index: int) -> Any:
        run = self._run(index)
        return run[2][index - run[0]]

    def entries(self, first: int) -> list[LogEntry]:
        out = []
        for start, term, commands in self.runs:
            skip = max(0, first - start)
            out += [LogEntry(term, c) for c in commands[skip:]]
        return out

    def append(self, term: int, command: Any) -> int:
        last = self.last
        if self.runs and self.runs[-1][1] == term:
            self.runs[-1][2].append(command)
        else:
            self.runs.append([last + 1, term, [command]])
        return last + 1

    def truncate(self, first: int) -> None:
        """Everything from `first` on goes."""
        while self.runs and self.runs[-1][0] >= first:
            self.runs.pop()
        if self.runs:
            start, _, commands = self.runs[-1]
            del commands[first - start :]

    def drop(self, index: int, term: int) -> None:
        """Everything up to and including `index` goes."""
        kept = []
        for start, t, commands in self.runs:
            if start + len(commands) - 1 <= index:
                continue
            skip = max(0, index + 1 - start)
            kept.append([start + skip, t, commands[skip:]])
        self.runs = kept
        self.base, self.base_term = index, term

    def has(self, index: int, term: int) -> bool:
        return self.base <= index <= self.last and self.term(index) == term


class Line:
    """What we know about one peer in one campaign or one reign."""

    def __init__(self, ceiling: int) -> None:
        self.match = 0
        self.ceiling = ceiling
        self.first = True
        self.anchored = False
        self.answered = False
        self.told = 0
        self.serial = 0
        self.busy_until = 0.0
        self.next_beat = 0.0


class Raft:
    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()
        self.dead = threading.Event()
        self.ink = threading.Condition(self.mu)  # for the scribe
        self.dry = threading.Condition(self.mu)  # notified when the journal is written
        self.alarm = threading.Condition(self.mu)  # for the watch
        self.fed = threading.Condition(self.mu)  # for the applier
        self.bells = [threading.Condition(self.mu) for _ in peers]

        self.ballot = Ballot(0, -1, "follower")
        self.ledger = Ledger()
        self.commit_index = 0
        self.votes: set[int] = set()
        self.campaign_seq = 0
        self.lost = 0
        self.led = 0  # the last term that is known to have had a leader
        self.resume = True
        self.lead_seq = 0

        self.journal = bytearray()
        self.compact_size = 0
        self.seq = 0  # changes made
        self.durable = 0  # changes on disk
        self.firm = 0  # the log up to there is on disk
        self.cut_low = 1 << 60
        self.snap = persister.read_snapshot()
        self.snap_seq = 0
        self.fresh_snap: bytes | None = None

        self._replay(persister.read_raft_state())
        self.cursor = self.ledger.base
        self.commit_index = max(self.commit_index, self.ledger.base)
        self.firm = self.ledger.last
        self.lines = [Line(0) for _ in peers]
        self.deadline = time.monotonic() + self._draw()

        for target in (self._watch, self._scribe, self._applier):
            threading.Thread(target=target, daemon=True).start()
        for p in range(len(peers)):
            if p != me:
                threading.Thread(target=self._courier, args=(p,), daemon=True).start()

    # ---- the service --------------------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            b = self.ballot
            if b.role != "leader" or self.dead.is_set():
                return -1, b.term, False
            index = self.ledger.append(b.term, command)
            self._write(PUT, index, 0, [LogEntry(b.term, command)])
            self._ring()
            return index, b.term, True

    def get_state(self) -> tuple[int, bool]:
        b = self.ballot  # one record, replaced whole
        return b.term, b.role == "leader"

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if index <= self.ledger.base or self.dead.is_set():
                return
            self._rebase(index, self.ledger.term(index), snapshot)

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            for c in (self.ink, self.dry, self.alarm, self.fed, *self.bells):
                c.notify_all()

    # ---- the journal (callers hold mu) --------------------------------------------------------------

    def _record(self, kind: int, a: int, b: int, entries: list[LogEntry]) -> None:
        w = labgob.Encoder()
        w.encode(kind)
        w.encode(a)
        w.encode(b)
        w.encode(entries)
        self.journal += w.bytes()

    def _write(self, kind: int, a: int, b: int, entries: list[LogEntry]) -> None:
        self._record(kind, a, b, entries)
        self.seq += 1
        self.ink.notify()

    def _compact(self) -> None:
        self.journal = bytearray()
        self._record(BALLOT, self.ballot.term, self.ballot.voted_for, [])
        self._record(BASE, self.ledger.base, self.ledger.base_term, [])
        self._record(PUT, self.ledger.base + 1, 0, self.ledger.entries(self.ledger.base + 1))
        self._record(COMMIT, self.commit_index, 0, [])
        self._record(LED, self.led, 0, [])
        self.compact_size = len(self.journal)

    def _replay(self, data: bytes) -> None:
        r = labgob.Decoder(data)
        while not r.done:
            kind, a, b, entries = r.decode(int), r.decode(int), r.decode(int), r.decode(list[LogEntry])
            if kind == BALLOT:
                self.ballot = Ballot(a, b, "follower")
            elif kind == BASE:
                self.ledger = Ledger()
                self.ledger.base, self.ledger.base_term = a, b
            elif kind == PUT:
                self.ledger.truncate(a)
                for e in entries:
                    self.ledger.append(e.term, e.command)
            elif kind == COMMIT:
                self.commit_index = max(self.commit_index, a)
            elif kind == LED:
                self.led = max(self.led, a)
        self.journal += data
        self.compact_size = len(data)

    def _scribe(self) -> None:
        """The only thread that saves: whatever has gathered since the last save, in one."""
        while True:
            with self.mu:
                while self.durable == self.seq and not self.dead.is_set():
                    self.ink.wait()
                if self.dead.is_set():
                    return
                if len(self.journal) > 2 * self.compact_size + 4096:
                    self._compact()
                seq, snap, last = self.seq, self.fresh_snap, self.ledger.last
                self.fresh_snap = None
                self.cut_low = 1 << 60
                state = bytes(self.journal)
            self.persister.save(state, snap)
            with self.mu:
                self.durable = seq
                self.firm = max(self.firm, min(last, self.cut_low - 1))
                self.dry.notify_all()
                self.fed.notify()
                self._tally()
                self._advance()
                self._ring()

    def _settle(self) -> None:
        """Wait until all that has happened so far is on disk."""
        seq = self.seq
        while self.durable < seq and not self.dead.is_set():
            self.dry.wait()

    def _rebase(self, index: int, term: int, data: bytes) -> None:
        self.ledger.drop(index, term)
        self.snap = self.fresh_snap = data
        self.commit_index = max(self.commit_index, index)
        self.firm = max(self.firm, index)
        self._compact()
        self.seq += 1
        self.snap_seq = self.seq
        self.ink.notify()

    # ---- terms and elections (callers hold mu) ------------------------------------------------------

    def _draw(self) -> float:
        return random.uniform(0.300, 0.600) * (1 + 0.35 * min(self.lost, 3))

    def _rest(self) -> None:
        self.deadline = time.monotonic() + self._draw()
        self.alarm.notify()

    def _become(self, term: int, voted_for: int, role: str) -> None:
        old = self.ballot
        self.ballot = Ballot(term, voted_for, role)
        if (old.term, old.voted_for) != (term, voted_for):
            self._write(BALLOT, term, voted_for, [])
        if old.role == "leader" and role != "leader":
            self._rest()

    def _observe_term(self, term: int) -> None:
        if term > self.ballot.term:
            self._become(term, -1, "follower")

    def _campaign(self) -> None:
        b = self.ballot
        self.lost = self.lost + 1 if b.role == "candidate" else 0
        again = self.resume and b.voted_for == self.me and b.role == "follower" and self.led < b.term
        self.resume = False
        self._become(b.term if again else b.term + 1, self.me, "candidate")
        self.campaign_seq = self.seq
        self.votes = {self.me}
        self.lines = [Line(0) for _ in self.peers]
        self.deadline = time.monotonic() + self._draw()
        note("campaign", "term %d", b.term + 1)

    def _tally(self) -> None:
        b = self.ballot
        if b.role != "candidate" or self.durable < self.campaign_seq or 2 * len(self.votes) <= len(self.peers):
            return
        self.lost = 0
        self._become(b.term, self.me, "leader")
        self._mark_led()
        self.lead_seq = self.seq
        self.lines = [Line(self.ledger.last) for _ in self.peers]
        self._advance()
        self._ring()

    def _mark_led(self) -> None:
        if self.led < self.ballot.term:
            self.led = self.ballot.term
            self._write(LED, self.led, 0, [])

    def _advance(self) -> None:
        b = self.ballot
        if b.role != "leader":
            return
        marks = [self.firm if p == self.me else line.match for p, line in enumerate(self.lines)]
        n = heapq.nlargest(len(marks) // 2 + 1, marks)[-1]
        if n > self.commit_index and self.ledger.term(n) == b.term:
            self._commit(n)
            self._ring()

    def _commit(self, index: int) -> None:
        if index > self.commit_index:
            self.commit_index = index
            self._record(COMMIT, index, 0, [])  # goes along with whatever is saved next
            self.fed.notify()

    def _ring(self) -> None:
        for bell in self.bells:
            bell.notify()

    def _watch(self) -> None:
        with self.mu:
            while not self.dead.is_set():
                if self.ballot.role == "leader":
                    self.alarm.wait()
                    continue
                left = self.deadline - time.monotonic()
                if left > 0:
                    self.alarm.wait(left)
                    continue
                self._campaign()

    # ---- what we say --------------------------------------------------------------------------------

    def _courier(self, p: int) -> None:
        with self.mu:
            while not self.dead.is_set():
                line = self.lines[p]
                now = time.monotonic()
                if self.ballot.role == "follower":
                    self.bells[p].wait()
                    continue
                if line.busy_until > now:
                    self.bells[p].wait(line.busy_until - now)
                    continue
                errand = self._errand(line, now)
                if errand is None:
                    if self.ballot.role == "leader":
                        self.bells[p].wait(max(0.005, line.next_beat - now))
                    else:
                        self.bells[p].wait()
                    continue
                method, args, patience = errand
                line.serial += 1
                line.busy_until = now + patience
                line.next_beat = now + BEAT
                threading.Thread(target=self._carry, args=(p, line, line.serial, method, args), daemon=True).start()

    def _errand(self, line: Line, now: float) -> tuple[str, Any, float] | None:
        b, log = self.ballot, self.ledger
        if b.role == "candidate":
            if line.answered or self.durable < self.campaign_seq:
                return None
            return "Raft.request_vote", RequestVoteArgs(b.term, self.me, log.last, log.term(log.last)), 0.150
        if self.durable < self.lead_seq:
            return None
        if not line.anchored:
            if line.ceiling < log.base:
                return self._parcel(b)
            if line.first:
                return self._append(b, line.ceiling, [])
            low = max(line.match, log.base)
            if line.ceiling - low > WINDOW:
                return self._append(b, (low + line.ceiling + 1) // 2, [])
            if line.match < log.base:
                return self._append(b, low, [])
            line.anchored = True
        if line.match < log.base:
            return self._parcel(b)
        if line.match < log.last:
            return self._append(b, line.match, log.entries(line.match + 1))
        if line.told < self.commit_index or now >= line.next_beat:
            return self._append(b, line.match, [])
        return None

    def _append(self, b: Ballot, prev: int, entries: list[LogEntry]) -> tuple[str, Any, float]:
        args = AppendEntriesArgs(b.term, self.me, prev, self.ledger.term(prev), entries, self.commit_index)
        return "Raft.append_entries", args, PATIENCE

    def _parcel(self, b: Ballot) -> tuple[str, Any, float]:
        log = self.ledger
        args = InstallSnapshotArgs(b.term, self.me, log.base, log.base_term, self.snap)
        return "Raft.install_snapshot", args, SNAP_PATIENCE

    def _carry(self, p: int, line: Line, serial: int, method: str, args: Any) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[p].call(method, args)
        if reply is None:
            return  # the courier's patience ends by itself
        with self.mu:
            if self.dead.is_set():
                return
            self._observe_term(reply.term)
            if line.serial == serial:
                line.busy_until = 0.0
            b = self.ballot
            if self.lines[p] is not line or b.term != args.term or b.role == "follower" or reply.term != args.term:
                return
            if method == "Raft.request_vote":
                line.answered = True
                if reply.vote_granted and b.role == "candidate":
                    self.votes.add(p)
                    self._tally()
            elif method == "Raft.install_snapshot":
                line.match = max(line.match, args.last_included_index)
                line.anchored = True
                line.told = max(line.told, args.last_included_index)
                self._advance()
            elif reply.success:
                match = args.prev_log_index + len(args.entries)
                line.first = False
                line.match = max(line.match, match)
                line.ceiling = max(line.ceiling, line.match)
                line.told = max(line.told, min(args.leader_commit, match))
                self._commit(reply.floor)  # it is committed, and so we have it (5.4.3)
                self._advance()
            else:
                line.first = False
                line.match = max(line.match, reply.floor)  # what it knows to be committed, we have too (5.4.3)
                self._commit(reply.floor)
                line.ceiling = max(line.match, min(line.ceiling, args.prev_log_index - 1, reply.ceiling))
            self.bells[p].notify()

    # ---- RPC handlers ---------------------------------------------------------------------------

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            self._observe_term(args.term)
            b, log = self.ballot, self.ledger
            granted = (
                args.term == b.term
                and b.voted_for in (-1, args.candidate_id)
                and (args.last_log_term, args.last_log_index) >= (log.term(log.last), log.last)
            )
            if granted:
                self._become(b.term, args.candidate_id, b.role)
                self._rest()
            self._settle()
            return RequestVoteReply(b.term, granted)

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            if not self._heed(args.term):
                term = self.ballot.term
                self._settle()
                return AppendEntriesReply(term, False)
            log, prev = self.ledger, args.prev_log_index
            if prev > log.last or (prev >= log.base and log.term(prev) != args.prev_log_term):
                if prev <= log.last:
                    self._put(prev, [])  # that entry is not our leader's: it goes now
                reply = AppendEntriesReply(args.term, False, self.commit_index, log.last)
                self._settle()
                return reply
            index = prev
            for at, entry in enumerate(args.entries):
                index = prev + 1 + at
                if index <= log.base or log.has(index, entry.term):
                    continue
                self._put(index, args.entries[at:])
                break
            self._commit(min(args.leader_commit, prev + len(args.entries)))
            floor = self.commit_index
            self._settle()
            return AppendEntriesReply(args.term, True, floor)

    def _put(self, index: int, entries: list[LogEntry]) -> None:
        assert index > self.commit_index, "what is committed stays"
        if index <= self.ledger.last:
            self.cut_low = min(self.cut_low, index)
            self.firm = min(self.firm, index - 1)
            self.ledger.truncate(index)
        for entry in entries:
            self.ledger.append(entry.term, entry.command)
        self._write(PUT, index, 0, entries)

    def _heed(self, term: int) -> bool:
        """A leader of `term` speaks. Is it ours?"""
        if term < self.ballot.term:
            return False
        self._observe_term(term)
        if self.ballot.role == "candidate":
            self._become(term, self.ballot.voted_for, "follower")
        self.lost = 0
        self._mark_led()
        self._rest()
        return True

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if self._heed(args.term):
                log, index = self.ledger, args.last_included_index
                if log.has(index, args.last_included_term):
                    self._commit(index)  # all entries are here; only the commit index is new
                elif index > log.base:
                    if index < log.last:
                        self.cut_low = min(self.cut_low, index + 1)
                    log.truncate(log.base + 1)
                    self.firm = index
                    self.cut_low = min(self.cut_low, index + 1)
                    self._rebase(index, args.last_included_term, args.data)
                    self.fed.notify()
                term = args.term
            else:
                term = self.ballot.term
            self._settle()
            return InstallSnapshotReply(term)

    # ---- the service's feed -------------------------------------------------------------------------

    def _applier(self) -> None:
        while True:
            with self.mu:
                while not self.dead.is_set():
                    if self.cursor < self.ledger.base:
                        if self.durable >= self.snap_seq:
                            break
                    elif self.cursor < self.commit_index:
                        break
                    self.fed.wait()
                if self.dead.is_set():
                    return
                log = self.ledger
                if self.cursor < log.base:
                    msgs = [
                        ApplyMsg(
                            snapshot_valid=True,
                            snapshot=self.snap,
                            snapshot_term=log.base_term,
                            snapshot_index=log.base,
                        )
                    ]
                    self.cursor = log.base
                else:
                    self.cursor += 1
                    msgs = [ApplyMsg(command_valid=True, command=log.command(self.cursor), command_index=self.cursor)]
            for msg in msgs:
                while not self.dead.is_set():
                    try:
                        self.apply_ch.put(msg, timeout=0.3)
                        break
                    except queue.Full:
                        continue
