"""Roles as generators: one scheduler thread sends events into them.

Pre-vote and invited campaigns by flags; a lease (§6); a leader that pauses while it hears from no majority, and
continues in the same term; leadership transfer (slow disk, kill); snapshots that carry the rest of the log.
"""

import zlib
from collections.abc import Generator
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

BEAT = 0.100
SLOW_BEAT = 1.5  # of a leader on hold
LEASE = 0.350
QUORUM = 0.700
NEWS = 0.020
NAGLE = 0.002  # commands wait so long for company
SLOW_SAVE = 0.250
ROTATE = 0.0  # transfer leadership after this time, if nothing is pending; 0: never

Event = tuple[Any, ...]
Role = Generator[float, Event, Any]


class Future:
    def __init__(self) -> None:
        self.value: Any = None
        self.done = threading.Event()

    def set(self, value: Any) -> None:
        self.value = value
        self.done.set()


class Raft:
    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.dead = threading.Event()
        self.inbox: queue.Queue[Event] = queue.Queue()
        self.applies: queue.Queue[ApplyMsg] = queue.Queue()
        self.others = [p for p in range(len(peers)) if p != me]
        self.need = len(peers) // 2 + 1

        # The scheduler's alone from here on.
        self.term = 0
        self.voted_for = -1
        self.entries: dict[int, LogEntry] = {}
        self.base = 0
        self.base_term = 0
        self.last = 0
        self._decode(persister.read_raft_state())
        self.snap = persister.read_snapshot()
        self.saved_last = self.last
        self.commit = self.base
        self.handed = self.base
        self.role = "follower"
        self.hold = False
        self.heard_at = -10.0
        self.dirty = False
        self.fresh: bytes | None = None
        self.hand_up: ApplyMsg | None = None
        self.early: list[tuple[int, str, Any]] = []
        self.late: list[tuple[int, str, Any]] = []
        self.answers: list[tuple[Future, Any]] = []
        self.abdicate = False
        self.abdicated_at = -10.0
        self.next: dict[int, int] = {}
        self.match: dict[int, int] = {}
        self.told: dict[int, int] = {}
        self.contact: dict[int, float] = {}
        self.parcel_at: dict[int, float] = {}
        self.sent_at: dict[tuple[int, int], float] = {}
        self.serial = 0
        self.public = (self.term, False)

        threading.Thread(target=self._schedule, daemon=True).start()
        threading.Thread(target=self._carry_up, daemon=True).start()

    # ---- from outside -------------------------------------------------------------------------------

    def _ask(self, default: Any, *event: Any) -> Any:
        future = Future()
        self.inbox.put((*event, future))
        while not self.dead.is_set():
            if future.done.wait(0.5):
                return future.value
        return default

    def start(self, command: Any) -> tuple[int, int, bool]:
        return self._ask((-1, 0, False), "start", command)  # type: ignore[no-any-return]

    def get_state(self) -> tuple[int, bool]:
        return self.public

    def snapshot(self, index: int, snapshot: bytes) -> None:
        self.inbox.put(("snapshot", index, snapshot, None))

    def kill(self) -> None:
        self.dead.set()
        self.inbox.put(("kill", None))

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        return self._ask(RequestVoteReply(0, False), "vote", args)  # type: ignore[no-any-return]

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        return self._ask(AppendEntriesReply(0, False), "append", args)  # type: ignore[no-any-return]

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        return self._ask(InstallSnapshotReply(0), "install", args)  # type: ignore[no-any-return]

    # ---- the scheduler ------------------------------------------------------------------------------

    def _schedule(self) -> None:
        role: Role = self._follower()
        wake = next(role)
        while True:
            batch: list[Event] = []
            try:
                batch.append(self.inbox.get(timeout=max(0.0, wake - time.monotonic())))
                while True:
                    batch.append(self.inbox.get_nowait())
            except queue.Empty:
                pass
            if self.dead.is_set():
                self._farewell()
                return
            for event in batch or [("tick", None)]:
                role, wake = self._send(role, event)
            for _ in range(3):
                role, wake = self._send(role, ("settle", None))
                if not self._flush():
                    break

    def _send(self, role: Role, event: Event) -> tuple[Role, float]:
        try:
            return role, role.send(event)
        except StopIteration as end:
            heir = end.value
        while True:
            role = heir()
            try:
                return role, next(role)
            except StopIteration as end:  # elected at once: a cluster of one
                heir = end.value

    def _flush(self) -> bool:
        """Messages that need no save, the save, then what waited for it. Was there anything to do?"""
        self.public = (self.term, self.role == "leader" and not self.hold)
        busy = bool(self.early or self.late or self.answers or self.dirty)
        early, self.early = self.early, []
        for mail in early:
            self._mail(*mail)
        if self.dirty:
            fresh, self.fresh, self.dirty = self.fresh, None, False
            began = time.monotonic()
            self.persister.save(self._encode(), fresh)
            self.saved_last = self.last
            if time.monotonic() - began > SLOW_SAVE and self.role == "leader":
                self.abdicate = True
        late, self.late = self.late, []
        for mail in late:
            self._mail(*mail)
        answers, self.answers = self.answers, []
        for future, value in answers:
            future.set(value)
        if self.hand_up is not None:
            if self.hand_up.snapshot_index > self.handed:
                self.handed = self.hand_up.snapshot_index
                self.applies.put(self.hand_up)
            self.hand_up = None
        while self.handed < self.commit:
            self.handed += 1
            self.applies.put(
                ApplyMsg(command_valid=True, command=self.entries[self.handed].command, command_index=self.handed)
            )
        return busy

    def _mail(self, peer: int, method: str, args: Any) -> None:
        threading.Thread(target=self._post, args=(peer, method, args, time.monotonic()), daemon=True).start()

    def _post(self, peer: int, method: str, args: Any, at: float) -> None:
        reply = self.peers[peer].call(method, args)
        if not self.dead.is_set():
            self.inbox.put(("reply", peer, args, reply, at, None))

    def _carry_up(self) -> None:
        while not self.dead.is_set():
            try:
                msg = self.applies.get(timeout=0.5)
            except queue.Empty:
                continue
            while not self.dead.is_set():
                try:
                    self.apply_ch.put(msg, timeout=0.5)
                    break
                except queue.Full:
                    pass

    def _farewell(self) -> None:
        if self.role == "leader":
            heir = self._heir()
            if heir is not None:
                self._mail(heir, "Raft.append_entries", self._append_args(self.last, [], your_turn=True))

    # ---- the disk -----------------------------------------------------------------------------------

    def _encode(self) -> bytes:
        w = labgob.Encoder()
        w.encode(self.term)
        w.encode(self.voted_for)
        w.encode(self.base)
        w.encode(self.base_term)
        w.encode([self.entries[i] for i in range(self.base + 1, self.last + 1)])
        return zlib.compress(w.bytes(), 1)

    def _decode(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(zlib.decompress(data))
        self.term, self.voted_for, self.base, self.base_term = (r.decode(int) for _ in range(4))
        tail = r.decode(list[LogEntry])
        self.entries = dict(enumerate(tail, self.base + 1))
        self.last = self.base + len(tail)

    # ---- the log ------------------------------------------------------------------------------------

    def _term_at(self, index: int) -> int:
        return self.base_term if index == self.base else self.entries[index].term

    def _cut(self, first: int) -> None:
        for i in range(first, self.last + 1):
            del self.entries[i]
        self.last = first - 1
        self.saved_last = min(self.saved_last, self.last)

    def _merge(self, first: int, entries: list[LogEntry]) -> None:
        for index, entry in enumerate(entries, first):
            if index <= self.base:
                continue
            if index <= self.last:
                if self.entries[index].term == entry.term:
                    continue
                assert index > self.commit, "what is committed stays"
                self._cut(index)
            self.entries[index] = entry
            self.last = index
            self.dirty = True

    def _rebase(self, index: int, term: int, data: bytes) -> None:
        for i in range(self.base + 1, min(index, self.last) + 1):
            del self.entries[i]
        self.base, self.base_term = index, term
        self.last = max(self.last, index)
        self.snap = self.fresh = data
        self.dirty = True

    def _as_good(self, args: RequestVoteArgs) -> bool:
        return (args.last_log_term, args.last_log_index) >= (self._term_at(self.last), self.last)

    # ---- what every role does with what it hears; the answer is whether to become a follower, and how ------

    def _adopt(self, term: int) -> bool:
        if term <= self.term:
            return False
        self.term, self.voted_for, self.dirty = term, -1, True
        return True

    def _leased(self) -> bool:
        now = time.monotonic()
        if self.role == "leader":
            return 1 + sum(now - at < LEASE for at in self.contact.values()) >= self.need and len(self.peers) > 1
        return now - self.heard_at < LEASE

    def _common(self, event: Event) -> str:
        """'' nothing; 'voted', 'led': start the timer again, as a follower; 'down': a higher term; 'invited'."""
        kind, future = event[0], event[-1]
        if kind == "vote":
            return self._on_vote(event[1], future)
        if kind == "append":
            return self._on_append(event[1], future)
        if kind == "install":
            return self._on_install(event[1], future)
        if kind == "start":
            future.set((-1, self.term, False))
        elif kind == "snapshot":
            _, index, data, _ = event
            if index > self.base:
                self._rebase(index, self._term_at(index), data)
        elif kind == "reply" and event[3] is not None and self._adopt(event[3].term):
            return "down"
        return ""

    def _on_vote(self, args: RequestVoteArgs, future: Future) -> str:
        if self._leased() and not args.invited:
            self.answers.append((future, RequestVoteReply(self.term, False)))
            return ""
        if args.pre:
            good = args.term > self.term and self._as_good(args)
            self.answers.append((future, RequestVoteReply(self.term, good)))
            return ""
        down = self._adopt(args.term)
        granted = args.term == self.term and self.voted_for in (-1, args.candidate_id) and self._as_good(args)
        if granted and self.voted_for == -1:
            self.voted_for, self.dirty = args.candidate_id, True
        self.answers.append((future, RequestVoteReply(self.term, granted)))
        return "voted" if granted else "down" if down else ""

    def _on_append(self, args: AppendEntriesArgs, future: Future) -> str:
        if args.term < self.term:
            self.answers.append((future, AppendEntriesReply(self.term, False)))
            return ""
        self._adopt(args.term)
        self.heard_at = time.monotonic()
        prev = args.prev_log_index
        if prev > self.last:
            self.answers.append((future, AppendEntriesReply(self.term, False, try_at=self.last + 1)))
            return "led"
        if prev >= self.base and self._term_at(prev) != args.prev_log_term:
            term, at = self._term_at(prev), prev
            while at - 1 > self.commit and self._term_at(at - 1) == term:
                at -= 1
            self.answers.append((future, AppendEntriesReply(self.term, False, try_at=at)))
            return "led"
        self._merge(prev + 1, args.entries)
        have = prev + len(args.entries)
        self.commit = max(self.commit, min(args.leader_commit, have))
        self.answers.append((future, AppendEntriesReply(self.term, True, have=have)))
        return "invited" if args.your_turn else "led"

    def _on_install(self, args: InstallSnapshotArgs, future: Future) -> str:
        if args.term < self.term:
            self.answers.append((future, InstallSnapshotReply(self.term)))
            return ""
        self._adopt(args.term)
        self.heard_at = time.monotonic()
        index, term = args.last_included_index, args.last_included_term
        if index > self.commit:
            if index <= self.last and self._term_at(index) == term:
                pass
            else:
                self._cut(self.base + 1)
            self._rebase(index, term, args.data)
            self.commit = index
            self.hand_up = ApplyMsg(snapshot_valid=True, snapshot=args.data, snapshot_term=term, snapshot_index=index)
        self._merge(index + 1, args.tail)
        have = index + len(args.tail)
        self.commit = max(self.commit, min(args.commit, have))
        self.answers.append((future, InstallSnapshotReply(self.term, have=have)))
        return "led"

    # ---- the roles ----------------------------------------------------------------------------------

    def _draw(self) -> float:
        return time.monotonic() + random.uniform(0.400, 0.800)

    def _follower(self) -> Role:
        self.role = "follower"
        deadline = self._draw()
        while True:
            event = yield deadline
            if time.monotonic() >= deadline and event[0] == "tick":
                return self._prober
            what = self._common(event)
            if what == "invited":
                return self._invited
            if what in ("voted", "led"):
                deadline = self._draw()

    def _prober(self) -> Role:
        self.role = "prober"
        yes = {self.me}
        deadline = self._draw()
        asked = self.term
        if len(yes) < self.need:
            args = RequestVoteArgs(self.term + 1, self.me, self.last, self._term_at(self.last), pre=True)
            self.early += [(p, "Raft.request_vote", args) for p in self.others]
        while True:
            if len(yes) >= self.need:
                return self._candidate
            event = yield deadline
            if event[0] == "tick" and time.monotonic() >= deadline:
                return self._prober
            what = self._common(event)
            if what == "invited":
                return self._invited
            if what or self.term != asked:
                return self._follower
            if event[0] == "reply" and event[3] is not None:
                _, peer, args, reply, _, _ = event
                if isinstance(args, RequestVoteArgs) and args.pre and args.term == asked + 1 and reply.vote_granted:
                    yes.add(peer)

    def _invited(self) -> Role:
        return self._candidate(invited=True)

    def _candidate(self, invited: bool = False) -> Role:
        self.role = "candidate"
        self.term, self.voted_for, self.dirty = self.term + 1, self.me, True
        self.heard_at = -10.0
        note("campaign", "term %d%s", self.term, ", invited" if invited else "")
        votes = {self.me}
        deadline = self._draw()
        term = self.term
        if len(votes) < self.need:
            args = RequestVoteArgs(term, self.me, self.last, self._term_at(self.last), invited=invited)
            self.late += [(p, "Raft.request_vote", args) for p in self.others]
        while True:
            if len(votes) >= self.need:
                return self._leader
            event = yield deadline
            if event[0] == "tick" and time.monotonic() >= deadline:
                return self._prober
            what = self._common(event)
            if what == "invited":
                return self._invited
            if what or self.term != term:
                return self._follower
            if event[0] == "reply" and event[3] is not None:
                _, peer, args, reply, _, _ = event
                if isinstance(args, RequestVoteArgs) and not args.pre and args.term == term and reply.vote_granted:
                    votes.add(peer)

    def _leader(self) -> Role:
        self.role = "leader"
        self.hold = self.abdicate = False
        now = began = time.monotonic()
        self.next = dict.fromkeys(self.others, self.last + 1)
        self.match = dict.fromkeys(self.others, 0)
        self.told = dict.fromkeys(self.others, 0)
        self.contact = dict.fromkeys(self.others, now)
        self.parcel_at = dict.fromkeys(self.others, -10.0)
        beat, news, load, term = now, 0.0, 0.0, self.term
        while True:
            event = yield min(t for t in (beat, news, load) if t)
            now = time.monotonic()
            if event[0] == "start" and not self.hold:
                self.last += 1
                self.entries[self.last] = LogEntry(term, event[1])
                self.dirty = True
                load = load or now + NAGLE
                event[2].set((self.last, term, True))
            elif event[0] != "settle":
                what = self._common(event)
                if what or self.term != term:
                    self.hold = False
                    return self._invited if what == "invited" else self._follower
                if event[0] == "reply":
                    self._on_answer(*event[1:5])
            else:
                held = self.hold
                self.hold = 1 + sum(now - at < QUORUM for at in self.contact.values()) < self.need
                self.hold = self.hold or now - self.abdicated_at < 0.3
                if held and not self.hold:
                    beat = now
                if self._advance():
                    news = now + NEWS
                self._speak(now >= beat, bool(news) and now >= news, now >= load, now)
                if now >= load:
                    load = 0.0
                if now >= beat:
                    beat = now + (SLOW_BEAT if self.hold else BEAT)
                if news and now >= news:
                    news = 0.0
                if ROTATE and now - began > ROTATE and all(t == self.last for t in self.told.values()):
                    self.abdicate, began = True, now
                if self.abdicate and now - self.abdicated_at > 5.0:
                    heir = self._heir()
                    if heir is not None:
                        self.abdicate, self.abdicated_at, self.hold = False, now, True
                        self.early.append(
                            (heir, "Raft.append_entries", self._append_args(self.last, [], your_turn=True))
                        )

    def _heir(self) -> int | None:
        return next((p for p in self.others if self.match[p] == self.last), None)

    def _append_args(self, prev: int, entries: list[LogEntry], your_turn: bool = False) -> AppendEntriesArgs:
        term = 0 if prev == 0 else self._term_at(prev)
        return AppendEntriesArgs(self.term, self.me, prev, term, entries, self.commit, your_turn)

    def _speak(self, beat: bool, news: bool, load: bool, now: float) -> None:
        for p in self.others:
            first = self.next[p]
            if first <= self.base:
                if now - self.parcel_at[p] > 0.3 and (beat or not self.hold):
                    self.parcel_at[p] = now
                    tail = [self.entries[i] for i in range(self.base + 1, self.last + 1)]
                    args = InstallSnapshotArgs(
                        self.term, self.me, self.base, self.base_term, self.snap, tail=tail, commit=self.commit
                    )
                    self.early.append((p, "Raft.install_snapshot", args))
                elif beat:
                    self.early.append((p, "Raft.append_entries", self._append_args(0, [])))  # only to be heard
            elif (load and first <= self.last and not self.hold) or beat or (news and self.told[p] < self.commit):
                entries = [self.entries[i] for i in range(first, self.last + 1)]
                self.early.append((p, "Raft.append_entries", self._append_args(first - 1, entries)))
                self.next[p] = self.last + 1

    def _on_answer(self, peer: int, args: Any, reply: Any, at: float) -> None:
        if isinstance(args, RequestVoteArgs) or args.term != self.term:
            return
        if reply is None:
            if isinstance(args, AppendEntriesArgs) and args.entries:
                self.next[peer] = max(self.match[peer] + 1, min(self.next[peer], args.prev_log_index + 1))
            return
        if reply.term != self.term:
            return
        self.contact[peer] = max(self.contact[peer], at)
        if isinstance(args, InstallSnapshotArgs):
            commit, have = args.commit, reply.have
        elif reply.success:
            commit, have = args.leader_commit, reply.have
        else:
            at_most = min(reply.try_at, args.prev_log_index)
            self.next[peer] = max(self.match[peer] + 1, min(self.next[peer], at_most))
            return
        self.match[peer] = max(self.match[peer], have)
        self.next[peer] = max(self.next[peer], self.match[peer] + 1)
        self.told[peer] = max(self.told[peer], min(commit, have))

    def _advance(self) -> bool:
        marks = sorted([self.saved_last, *self.match.values()])
        n = marks[len(marks) - self.need]
        if n > self.commit and self._term_at(n) == self.term:
            self.commit = n
            return True
        return False
