"""The bugs of the reference's mutants, in the peer with one owner thread (tests/peers/event_loop)."""

from tests.mutants.tool.mutants import SameMistake


def same(like, *edits):
    return SameMistake("event_loop", like, edits)


# Still correct: a heartbeat carries no entries while a call is pending. A leader that always sends all its entries
# never sends a leader_commit beyond the message's last entry.
EMPTY_HEARTBEATS = (
    (
        "                    self._send_log(peer, progress)",
        "                    self._send_log(peer, progress, has_news)",
    ),
    (
        "def _send_log(self, peer: int, progress: Progress) -> None:",
        "def _send_log(self, peer: int, progress: Progress, with_entries: bool) -> None:",
    ),
    (
        "entries=self._entries_from(progress.next_index),",
        "entries=self._entries_from(progress.next_index) if with_entries else [],",
    ),
)

# Handles every InstallSnapshot, even one older than our own snapshot, without an index error.
INSTALL_ALWAYS = (
    (
        "        if args.last_included_index > self.commit_index:  # else we have all of it already\n",
        "        if True:\n",
    ),
    (
        "if index <= self._last_log_index() and self._term_at(index) == args.last_included_term:",
        "has_index = self.last_included_index <= index <= self._last_log_index()\n"
        "            if has_index and self._term_at(index) == args.last_included_term:",
    ),
)

