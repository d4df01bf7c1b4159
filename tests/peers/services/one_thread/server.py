"""One thread owns the state, and every input is an event in its queue; there is no lock."""

import labgob
from kv.messages import OK, WRONG_LEADER, GetArgs, GetReply, Op, PutAppendArgs, PutAppendReply
from labsim import queue, threading, time


class KVServer:
    def __init__(self, servers, me, raft, apply_ch, persister, max_raft_state):
        self.raft, self.apply_ch, self.persister, self.max_raft_state = raft, apply_ch, persister, max_raft_state
        self.inbox = queue.Queue()
        self.dead = False
        self.data, self.seen = {}, {}
        self.waiting = {}  # by index: term, request, slot, and until when
        self._load(persister.read_snapshot())
        for work in (self._own, self._carry, self._tick):
            threading.Thread(target=work, daemon=True).start()

    def get(self, args: GetArgs) -> GetReply:
        value = self._ask(Op(args.client_id, args.seq, "get", args.key))
        return GetReply(WRONG_LEADER) if value is None else GetReply(OK, value)

    def put_append(self, args: PutAppendArgs) -> PutAppendReply:
        value = self._ask(Op(args.client_id, args.seq, args.op, args.key, args.value))
        return PutAppendReply(WRONG_LEADER if value is None else OK)

    def _ask(self, op):
        slot = queue.Queue(1)
        self.inbox.put((self._on_request, (op, slot)))
        return slot.get()

    def kill(self):
        self.dead = True
        self.inbox.put((None, ()))

    def _carry(self):
        while not self.dead:
            try:
                self.inbox.put((self._on_message, (self.apply_ch.get(timeout=0.5),)))
            except queue.Empty:
                continue

    def _tick(self):
        while not self.dead:
            time.sleep(0.1)
            self.inbox.put((self._on_tick, ()))

    def _own(self):
        while True:
            handle, args = self.inbox.get()
            if handle is None:
                for _, _, slot, _ in self.waiting.values():
                    slot.put(None)
                return
            handle(*args)

    def _on_request(self, op, slot):
        seq, value = self.seen.get(op.client_id, (0, ""))
        if seq >= op.seq:
            slot.put(value)
            return
        index, term, leads = self.raft.start(labgob.encode(op))
        if not leads:
            slot.put(None)
            return
        self._give_up(index)
        self.waiting[index] = (term, op, slot, time.monotonic() + 1)

    def _give_up(self, index):
        if index in self.waiting:
            self.waiting.pop(index)[2].put(None)

    def _on_tick(self):
        term, leads = self.raft.get_state()
        for index, (of_term, _, _, until) in list(self.waiting.items()):
            if not leads or of_term != term or time.monotonic() > until:
                self._give_up(index)

    def _on_message(self, msg):
        if msg.snapshot_valid:
            self._load(msg.snapshot)
            for index in [index for index in self.waiting if index <= msg.snapshot_index]:
                self._give_up(index)
            return
        op = labgob.decode(msg.command, Op)
        if self.seen.get(op.client_id, (0, ""))[0] < op.seq:
            if op.op != "get":
                self.data[op.key] = (self.data.get(op.key, "") if op.op == "append" else "") + op.value
            self.seen[op.client_id] = (op.seq, self.data.get(op.key, "") if op.op == "get" else "")
        if msg.command_index in self.waiting:
            _, asked, slot, _ = self.waiting.pop(msg.command_index)
            ours = (asked.client_id, asked.seq) == (op.client_id, op.seq)
            slot.put(self.seen[op.client_id][1] if ours else None)
        if self.max_raft_state and self.persister.raft_state_size() > self.max_raft_state:
            state = labgob.Encoder()
            state.encode(self.data)
            state.encode(self.seen)
            self.raft.snapshot(msg.command_index, state.bytes())

    def _load(self, snapshot):
        if snapshot:
            state = labgob.Decoder(snapshot)
            self.data, self.seen = state.decode(dict[str, str]), state.decode(dict[int, tuple[int, str]])
