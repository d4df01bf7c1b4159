"""A disk thread saves the state, so no thread holds the lock during a save.

Every change of persistent state gets a version number. The disk thread saves whole states, and publishes the version
that it has saved. A thread that must not answer before a save waits for that version; many share one save. The leader
does not wait: it sends at once, and counts itself when its save is done (dissertation, §10.2.1).

"§" cites the extended paper, "D§" Ongaro's dissertation.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import labgob
from labrpc import ClientEnd
from labsim import log as say
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
TIMEOUT_S = (0.400, 0.900)
LOST_S = 0.250  # an AppendEntries without an answer for so long is taken for lost
SNAPSHOT_LOST_S = 0.500
WINDOW = 4  # AppendEntries with entries in flight to one follower
SLOW_COMMITS = 8  # commits in a row without our own disk: we are the slowest

FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"


class Entry(NamedTuple):
    term: int
    command: Any
    blob: bytes  # the command, encoded
    born: int  # the version that put it into the log


@dataclass(slots=True)
class PreVoteArgs:
    """Would you vote for me in this term? (D§9.6)"""

    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int


@dataclass(slots=True)
class PreVoteReply:
    term: int
    granted: bool


@dataclass(slots=True)
class TimeoutNowArgs:
    """The leader wants you to campaign at once (D§3.10)."""

    term: int
    leader_id: int
    last_log_index: int
    last_log_term: int


@dataclass(slots=True)
class TimeoutNowReply:
    term: int
    accepted: bool


class Flight(NamedTuple):
    first: int  # next_index before it was sent
    last: int
    deadline: float


class Follower:
    """What a leader knows of one follower. All of it under the peer's lock."""

    def __init__(self, number: int, lock: Any) -> None:
        self.number = number
        self.cv = threading.Condition(lock)  # the sender waits here
        self.next_index = 1  # optimistic: behind what is in flight
        self.match_index = 0
        self.probing = True  # we do not know where the logs part: one in flight at a time
        self.epoch = 0  # a rejection of an older epoch is outdated
        self.flights: dict[int, Flight] = {}
        self.flight_number = 0
        self.due = 0.0  # the next heartbeat
        self.told = 0  # the commit index that it can have taken from us

    def begin(self, last: int) -> None:
        self.next_index = last + 1
        self.match_index = 0
        self.probing = True
        self.epoch += 1
        self.flights.clear()
        self.due = 0.0
        self.told = 0
        self.cv.notify()

    def roll_back(self, to: int) -> None:
        self.next_index = max(to, self.match_index + 1)
        self.probing = True
        self.epoch += 1
        self.flights.clear()


