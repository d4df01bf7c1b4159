"""Correct variants of the reference. If the lab reports one of them, the lab has a bug."""

from tests.mutants.tool.mutants import PEERS, REFERENCE, Mutant


def correct(id_, what, *edits, message_edits=(), base=REFERENCE):
    return Mutant(id_, "2b", "none: it is correct", what, edits, correct=True, message_edits=message_edits, base=base)


ASKS_EVERYONE = ("if peer != self.me and peer not in self.votes:", "if peer not in self.votes:")


MUTANTS = [
    correct("variant-reference", "is the reference"),
    correct(
        "variant-batching",
        "collects commands for 10 ms before it sends them",
        (
            "            self._replicate()\n            return self._last",
            "            self._spawn(self._flush)\n            return self._last",
        ),
        (
            "    def get_state(self)",
            "    def _flush(self) -> None:\n"
            "        time.sleep(0.01)\n"
            "        with self.mu:\n"
            "            if self.role is Role.LEADER:\n"
            "                self._replicate()\n\n"
            "    def get_state(self)",
        ),
    ),
    correct(
        "variant-small-batches",
        "sends at most 64 entries in one message",
        ("entries = self.log[prev + 1 - base :]", "entries = self.log[prev + 1 - base : prev + 65 - base]"),
    ),
    correct(
        "variant-heartbeats-only",
        "replicates only with its heartbeats, one message per follower and interval",
        ("            self._replicate()\n            return self._last", "            return self._last"),
        ("self._replicate()  # let followers", "pass  # let followers"),
        (
            "lacking = self._append_entries_answered(peer, args, reply)",
            "self._append_entries_answered(peer, args, reply)\n                    lacking = False",
        ),
    ),
    correct(
        "variant-empty-heartbeats",
        "sends heartbeats without entries, even to a follower that lacks some",
        ("self._spawn(self._replicate_to, peer, sender)", "self._spawn(self._replicate_to, peer, sender, heartbeat)"),
        (
            "def _replicate_to(self, peer: int, sender: object) -> None:",
            "def _replicate_to(self, peer: int, sender: object, empty: bool) -> None:",
        ),
        (
            "                args = self._replication_args(peer)\n",
            "                args = self._replication_args(peer)\n"
            "                if empty and isinstance(args, AppendEntriesArgs):\n"
            "                    args.entries = []\n"
            "                empty = False\n",
        ),
    ),
    correct(
        "variant-extra-fields",
        "has additional fields in requests and replies",
        (
            "return AppendEntriesReply(self.current_term, True)",
            "return AppendEntriesReply(self.current_term, True, log_length=len(self.log))",
        ),
        message_edits=(
            ("    conflict_index: int = 0\n", "    conflict_index: int = 0\n    log_length: int = 0\n"),
            ("    last_log_term: int\n", "    last_log_term: int\n    sent_by: str = ''\n"),
        ),
    ),
    correct(
        "variant-saves-snapshots-later",
        "lets another thread save a snapshot, 100 ms after snapshot() returned",
        (
            "            if index > self.last_included_index and not self.dead.is_set():\n"
            "                self._discard_log_through(index, self._term_at(index))\n"
            "                self._persist(snapshot)\n",
            "            self._spawn(self._save_snapshot, index, snapshot)\n\n"
            "    def _save_snapshot(self, index: int, snapshot: bytes) -> None:\n"
            "        time.sleep(0.1)\n"
            "        with self.mu:\n"
            "            if index > self.last_included_index and not self.dead.is_set():\n"
            "                self._discard_log_through(index, self._term_at(index))\n"
            "                self._persist(snapshot)\n",
        ),
    ),
    correct(
        "variant-silent-after-kill",
        "returns None from its handlers once it was killed",
        (
            '        """RequestVote RPC, receiver (Figure 2)."""\n        with self.mu:\n',
            '        """RequestVote RPC, receiver (Figure 2)."""\n        with self.mu:\n'
            "            if self.dead.is_set():\n                return None\n",
        ),
        (
            '        """AppendEntries RPC, receiver (Figure 2, steps 1 to 5)."""\n        with self.mu:\n',
            '        """AppendEntries RPC, receiver (Figure 2, steps 1 to 5)."""\n        with self.mu:\n'
            "            if self.dead.is_set():\n                return None\n",
        ),
    ),
    correct(
        "variant-cuts-when-rejecting",
        "deletes conflicting entries when it rejects AppendEntries",
        (
            "        return AppendEntriesReply(self.current_term, False, term, first)",
            "        del self.log[prev - self.last_included_index :]\n"
            "        self._persist()\n"
            "        return AppendEntriesReply(self.current_term, False, term, first)",
        ),
    ),
    correct(
        "variant-locks-everything",
        "takes its (reentrant) lock in every method that does not wait for others",
        ("self.mu = threading.Lock()", "self.mu = threading.RLock()"),
        (
            "class Role(enum.Enum):",
            "def _locked(method: Callable[..., Any]) -> Callable[..., Any]:\n"
            "    @functools.wraps(method)\n"
            "    def with_lock(self: Any, *args: Any, **kwargs: Any) -> Any:\n"
            "        with self.mu:\n"
            "            return method(self, *args, **kwargs)\n\n"
            "    return with_lock\n\n\n"
            "def _lock_everything(cls: Any) -> Any:\n"
            "    waiting = ('__init__', '_ticker', '_applier', '_request_vote_from', '_replicate_to', '_spawn')\n"
            "    for name, method in list(vars(cls).items()):\n"
            "        if callable(method) and name not in waiting:\n"
            "            setattr(cls, name, _locked(method))\n"
            "    return cls\n\n\n"
            "class Role(enum.Enum):",
        ),
        ("import enum\n", "import enum\nimport functools\n"),
        ("class Raft:\n", "@_lock_everything\nclass Raft:\n"),
    ),
    correct(
        "variant-condition",
        "waits on a Condition in its ticker, which every change of role or deadline wakes",
        (
            "        pause_s = 0.0\n        while not self.dead.wait(pause_s):\n            pause_s = self._tick()",
            "        while not self.dead.is_set():\n"
            "            pause_s = self._tick()\n"
            "            with self.mu:\n"
            "                if not self.dead.is_set():\n"
            "                    self.changed.wait(pause_s)",
        ),
        (
            "self.committed = threading.Condition(self.mu)",
            "self.changed = threading.Condition(self.mu)\n        self.committed = threading.Condition(self.mu)",
        ),
        ("        self.role = Role.LEADER\n", "        self.role = Role.LEADER\n        self.changed.notify()\n"),
        (
            "            self.committed.notify_all()",
            "            self.changed.notify_all()\n            self.committed.notify_all()",
        ),
    ),
    correct(
        "variant-polling",
        "polls every 10 ms for its election timer and for entries to apply",
        ("return left_s if self.role is Role.FOLLOWER else min(left_s, HEARTBEAT_S)", "return 0.01"),
        ("elif self.role is Role.CANDIDATE:", "elif False:"),
        (
            "                self.committed.wait()",
            "                self.mu.release()\n                time.sleep(0.01)\n                self.mu.acquire()",
        ),
    ),
    correct(
        "variant-late-sender",
        "yields between building a message and sending it, so its term may change in between",
        (
            "            if isinstance(args, AppendEntriesArgs):\n                reply = self.peers",
            "            time.sleep(0)\n"
            "            if isinstance(args, AppendEntriesArgs):\n                reply = self.peers",
        ),
        (
            "        reply: RequestVoteReply | None = ",
            "        time.sleep(0)\n        reply: RequestVoteReply | None = ",
        ),
    ),
    correct(
        "variant-saves-often",
        "saves on every request, even if nothing changed",
        (
            "        if self.dead.is_set():\n            return False\n        if term >",
            "        if self.dead.is_set():\n            return False\n        self._persist()\n        if term >",
        ),
    ),
    correct(
        "variant-other-timing",
        "has heartbeats of 60 ms and election timeouts of 250 to 500 ms",
        ("HEARTBEAT_S = 0.1\n", "HEARTBEAT_S = 0.06\n"),
        ("ELECTION_TIMEOUT_S = (0.4, 0.8)", "ELECTION_TIMEOUT_S = (0.25, 0.5)"),
    ),
    correct(
        "variant-asks-once",
        "requests each vote once per campaign, and does not repeat a lost request",
        ("self._canvass()  # again", "pass  # again"),
    ),
    correct(
        "variant-snapshot-first",
        "sends its snapshot first, if it has one, when it is elected, without checking who needs it",
        (
            "self.next_index = [self._last_log_index() + 1] *",
            "self.next_index = [self.last_included_index or self._last_log_index() + 1] *",
        ),
    ),
    correct(
        "variant-installs-what-it-has",
        "truncates its log for InstallSnapshot as for a snapshot of its own service, even if it has committed all "
        "of it",
        (
            "args.last_included_index > self.commit_index:",
            "args.last_included_index > self.last_included_index:",
        ),
    ),
    correct(
        "variant-vote-kept-under-a-leader",
        "keeps its old vote when it hears the leader of a new term: a vote in that term cannot elect another leader",
        (
            "if not self._observe_term(term):\n            return False\n        self.role",
            "old_vote, new_term = self.voted_for, term > self.current_term\n"
            "        if not self._observe_term(term):\n            return False\n"
            "        if new_term:\n"
            "            self.voted_for = old_vote\n"
            "            self._persist()\n"
            "        self.role",
        ),
        (
            "self.next_index = [self._last_log_index() + 1] *",
            "self.next_index = [self.last_included_index or self._last_log_index() + 1] *",
        ),
    ),
    correct(
        "variant-grants-again",
        "grants a duplicate vote request again, even if its log has changed since",
        (
            "granted = up_to_date and self.voted_for in (None, args.candidate_id)",
            "granted = self.voted_for == args.candidate_id or (up_to_date and self.voted_for is None)",
        ),
    ),
    correct(
        "variant-remembers-commits",
        "remembers the leader_commit of a rejected AppendEntries until its log is known to match",
        (
            "        self.commit_index = self.last_included_index",
            "        self.heard_commit = 0\n        self.commit_index = self.last_included_index",
        ),
        (
            "            prev = args.prev_log_index\n            # 2.",
            "            prev = args.prev_log_index\n"
            "            self.heard_commit = max(self.heard_commit, args.leader_commit)\n            # 2.",
        ),
        ("min(args.leader_commit, prev + len(args.entries))", "min(self.heard_commit, prev + len(args.entries))"),
    ),
    correct(
        "variant-sends-each-at-once",
        "sends every command and every new commit_index in a separate message, without waiting for replies",
        (
            "(idle or (heartbeat and self.sent_at[peer] < long_ago))",
            "(idle or not heartbeat or self.sent_at[peer] < long_ago)",
        ),
        (
            "lacking = self._append_entries_answered(peer, args, reply)",
            "self._append_entries_answered(peer, args, reply)\n                    lacking = False",
        ),
        (
            "        if args.prev_log_index != self.next_index[peer] - 1:",
            "        self._spawn(self._resend, peer)\n        if args.prev_log_index != self.next_index[peer] - 1:",
        ),
        (
            "    def _replication_args(self, peer: int)",
            "    def _resend(self, peer: int) -> None:\n"
            "        self._replicate_to(peer, object())\n\n"
            "    def _replication_args(self, peer: int)",
        ),
    ),
    # ---- A peer may send RPCs to itself. Its own vote or acknowledgment still counts once. ----------------------
    correct(
        "variant-asks-itself",
        "votes for itself when it campaigns, and requests a vote from all peers, including itself",
        ASKS_EVERYONE,
    ),
    correct(
        "variant-asks-itself-event-loop",
        "has another design (event_loop), and requests a vote from all peers, including itself",
        (
            "            if peer != self.me:\n                self._send(peer, ",
            "            if True:\n                self._send(peer, ",
        ),
        base=PEERS / "event_loop",
    ),
    correct(
        "variant-asks-itself-and-refuses",
        "requests a vote from all peers, including itself, and rejects all requests while it is candidate or leader",
        ASKS_EVERYONE,
        ("granted = up_to_date and self", "granted = up_to_date and self.role is Role.FOLLOWER and self"),
        ("self._count_vote(peer, granted=reply", "self._count_vote(peer, granted=peer == self.me or reply"),
        ("self._canvass()  # again", "pass  # again"),
    ),
    correct(
        "variant-asks-itself-and-grants-again",
        "requests a vote from all peers, including itself, and grants it even if its log has changed since it voted",
        ASKS_EVERYONE,
        (
            "granted = up_to_date and self.voted_for in (None, args.candidate_id)",
            "granted = self.voted_for == args.candidate_id or (up_to_date and self.voted_for is None)",
        ),
    ),
    correct(
        "variant-votes-for-itself-when-asked",
        "campaigns without voting, requests a vote from all peers, including itself, and grants the first request",
        ASKS_EVERYONE,
        ("        self.voted_for = self.me\n", "        self.voted_for = None\n"),
        ("        self._canvass()\n        self._count_vote(self.me, granted=True)\n", "        self._canvass()\n"),
    ),
    correct(
        "variant-appends-to-itself",
        "sends AppendEntries to all peers, including itself, and stays leader when it receives them",
        ("if peer != self.me and (idle or (", "if (idle or ("),
        (
            "            if not self._hear_leader(args.term):  # 1\n",
            "            if args.leader_id == self.me:\n"
            "                return AppendEntriesReply(self.current_term, args.term == self.current_term)\n"
            "            if not self._hear_leader(args.term):  # 1\n",
        ),
    ),
]
