"""Bugs in the service (parts 3A and 3B): the reference's kv/server.py or kv/client.py with one bug each."""

from tests.mutants.tool.mutants import ServiceMutant

_GET = """        value = self._execute(Op(args.client_id, args.seq, "get", args.key))
        return GetReply(WRONG_LEADER) if value is None else GetReply(OK, value)
"""
_OURS = """            return self.answered[op.client_id].value if self._is_answered(op) else None
"""
_WAITS = """        while not batch.applied.wait(LOOK_S):
            if self.dead.is_set() or time.monotonic() > give_up_s or self._is_lost(batch):
                break
"""
_SEEN_ALREADY = """            if self._is_answered(op):
                return self.answered[op.client_id].value
"""
_APPLIED_ALREADY = """        if self._is_answered(op):
            return
"""
_NOTED = """        self.answered[op.client_id] = Answered(op.seq, value)
"""

MUTANTS = [
    ServiceMutant(
        "kv-reads-as-leader",
        "3a",
        "linearizability (§8)",
        "answers a read from local data if its peer believes it leads",
        (
            (
                _GET,
                """        with self.mu:
            if not self.raft.get_state()[1]:
                return GetReply(WRONG_LEADER)
            return GetReply(OK, self.data.get(args.key, ""))
""",
            ),
        ),
    ),
    ServiceMutant(
        "kv-reads-anywhere",
        "3a",
        "linearizability (§8)",
        "answers a read from local data even if it does not lead",
        (
            (
                _GET,
                """        with self.mu:
            return GetReply(OK, self.data.get(args.key, ""))
""",
            ),
        ),
    ),
    ServiceMutant(
        "kv-reads-applied-term",
        "3a",
        "linearizability (§8)",
        "answers a read from local data if it leads and has applied something since it started",
        (
            (
                _GET,
                """        with self.mu:
            if self.last_applied and self.raft.get_state()[1]:
                return GetReply(OK, self.data.get(args.key, ""))
        value = self._execute(Op(args.client_id, args.seq, "get", args.key))
        return GetReply(WRONG_LEADER) if value is None else GetReply(OK, value)
""",
            ),
        ),
    ),
    ServiceMutant(
        "kv-answer-before-commit",
        "3a",
        "a request is answered only after agreement (§8)",
        "answers a write as soon as start() has accepted it",
        (
            (
                "        value = self._execute(Op(args.client_id, args.seq, args.op, args.key, args.value))\n"
                "        return PutAppendReply(WRONG_LEADER if value is None else OK)\n",
                """        op = Op(args.client_id, args.seq, args.op, args.key, args.value)
        with self.mu:
            if self._is_answered(op):
                return PutAppendReply(OK)
        leads = self.raft.start(labgob.encode([op]))[2]
        return PutAppendReply(OK if leads else WRONG_LEADER)
""",
            ),
        ),
    ),
    ServiceMutant(
        "kv-answer-of-another",
        "3a",
        "a request is answered only after agreement (§8)",
        "answers a request when any request is applied at its index",
        (
            (
                _OURS,
                """            known = self.answered.get(op.client_id)
            is_ours = batch.in_term and batch.applied.is_set()
            return (known.value if known is not None else "") if is_ours else None
""",
            ),
        ),
    ),
    ServiceMutant(
        "kv-timeout-means-done",
        "3a",
        "a request is answered only after agreement (§8)",
        "answers OK when its wait times out",
        (
            (
                _OURS,
                """            if batch.in_term and not self._is_answered(op):
                return ""
"""
                + _OURS,
            ),
        ),
    ),
    ServiceMutant(
        "kv-applies-at-once",
        "3a",
        "only committed requests are applied",
        "applies a request on the leader as soon as start() has accepted it",
        (
            (
                "                self.waiting[index] = batch\n",
                """                self.waiting[index] = batch
                for op in batch.ops:
                    self._apply(op)
""",
            ),
        ),
    ),
    ServiceMutant(
        "kv-no-dedup",
        "3a",
        "a request takes effect once (§8)",
        "applies a request as often as it is in the log",
        ((_APPLIED_ALREADY, ""), (_SEEN_ALREADY, "")),
    ),
    ServiceMutant(
        "kv-dedup-in-handler-only",
        "3a",
        "a request takes effect once (§8)",
        "checks for duplicates when a request arrives, but not when it is applied",
        ((_APPLIED_ALREADY, ""),),
    ),
    ServiceMutant(
        "kv-dedup-latest-only",
        "3a",
        "a request takes effect once (§8)",
        "recognizes only a client's latest request as a duplicate, not an older one that arrives late",
        (
            (
                "        return known is not None and known.seq >= op.seq\n",
                "        return known is not None and known.seq == op.seq\n",
            ),
        ),
    ),
    ServiceMutant(
        "kv-dedup-one-client",
        "3a",
        "a request takes effect once (§8)",
        "remembers only one latest request for all clients",
        ((_NOTED, "        self.answered = {op.client_id: Answered(op.seq, value)}\n"),),
    ),
    ServiceMutant(
        "kv-dedup-on-leader-only",
        "3a",
        "the replicated state is the same everywhere (§8)",
        "remembers requests only while it leads",
        (
            (
                _NOTED,
                "        if self.raft.get_state()[1]:\n    " + _NOTED,
            ),
        ),
    ),
    ServiceMutant(
        "kv-dedup-by-number-alone",
        "3a",
        "a request takes effect once (§8)",
        "distinguishes requests only by their numbers: all clients have the same id",
        (),
        client_edits=(("self.client_id = random.getrandbits(62)", "self.client_id = 1"),),
    ),
    ServiceMutant(
        "kv-new-number-for-a-retry",
        "3a",
        "a request takes effect once (§8)",
        "gives a request a new number each time it is sent",
        (),
        client_edits=(
            (
                "                reply = self.servers[self.leader].call(method, args)\n",
                "                args.seq = self._next()\n"
                "                reply = self.servers[self.leader].call(method, args)\n",
            ),
        ),
    ),
    ServiceMutant(
        "kv-numbers-begin-anew",
        "3a",
        "a request takes effect once (§8)",
        "numbers its requests from 1 again when it tries another server",
        (),
        client_edits=(
            (
                "                self.leader = (self.leader + 1) % len(self.servers)\n",
                "                self.leader = (self.leader + 1) % len(self.servers)\n                self.seq = 0\n",
            ),
        ),
    ),
    ServiceMutant(
        "kv-any-reply-will-do",
        "3a",
        "a request is answered only after agreement (§8)",
        "treats a rejection as an answer",
        (),
        client_edits=(("if reply is not None and reply.err == OK:", "if reply is not None:"),),
    ),
    ServiceMutant(
        "kv-clerk-gives-up",
        "3a",
        "a clerk's call returns only when its operation is done",
        "returns after a few attempts, even if the operation is not done",
        (),
        client_edits=(
            ("        while True:\n", "        for _ in range(20):\n"),
            (
                "            time.sleep(PAUSE_S)\n",
                "            time.sleep(PAUSE_S)\n        return GetArgs(0, 0, '')\n",
            ),
            (
                '        return str(self._ask("KVServer.get", GetArgs(self.client_id, self._next(), key)).value)\n',
                '        reply = self._ask("KVServer.get", GetArgs(self.client_id, self._next(), key))\n'
                '        return str(getattr(reply, "value", ""))\n',
            ),
        ),
    ),
    ServiceMutant(
        "kv-waits-for-ever",
        "3a",
        "progress with a majority",
        "waits for its index without checking that it still leads",
        ((_WAITS, "        batch.applied.wait()\n"),),
    ),
    ServiceMutant(
        "kv-waits-with-the-lock",
        "3a",
        "a server applies entries while requests wait",
        "holds its lock while it waits for agreement",
        (
            (
                "        give_up_s = time.monotonic() + PATIENCE_S\n" + _WAITS + "        with self.mu:\n",
                """        with self.mu:
            while not batch.applied.wait(LOOK_S):
                if self._is_lost(batch):
                    break
        with self.mu:
""",
            ),
        ),
    ),
    ServiceMutant(
        "kv-append-replaces-nothing",
        "3a",
        "append adds to the existing value",
        "loses an append to a key that has no value yet",
        (
            (
                '            self.data[op.key] = self.data.get(op.key, "") + op.value\n',
                "            if op.key in self.data:\n                self.data[op.key] += op.value\n",
            ),
        ),
    ),
    ServiceMutant(
        "kv-dedup-not-in-snapshot",
        "3b",
        "a snapshot includes the table of seen requests (§8)",
        "snapshots its data without the table of requests",
        (("            state.encode(self.answered)\n", "            state.encode({})\n"),),
    ),
    ServiceMutant(
        "kv-dedup-not-installed",
        "3b",
        "a snapshot includes the table of seen requests (§8)",
        "keeps its own table of requests when it installs a snapshot",
        (
            (
                "        self.answered = state.decode(dict[int, Answered])\n",
                "        if not self.last_applied:\n            self.answered = state.decode(dict[int, Answered])\n",
            ),
        ),
    ),
    ServiceMutant(
        "kv-never-snapshots",
        "3b",
        "the log stays short (§7)",
        "never takes a snapshot",
        (("self.persister.raft_state_size() > self.max_raft_state", "self.max_raft_state < 0"),),
    ),
    ServiceMutant(
        "kv-snapshots-unasked",
        "3b",
        "no snapshots without max_raft_state",
        "takes snapshots even without max_raft_state",
        (
            (
                "if self.max_raft_state is not None and self.persister.raft_state_size() > self.max_raft_state:",
                "if self.persister.raft_state_size() > (self.max_raft_state or 1000):",
            ),
        ),
    ),
    ServiceMutant(
        "kv-snapshot-not-read",
        "3b",
        "a restarted service restores its snapshot (§7)",
        "does not read the snapshot on its disk",
        (("        if snapshot:\n            self._install(snapshot)\n", ""),),
    ),
    ServiceMutant(
        "kv-snapshot-not-installed",
        "3b",
        "a snapshot replaces the state (§7)",
        "ignores a snapshot that its peer delivers",
        (
            (
                "                    self._install(msg.snapshot)\n                    self._applied_through",
                "                    self._applied_through",
            ),
        ),
    ),
    ServiceMutant(
        "kv-snapshot-of-the-next",
        "3b",
        "a snapshot has the index of the last applied entry (§7)",
        "reports an index that is one too high for its snapshot",
        (
            (
                "self.raft.snapshot(self.last_applied, state.bytes())",
                "self.raft.snapshot(self.last_applied + 1, state.bytes())",
            ),
        ),
    ),
    ServiceMutant(
        "kv-snapshot-has-history",
        "3b",
        "a snapshot holds only the current state (§7)",
        "keeps all requests it has ever seen in its snapshots",
        (
            (
                "            state.encode(self.answered)\n",
                "            state.encode(self.answered)\n            state.encode(self.history)\n",
            ),
            (_NOTED, _NOTED + "        self.history.append(f'{op.client_id} {op.seq}')\n"),
            (
                "        self.last_applied = 0\n",
                "        self.last_applied = 0\n        self.history: list[str] = []\n",
            ),
            (
                "        self.answered = state.decode(dict[int, Answered])\n",
                "        self.answered = state.decode(dict[int, Answered])\n"
                "        self.history = state.decode(list[str])\n",
            ),
        ),
    ),
]
