"""A thread per request, which proposes it again in every term until it is applied or leadership is lost."""

import labgob
from kv.messages import OK, WRONG_LEADER, GetArgs, GetReply, Op, PutAppendArgs, PutAppendReply
from labsim import queue, threading, time


class KVServer:
    def __init__(self, servers, me, raft, apply_ch, persister, max_raft_state):
        self.raft, self.apply_ch, self.persister, self.max_raft_state = raft, apply_ch, persister, max_raft_state
        self.mu = threading.Lock()
        self.news = threading.Condition(self.mu)
        self.dead = threading.Event()
        self.data = {}
        self.seen = {}
        self._load(persister.read_snapshot())
        threading.Thread(target=self._applier, daemon=True).start()

    def get(self, args: GetArgs) -> GetReply:
        value = self._have_done(Op(args.client_id, args.seq, "get", args.key))
        return GetReply(WRONG_LEADER) if value is None else GetReply(OK, value)

    def put_append(self, args: PutAppendArgs) -> PutAppendReply:
        value = self._have_done(Op(args.client_id, args.seq, args.op, args.key, args.value))
        return PutAppendReply(WRONG_LEADER if value is None else OK)

    def _have_done(self, op):
        answer = queue.Queue(1)
        threading.Thread(target=self._propose, args=(op, answer), daemon=True).start()
        return answer.get()

    def _propose(self, op, answer):
        proposed, until = 0, time.monotonic() + 1.5
        while not self.dead.is_set() and time.monotonic() < until:
            term, leads = self.raft.get_state()
            if not leads:
                break
            with self.mu:
                if op.client_id in self.seen and self.seen[op.client_id][0] >= op.seq:
                    answer.put(self.seen[op.client_id][1])
                    return
            if term != proposed:
                proposed = term
                self.raft.start(labgob.encode(op))
            with self.mu:
                self.news.wait(0.05)
        answer.put(None)

    def kill(self):
        self.dead.set()

    def _applier(self):
        while not self.dead.is_set():
            try:
                msg = self.apply_ch.get(timeout=0.25)
            except queue.Empty:
                continue
            with self.mu:
                if msg.snapshot_valid:
                    self._load(msg.snapshot)
                else:
                    self._apply(labgob.decode(msg.command, Op))
                snapshot = None
                grown = self.max_raft_state and self.persister.raft_state_size() > self.max_raft_state
                if msg.command_valid and grown:
                    snapshot = labgob.encode([self.data, self.seen])
                self.news.notify_all()
            if snapshot is not None:
                self.raft.snapshot(msg.command_index, snapshot)

    def _apply(self, op):
        if op.client_id in self.seen and self.seen[op.client_id][0] >= op.seq:
            return
        if op.op == "get":
            self.seen[op.client_id] = [op.seq, self.data.get(op.key, "")]
        else:
            self.data[op.key] = (self.data.get(op.key, "") if op.op == "append" else "") + op.value
            self.seen[op.client_id] = [op.seq, ""]

    def _load(self, snapshot):
        if snapshot:
            self.data, self.seen = labgob.decode(snapshot, list)
