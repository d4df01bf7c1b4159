"""Batches: requests of the same few milliseconds are one command of the log, in order of arrival."""

import labgob
from kv.messages import OK, WRONG_LEADER, GetArgs, GetReply, Op, PutAppendArgs, PutAppendReply
from labsim import queue, threading, time

GATHER_S = 0.003


class KVServer:
    def __init__(self, servers, me, raft, apply_ch, persister, max_raft_state):
        self.raft, self.apply_ch, self.persister, self.max_raft_state = raft, apply_ch, persister, max_raft_state
        self.mu = threading.Lock()
        self.dead = threading.Event()
        self.data, self.seen = {}, {}
        self.gathered = []  # requests for the next batch, each with its event
        self.gathering = False
        self.woken = {}  # by request: events of the handlers that wait for it
        self._load(persister.read_snapshot())
        threading.Thread(target=self._applier, daemon=True).start()

    def get(self, args: GetArgs) -> GetReply:
        value = self._do(Op(args.client_id, args.seq, "get", args.key))
        return GetReply(WRONG_LEADER) if value is None else GetReply(OK, value)

    def put_append(self, args: PutAppendArgs) -> PutAppendReply:
        value = self._do(Op(args.client_id, args.seq, args.op, args.key, args.value))
        return PutAppendReply(WRONG_LEADER if value is None else OK)

    def kill(self):
        self.dead.set()

    def _do(self, op):
        if not self.raft.get_state()[1]:
            return None
        done = threading.Event()
        with self.mu:
            if self._is_done(op):
                return self.seen[op.client_id][1]
            self.gathered.append((op, done))
            if not self.gathering:
                self.gathering = True
                threading.Thread(target=self._send_batch, daemon=True).start()
        for _ in range(20):
            done.wait(0.05)
            with self.mu:
                if self._is_done(op):
                    return self.seen[op.client_id][1]
            if self.dead.is_set() or not self.raft.get_state()[1]:
                break
        return None

    def _send_batch(self):
        time.sleep(GATHER_S)
        with self.mu:
            batch, self.gathered, self.gathering = self.gathered, [], False
            ops = [op for op, _ in batch]
            self.raft.start(labgob.encode(ops))
            for op, done in batch:
                self.woken.setdefault((op.client_id, op.seq), []).append(done)

    def _is_done(self, op):
        return op.client_id in self.seen and self.seen[op.client_id][0] >= op.seq

    def _applier(self):
        while not self.dead.is_set():
            try:
                msg = self.apply_ch.get(timeout=0.5)
            except queue.Empty:
                continue
            with self.mu:
                if msg.snapshot_valid:
                    self._load(msg.snapshot)
                    continue
                for op in labgob.decode(msg.command, list[Op]):
                    self._apply(op)
                if self.max_raft_state and self.persister.raft_state_size() > self.max_raft_state:
                    self.raft.snapshot(msg.command_index, labgob.encode([self.data, self.seen]))

    def _apply(self, op):
        if not self._is_done(op):
            if op.op != "get":
                self.data[op.key] = (self.data.get(op.key, "") if op.op == "append" else "") + op.value
            self.seen[op.client_id] = [op.seq, self.data.get(op.key, "") if op.op == "get" else ""]
        for done in self.woken.pop((op.client_id, op.seq), ()):
            done.set()

    def _load(self, snapshot):
        if snapshot:
            self.data, self.seen = labgob.decode(snapshot, list)
