"""Messages in, messages out, after etcd-io/raft: a pure state machine that takes and returns messages.

Node has no clock, no thread and no disk. In Raft, one thread owns the node, feeds it incoming messages, saves, and then
sends the messages that it returned. A message that answers a request travels as that request's reply.
"""

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

TICK_S = 0.010
BEAT_TICKS = 10
GATHER_S = 0.002  # commands of this long go out together
WINDOW = 16
NOBODY = -1
ANSWERS = ("vote_resp", "app_resp", "beat_resp", "stale")

FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"
PROBE, REPLICATE, SNAPSHOT = "probe", "replicate", "snapshot"


@dataclass(slots=True)
class Msg:
    # vote, vote_resp, app, app_resp, beat, beat_resp, snap, stale; for the node itself: unreachable, snap_failed,
    # snap_sent
    kind: str
    to: int
    frm: int
    term: int = 0
    index: int = 0
    log_term: int = 0
    entries: list[LogEntry] = field(default_factory=list)
    commit: int = 0
    reject: bool = False
    hint_index: int = 0
    hint_term: int = 0
    data: bytes = b""


class Progress:
    """What a leader believes of one follower."""

    def __init__(self, next_index: int) -> None:
        self.state = PROBE
        self.match = 0
        self.next = next_index
        self.paused = False  # a probe is out
        self.pending = 0  # the snapshot that is out
        self.patience = 0  # beats until it is given up
        self.inflight: list[int] = []  # the last indexes of what is out

    def become(self, state: str) -> None:
        if state == PROBE and self.state == SNAPSHOT:
            self.next = max(self.match + 1, self.pending + 1)
        elif state != SNAPSHOT:
            self.next = self.match + 1
        self.state = state
        self.paused = False
        self.pending = 0
        self.inflight = []

    def may_send(self) -> bool:
        if self.state == PROBE:
            return not self.paused
        return self.state == REPLICATE and len(self.inflight) < WINDOW

    def update(self, index: int) -> bool:
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        self.paused = False
        return True


