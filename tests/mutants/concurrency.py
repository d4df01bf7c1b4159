"""Bugs in threads and costs: locks held too long; threads that spin, leak or die; too many messages or bytes."""

from tests.mutants.tool.mutants import Mutant

MUTANTS = [
    Mutant(
        "rpc-under-lock",
        "2a",
        "no thread waits for a peer while holding the lock",
        "holds its lock during AppendEntries and InstallSnapshot calls",
        (
            (
                "            if isinstance(args, AppendEntriesArgs):\n"
                '                reply = self.peers[peer].call("Raft.append_entries", args)\n'
                "            else:\n"
                '                reply = self.peers[peer].call("Raft.install_snapshot", args)\n',
                "                if isinstance(args, AppendEntriesArgs):\n"
                '                    reply = self.peers[peer].call("Raft.append_entries", args)\n'
                "                else:\n"
                '                    reply = self.peers[peer].call("Raft.install_snapshot", args)\n',
            ),
        ),
        go="A",
    ),
    Mutant(
        "vote-rpc-under-lock",
        "2a",
        "no thread waits for a peer while holding the lock",
        "holds its lock during RequestVote calls",
        (
            (
                "        reply: RequestVoteReply | None = self.peers",
                "            reply: RequestVoteReply | None = self.peers",
            ),
        ),
    ),
    Mutant(
        "applych-under-lock",
        "2d",
        "no thread waits for the service while it holds the lock",
        "holds its lock while it waits for room in apply_ch",
        (
            (
                "self.apply_ch.put(msg, timeout=HEARTBEAT_S)",
                "with self.mu:\n                        self.apply_ch.put(msg)",
            ),
        ),
        go="R",
    ),
    Mutant(
        "slow-backup",
        "2b",
        "next_index goes back a whole term per rejection (§5.3)",
        "moves next_index back by one per rejection",
        (
            ("next_index = reply.conflict_index\n", "next_index = args.prev_log_index\n"),
            ("if reply.conflict_term > 0:", "if False:"),
        ),
        go="S",
    ),
    Mutant(
        "rpc-flood",
        "2b",
        "an idle leader sends a few heartbeats a second (§5.2)",
        "sends 200 heartbeats a second",
        (
            (
                "self._replicate(heartbeat=True)\n                return HEARTBEAT_S",
                "self._replicate(heartbeat=True)\n                return 0.005",
            ),
            ("long_ago = time.monotonic() - HEARTBEAT_S / 2", "long_ago = time.monotonic()"),
        ),
        go="A",
    ),
    Mutant(
        "resend-acked-log",
        "2b",
        "a follower is sent only what it lacks (§5.3)",
        "sends its whole log every time",
        (
            ("entries = self.log[prev + 1 - base :]", "prev, entries = base, self.log[1:]"),
            ("if args.prev_log_index != self.next_index[peer] - 1:", "if False:"),
        ),
        go="A",
    ),
    Mutant(
        "busy-spin",
        "2a",
        "a thread with nothing to do waits",
        "polls for entries to apply, and yields but never sleeps",
        (
            (
                "self.committed.wait()",
                "self.mu.release()\n                time.sleep(0)\n                self.mu.acquire()",
            ),
        ),
        go="S",
    ),
    Mutant(
        "spin-without-end",
        "2a",
        "a thread with nothing to do waits",
        "polls for entries to apply in a loop that never yields",
        (("self.committed.wait()", "self.mu.release()\n                self.mu.acquire()"),),
    ),
    Mutant(
        "lost-wakeup",
        "2b",
        "a thread that waits for a change is notified",
        "commits without waking the applier thread",
        (("self.commit_index = index\n            self.committed.notify()", "self.commit_index = index"),),
    ),
    Mutant(
        "lock-taken-twice",
        "2b",
        "a lock that is not reentrant is not acquired twice",
        "calls get_state() while it holds its lock, when it commits",
        (
            (
                "            self._commit_through(majority_has)",
                "            self.get_state()\n            self._commit_through(majority_has)",
            ),
        ),
    ),
    Mutant(
        "start-without-lock",
        "2c",
        "shared state is changed under the lock",
        "accepts commands without its lock",
        (
            (
                "with self.mu:\n            if self.role is not Role.LEADER:\n                return -1",
                "if True:\n            if self.role is not Role.LEADER:\n                return -1",
            ),
        ),
    ),
    Mutant(
        "vote-without-lock",
        "2c",
        "shared state is changed under the lock",
        "answers RequestVote without its lock",
        (
            (
                "with self.mu:\n            if not self._observe_term(args.term):",
                "if True:\n            if not self._observe_term(args.term):",
            ),
        ),
    ),
    Mutant(
        "snapshot-without-lock",
        "2d",
        "shared state is changed under the lock",
        "accepts the service's snapshots without its lock",
        (
            (
                "with self.mu:\n            if index > self.last_applied:",
                "if True:\n            if index > self.last_applied:",
            ),
        ),
    ),
    Mutant(
        "handler-never-answers",
        "2a",
        "a peer that is up answers every request (§5.5)",
        "never denies its vote to a candidate of its own term: the handler waits forever instead, without the lock",
        (
            (
                "            return RequestVoteReply(self.current_term, granted)",
                "            reply = RequestVoteReply(self.current_term, granted)\n"
                "        if not granted:\n"
                "            threading.Event().wait()\n"
                "        return reply",
            ),
        ),
    ),
    Mutant(
        "leak-after-kill",
        "2a",
        "after kill() all threads end",
        "keeps its threads running after kill()",
        (("self.dead.set()\n            self.role = Role.FOLLOWER", "pass"),),
        go="N",
    ),
    Mutant(
        "ticker-calls-itself",
        "2a",
        "a peer can run indefinitely",
        "has a ticker that calls itself recursively, at most a thousand times",
        (
            (
                "        pause_s = 0.0\n"
                "        while not self.dead.wait(pause_s):\n"
                "            pause_s = self._tick()\n",
                "        if not self.dead.wait(self._tick()):\n            self._ticker()\n",
            ),
        ),
        go="N",
    ),
    Mutant(
        "swallowed-exception",
        "2b",
        "an exception in a thread is reported",
        "lets its applier thread end silently when apply_ch is full",
        (
            ("self.apply_ch.put(msg, timeout=HEARTBEAT_S)", "self.apply_ch.put_nowait(msg)"),
            ("except queue.Full:\n                    continue", "except queue.Full:\n                    return"),
        ),
        go="S",
    ),
]
