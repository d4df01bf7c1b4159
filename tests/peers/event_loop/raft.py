"""An event loop: one owner thread and one queue, no lock.

Every input (a request, a reply, a tick of the clock, start(), get_state(), snapshot()) is an event in `inbox`. Only the
owner thread accesses the state of Figure 2. A thread that needs an answer adds an event with a slot and waits for the
slot. The owner waits only for the disk.

The owner takes every waiting event, handles them all, saves once for all of them, and only then makes the effects
visible: replies, results of start(), messages to other peers, and items on apply_ch. So a reply may describe a moment
that has passed and was never on the disk by itself: a vote of term 3 may leave when the disk has term 4. That is safe.
A crash before the save undoes events without visible effects, as if their messages had been lost; after the save, all
of them have happened, in order.

Replies carry no hints. The leader steps back over its own terms, twice as many after each rejection in a row (§5.3 only
requires that it finds the point). For each follower only one message with news is in flight; commands that arrive
meanwhile go together in the next one.

Start reading at _own().
"""

from collections.abc import Callable
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

TICK_S = 0.010
HEARTBEAT_S = 0.100
ELECTION_TIMEOUT_S = (0.350, 0.700)
NOBODY = -1


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True, eq=False)
class Event:
    """Something for the owner to do. What it returns goes into the slot, if there is one, after the save."""

    handle: Callable[..., Any]
    args: tuple[Any, ...] = ()
    slot: "queue.Queue[Any] | None" = None


@dataclass(slots=True)
class Progress:
    """What the leader knows of one follower, and what it last sent."""

    next_index: int
    match_index: int = 0
    rejections: int = 0  # in a row; determines how far the next step back goes
    awaited: int = 0  # number of the message whose reply is awaited, 0 for none
    heartbeat_at: float = 0.0  # when it must hear from us again; at once, for a new leader


