"""A pipelining leader: it does not wait for a reply before it sends the next entries.

Differences:

- Each follower has a replicator, a thread that lives as long as the peer. Once it knows where the logs agree, it sends
  up to WINDOW messages ahead of the replies, and assumes that they arrive: next_index is optimistic, match_index
  is known and never goes back. Messages may be reordered, so a rejection may only mean that an earlier one is
  still in flight: the leader waits until all of them are answered or given up, and then continues after match_index.
- A heartbeat refers to match_index, which no follower can reject, and is not part of the window.
- §6's disregard of RequestVote: a peer that has heard from its leader within the shortest election timeout ignores
  candidates, even their terms. So does a leader that hears from a majority. So a candidate whose term is
  higher gets a rejection with a lower term; the leader learns of that term from the replies to its own messages.
- Timers are threading.Timer objects, created anew each time. One that was canceled too late recognizes its number.
- The snapshot is kept on the disk only, and read from there when it is sent.

Start at Raft._next_request, which decides what to send to a follower, and Raft._on_append_answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
ELECTION_TIMEOUT_S_MIN, ELECTION_TIMEOUT_S_MAX = 0.400, 0.900
WINDOW = 4
BATCH = 64
GIVE_UP_S = 0.200  # after which a message under way counts as lost
GIVE_UP_SNAPSHOT_S = 0.600


@dataclass
class Follower:
    """What a leader knows of one follower, and hopes."""

    next_index: int
    match_index: int = 0
    probing: bool = True  # it asks where the logs agree, with empty messages, and sends no entries yet
    in_flight: dict[int, float] = field(default_factory=dict)  # number of a message -> when it is given up
    sent: int = 0  # numbers given so far
    refused: bool = False  # send no more until all is answered
    lost: bool = False  # then ask again before anything is sent
    due: bool = True  # it is to hear from us, entries or not


class Raft:
    """One peer."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.others = [peer for peer in range(len(peers)) if peer != me]
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()  # guards everything below
        self.dead = threading.Event()
        self.something_to_apply = threading.Condition(self.mu)
        self.something_to_send = {peer: threading.Condition(self.mu) for peer in self.others}

        # Persistent. log[0] represents the snapshot.
        self.current_term = 0
        self.voted_for: int | None = None
        self.snapshot_index = 0
        self.log = [LogEntry(0, None)]
        self._read_persist(persister.read_raft_state())

        # Volatile. The service has loaded the snapshot by itself.
        self.commit_index = self.snapshot_index
        self.last_applied = self.snapshot_index
        self.snapshot_to_apply: ApplyMsg | None = None
        self.role = "follower"
        self.votes: set[int] = set()
        self.followers: dict[int, Follower] = {}
        long_ago = time.monotonic() - ELECTION_TIMEOUT_S_MAX
        self.leader_heard_at = long_ago
        self.answered_at = dict.fromkeys(self.others, long_ago)  # when each peer last answered us in this term

        self.timers_made = 0
        self.timer: threading.Timer | None = None  # a leader's counts heartbeats, anyone else's an election timeout
        with self.mu:
            self._restart_election_timer()
        for peer in self.others:
            threading.Thread(target=self._replicator, args=(peer,), daemon=True).start()
        threading.Thread(target=self._applier, daemon=True).start()

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        with self.mu:
            if self.role != "leader" or self.dead.is_set():
                return -1, self.current_term, False
            self.log.append(LogEntry(self.current_term, command))
            self._persist()
            self._advance_commit()
            self._wake_replicators()
            return self._last_index(), self.current_term, True

    def get_state(self) -> tuple[int, bool]:
        with self.mu:
            return self.current_term, self.role == "leader"

    def snapshot(self, index: int, snapshot: bytes) -> None:
        with self.mu:
            if self.dead.is_set() or not self.snapshot_index < index <= self.last_applied:
                return  # overtaken by a later one
            self.log = [LogEntry(self._term_at(index), None), *self._entries_from(index + 1)]
            self.snapshot_index = index
            self._persist(snapshot)

    def kill(self) -> None:
        with self.mu:
            self.dead.set()
            if self.timer is not None:
                self.timer.cancel()
            self.something_to_apply.notify_all()
            self._wake_replicators()

    # ---- Persistent state ------------------------------------------------------------------------------

    def _persist(self, snapshot: bytes | None = None) -> None:
        """One save, with a new snapshot if there is one. Caller holds self.mu."""
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.snapshot_index)
        w.encode(self.log)
        self.persister.save(w.bytes(), snapshot)

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        self.voted_for = r.decode(int | None)
        self.snapshot_index = r.decode(int)
        self.log = r.decode(list[LogEntry])

    # ---- The log. Callers hold self.mu -----------------------------------------------------------------

    def _last_index(self) -> int:
        return self.snapshot_index + len(self.log) - 1

    def _term_at(self, index: int) -> int:
        """Of an entry from snapshot_index to the last."""
        return self.log[index - self.snapshot_index].term

    def _entries_from(self, index: int) -> list[LogEntry]:
        return self.log[index - self.snapshot_index :]

    def _holds(self, index: int, term: int) -> bool:
        return self.snapshot_index <= index <= self._last_index() and self._term_at(index) == term

    # ---- Timers and elections (§5.2). Callers of the helpers hold self.mu --------------------------------

    def _set_timer(self, seconds: float, on_time: Any) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timers_made += 1
        self.timer = threading.Timer(seconds, on_time, args=(self.timers_made,))
        self.timer.daemon = True
        self.timer.start()

    def _restart_election_timer(self) -> None:
        seconds = random.uniform(ELECTION_TIMEOUT_S_MIN, ELECTION_TIMEOUT_S_MAX)
        self._set_timer(seconds, self._on_election_timeout)

    def _timer_is_stale(self, number: int) -> bool:
        """It ran out, but another was set before it got the lock."""
        return self.dead.is_set() or number != self.timers_made

    def _on_election_timeout(self, number: int) -> None:
        with self.mu:
            if self._timer_is_stale(number):
                return
            self._enter_term(self.current_term + 1)
            self.role = "candidate"
            self.voted_for = self.me
            self.votes = {self.me}
            self._persist()
            self._restart_election_timer()
            last = self._last_index()
            args = RequestVoteArgs(self.current_term, self.me, last, self._term_at(last))
            self._count_votes()
            for peer in self.others:
                threading.Thread(target=self._ask_for_vote, args=(peer, args), daemon=True).start()

    def _ask_for_vote(self, peer: int, args: RequestVoteArgs) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[peer].call("Raft.request_vote", args)
        with self.mu:
            if reply is None or not self._is_current(peer, args.term, reply.term):
                return
            if self.role == "candidate" and reply.vote_granted:
                self.votes.add(peer)
                self._count_votes()

    def _count_votes(self) -> None:
        if len(self.votes) <= len(self.peers) // 2:
            return
        self.role = "leader"
        self.followers = {peer: Follower(next_index=self._last_index() + 1) for peer in self.others}
        self._set_timer(HEARTBEAT_S, self._on_heartbeat_time)
        self._wake_replicators()

    def _on_heartbeat_time(self, number: int) -> None:
        with self.mu:
            if self._timer_is_stale(number):
                return
            now = time.monotonic()
            for follower in self.followers.values():
                follower.due = True
                if any(give_up_at <= now for give_up_at in follower.in_flight.values()):
                    # What is answered after all still counts, if it is a yes.
                    follower.in_flight.clear()
                    follower.lost = True
                    self._settle(follower)
            self._wake_replicators()
            self._set_timer(HEARTBEAT_S, self._on_heartbeat_time)

    def _enter_term(self, term: int) -> None:
        """A follower of a later term, without a vote and without a leader yet. The caller saves."""
        self.current_term = term
        self.voted_for = None
        self.followers = {}
        self.answered_at = dict.fromkeys(self.others, time.monotonic() - ELECTION_TIMEOUT_S_MAX)
        if self.role == "leader":
            self._restart_election_timer()  # its timer counted heartbeats
        self.role = "follower"

    def _is_current(self, peer: int, asked_in: int, answered_in: int) -> bool:
        """Whether an answer concerns us as we are now. One from a later term makes us follow (§5.1)."""
        if self.dead.is_set():
            return False
        if answered_in > self.current_term:
            self._enter_term(answered_in)
            self._persist()
        if asked_in != self.current_term:
            return False
        self.answered_at[peer] = time.monotonic()
        return True

    def _has_a_leader(self) -> bool:
        """§6: heard from it, or being it heard from a majority, within the shortest election timeout."""
        since = time.monotonic() - ELECTION_TIMEOUT_S_MIN
        if self.role == "leader":
            heard = 1 + sum(at > since for at in self.answered_at.values())
            return heard > len(self.peers) // 2
        return self.leader_heard_at > since

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        with self.mu:
            if self.dead.is_set() or args.term < self.current_term or self._has_a_leader():
                return RequestVoteReply(self.current_term, False)
            if args.term > self.current_term:
                self._enter_term(args.term)
                changed = True
            else:
                changed = False
            last = self._last_index()
            up_to_date = (args.last_log_term, args.last_log_index) >= (self._term_at(last), last)
            granted = up_to_date and self.voted_for in (None, args.candidate_id)
            if granted and self.voted_for is None:
                self.voted_for = args.candidate_id
                changed = True
            if changed:
                self._persist()
            if granted:
                self._restart_election_timer()
            return RequestVoteReply(self.current_term, granted)

    # ---- Followers (§5.3, §7) ----------------------------------------------------------------------------

    def _hear_leader(self, term: int) -> bool:
        """The leader of this term spoke. Returns whether there is something to save. Caller holds self.mu."""
        later = term > self.current_term
        if later:
            self._enter_term(term)
        self.role = "follower"
        self.leader_heard_at = time.monotonic()
        self._restart_election_timer()
        return later

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        with self.mu:
            if self.dead.is_set() or args.term < self.current_term:
                return AppendEntriesReply(self.current_term, False)
            changed = self._hear_leader(args.term)
            prev, last_new = args.prev_log_index, args.prev_log_index + len(args.entries)
            # The snapshot is committed, so it agrees with every leader's log.
            agrees = prev < self.snapshot_index or self._holds(prev, args.prev_log_term)
            if agrees:
                for index in range(max(prev, self.snapshot_index) + 1, last_new + 1):
                    if not self._holds(index, args.entries[index - prev - 1].term):
                        # From the first that differs. A message that was overtaken cuts off nothing.
                        self.log[index - self.snapshot_index :] = args.entries[index - prev - 1 :]
                        changed = True
                        break
            if changed:
                self._persist()
            if not agrees:
                return AppendEntriesReply(self.current_term, False, *self._hint(args))
            self._commit(min(args.leader_commit, last_new))
            return AppendEntriesReply(self.current_term, True)

    def _hint(self, args: AppendEntriesArgs) -> tuple[int, int]:
        """The last index up to prev_log_index whose term is not later than prev_log_term: later ones cannot agree."""
        index = min(args.prev_log_index, self._last_index())
        while index > self.snapshot_index and self._term_at(index) > args.prev_log_term:
            index -= 1
        return index, self._term_at(index)

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        with self.mu:
            if self.dead.is_set():
                return InstallSnapshotReply(0)  # no term that anyone asks in: nothing was kept
            if args.term < self.current_term:
                return InstallSnapshotReply(self.current_term)
            changed = self._hear_leader(args.term)
            index, term = args.last_included_index, args.last_included_term
            if index > self.commit_index:
                # Figure 13, 6 and 7: what follows the same entry stays, another log goes.
                rest = self._entries_from(index + 1) if self._holds(index, term) else []
                self.log = [LogEntry(term, None), *rest]
                self.snapshot_index = self.commit_index = index
                self._persist(args.data)
                self.snapshot_to_apply = ApplyMsg(
                    snapshot_valid=True, snapshot=args.data, snapshot_term=term, snapshot_index=index
                )
                self.something_to_apply.notify_all()
            elif changed:
                self._persist()
            return InstallSnapshotReply(self.current_term)

    # ---- The leader's side: a replicator for each follower ----------------------------------------------

    def _wake_replicators(self) -> None:
        for condition in self.something_to_send.values():
            condition.notify_all()

    def _replicator(self, peer: int) -> None:
        while True:
            with self.mu:
                while not self.dead.is_set() and (request := self._next_request(peer)) is None:
                    self.something_to_send[peer].wait()
                if self.dead.is_set():
                    return
                number, args = request
            # A call may take seconds to fail, and the next one does not wait for it.
            threading.Thread(target=self._call, args=(peer, number, args), daemon=True).start()

    def _next_request(self, peer: int) -> tuple[int | None, AppendEntriesArgs | InstallSnapshotArgs] | None:
        """What this follower is sent now, with its number if it is in the window. Caller holds self.mu."""
        if self.role != "leader":
            return None
        follower = self.followers[peer]
        first = follower.next_index
        if first <= self.snapshot_index:
            # Only when it is due: a follower that is gone is not to cost a snapshot whenever a call fails.
            if follower.due and not follower.in_flight:
                follower.due = False
                args = InstallSnapshotArgs(
                    self.current_term,
                    self.me,
                    self.snapshot_index,
                    self._term_at(self.snapshot_index),
                    self.persister.read_snapshot(),
                )
                return self._number(follower, GIVE_UP_SNAPSHOT_S), args
        elif not follower.probing and not follower.refused and len(follower.in_flight) < WINDOW:
            entries = self._entries_from(first)[:BATCH]
            if entries:
                follower.due = False
                follower.next_index += len(entries)
                return self._number(follower, GIVE_UP_S), self._append(first - 1, entries)
        if not follower.due:
            return None
        follower.due = False
        prev = first - 1 if follower.probing else follower.match_index
        # If the entry at prev is gone, a follower that needs the snapshot rejects; that is expected.
        return None, self._append(max(prev, self.snapshot_index), [])

    def _number(self, follower: Follower, give_up_s: float) -> int:
        follower.sent += 1
        follower.in_flight[follower.sent] = time.monotonic() + give_up_s
        return follower.sent

    def _append(self, prev: int, entries: list[LogEntry]) -> AppendEntriesArgs:
        return AppendEntriesArgs(self.current_term, self.me, prev, self._term_at(prev), entries, self.commit_index)

    def _call(self, peer: int, number: int | None, args: AppendEntriesArgs | InstallSnapshotArgs) -> None:
        if self.dead.is_set():
            return
        snapshot = isinstance(args, InstallSnapshotArgs)
        reply = self.peers[peer].call("Raft.install_snapshot" if snapshot else "Raft.append_entries", args)
        with self.mu:
            if reply is None:
                if self.role == "leader" and args.term == self.current_term:
                    self._on_no_answer(peer, number)
            elif self._is_current(peer, args.term, reply.term) and reply.term == args.term:
                # In the term in which we led and sent this, we lead still.
                if snapshot:
                    self._on_yes(peer, number, args.last_included_index)
                elif reply.success:
                    self._on_yes(peer, number, args.prev_log_index + len(args.entries))
                else:
                    self._on_no(peer, number, args, reply)

    # Callers of these hold self.mu.

    def _on_no_answer(self, peer: int, number: int | None) -> None:
        follower = self.followers[peer]
        if follower.in_flight.pop(number, None) is not None:
            follower.lost = True
            self._settle(follower)
            self.something_to_send[peer].notify_all()

    def _on_yes(self, peer: int, number: int | None, index: int) -> None:
        """The follower's log is ours up to this index. However late it comes, that stays true while we lead."""
        follower = self.followers[peer]
        follower.in_flight.pop(number, None)
        follower.match_index = max(follower.match_index, index)
        follower.next_index = max(follower.next_index, follower.match_index + 1)
        if follower.probing:
            follower.probing = False
            follower.next_index = follower.match_index + 1
        self._settle(follower)
        self._advance_commit()
        self.something_to_send[peer].notify_all()

    def _on_no(self, peer: int, number: int | None, args: AppendEntriesArgs, reply: AppendEntriesReply) -> None:
        follower = self.followers[peer]
        if follower.in_flight.pop(number, None) is not None:
            follower.refused = True
            # A success is never revoked, but a killed peer rejects everything: treat it as no reply.
            follower.lost |= args.prev_log_index <= follower.match_index
            self._settle(follower)
        elif follower.probing and args.prev_log_index == follower.next_index - 1 > follower.match_index:
            # Refused where we still ask. Our entries of later terms than the hint's cannot be there either.
            index = reply.hint_index
            while index > 0 and index >= self.snapshot_index and self._term_at(index) > reply.hint_term:
                index -= 1
            follower.next_index = max(index, follower.match_index) + 1
            follower.due = True
        self.something_to_send[peer].notify_all()

    def _settle(self, follower: Follower) -> None:
        """When nothing is under way any more, what did not arrive is sent again; after a loss it asks first."""
        if follower.in_flight:
            return
        lost, follower.lost, follower.refused = follower.lost, False, False
        if follower.probing:
            return
        follower.next_index = follower.match_index + 1
        if lost:
            follower.probing = True
            follower.due = True

    # ---- Commit and apply --------------------------------------------------------------------------------

    def _advance_commit(self) -> None:
        """Caller holds self.mu."""
        matches = sorted([self._last_index(), *(follower.match_index for follower in self.followers.values())])
        index = matches[(len(matches) - 1) // 2]
        # §5.4.2, Figure 8: a majority is not enough for an older term's entry.
        if index > self.commit_index and self._term_at(index) == self.current_term:
            self._commit(index)
            for follower in self.followers.values():
                follower.due = True
            self._wake_replicators()

    def _commit(self, index: int) -> None:
        """Caller holds self.mu."""
        if index > self.commit_index:
            self.commit_index = index
            self.something_to_apply.notify_all()

    def _applier(self) -> None:
        while True:
            with self.mu:
                while not self.dead.is_set() and not (messages := self._take_messages()):
                    self.something_to_apply.wait()
                if self.dead.is_set():
                    return
            for message in messages:
                if not self._put(message):
                    return

    def _take_messages(self) -> list[ApplyMsg]:
        """What is due, taken: a snapshot from the leader, or else the commands after it. Caller holds self.mu."""
        if self.snapshot_to_apply is not None:
            message, self.snapshot_to_apply = self.snapshot_to_apply, None
            self.last_applied = message.snapshot_index
            return [message]
        first, self.last_applied = self.last_applied + 1, self.commit_index
        return [
            ApplyMsg(command_valid=True, command=self.log[index - self.snapshot_index].command, command_index=index)
            for index in range(first, self.commit_index + 1)
        ]

    def _put(self, message: ApplyMsg) -> bool:
        while not self.dead.is_set():
            try:
                self.apply_ch.put(message, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False