class Raft:
    """One peer. `peers[me]` is this one; committed commands and received snapshots go to `apply_ch`."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.majority = len(peers) // 2 + 1
        self.mu = threading.Lock()
        self.dead = threading.Event()

        # Persistent.
        self.current_term = 0
        self.voted_for: int | None = None
        self.log: dict[int, Entry] = {}
        self.base = 0  # last_included_index
        self.base_term = 0
        self.last = 0  # index of the last entry
        self.snapshot_data = b""

        # What of it is on the disk.
        self.version = 0
        self.saved_version = 0
        self.term_version = 0  # that changed current_term or voted_for last
        self.base_version = 0  # that changed base last
        self.snapshot_version = 0
        self.disk_cv = threading.Condition(self.mu)  # the disk waits for work
        self.saved_cv = threading.Condition(self.mu)  # others wait for the disk

        # Volatile.
        self.role = FOLLOWER
        self.leader: int | None = None
        self.heard = -1e9  # when we last heard a leader
        self.commit_index = 0
        self.last_applied = 0
        self.pending: ApplyMsg | None = None
        self.apply_cv = threading.Condition(self.mu)
        self.timer: threading.Timer | None = None
        self.timer_number = 0
        self.votes: dict[int, bool] = {}
        self.pre_votes: dict[int, bool] = {}
        self.wary = False  # restarted or cut off: ask before you campaign
        self.own_match = 0  # up to there our own log is saved, while we lead
        self.slow = 0
        self.handed_over = 0  # the term in which we have tried to

        self._read_persist(persister.read_raft_state())
        self.snapshot_data = persister.read_snapshot()

        self.followers = {i: Follower(i, self.mu) for i in range(len(peers)) if i != me}
        with self.mu:
            for target in (self._disk, self._applier):
                threading.Thread(target=target, daemon=True).start()
            for follower in self.followers.values():
                threading.Thread(target=self._sender, args=(follower,), daemon=True).start()
            self._arm()

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role != LEADER or self.dead.is_set():
                return -1, self.current_term, False
            self._changed()
            self._put(self.last + 1, self.current_term, command)
            for follower in self.followers.values():
                follower.cv.notify()
            return self.last, self.current_term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role == LEADER

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if index <= self.base or index > self.last:
                return
            self._changed()
            self._rebase(index, self._term(index), snapshot)

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            self.timer_number += 1
            if self.timer is not None:
                self.timer.cancel()
            for cv in (self.disk_cv, self.saved_cv, self.apply_cv):
                cv.notify_all()
            for follower in self.followers.values():
                follower.cv.notify_all()

    # ---- The log. Callers hold the lock --------------------------------------------------------------

    def _term(self, index: int) -> int:
        return self.base_term if index == self.base else self.log[index].term

    def _put(self, index: int, term: int, command: Any) -> None:
        """Append; after _changed()."""
        self.log[index] = Entry(term, command, labgob.encode(command), self.version)
        self.last = index

    def _cut(self, index: int) -> None:
        """Take out everything from index on; after _changed()."""
        for i in range(index, self.last + 1):
            del self.log[i]
        self.last = index - 1

    def _rebase(self, index: int, term: int, data: bytes) -> None:
        """Replace everything up to index by a snapshot; later entries stay. After _changed()."""
        for i in range(self.base + 1, min(index, self.last) + 1):
            del self.log[i]
        self.base, self.base_term = index, term
        self.last = max(self.last, index)
        self.snapshot_data = data
        self.base_version = self.snapshot_version = self.version

    def _entries(self, first: int, last: int) -> list[LogEntry]:
        return [LogEntry(self.log[i].term, self.log[i].command) for i in range(first, last + 1)]

    def _version_of(self, index: int) -> int:
        """What must be saved for the log up to index to be."""
        return self.base_version if index <= self.base else max(self.base_version, self.log[index].born)

    # ---- The disk --------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Persistent state is about to change, in this critical section."""
        self.version += 1
        self.disk_cv.notify()

    def _disk(self) -> None:
        snapshot_saved = 0
        while True:
            with self.mu:
                while self.saved_version == self.version and not self.dead.is_set():
                    self.disk_cv.wait()
                if self.dead.is_set():
                    return
                version = self.version
                state = self._persistent()
                snapshot_version = self.snapshot_version
                snapshot = self.snapshot_data if snapshot_version > snapshot_saved else None
            self.persister.save(state, snapshot)
            snapshot_saved = snapshot_version
            with self.mu:
                self.saved_version = version
                self.saved_cv.notify_all()
                if self.role == LEADER:
                    self._count_myself()

    def _wait_saved(self, version: int) -> bool:
        """Until that is saved, and the current term and vote are. False: killed meanwhile. Gives up the lock."""
        while self.saved_version < max(version, self.term_version):
            if self.dead.is_set():
                return False
            self.saved_cv.wait()
        return not self.dead.is_set()

    def _persistent(self) -> bytes:
        voted_for = -1 if self.voted_for is None else self.voted_for
        parts = [struct.pack("<QqQQQ", self.current_term, voted_for, self.base, self.base_term, self.last)]
        for i in range(self.base + 1, self.last + 1):
            entry = self.log[i]
            parts += [struct.pack("<QI", entry.term, len(entry.blob)), entry.blob]
        return b"".join(parts)

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        self.current_term, voted_for, self.base, self.base_term, self.last = struct.unpack_from("<QqQQQ", data)
        self.voted_for = None if voted_for < 0 else voted_for
        at = struct.calcsize("<QqQQQ")
        for i in range(self.base + 1, self.last + 1):
            term, size = struct.unpack_from("<QI", data, at)
            at += struct.calcsize("<QI")
            blob = data[at : at + size]
            at += size
            self.log[i] = Entry(term, labgob.decode(blob, Any), blob, 0)
        self.commit_index = self.last_applied = self.base
        self.wary = True

    # ---- Terms and the timer. Callers hold the lock ----------------------------------------------------

    def _observe_term(self, term: int) -> None:
        """§5.1: a higher term makes a follower."""
        if term <= self.current_term:
            return
        self._changed()
        self.current_term, self.voted_for = term, None
        self.term_version = self.version
        self.leader = None
        if self.role == LEADER:
            self._arm()  # a leader has no timer
        self.role = FOLLOWER

    def _follow(self, leader: int) -> None:
        """A word of the leader of our term."""
        self.role = FOLLOWER
        self.leader = leader
        self.heard = time.monotonic()
        self.wary = False
        self._arm()

    def _arm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer_number += 1
        if self.dead.is_set():
            return
        self.timer = threading.Timer(random.uniform(*TIMEOUT_S), self._expired, args=(self.timer_number,))
        self.timer.daemon = True
        self.timer.start()

    # ---- Elections -------------------------------------------------------------------------------------

    def _expired(self, number: int) -> None:
        with self.mu:
            if number != self.timer_number or self.role == LEADER or self.dead.is_set():
                return
            if self.role == CANDIDATE and len(self.votes) < self.majority:
                self.wary = True  # not even answers from a majority: we are cut off
            if not self.wary:
                self._campaign()
                return
            self._arm()
            round_ = self.timer_number  # over when the timer is armed again
            self.pre_votes = {self.me: True}
            args = PreVoteArgs(self.current_term + 1, self.me, self.last, self._term(self.last))
            if self._won(self.pre_votes):
                self._campaign()
                return
        for i in self.followers:
            threading.Thread(target=self._ask_pre_vote, args=(i, args, round_), daemon=True).start()

    def _won(self, votes: dict[int, bool]) -> bool:
        return sum(votes.values()) >= self.majority

    def _ask_pre_vote(self, i: int, args: PreVoteArgs, round_: int) -> None:
        reply = self.peers[i].call("Raft.pre_vote", args)
        if reply is None:
            return
        with self.mu:
            if self.dead.is_set():
                return
            self._observe_term(reply.term)
            if round_ != self.timer_number or self.current_term + 1 != args.term or self.role == LEADER:
                return
            self.pre_votes[i] = reply.granted
            if self._won(self.pre_votes):
                self._campaign()

    def pre_vote(self, args: PreVoteArgs) -> PreVoteReply:
        with self.mu:
            granted = (
                args.term > self.current_term
                and self.role != LEADER
                and time.monotonic() - self.heard > TIMEOUT_S[0]
                and self._as_good(args.last_log_index, args.last_log_term)
            )
            if not self._wait_saved(0):
                granted = False
            return PreVoteReply(self.current_term, granted)

    def _as_good(self, last_index: int, last_term: int) -> bool:
        return (last_term, last_index) >= (self._term(self.last), self.last)

    def _campaign(self) -> None:
        """The caller holds the lock."""
        self._changed()
        self.current_term += 1
        self.voted_for = self.me
        self.term_version = self.version
        self.role = CANDIDATE
        self.leader = None
        self.votes = {}
        self._arm()
        threading.Thread(target=self._ask_for_votes, args=(self.current_term,), daemon=True).start()

    def _ask_for_votes(self, term: int) -> None:
        with self.mu:
            if not self._wait_saved(0) or self.role != CANDIDATE or self.current_term != term:
                return
            self.votes[self.me] = True
            args = RequestVoteArgs(term, self.me, self.last, self._term(self.last))
            if self._won(self.votes):
                self._lead()
        for i in self.followers:
            threading.Thread(target=self._ask_vote, args=(i, args), daemon=True).start()

    def _ask_vote(self, i: int, args: RequestVoteArgs) -> None:
        reply = self.peers[i].call("Raft.request_vote", args)
        if reply is None:
            return
        with self.mu:
            if self.dead.is_set():
                return
            self._observe_term(reply.term)
            if self.role != CANDIDATE or self.current_term != args.term:
                return
            self.votes[i] = self.votes.get(i, False) or reply.vote_granted
            if self._won(self.votes):
                self._lead()

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            self._observe_term(args.term)
            granted = (
                args.term == self.current_term
                and self.voted_for in (None, args.candidate_id)
                and self._as_good(args.last_log_index, args.last_log_term)
            )
            if granted:
                if self.voted_for is None:
                    self._changed()
                    self.voted_for = args.candidate_id
                    self.term_version = self.version
                self._arm()
            if not self._wait_saved(0):
                return RequestVoteReply(args.term, False)
            return RequestVoteReply(self.current_term, granted and self.current_term == args.term)

    # ---- Leadership ------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """The caller holds the lock."""
        self.role = LEADER
        self.leader = self.me
        self.wary = False
        self.timer_number += 1
        if self.timer is not None:
            self.timer.cancel()
        self.own_match = self.base
        self.slow = 0
        for follower in self.followers.values():
            follower.begin(self.last)
        self._count_myself()
        say("lead", f"term {self.current_term}")

    def _count_myself(self) -> None:
        """Our own log is saved up to somewhere."""
        while self.own_match < self.last:
            # The others may have committed, and the service put in a snapshot, what our own disk does not have yet.
            following = max(self.own_match + 1, self.base)
            if self._version_of(following) > self.saved_version:
                break
            self.own_match = following
        self._advance()

    def _advance(self) -> None:
        """§5.3, §5.4.2: what a majority has, of our own term, is committed."""
        matches = sorted([self.own_match, *(f.match_index for f in self.followers.values())], reverse=True)
        index = matches[self.majority - 1]
        if index <= self.commit_index or self._term(index) != self.current_term:
            return
        self.commit_index = index
        self.apply_cv.notify()
        for follower in self.followers.values():
            follower.cv.notify()
        self.slow = self.slow + 1 if self.own_match < index else 0
        if self.slow >= SLOW_COMMITS and self.handed_over != self.current_term:
            best = max(self.followers.values(), key=lambda f: (f.match_index, -f.number))
            if best.match_index == self.last:
                self.handed_over = self.current_term
                args = TimeoutNowArgs(self.current_term, self.me, self.last, self._term(self.last))
                say("lead", f"hand over to {best.number}")
                threading.Thread(target=self._hand_over, args=(best.number, args), daemon=True).start()

    def _hand_over(self, i: int, args: TimeoutNowArgs) -> None:
        reply = self.peers[i].call("Raft.timeout_now", args)
        if reply is not None:
            with self.mu:
                if not self.dead.is_set():
                    self._observe_term(reply.term)

    def timeout_now(self, args: TimeoutNowArgs) -> TimeoutNowReply:
        with self.mu:
            self._observe_term(args.term)
            accepted = (
                args.term == self.current_term
                and self.role == FOLLOWER
                and self.leader == args.leader_id
                and (self._term(self.last), self.last) >= (args.last_log_term, args.last_log_index)
                and not self.dead.is_set()
            )
            if accepted:
                self._campaign()
            if not self._wait_saved(0):
                return TimeoutNowReply(args.term, False)
            return TimeoutNowReply(self.current_term, accepted)

    # ---- Replication: the leader -----------------------------------------------------------------------

    def _sender(self, f: Follower) -> None:
        """One thread for each follower, as long as the peer lives. Calls wait in threads of their own."""
        while True:
            with self.mu:
                job = self._next_job(f)
                while job is None:
                    if self.dead.is_set():
                        return
                    if self.role == LEADER:
                        wake = min([f.due, *(flight.deadline for flight in f.flights.values())])
                        f.cv.wait(max(wake - time.monotonic(), 0.001))
                    else:
                        f.cv.wait()
                    job = self._next_job(f)
            threading.Thread(target=self._carry, args=(f, *job), daemon=True).start()

    def _next_job(self, f: Follower) -> tuple[str, Any, int, int] | None:
        """(method, args, flight or 0, epoch) of what is to be sent now. The caller holds the lock."""
        if self.role != LEADER or self.dead.is_set():
            return None
        now = time.monotonic()
        if any(flight.deadline <= now for flight in f.flights.values()):
            f.roll_back(min(flight.first for flight in f.flights.values()))
        room = len(f.flights) < (1 if f.probing else WINDOW)
        if f.next_index <= self.base:
            if room:
                return self._snapshot_job(f, now)
        elif (room and f.next_index <= self.last) or (
            not f.flights and (f.due <= now or (not f.probing and f.told < min(self.commit_index, f.match_index)))
        ):
            return self._append_job(f, now)
        if f.due <= now:
            # It shows that we are up, and nothing about logs: entry 0 is in every log.
            f.due = now + HEARTBEAT_S
            args = AppendEntriesArgs(self.current_term, self.me, 0, 0, [], self.commit_index)
            return "append_entries", args, 0, f.epoch
        return None

    def _append_job(self, f: Follower, now: float) -> tuple[str, Any, int, int]:
        prev = f.next_index - 1
        args = AppendEntriesArgs(
            self.current_term, self.me, prev, self._term(prev), self._entries(prev + 1, self.last), self.commit_index
        )
        flight = self._take_off(f, prev + 1, self.last, now + LOST_S) if args.entries else 0
        f.next_index = self.last + 1
        f.told = max(f.told, min(self.commit_index, self.last))
        f.due = now + HEARTBEAT_S
        return "append_entries", args, flight, f.epoch

    def _snapshot_job(self, f: Follower, now: float) -> tuple[str, Any, int, int]:
        args = InstallSnapshotArgs(
            self.current_term,
            self.me,
            self.base,
            self.base_term,
            self.snapshot_data,
            self._entries(self.base + 1, self.last),
        )
        f.probing = True
        f.due = now + HEARTBEAT_S
        flight = self._take_off(f, f.next_index, self.last, now + SNAPSHOT_LOST_S)
        return "install_snapshot", args, flight, f.epoch

    def _take_off(self, f: Follower, first: int, last: int, deadline: float) -> int:
        f.flight_number += 1
        f.flights[f.flight_number] = Flight(first, last, deadline)
        return f.flight_number

    def _carry(self, f: Follower, method: str, args: Any, flight: int, epoch: int) -> None:
        reply = self.peers[f.number].call(f"Raft.{method}", args)
        with self.mu:
            if self.dead.is_set():
                return
            if reply is not None:
                self._observe_term(reply.term)
            if self.role != LEADER or self.current_term != args.term:
                return
            if reply is None:
                if flight in f.flights:  # the network reports it lost
                    f.roll_back(min(other.first for other in f.flights.values()))
                    f.cv.notify()
                return
            if method == "install_snapshot":
                self._acknowledged(f, reply.match_index)
            elif reply.success:
                self._acknowledged(f, args.prev_log_index + len(args.entries))
            elif epoch == f.epoch and args.prev_log_index > f.match_index:
                f.roll_back(min(self._parting(reply), args.prev_log_index))
            f.flights.pop(flight, None)
            f.cv.notify()

    def _acknowledged(self, f: Follower, match: int) -> None:
        if match == 0:
            return  # to a heartbeat
        f.match_index = max(f.match_index, match)
        f.next_index = max(f.next_index, f.match_index + 1)
        f.probing = False
        for number in [n for n, other in f.flights.items() if other.last <= f.match_index]:
            del f.flights[number]
        self._advance()

    def _parting(self, reply: AppendEntriesReply) -> int:
        """Where to try next: behind our last entry of the term that the follower has there, if we have any."""
        if reply.conflict_term:
            for i in self._backwards():
                term = self._term(i)
                if term == reply.conflict_term:
                    return i + 1
                if term < reply.conflict_term:
                    break
        return reply.conflict_index

    def _backwards(self) -> Iterator[int]:
        return iter(range(self.last, self.base, -1))

    # ---- Replication: the follower ---------------------------------------------------------------------

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            self._observe_term(args.term)
            if args.term < self.current_term:
                self._wait_saved(0)
                return AppendEntriesReply(self.current_term, False)
            self._follow(args.leader_id)
            prev = args.prev_log_index
            conflict = self._conflict(prev, args.prev_log_term)
            if conflict is not None:
                if not self._wait_saved(0):
                    return AppendEntriesReply(args.term, False)
                return AppendEntriesReply(self.current_term, False, *conflict)
            self._take(prev, args.entries)
            end = prev + len(args.entries)
            self._commit(min(args.leader_commit, end))
            saved = self._wait_saved(self._version_of(end))
            if not saved or self.current_term != args.term:
                return AppendEntriesReply(self.current_term if saved else args.term, False)
            return AppendEntriesReply(args.term, True)

    def _conflict(self, prev: int, prev_term: int) -> tuple[int, int] | None:
        """(the term there, the first index of it), or (0, the first that we lack); None: our log matches."""
        if prev <= self.base:
            return None  # committed, so it does (§5.4.3)
        if prev > self.last:
            return 0, self.last + 1
        term = self._term(prev)
        if term == prev_term:
            return None
        while prev - 1 > self.base and self._term(prev - 1) == term:
            prev -= 1
        return term, prev

    def _take(self, prev: int, entries: list[LogEntry]) -> None:
        """Figure 2, AppendEntries 3 and 4; our log matches at prev."""
        changed = False
        for index, entry in enumerate(entries, prev + 1):
            if index <= self.base:
                continue
            if index <= self.last:
                if self._term(index) == entry.term:
                    continue
                if not changed:
                    self._changed()
                    changed = True
                self._cut(index)
            if not changed:
                self._changed()
                changed = True
            self._put(index, entry.term, entry.command)

    def _commit(self, index: int) -> None:
        if index > self.commit_index:
            self.commit_index = index
            self.apply_cv.notify()

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            self._observe_term(args.term)
            if args.term < self.current_term:
                self._wait_saved(0)
                return InstallSnapshotReply(self.current_term)
            self._follow(args.leader_id)
            index, term = args.last_included_index, args.last_included_term
            have = index <= self.commit_index or (index <= self.last and self._term(index) == term)
            if not have:
                # Figure 13, 7: nothing of our log is of use.
                self._changed()
                self._cut(self.base + 1)
                self._rebase(index, term, args.data)
                self.commit_index = index
                self.pending = ApplyMsg(
                    snapshot_valid=True, snapshot=args.data, snapshot_term=term, snapshot_index=index
                )
                self.apply_cv.notify()
            # Our log matches at index: by the snapshot, or because we had that (Figure 13, 6).
            self._take(index, args.entries)
            self._commit(index)
            end = index + len(args.entries)
            saved = self._wait_saved(self._version_of(end))
            if not saved or self.current_term != args.term:
                return InstallSnapshotReply(self.current_term if saved else args.term)
            return InstallSnapshotReply(args.term, end)

    # ---- Applying --------------------------------------------------------------------------------------

    def _applier(self) -> None:
        while True:
            with self.mu:
                while self.pending is None and self.last_applied >= self.commit_index:
                    if self.dead.is_set():
                        return
                    self.apply_cv.wait()
                if self.pending is not None:
                    batch = [self.pending]
                    self.last_applied = self.pending.snapshot_index
                    self.pending = None
                else:
                    batch = [
                        ApplyMsg(command_valid=True, command=self.log[i].command, command_index=i)
                        for i in range(self.last_applied + 1, self.commit_index + 1)
                    ]
                    self.last_applied = self.commit_index
            for message in batch:
                while True:
                    if self.dead.is_set():
                        return
                    try:
                        self.apply_ch.put(message, timeout=0.050)
                        break
                    except queue.Full:
                        pass
