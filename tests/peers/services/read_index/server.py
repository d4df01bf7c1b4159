"""Read index: the leader confirms with a majority that it still leads, and reads without the log (§8)."""

from dataclasses import dataclass

import labgob
from kv.messages import OK, WRONG_LEADER, GetArgs, GetReply, Op, PutAppendArgs, PutAppendReply
from labsim import queue, threading, time


@dataclass
class TermArgs:
    term: int


@dataclass
class TermReply:
    term: int


class KVServer:
    def __init__(self, servers, me, raft, apply_ch, persister, max_raft_state):
        self.servers, self.me, self.raft = servers, me, raft
        self.apply_ch, self.persister, self.max_raft_state = apply_ch, persister, max_raft_state
        self.changed = threading.Condition()
        self.dead = False
        self.data, self.seen = {}, {}
        self.applied_term = 0  # a command that this server started in that term was applied
        self.tried_term = 0
        self._load(persister.read_snapshot())
        threading.Thread(target=self._applier, daemon=True).start()

    def get(self, args: GetArgs) -> GetReply:
        term, leads = self.raft.get_state()
        if not leads or not self._has_all_of_earlier_terms(term) or not self._still_leads(term):
            return GetReply(WRONG_LEADER)
        with self.changed:
            return GetReply(OK, self.data.get(args.key, ""))

    def _has_all_of_earlier_terms(self, term):
        """Once a command of its own term is applied, all earlier committed commands are."""
        with self.changed:
            if self.applied_term < term and self.tried_term < term:
                self.tried_term = term
                self.raft.start(labgob.encode(Op(-1, term, "nothing", str(self.me))))
            return self.changed.wait_for(lambda: self.applied_term >= term or self.dead, 0.5) and not self.dead

    def _still_leads(self, term):
        """A later leader had a majority in a later term, and so at least one of this majority."""
        agree = [self.me]

        def ask(i):
            reply = self.servers[i].call("KVServer.term", TermArgs(term))
            with self.changed:
                if reply is not None and reply.term <= term:
                    agree.append(i)
                    self.changed.notify_all()

        for i in range(len(self.servers)):
            if i != self.me:
                threading.Thread(target=ask, args=(i,), daemon=True).start()
        with self.changed:
            enough = self.changed.wait_for(lambda: 2 * len(agree) > len(self.servers) or self.dead, 0.3)
        return enough and not self.dead and self.raft.get_state() == (term, True)

    def term(self, args: TermArgs) -> TermReply:
        return TermReply(self.raft.get_state()[0])

    def put_append(self, args: PutAppendArgs) -> PutAppendReply:
        op = Op(args.client_id, args.seq, args.op, args.key, args.value)
        with self.changed:
            if self.seen.get(op.client_id, 0) >= op.seq:
                return PutAppendReply(OK)
        _, term, leads = self.raft.start(labgob.encode(op))
        if not leads:
            return PutAppendReply(WRONG_LEADER)
        until = time.monotonic() + 1
        with self.changed:
            while self.seen.get(op.client_id, 0) < op.seq:
                if self.dead or time.monotonic() > until or self.raft.get_state() != (term, True):
                    return PutAppendReply(WRONG_LEADER)
                self.changed.wait(0.05)
        return PutAppendReply(OK)

    def kill(self):
        self.dead = True

    def _applier(self):
        while not self.dead:
            try:
                msg = self.apply_ch.get(timeout=1)
            except queue.Empty:
                continue
            with self.changed:
                if msg.snapshot_valid:
                    self._load(msg.snapshot)
                else:
                    self._apply(labgob.decode(msg.command, Op))
                    if self.max_raft_state and self.persister.raft_state_size() > self.max_raft_state:
                        state = labgob.Encoder()
                        state.encode(self.data)
                        state.encode(self.seen)
                        self.raft.snapshot(msg.command_index, state.bytes())
                self.changed.notify_all()

    def _apply(self, op):
        if op.op == "nothing":
            if op.key == str(self.me):
                self.applied_term = max(self.applied_term, op.seq)
        elif self.seen.get(op.client_id, 0) < op.seq:
            self.seen[op.client_id] = op.seq
            self.data[op.key] = (self.data.get(op.key, "") if op.op == "append" else "") + op.value

    def _load(self, snapshot):
        if snapshot:
            state = labgob.Decoder(snapshot)
            self.data, self.seen = state.decode(dict[str, str]), state.decode(dict[int, int])