SAME_MISTAKES = [
    # ---- Elections -------------------------------------------------------------------------------------
    same(
        "leader-ignores-higher-term",
        ("if term > self.current_term:", "if term > self.current_term and self.role is not Role.LEADER:"),
    ),
    same(
        "reply-term-ignored",
        ("        self._see_term(reply.term)\n        if self.role is Role.CAN", "        if self.role is Role.CAN"),
        ("        self._see_term(reply_term)\n", ""),
    ),
    same(
        "votedfor-reset-same-term",
        (
            "        self.role = Role.FOLLOWER\n        self._reset",
            "        self.role = Role.FOLLOWER\n        self.voted_for = NOBODY\n        self._reset",
        ),
    ),
    same(
        "double-vote",
        ("args.term == self.current_term and free and up_to_date", "args.term == self.current_term and up_to_date"),
        ("            if self.voted_for == NOBODY:\n", "            if True:\n"),
        ("        free = self.voted_for in (NOBODY, args.candidate_id)\n", ""),
    ),
    same(
        "stale-vote-counted",
        (
            "if self.role is Role.CANDIDATE and args.term == self.current_term and reply.vote_granted:",
            "if self.role is Role.CANDIDATE and reply.vote_granted:",
        ),
    ),
    same(
        "timer-reset-any-rpc",
        (
            "        self._see_term(args.term)\n        # §5.4.1",
            "        self._reset_election_timer()\n        self._see_term(args.term)\n        # §5.4.1",
        ),
        (
            "            return AppendEntriesReply(term=self.current_term, success=False)\n        self._follow()",
            "            self._reset_election_timer()\n"
            "            return AppendEntriesReply(term=self.current_term, success=False)\n        self._follow()",
        ),
    ),
    same(
        "timer-reset-stale-leader",
        (
            "            return AppendEntriesReply(term=self.current_term, success=False)\n        self._follow()",
            "            self._reset_election_timer()\n"
            "            return AppendEntriesReply(term=self.current_term, success=False)\n        self._follow()",
        ),
        (
            "            return InstallSnapshotReply(term=self.current_term)\n        self._follow()",
            "            self._reset_election_timer()\n"
            "            return InstallSnapshotReply(term=self.current_term)\n        self._follow()",
        ),
    ),
    same("narrow-timeouts", ("ELECTION_TIMEOUT_S = (0.350, 0.700)", "ELECTION_TIMEOUT_S = (0.500, 0.510)")),
    same(
        "rerandomize-each-tick",
        (
            "self.election_at = time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)",
            "self.election_at = time.monotonic()",
        ),
        (
            "time.monotonic() < self.election_at:",
            "time.monotonic() < self.election_at + random.uniform(*ELECTION_TIMEOUT_S):",
        ),
        # How often it checks, as in the reference's mutant; this alone changes nothing.
        ("TICK_S = 0.010", "TICK_S = 0.002"),
    ),
    # ---- The log ---------------------------------------------------------------------------------------
    same(
        "uptodate-length-first",
        (
            "(args.last_log_term, args.last_log_index) >= (self.log[-1].term, self._last_log_index())",
            "(args.last_log_index, args.last_log_term) >= (self._last_log_index(), self.log[-1].term)",
        ),
    ),
    same(
        "heartbeat-no-prev-check",
        (
            "        elif args.prev_log_index > self._last_log_index()",
            "        elif not args.entries:\n"
            "            pass\n"
            "        elif args.prev_log_index > self._last_log_index()",
        ),
    ),
    same(
        "truncate-always",
        (
            "        for i, entry in enumerate(entries, start=index):",
            "        del self.log[index - self.last_included_index :]\n"
            "        self.unsaved = True\n"
            "        for i, entry in enumerate(entries, start=index):",
        ),
    ),
    same(
        "no-tail-truncate",
        (
            "                del self.log[i - self.last_included_index :]\n",
            "                at = i - self.last_included_index\n",
        ),
        ("self.log += entries[i - index :]", "self.log[at : at + len(entries) - (i - index)] = entries[i - index :]"),
    ),
    same(
        "commit-past-last-new",
        ("min(args.leader_commit, last_new_index)", "min(args.leader_commit, self._last_log_index())"),
        *EMPTY_HEARTBEATS,
    ),
    same("commit-half", ("have[(len(have) - 1) // 2]  # a majority has this much, or more", "have[len(have) // 2]")),
    same(
        "match-regresses",
        ("progress.match_index = max(progress.match_index, index)", "progress.match_index = index"),
        ("progress.next_index = max(progress.next_index, progress.match_index + 1)", "progress.next_index = index + 1"),
    ),
    same(
        "match-from-own-log",
        (
            "self._matched(progress, args.prev_log_index + len(args.entries))",
            "self._matched(progress, self._last_log_index())",
        ),
    ),
    same(
        "stale-ae-reply-used",
        ("if self.role is not Role.LEADER or sent_term != self.current_term:", "if self.role is not Role.LEADER:"),
    ),
    same(
        "timeout-as-reject",
        (
            "        if reply is not None:\n            self.inbox.put(Event(on_reply, (peer, args, reply, number)))\n",
            "        if reply is not None:\n            self.inbox.put(Event(on_reply, (peer, args, reply, number)))\n"
            '        elif method != "Raft.request_vote":\n'
            "            self.inbox.put(Event(self._on_lost, (peer, args)))\n\n"
            "    def _on_lost(self, peer: int, args: Any) -> None:\n"
            "        if self.role is Role.LEADER and args.term == self.current_term:\n"
            "            self.progress[peer].next_index = max(1, self.progress[peer].next_index - 1)\n",
        ),
    ),
    same(
        "apply-duplicate",
        (
            "        self.commit_index = self.last_included_index\n",
            "        self.commit_index = self.last_included_index\n"
            "        self.last_applied = self.last_included_index\n",
        ),
        (
            "self.apply_ch.put(message, timeout=0.2)\n",
            "self.apply_ch.put(message, timeout=0.2)\n"
            "                    self.last_applied = max(message.command_index, message.snapshot_index)\n",
        ),
        (
            "for i in range(self.commit_index + 1, index + 1):",
            "for i in range(max(self.last_applied, self.last_included_index) + 1, index + 1):",
        ),
    ),
    same(
        "shared-entry-alias",
        (
            "        self.messages_sent = 0\n",
            "        self.messages_sent = 0\n        self.shared: dict[int, AppendEntriesArgs] = {}\n",
        ),
        (
            "        args = AppendEntriesArgs(\n"
            "            term=self.current_term,\n"
            "            leader_id=self.me,\n"
            "            prev_log_index=prev_log_index,\n"
            "            prev_log_term=self._term_at(prev_log_index),\n"
            "            entries=self._entries_from(progress.next_index),\n"
            "            leader_commit=self.commit_index,\n"
            "        )\n",
            "        args = self.shared.setdefault(peer, AppendEntriesArgs(0, self.me, 0, 0, [], 0))\n"
            "        args.term = self.current_term\n"
            "        args.prev_log_index = prev_log_index\n"
            "        args.prev_log_term = self._term_at(prev_log_index)\n"
            "        args.entries = self._entries_from(progress.next_index)\n"
            "        args.leader_commit = self.commit_index\n",
        ),
    ),
    # ---- Persistence, and Figure 8 ---------------------------------------------------------------------
    same("figure8-commit", (" and self._term_at(index) == self.current_term:", ":")),
    same("no-persist-votedfor", ("w.encode(self.voted_for)", "w.encode(NOBODY)")),
    same(
        "campaign-not-persisted",
        ("        self.unsaved = True\n        self.asks_for_votes = True\n", "        self.asks_for_votes = True\n"),
    ),
    same(
        "grant-not-persisted",
        (
            "                self.voted_for = args.candidate_id\n                self.unsaved = True\n",
            "                self.voted_for = args.candidate_id\n",
        ),
    ),
    same(
        "stepdown-not-persisted",
        (
            "            self.role = Role.FOLLOWER\n            self.unsaved = True\n",
            "            self.role = Role.FOLLOWER\n",
        ),
    ),
    same(
        "start-not-persisted",
        ("        self.unsaved = True\n        self._commit_what", "        self._commit_what"),
    ),
    same(
        "append-not-persisted",
        (
            "                self.log += entries[i - index :]\n                self.unsaved = True\n",
            "                self.log += entries[i - index :]\n",
        ),
    ),
    same(
        "truncation-not-persisted",
        (
            "                del self.log[i - self.last_included_index :]\n",
            "                cut = i <= self._last_log_index()\n"
            "                del self.log[i - self.last_included_index :]\n",
        ),
        (
            "                self.log += entries[i - index :]\n                self.unsaved = True\n",
            "                self.log += entries[i - index :]\n"
            "                self.unsaved = self.unsaved or not cut\n",
        ),
    ),
    same(
        "state-in-module-variable",
        ("NOBODY = -1\n", "NOBODY = -1\nSAVED: dict[int, bytes] = {}\n"),
        ("        self.persister.save(", "        SAVED[self.me] = w.bytes()\n        self.persister.save("),
        ("self._read_persist(persister.read_raft_state())", 'self._read_persist(SAVED.get(me, b""))'),
    ),
    same(
        "state-in-class-variable",
        (
            "    def __init__(self, peers: list[ClientEnd], me: int,",
            "    saved: dict[int, bytes] = {}\n\n    def __init__(self, peers: list[ClientEnd], me: int,",
        ),
        ("        self.persister.save(", "        Raft.saved[self.me] = w.bytes()\n        self.persister.save("),
        ("self._read_persist(persister.read_raft_state())", 'self._read_persist(Raft.saved.get(me, b""))'),
    ),
    same(
        "persist-after-reply",
        (
            "            if self.unsaved or self.unsaved_snapshot:\n"
            "                self._persist()\n"
            "            self._release(answers)\n",
            "            self._release(answers)\n"
            "            if self.unsaved or self.unsaved_snapshot:\n"
            "                self._persist()\n",
        ),
    ),
    # ---- Snapshots -------------------------------------------------------------------------------------
    same("snap-rollback", *INSTALL_ALWAYS),
    same(
        "snap-log-goes-back",
        *INSTALL_ALWAYS,
        (
            "            self.commit_index = index\n            message",
            "            is_news = index > self.commit_index\n"
            "            self.commit_index = max(self.commit_index, index)\n            message",
        ),
        (
            "            self.committed.append(message)\n",
            "            if is_news:\n                self.committed.append(message)\n",
        ),
    ),
    same(
        "snap-drops-suffix",
        (
            "                self.log = self._entries_from(index)\n            else:",
            "                self.log = self._entries_from(index)[:1]\n            else:",
        ),
    ),
    same(
        "snap-keeps-everything",
        (
            "            if index <= self._last_log_index() and self._term_at(index) == args.last_included_term:\n"
            "                self.log = self._entries_from(index)\n"
            "            else:\n"
            "                self.log = [LogEntry(args.last_included_term, None)]\n",
            "            self.log = [LogEntry(args.last_included_term, None), *self._entries_from(index + 1)]\n",
        ),
    ),
    same(
        "snap-install-not-saved",
        (
            "            self._keep_snapshot(index, args.data)\n",
            "            self._keep_snapshot(index, args.data)\n            self.unsaved_snapshot = False\n",
        ),
    ),
    same("snap-term-lost", ("self.log[0] = LogEntry(self.log[0].term, None)", "self.log[0] = LogEntry(0, None)")),
    same(
        "snap-then-old-command",
        (
            "            self.deliveries.put(message)\n",
            "            if message.snapshot_valid:\n"
            "                threading.Thread(target=self.apply_ch.put, args=(message,), daemon=True).start()\n"
            "            else:\n"
            "                self.deliveries.put(message)\n",
        ),
    ),
    same(
        "snap-goes-back",
        ("if self.last_included_index < index <= self.commit_index:", "if index <= self.commit_index:"),
    ),
    # The owner saves once, after all events; these save the first half already while handling an event.
    same(
        "snap-saved-after-state",
        (
            "            self._keep_snapshot(index, snapshot)\n",
            "            self._keep_snapshot(index, snapshot)\n"
            "            self.unsaved_snapshot = False\n"
            "            self._persist()\n"
            "            self.unsaved_snapshot = True\n",
        ),
    ),
    same(
        "snap-saved-before-state",
        (
            "            self.log = self._entries_from(index)\n            self._keep_snapshot(index, snapshot)\n",
            "            self.snapshot_data = snapshot\n"
            "            self.unsaved_snapshot = True\n"
            "            self._persist()\n"
            "            self.log = self._entries_from(index)\n"
            "            self._keep_snapshot(index, snapshot)\n"
            "            self.unsaved, self.unsaved_snapshot = True, False\n",
        ),
    ),
    same(
        "snap-install-after-state",
        (
            "            self._keep_snapshot(index, args.data)\n",
            "            self._keep_snapshot(index, args.data)\n"
            "            self.unsaved_snapshot = False\n"
            "            self._persist()\n"
            "            self.unsaved_snapshot = True\n",
        ),
    ),
    same(
        "snap-install-before-state",
        (
            "            index = args.last_included_index\n",
            "            index = args.last_included_index\n"
            "            self.snapshot_data = args.data\n"
            "            self.unsaved_snapshot = True\n"
            "            self._persist()\n",
        ),
        (
            "            self._keep_snapshot(index, args.data)\n",
            "            self._keep_snapshot(index, args.data)\n"
            "            self.unsaved, self.unsaved_snapshot = True, False\n",
        ),
    ),
    same(
        "snap-hands-up-applied",
        ("if args.last_included_index > self.commit_index:", "if args.last_included_index > self.last_included_index:"),
        (
            "            self.commit_index = index\n            message",
            "            had_committed = self.commit_index\n            self.commit_index = index\n            message",
        ),
        (
            "            self.committed.append(message)\n",
            "            self.committed.append(message)\n            self._commit_up_to(had_committed)\n",
        ),
    ),
    same(
        "snap-applies-again",
        ("if args.last_included_index > self.commit_index:", "if args.last_included_index > self.last_included_index:"),
        (
            "            self.commit_index = index\n            message",
            "            is_news = index > self.commit_index\n"
            "            self.commit_index = index\n            message",
        ),
        (
            "            self.committed.append(message)\n",
            "            if is_news:\n                self.committed.append(message)\n",
        ),
    ),
    same(
        "snap-no-timer-reset",
        (
            "        self._follow()\n        if args.last_included_index",
            "        self.role = Role.FOLLOWER\n        if args.last_included_index",
        ),
    ),
    same(
        "snap-term-not-saved",
        (
            "            next_index = self._last_log_index() + 1\n",
            "            next_index = self.last_included_index or self._last_log_index() + 1\n",
        ),
        (
            "    def _on_install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:\n",
            "    def _on_install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:\n"
            "        if args.term > self.current_term and args.last_included_index <= self.commit_index:\n"
            "            self.current_term, self.voted_for = args.term, NOBODY\n"
            "            self._follow()\n"
            "            return InstallSnapshotReply(term=self.current_term)\n",
        ),
    ),
    same(
        "snap-forgets-vote",
        (
            "            self._keep_snapshot(index, args.data)\n",
            "            self._keep_snapshot(index, args.data)\n            self.voted_for = NOBODY\n",
        ),
    ),
    # ---- Concurrency: the owner blocks, or another thread accesses its state ---------------------------
    same(
        "applych-under-lock", ("            self.deliveries.put(message)\n", "            self.apply_ch.put(message)\n")
    ),
    same(
        "leak-after-kill",
        (
            "        self.dead.set()\n        self.inbox.put(Event(lambda: None))  # the owner wakes, and sees it\n",
            "        pass\n",
        ),
    ),
    same(
        "start-without-lock",
        ("return self._ask(self._on_start, command) or (-1, 0, False)", "return self._on_start(command)"),
    ),
    same(
        "handler-never-answers",
        (
            "return self._ask(self._on_request_vote, args) or RequestVoteReply(term=0, vote_granted=False)",
            "reply = self._ask(self._on_request_vote, args) or RequestVoteReply(term=0, vote_granted=False)\n"
            "        if reply.term == args.term and not reply.vote_granted:\n"
            "            threading.Event().wait()\n"
            "        return reply",
        ),
    ),
]