class Raft:
    """One peer. `peers[me]` is this one; committed commands and received snapshots go to `apply_ch`."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.dead = threading.Event()
        self.inbox: queue.Queue[Event] = queue.Queue()
        self.deliveries: queue.Queue[ApplyMsg | None] = queue.Queue()  # on their way to apply_ch; None ends it
        self.tick = Event(self._on_tick)

        # From here on everything belongs to the owner. Persistent state (Figure 2, Figure 13):
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
        self.votes: set[int] = set()
        self.progress: dict[int, Progress] = {}  # of each other peer, while we lead
        self.messages_sent = 0
        self.election_at = 0.0
        self._reset_election_timer()

        # Effects of the current events, not visible to others before the save.
        self.unsaved = False
        self.unsaved_snapshot = False
        self.asks_for_votes = False
        self.committed: list[ApplyMsg] = []

        for target in (self._own, self._tick, self._deliver):
            threading.Thread(target=target, daemon=True).start()

    # ---- What others call, from threads of their own -------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        """(index, term, True) once the command is in our saved log; (-1, term, False) if we do not lead."""
        return self._ask(self._on_start, command) or (-1, 0, False)

    def get_state(self) -> tuple[int, bool]:
        return self._ask(self._on_get_state) or (0, False)

    def snapshot(self, index: int, snapshot: bytes) -> None:
        """Returns when the snapshot and the shorter log are saved."""
        self._ask(self._on_snapshot, index, snapshot)

    def kill(self) -> None:
        self.dead.set()
        self.inbox.put(Event(lambda: None))  # the owner wakes, and sees it

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        return self._ask(self._on_request_vote, args) or RequestVoteReply(term=0, vote_granted=False)

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        return self._ask(self._on_append_entries, args) or AppendEntriesReply(term=0, success=False)

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        return self._ask(self._on_install_snapshot, args) or InstallSnapshotReply(term=0)

    def _ask(self, handle: Callable[..., Any], *args: Any) -> Any:
        """What the owner answers; None if it has ended before."""
        slot: queue.Queue[Any] = queue.Queue()
        self.inbox.put(Event(handle, args, slot))
        while True:
            try:
                return slot.get(timeout=0.2)
            except queue.Empty:
                if self.dead.is_set():
                    return None

    # ---- Threads that touch no state -----------------------------------------------------------------

    def _tick(self) -> None:
        time.sleep(random.uniform(0, TICK_S))  # peers that boot together should not tick together
        while not self.dead.is_set():
            self.inbox.put(self.tick)
            time.sleep(TICK_S)

    def _deliver(self) -> None:
        """The only thread that puts into apply_ch, in the order in which the owner committed."""
        while (message := self.deliveries.get()) is not None:
            while True:
                if self.dead.is_set():
                    return
                try:
                    self.apply_ch.put(message, timeout=0.2)
                    break
                except queue.Full:
                    continue

    def _call(self, peer: int, method: str, args: Any, on_reply: Callable[..., Any], number: int) -> None:
        if self.dead.is_set():
            return
        reply = self.peers[peer].call(method, args)
        if reply is not None:
            self.inbox.put(Event(on_reply, (peer, args, reply, number)))

    # ---- The owner -----------------------------------------------------------------------------------

    def _own(self) -> None:
        while True:
            events = [self.inbox.get()]
            while not self.inbox.empty():  # only this thread takes from it
                events.append(self.inbox.get())
            answers = [(event.slot, event.handle(*event.args)) for event in events if event is not self.tick]
            # The clock comes last: a heartbeat that arrived while we were saving counts before the timeout does.
            if self.tick in events:
                self._on_tick()
            if self.unsaved or self.unsaved_snapshot:
                self._persist()
            self._release(answers)
            if self.dead.is_set() and self.inbox.empty():  # requests from before kill() are answered
                self.deliveries.put(None)
                return

    def _release(self, answers: "list[tuple[queue.Queue[Any] | None, Any]]") -> None:
        """Everything is saved; now the world may know."""
        for slot, answer in answers:
            if slot is not None:
                slot.put(answer)
        for message in self.committed:
            self.deliveries.put(message)
        self.committed = []
        if self.asks_for_votes and self.role is Role.CANDIDATE:
            self._send_vote_requests()
        self.asks_for_votes = False
        if self.role is Role.LEADER:
            for peer, progress in self.progress.items():
                has_news = progress.next_index <= self._last_log_index() and not progress.awaited
                if has_news or time.monotonic() >= progress.heartbeat_at:
                    self._send_log(peer, progress)

    def _send(self, peer: int, method: str, args: Any, on_reply: Callable[..., Any]) -> int:
        self.messages_sent += 1
        call = (peer, method, args, on_reply, self.messages_sent)
        threading.Thread(target=self._call, args=call, daemon=True).start()
        return self.messages_sent

    # ---- Persistent state ----------------------------------------------------------------------------

    def _persist(self) -> None:
        w = labgob.Encoder()
        w.encode(self.current_term)
        w.encode(self.voted_for)
        w.encode(self.last_included_index)
        w.encode(self.log)
        self.persister.save(w.bytes(), self.snapshot_data if self.unsaved_snapshot else None)
        self.unsaved = self.unsaved_snapshot = False

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        self.current_term = r.decode(int)
        self.voted_for = r.decode(int)
        self.last_included_index = r.decode(int)
        self.log = r.decode(list[LogEntry])

    # ---- The log; entries up to last_included_index are in the snapshot ------------------------------

    def _last_log_index(self) -> int:
        return self.last_included_index + len(self.log) - 1

    def _term_at(self, index: int) -> int:
        return self.log[index - self.last_included_index].term

    def _entries_from(self, index: int) -> list[LogEntry]:
        return self.log[index - self.last_included_index :]

    def _commit_up_to(self, index: int) -> None:
        for i in range(self.commit_index + 1, index + 1):
            command = self.log[i - self.last_included_index].command
            self.committed.append(ApplyMsg(command_valid=True, command=command, command_index=i))
        self.commit_index = max(self.commit_index, index)

    # ---- Terms and elections (§5.1, §5.2) ------------------------------------------------------------

    def _reset_election_timer(self) -> None:
        self.election_at = time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)

    def _see_term(self, term: int) -> None:
        """Adopt a higher term as a follower (§5.1). It need not come from a leader, so the timer is not reset."""
        if term > self.current_term:
            self.current_term = term
            self.voted_for = NOBODY
            self.role = Role.FOLLOWER
            self.unsaved = True

    def _follow(self) -> None:
        """There is a leader of our term, and it is not us."""
        self.role = Role.FOLLOWER
        self._reset_election_timer()

    def _on_tick(self) -> None:
        """Heartbeats that are due go out when events are released; only elections begin here."""
        if self.role is Role.LEADER or time.monotonic() < self.election_at:
            return
        self.current_term += 1
        self.voted_for = self.me
        self.role = Role.CANDIDATE
        self.votes = {self.me}
        self.unsaved = True
        self.asks_for_votes = True
        self._reset_election_timer()
        self._lead_if_elected()

    def _send_vote_requests(self) -> None:
        args = RequestVoteArgs(
            term=self.current_term,
            candidate_id=self.me,
            last_log_index=self._last_log_index(),
            last_log_term=self.log[-1].term,
        )
        for peer in range(len(self.peers)):
            if peer != self.me:
                self._send(peer, "Raft.request_vote", args, self._on_vote)

    def _on_request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        self._see_term(args.term)
        # §5.4.1: at least as up to date as our log.
        up_to_date = (args.last_log_term, args.last_log_index) >= (self.log[-1].term, self._last_log_index())
        free = self.voted_for in (NOBODY, args.candidate_id)
        granted = args.term == self.current_term and free and up_to_date
        if granted:
            if self.voted_for == NOBODY:
                self.voted_for = args.candidate_id
                self.unsaved = True
            self._reset_election_timer()
        return RequestVoteReply(term=self.current_term, vote_granted=granted)

    def _on_vote(self, peer: int, args: RequestVoteArgs, reply: RequestVoteReply, _number: int) -> None:
        self._see_term(reply.term)
        if self.role is Role.CANDIDATE and args.term == self.current_term and reply.vote_granted:
            self.votes.add(peer)
            self._lead_if_elected()

    def _lead_if_elected(self) -> None:
        if len(self.votes) * 2 > len(self.peers):
            self.role = Role.LEADER
            next_index = self._last_log_index() + 1
            self.progress = {peer: Progress(next_index) for peer in range(len(self.peers)) if peer != self.me}
            log("leader", "of term %d", self.current_term)

    # ---- The leader's side of the log (§5.3, §5.4.2, §7) ---------------------------------------------

    def _on_start(self, command: Any) -> tuple[int, int, bool]:
        if self.role is not Role.LEADER:
            return -1, self.current_term, False
        self.log.append(LogEntry(self.current_term, command))
        self.unsaved = True
        self._commit_what_a_majority_has()  # alone, we are the majority
        return self._last_log_index(), self.current_term, True

    def _on_get_state(self) -> tuple[int, bool]:
        return self.current_term, self.role is Role.LEADER

    def _send_log(self, peer: int, progress: Progress) -> None:
        """Entries from next_index, if there are any: else it is a heartbeat. The snapshot if they are gone."""
        progress.heartbeat_at = time.monotonic() + HEARTBEAT_S
        if progress.next_index <= self.last_included_index:
            snapshot = InstallSnapshotArgs(
                term=self.current_term,
                leader_id=self.me,
                last_included_index=self.last_included_index,
                last_included_term=self.log[0].term,
                data=self.snapshot_data,
            )
            progress.awaited = self._send(peer, "Raft.install_snapshot", snapshot, self._on_installed)
            return
        prev_log_index = progress.next_index - 1
        args = AppendEntriesArgs(
            term=self.current_term,
            leader_id=self.me,
            prev_log_index=prev_log_index,
            prev_log_term=self._term_at(prev_log_index),
            entries=self._entries_from(progress.next_index),
            leader_commit=self.commit_index,
        )
        progress.awaited = self._send(peer, "Raft.append_entries", args, self._on_appended)

    def _replying(self, peer: int, sent_term: int, reply_term: int, number: int) -> Progress | None:
        """The progress that a reply is about, if we are still the leader that asked."""
        self._see_term(reply_term)
        if self.role is not Role.LEADER or sent_term != self.current_term:
            return None
        progress = self.progress[peer]
        if progress.awaited == number:
            progress.awaited = 0
        return progress

    def _on_appended(self, peer: int, args: AppendEntriesArgs, reply: AppendEntriesReply, number: int) -> None:
        progress = self._replying(peer, args.term, reply.term, number)
        if progress is None:
            return
        if reply.success:
            self._matched(progress, args.prev_log_index + len(args.entries))
        elif reply.term == args.term and args.prev_log_index == progress.next_index - 1 > progress.match_index:
            # Any other rejection is old: next_index has moved since.
            self._step_back(progress)
            progress.awaited = 0  # so that the next try leaves at once

    def _on_installed(self, peer: int, args: InstallSnapshotArgs, reply: InstallSnapshotReply, number: int) -> None:
        progress = self._replying(peer, args.term, reply.term, number)
        if progress is not None and reply.term == args.term:
            self._matched(progress, args.last_included_index)

    def _matched(self, progress: Progress, index: int) -> None:
        progress.rejections = 0
        progress.match_index = max(progress.match_index, index)
        progress.next_index = max(progress.next_index, progress.match_index + 1)
        self._commit_what_a_majority_has()

    def _step_back(self, progress: Progress) -> None:
        """To the first entry of the term at prev_log_index, or of a term further back after more rejections."""
        terms = 2**progress.rejections
        progress.rejections += 1
        prev = progress.next_index - 1
        if prev == self.last_included_index:
            progress.next_index = prev  # not even there: only the snapshot helps
            return
        while terms and prev > self.last_included_index:
            term = self._term_at(prev)
            while prev > self.last_included_index and self._term_at(prev) == term:
                prev -= 1
            terms -= 1
        progress.next_index = max(prev, progress.match_index) + 1

    def _commit_what_a_majority_has(self) -> None:
        have = sorted([self._last_log_index(), *(progress.match_index for progress in self.progress.values())])
        index = have[(len(have) - 1) // 2]  # a majority has this much, or more
        # §5.4.2, Figure 8: an entry of an older term is committed only by one of ours after it.
        if index > self.commit_index and self._term_at(index) == self.current_term:
            self._commit_up_to(index)

    # ---- The follower's side of the log --------------------------------------------------------------

    def _on_append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        self._see_term(args.term)
        if args.term < self.current_term:
            return AppendEntriesReply(term=self.current_term, success=False)
        self._follow()
        last_new_index = args.prev_log_index + len(args.entries)
        index, entries = args.prev_log_index + 1, args.entries
        if index <= self.last_included_index:
            # The snapshot is committed, so what it covers is the same in the leader's log.
            entries = entries[self.last_included_index + 1 - index :]
            index = self.last_included_index + 1
        elif args.prev_log_index > self._last_log_index() or self._term_at(args.prev_log_index) != args.prev_log_term:
            return AppendEntriesReply(term=self.current_term, success=False)
        for i, entry in enumerate(entries, start=index):
            # Only a conflict shortens the log: the message may be older than what we have (§5.3).
            if i > self._last_log_index() or self._term_at(i) != entry.term:
                del self.log[i - self.last_included_index :]
                self.log += entries[i - index :]
                self.unsaved = True
                break
        self._commit_up_to(min(args.leader_commit, last_new_index))
        return AppendEntriesReply(term=self.current_term, success=True)

    def _on_install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        self._see_term(args.term)
        if args.term < self.current_term:
            return InstallSnapshotReply(term=self.current_term)
        self._follow()
        if args.last_included_index > self.commit_index:  # else we have all of it already
            index = args.last_included_index
            if index <= self._last_log_index() and self._term_at(index) == args.last_included_term:
                self.log = self._entries_from(index)
            else:
                self.log = [LogEntry(args.last_included_term, None)]
            self._keep_snapshot(index, args.data)
            self.commit_index = index
            message = ApplyMsg(
                snapshot_valid=True,
                snapshot=args.data,
                snapshot_term=args.last_included_term,
                snapshot_index=index,
            )
            self.committed.append(message)
        return InstallSnapshotReply(term=self.current_term)

    # ---- Snapshots (§7) ------------------------------------------------------------------------------

    def _on_snapshot(self, index: int, snapshot: bytes) -> None:
        # Older than the one we have, or not yet applied: not a snapshot of ours.
        if self.last_included_index < index <= self.commit_index:
            self.log = self._entries_from(index)
            self._keep_snapshot(index, snapshot)

    def _keep_snapshot(self, index: int, data: bytes) -> None:
        """The log begins at index already."""
        self.log[0] = LogEntry(self.log[0].term, None)  # the command is in the snapshot now
        self.last_included_index = index
        self.snapshot_data = data
        self.unsaved_snapshot = True