class Node:
    """The state machine. step() and the other methods return the messages to be sent once `dirty` state is saved."""

    def __init__(self, me: int, n: int, rand: random.Random) -> None:
        self.me = me
        self.n = n
        self.rand = rand
        self.term = 0
        self.vote = NOBODY
        self.base = 0
        self.base_term = 0
        self.log: list[LogEntry] = []
        self.commit = 0
        self.role = FOLLOWER
        self.lead = NOBODY
        self.votes: dict[int, bool] = {}
        self.progress: dict[int, Progress] = {}
        self.elapsed = 0
        self.timeout = 0
        self.dirty = False
        self.snapshot: bytes = b""
        self.snapshot_is_new = False  # to be saved
        self.restored = False  # deliver the snapshot
        self.out: list[Msg] = []
        self._reset_timeout()

    # ---- the log ----

    @property
    def last(self) -> int:
        return self.base + len(self.log)

    def term_at(self, index: int) -> int:
        """-1 where nothing is known."""
        if index == self.base:
            return self.base_term
        if not self.base < index <= self.last:
            return -1
        return self.log[index - self.base - 1].term

    def conflict_by_term(self, index: int, term: int) -> tuple[int, int]:
        """The last index, from this one down, at which the term is not higher."""
        index = min(index, self.last)
        while index > self.base and self.term_at(index) > term:
            index -= 1
        return index, self.term_at(index)

    # ---- roles ----

    def _reset_timeout(self) -> None:
        self.elapsed = 0
        self.timeout = self.rand.randint(35, 75)

    def _become_follower(self, term: int, lead: int) -> None:
        if term != self.term:
            self.term = term
            self.vote = NOBODY
            self.dirty = True
        self.role = FOLLOWER
        self.lead = lead

    def _campaign(self) -> None:
        self.term += 1
        self.vote = self.me
        self.dirty = True
        self.role = CANDIDATE
        self.lead = NOBODY
        self.votes = {self.me: True}
        self._reset_timeout()
        for to in range(self.n):
            if to != self.me:
                self._send("vote", to, index=self.last, log_term=self.term_at(self.last))
        self._tally()

    def _tally(self) -> None:
        if 2 * sum(self.votes.values()) > self.n:
            self.role = LEADER
            self.lead = self.me
            self.elapsed = 0
            self.progress = {to: Progress(self.last + 1) for to in range(self.n) if to != self.me}
            for to in self.progress:
                self._append_to(to, empty=True)
        elif 2 * sum(not granted for granted in self.votes.values()) >= self.n:
            self._become_follower(self.term, NOBODY)

    # ---- time ----

    def tick(self) -> list[Msg]:
        self.elapsed += 1
        if self.role == LEADER:
            if self.elapsed >= BEAT_TICKS:
                self.elapsed = 0
                for to, pr in self.progress.items():
                    if pr.state == SNAPSHOT:
                        pr.patience -= 1
                        if pr.patience <= 0:
                            pr.pending = 0
                            pr.become(PROBE)
                    self._send("beat", to, commit=min(pr.match, self.commit))
        elif self.elapsed >= self.timeout:
            self._campaign()
        return self._received()

    # ---- messages ----

    def _send(self, kind: str, to: int, **fields: Any) -> None:
        self.out.append(Msg(kind, to, self.me, self.term, **fields))

    def _received(self) -> list[Msg]:
        out, self.out = self.out, []
        return out

    def propose(self, command: Any) -> tuple[int, int, bool]:
        if self.role != LEADER:
            return -1, self.term, False
        self.log.append(LogEntry(self.term, command))
        self.dirty = True
        return self.last, self.term, True

    def flush(self) -> list[Msg]:
        """Send what was proposed."""
        if self.role == LEADER:
            self._maybe_commit()  # alone, that is all it takes
            for to in self.progress:
                while self._append_to(to, empty=False):
                    pass
        return self._received()

    def step(self, m: Msg) -> list[Msg]:
        if m.kind in ("unreachable", "snap_failed", "snap_sent"):
            self._report(m)
            return self._received()
        if m.term > self.term:
            self._become_follower(m.term, m.frm if m.kind in ("app", "beat", "snap") else NOBODY)
        if m.term < self.term:
            if m.kind == "vote":
                self._send("vote_resp", m.frm, reject=True)
            elif m.kind in ("app", "beat", "snap"):
                self._send("stale", m.frm)
            return self._received()
        if m.kind == "vote":
            self._on_vote(m)
        elif m.kind == "vote_resp":
            if self.role == CANDIDATE:
                self.votes.setdefault(m.frm, not m.reject)
                self._tally()
        elif m.kind in ("app", "beat", "snap"):
            self._become_follower(self.term, m.frm)
            self._reset_timeout()
            getattr(self, "_on_" + m.kind)(m)
        elif self.role == LEADER and m.kind in ("app_resp", "beat_resp"):
            getattr(self, "_on_" + m.kind)(m, self.progress[m.frm])
        return self._received()

    def _on_vote(self, m: Msg) -> None:
        can = self.vote == m.frm or (self.vote == NOBODY and self.lead == NOBODY)
        good = (m.log_term, m.index) >= (self.term_at(self.last), self.last)
        if can and good:
            if self.vote == NOBODY:
                self.vote = m.frm
                self.dirty = True
            self._reset_timeout()
        self._send("vote_resp", m.frm, reject=not (can and good))

    # A follower.

    def _commit_to(self, index: int) -> None:
        self.commit = max(self.commit, min(index, self.last))

    def _on_beat(self, m: Msg) -> None:
        self._commit_to(m.commit)
        self._send("beat_resp", m.frm)

    def _on_app(self, m: Msg) -> None:
        prev, entries = m.index, m.entries
        if prev < self.commit:
            entries = entries[self.commit - prev :]
            prev = self.commit
        elif self.term_at(prev) != m.log_term:
            hint, hint_term = self.conflict_by_term(m.index, m.log_term)
            self._send("app_resp", m.frm, index=m.index, reject=True, hint_index=hint, hint_term=hint_term)
            return
        for at, entry in enumerate(entries, prev + 1):
            if self.term_at(at) != entry.term:
                assert at > self.commit
                self.log = self.log[: at - self.base - 1] + entries[at - prev - 1 :]
                self.dirty = True
                break
        self._commit_to(min(m.commit, prev + len(entries)))
        self._send("app_resp", m.frm, index=prev + len(entries))

    def _on_snap(self, m: Msg) -> None:
        if m.index > self.commit:
            if self.term_at(m.index) == m.log_term:
                self._commit_to(m.index)  # we have all of it
            else:
                self.log = []
                self.base, self.base_term = m.index, m.log_term
                self.commit = m.index
                self.snapshot = m.data
                self.snapshot_is_new = self.restored = self.dirty = True
        self._send("app_resp", m.frm, index=max(m.index, self.commit))

    # A leader.

    def _append_to(self, to: int, *, empty: bool) -> bool:
        pr = self.progress[to]
        if not pr.may_send() or (pr.next > self.last and not empty):
            return False
        if pr.next <= self.base:
            pr.become(SNAPSHOT)
            pr.pending = self.base
            pr.patience = 4
            self._send("snap", to, index=self.base, log_term=self.base_term, data=self.snapshot)
            return False
        entries = self.log[pr.next - self.base - 1 :]
        prev = pr.next - 1
        self._send("app", to, index=prev, log_term=self.term_at(prev), entries=entries, commit=self.commit)
        if pr.state == PROBE:
            pr.paused = True
        elif entries:
            pr.next = self.last + 1
            pr.inflight.append(self.last)
        return bool(entries)

    def _on_app_resp(self, m: Msg, pr: Progress) -> None:
        if m.reject:
            hint = self.conflict_by_term(m.hint_index, m.hint_term)[0]
            if pr.state == REPLICATE:
                if m.index <= pr.match:
                    return
                pr.become(PROBE)
            elif pr.state == PROBE and pr.next - 1 == m.index:
                pr.next = max(min(m.index, hint + 1), pr.match + 1)
                pr.paused = False
            else:
                return
            self._append_to(m.frm, empty=True)
            return
        if pr.update(m.index) or (pr.state == PROBE and m.index == pr.match):
            if pr.state == PROBE or (pr.state == SNAPSHOT and pr.match >= pr.pending):
                pr.become(REPLICATE)
            elif pr.state == REPLICATE:
                pr.inflight = [last for last in pr.inflight if last > m.index]
            if self._maybe_commit():
                for to in self.progress:
                    self._append_to(to, empty=True)
        while self._append_to(m.frm, empty=False):
            pass

    def _on_beat_resp(self, m: Msg, pr: Progress) -> None:
        pr.paused = False
        if pr.state == REPLICATE and len(pr.inflight) >= WINDOW:
            pr.inflight.pop(0)
        if pr.match < self.last:
            self._append_to(m.frm, empty=True)

    def _report(self, m: Msg) -> None:
        if self.role != LEADER or m.term != self.term:
            return
        pr = self.progress[m.frm]
        if m.kind == "unreachable":
            if pr.state == REPLICATE:
                pr.become(PROBE)
        elif pr.state == SNAPSHOT and pr.pending == m.index:
            if m.kind == "snap_failed":
                pr.pending = 0
            pr.become(PROBE)
            pr.paused = True

    def _maybe_commit(self) -> bool:
        match = sorted([pr.match for pr in self.progress.values()] + [self.last], reverse=True)[self.n // 2]
        if match > self.commit and self.term_at(match) == self.term:
            self.commit = match
            return True
        return False

    # ---- the service ----

    def compact(self, index: int, snapshot: bytes) -> None:
        if index <= self.base:
            return
        term = self.term_at(index)
        self.log = self.log[index - self.base :]
        self.base, self.base_term = index, term
        self.snapshot = snapshot
        self.snapshot_is_new = self.dirty = True


class Raft:
    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.dead = threading.Event()
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.outbox: queue.Queue[Any] = queue.Queue()  # for the service
        self.node = Node(me, len(peers), random.Random(random.getrandbits(60)))
        self._read_persist(persister.read_raft_state())
        self.handed = self.node.base
        threading.Thread(target=self._own, daemon=True).start()
        threading.Thread(target=self._apply, daemon=True).start()

    def _read_persist(self, data: bytes) -> None:
        if not data:
            return
        r = labgob.Decoder(data)
        node = self.node
        node.term = r.decode(int)
        node.vote = r.decode(int)
        node.base = r.decode(int)
        node.base_term = r.decode(int)
        node.log = r.decode(list[LogEntry])
        node.snapshot = self.persister.read_snapshot()
        node.commit = node.base

    # ---- the owner ----

    def _own(self) -> None:
        node = self.node
        next_tick = time.monotonic() + TICK_S
        flush_at = 0.0
        while True:
            until = min(next_tick, flush_at) if flush_at else next_tick
            events = []
            try:
                events.append(self.inbox.get(timeout=max(0.0, until - time.monotonic())))
                while True:
                    events.append(self.inbox.get_nowait())
            except queue.Empty:
                pass
            if self.dead.is_set():
                return
            out: list[Msg] = []
            answers = []
            for what, arg, slot in events:
                if what == "step":
                    for m in node.step(arg):
                        if slot is not None and m.to == arg.frm and m.kind in ANSWERS:
                            answers.append((slot, m))
                        else:
                            out.append(m)
                elif what == "start":
                    answer = node.propose(arg)
                    if answer[2] and not flush_at:
                        flush_at = time.monotonic() + GATHER_S
                    answers.append((slot, answer))
                elif what == "state":
                    answers.append((slot, (node.term, node.role == LEADER)))
                elif what == "snapshot":
                    node.compact(*arg)
                    answers.append((slot, None))
            now = time.monotonic()
            if flush_at and now >= flush_at:
                flush_at = 0.0
                out += node.flush()
            if now >= next_tick:
                next_tick = now + TICK_S
                out += node.tick()
            self._save()
            for slot, answer in answers:
                slot.put(answer)
            self._hand_up()
            for m in out:
                threading.Thread(target=self._post, args=(m,), daemon=True).start()

    def _save(self) -> None:
        node = self.node
        if not node.dirty:
            return
        w = labgob.Encoder()
        w.encode(node.term)
        w.encode(node.vote)
        w.encode(node.base)
        w.encode(node.base_term)
        w.encode(node.log)
        self.persister.save(w.bytes(), node.snapshot if node.snapshot_is_new else None)
        node.dirty = node.snapshot_is_new = False

    def _hand_up(self) -> None:
        node = self.node
        if node.restored:
            node.restored = False
            if node.base > self.handed:
                self.outbox.put(
                    ApplyMsg(
                        snapshot_valid=True,
                        snapshot=node.snapshot,
                        snapshot_term=node.base_term,
                        snapshot_index=node.base,
                    )
                )
                self.handed = node.base
        while self.handed < node.commit:
            self.handed += 1
            command = node.log[self.handed - node.base - 1].command
            self.outbox.put(ApplyMsg(command_valid=True, command=command, command_index=self.handed))

    def _apply(self) -> None:
        while True:
            msg = self.outbox.get()
            if msg is None or self.dead.is_set():
                return
            self.apply_ch.put(msg)

    # ---- the post ----

    def _post(self, m: Msg) -> None:
        """In a separate thread: send one message and feed back its reply, or report that it may be lost."""
        if self.dead.is_set():
            return
        end = self.peers[m.to]
        back = Msg("", self.me, m.to, index=m.index)
        if m.kind == "vote":
            reply = end.call("Raft.request_vote", RequestVoteArgs(m.term, self.me, m.index, m.log_term))
            if reply is None:
                return
            back.kind, back.reject = "vote_resp", not reply.vote_granted
        elif m.kind == "app":
            reply = end.call(
                "Raft.append_entries", AppendEntriesArgs(m.term, self.me, m.index, m.log_term, m.entries, m.commit)
            )
            if reply is None:
                self._drop_in(Msg("unreachable", self.me, m.to, m.term))
                return
            back.kind, back.reject = "app_resp", not reply.success
            back.hint_index, back.hint_term = reply.hint_index, reply.hint_term
            if reply.success:
                back.index = max(m.index + len(m.entries), reply.match)
        elif m.kind == "beat":
            reply = end.call("Raft.append_entries", AppendEntriesArgs(m.term, self.me, 0, 0, [], m.commit, True))
            if reply is None:
                return
            back.kind = "beat_resp"
        else:
            reply = end.call("Raft.install_snapshot", InstallSnapshotArgs(m.term, self.me, m.index, m.log_term, m.data))
            if reply is None:
                self._drop_in(Msg("snap_failed", self.me, m.to, m.term, m.index))
                return
            back.kind = "app_resp"
        # It replies to a request of m.term; a higher term is all that counts of it.
        back.term = reply.term
        if reply.term != m.term:
            back.kind = "stale"
        self._drop_in(back)

    def _drop_in(self, m: Msg) -> None:
        self.inbox.put(("step", m, None))

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        m = Msg("vote", self.me, args.candidate_id, args.term, args.last_log_index, args.last_log_term)
        answer = self._ask("step", m, None)
        if answer is None:
            return RequestVoteReply(0, False)
        return RequestVoteReply(answer.term, not answer.reject)

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        m = Msg("beat" if args.heartbeat else "app", self.me, args.leader_id, args.term)
        m.index, m.log_term, m.entries = args.prev_log_index, args.prev_log_term, args.entries
        m.commit = args.leader_commit
        answer = self._ask("step", m, None)
        if answer is None:
            return AppendEntriesReply(0, False)
        if answer.kind != "app_resp":
            return AppendEntriesReply(answer.term, answer.kind == "beat_resp")
        return AppendEntriesReply(
            answer.term, not answer.reject, answer.hint_index, answer.hint_term, 0 if answer.reject else answer.index
        )

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        m = Msg("snap", self.me, args.leader_id, args.term, args.last_included_index, args.last_included_term)
        m.data = args.data
        answer = self._ask("step", m, None)
        return InstallSnapshotReply(0 if answer is None else answer.term)

    # ---- what the service calls ----

    def _ask(self, what: str, arg: Any, otherwise: Any) -> Any:
        slot: queue.Queue[Any] = queue.Queue(1)
        self.inbox.put((what, arg, slot))
        while not self.dead.is_set():
            try:
                return slot.get(timeout=0.5)
            except queue.Empty:
                pass
        return otherwise

    def start(self, command: Any) -> tuple[int, int, bool]:
        return self._ask("start", command, (-1, 0, False))

    def get_state(self) -> tuple[int, bool]:
        return self._ask("state", None, (0, False))

    def snapshot(self, index: int, snapshot: bytes) -> None:
        self._ask("snapshot", (index, snapshot), None)

    def kill(self) -> None:
        self.dead.set()
        self.inbox.put(("kill", None, None))
        self.outbox.put(None)
