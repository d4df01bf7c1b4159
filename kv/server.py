"""The key/value service on one server: a dictionary, and a Raft peer that agrees with the others on every change.

Promise: clients cannot tell the servers from one that does one thing at a time (linearizability, §8), through crashes,
cuts and repeated requests; each request takes effect once. Not promised: an answer while no majority can be reached.

How it runs. Every request, a get too, becomes an Op. Raft saves before start() returns, which takes a disk its time;
whatever comes meanwhile gathers in a batch, and one batch is one command of the log. So many clients share one save. A
handler waits until its batch, at the index that start() has told, was applied here, or until this server leads no
more. One thread applies what Raft has agreed on. self.mu guards all state, and nobody holds it while Raft saves.

Start at KVServer._execute(), then _apply().
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import labgob
from kv.messages import OK, WRONG_LEADER, GetArgs, GetReply, Op, PutAppendArgs, PutAppendReply
from labrpc import ClientEnd
from labsim import queue, threading, time
from raftapi import ApplyMsg, Persister

if TYPE_CHECKING:
    from raft.raft import Raft

# How often a handler that waits asks whether this server still leads, and how long it waits at most: a leader that is
# cut off does not notice by itself, and its client should try another server.
LOOK_S = 0.1
PATIENCE_S = 1.0


@dataclass(slots=True)
class Answered:
    """The latest request of one client that was applied, and its answer. Clients have one request at a time."""

    seq: int
    value: str


class Batch:
    """Requests that become one command of the log."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.in_term = 0  # of Raft it was put into the log; 0: not yet
        self.applied = threading.Event()  # or there is nothing to wait for: a look at the answers tells


class KVServer:
    """One server. `raft` is its peer, which hands to `apply_ch` what was agreed on.

    3B: when the persister's Raft state is larger than `max_raft_state` bytes, a snapshot shortens the log; None: never.
    """

    def __init__(
        self,
        servers: list[ClientEnd],
        me: int,
        raft: "Raft",
        apply_ch: queue.Queue[ApplyMsg],
        persister: Persister,
        max_raft_state: int | None,
    ) -> None:
        self.servers = servers
        self.me = me
        self.raft = raft
        self.apply_ch = apply_ch
        self.persister = persister
        self.max_raft_state = max_raft_state
        self.mu = threading.Lock()
        self.dead = threading.Event()

        # The replicated state: it changes by applying and in no other way, and so is the same on all servers.
        self.data: dict[str, str] = {}
        self.answered: dict[int, Answered] = {}  # by client
        self.last_applied = 0

        self.gathering = Batch()  # what comes now
        self.starting = threading.Lock()  # held by who has a batch put into the log: one at a time, in their order
        # By index: the batch whose handlers wait for what is applied there.
        self.waiting: dict[int, Batch] = {}

        snapshot = persister.read_snapshot()
        if snapshot:
            self._install(snapshot)
        threading.Thread(target=self._applier, daemon=True).start()

    # ---- What clerks call ----------------------------------------------------------------------------

    def get(self, args: GetArgs) -> GetReply:
        value = self._execute(Op(args.client_id, args.seq, "get", args.key))
        return GetReply(WRONG_LEADER) if value is None else GetReply(OK, value)

    def put_append(self, args: PutAppendArgs) -> PutAppendReply:
        value = self._execute(Op(args.client_id, args.seq, args.op, args.key, args.value))
        return PutAppendReply(WRONG_LEADER if value is None else OK)

    def kill(self) -> None:
        """Stop: all threads end. Its Raft peer is told by whoever made it."""
        self.dead.set()

    # ---- Agreement -----------------------------------------------------------------------------------

    def _execute(self, op: Op) -> str | None:
        """Have the Op agreed on and applied: its answer, or None if that may never happen, or not by us."""
        with self.mu:
            if self._is_answered(op):
                return self.answered[op.client_id].value
            batch = self.gathering
            batch.ops.append(op)
            is_first = len(batch.ops) == 1
        if is_first:
            self._start(batch)
        give_up_s = time.monotonic() + PATIENCE_S
        while not batch.applied.wait(LOOK_S):
            if self.dead.is_set() or time.monotonic() > give_up_s or self._is_lost(batch):
                break
        with self.mu:
            # Ours, or what another leader has put in its place?
            return self.answered[op.client_id].value if self._is_answered(op) else None

    def _start(self, batch: Batch) -> None:
        """Put a batch into the log. While another one is on its way there, this one goes on gathering."""
        with self.starting:
            with self.mu:
                self.gathering = Batch()
            index, term, leads = self.raft.start(labgob.encode(batch.ops))
            with self.mu:
                if not leads or index <= self.last_applied:
                    batch.applied.set()  # never, or already
                    return
                if index in self.waiting:
                    self.waiting[index].applied.set()  # from an earlier term of ours: it is not what will stand there
                batch.in_term = term
                self.waiting[index] = batch

    def _is_lost(self, batch: Batch) -> bool:
        with self.mu:
            in_term = batch.in_term
        return in_term != 0 and self.raft.get_state() != (in_term, True)

    def _is_answered(self, op: Op) -> bool:
        # Caller holds self.mu.
        known = self.answered.get(op.client_id)
        return known is not None and known.seq >= op.seq

    # ---- Applying ------------------------------------------------------------------------------------

    def _applier(self) -> None:
        """The one thread that changes the replicated state."""
        while not self.dead.is_set():
            try:
                msg = self.apply_ch.get(timeout=PATIENCE_S)
            except queue.Empty:
                continue  # perhaps killed
            with self.mu:
                if msg.snapshot_valid:
                    self._install(msg.snapshot)
                    self._applied_through(msg.snapshot_index)
                else:
                    for op in labgob.decode(msg.command, list[Op]):
                        self._apply(op)
                    self._applied_through(msg.command_index)
                    self._shorten_log()

    def _apply(self, op: Op) -> None:
        # Caller holds self.mu. A request that was applied already is answered as it was then (§8).
        if self._is_answered(op):
            return
        value = ""
        if op.op == "get":
            value = self.data.get(op.key, "")
        elif op.op == "put":
            self.data[op.key] = op.value
        else:
            self.data[op.key] = self.data.get(op.key, "") + op.value
        self.answered[op.client_id] = Answered(op.seq, value)

    def _applied_through(self, index: int) -> None:
        # Caller holds self.mu. A snapshot may stand for many indexes at once.
        for passed in [index] if index == self.last_applied + 1 else [i for i in self.waiting if i <= index]:
            if passed in self.waiting:
                self.waiting.pop(passed).applied.set()
        self.last_applied = index

    # ---- Snapshots (§7) ------------------------------------------------------------------------------

    def _shorten_log(self) -> None:
        # Caller holds self.mu, so the snapshot is of exactly last_applied. Raft only notes it and waits for nobody.
        if self.max_raft_state is not None and self.persister.raft_state_size() > self.max_raft_state:
            state = labgob.Encoder()
            state.encode(self.data)
            # Without the requests that were seen, one that comes again after a restart would be applied twice.
            state.encode(self.answered)
            self.raft.snapshot(self.last_applied, state.bytes())

    def _install(self, snapshot: bytes) -> None:
        # Caller holds self.mu, or is __init__. Raft never hands up one that is older than what was applied.
        state = labgob.Decoder(snapshot)
        self.data = state.decode(dict[str, str])
        self.answered = state.decode(dict[int, Answered])
