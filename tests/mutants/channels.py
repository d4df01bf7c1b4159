"""The bugs of the reference's mutants, in the peer whose state belongs to one thread (tests/peers/channels)."""

from tests.mutants.tool.mutants import Edit, SameMistake


def same(like: str, *edits: Edit) -> SameMistake:
    return SameMistake("channels", like, edits)


# As in log.py: this leader also sends all its entries with every heartbeat, so leader_commit is never beyond the
# message's last entry. It is still correct if it sends no entries while a call is pending.
EMPTY_HEARTBEATS = (
    (
        "        progress.waiting = True\n        prev",
        "        repeated, progress.waiting = progress.waiting, True\n        prev",
    ),
    ("entries = self.log[progress.next", "entries = [] if repeated else self.log[progress.next"),
)

ELECTIONS = [
    same(
        "reply-term-ignored",
        (
            "            if self._adopt(item.reply.term):\n"
            "                self._persist()\n"
            "                return True\n",
            "",
        ),
    ),
    same(
        "votedfor-reset-same-term",
        ("        if heard_leader:\n", "        if heard_leader:\n            self.voted_for = NOBODY\n"),
    ),
    same(
        "double-vote",
        (" and self.voted_for in (NOBODY, args.candidate_id) and up_to_date", " and up_to_date"),
        ("unsaved |= self.voted_for == NOBODY", "unsaved |= self.voted_for != args.candidate_id"),
    ),
    same(
        "stale-vote-counted",
        (
            "if channel is self.answers and self._is_current(item, RequestVoteArgs):\n",
            "asked = channel is self.answers and isinstance(item.args, RequestVoteArgs)\n"
            "            if asked and item.reply.term <= self.current_term:\n",
        ),
    ),
    same(
        "leader-ignores-higher-term", ("if term <= self.current_term:", "if term <= self.current_term or self.leading:")
    ),
    same(
        "stale-leader-followed",
        (
            "heard_leader = channel is not self.vote_requests and args.term == self.current_term",
            "heard_leader = channel is not self.vote_requests",
        ),
        ("matches = args.term == self.current_term and self._has(", "matches = self._has("),
        ("if args.term < self.current_term or args.last", "if args.last"),
    ),
    same(
        "timer-reset-any-rpc",
        ("        args = item.question\n", "        args = item.question\n        self._restart_election_timer()\n"),
    ),
    same("narrow-timeouts", ("ELECTION_TIMEOUT_S = (0.400, 0.900)", "ELECTION_TIMEOUT_S = (0.600, 0.610)")),
    same(
        "rerandomize-each-tick",
        (
            "self.election_due = time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)",
            "self.election_due = time.monotonic()",
        ),
        (
            "channel, item = self.inbox.select(until=self.election_due)\n"
            "            if channel is None:\n"
            "                return self._candidate\n"
            "            self._serve(channel, item)\n",
            "channel, item = self.inbox.select(until=time.monotonic() + 0.002)\n"
            "            if channel is not None:\n"
            "                self._serve(channel, item)\n"
            "            elif time.monotonic() >= self.election_due + random.uniform(*ELECTION_TIMEOUT_S):\n"
            "                return self._candidate\n",
        ),
        (
            "channel, item = self.inbox.select(until=self.election_due)\n"
            "            if channel is None:\n"
            "                return self._candidate\n"
            "            if channel is self.answers",
            "channel, item = self.inbox.select(until=time.monotonic() + 0.002)\n"
            "            if channel is None:\n"
            "                if time.monotonic() >= self.election_due + random.uniform(*ELECTION_TIMEOUT_S):\n"
            "                    return self._candidate\n"
            "                continue\n"
            "            if channel is self.answers",
        ),
    ),
]

LOGS = [
    same(
        "uptodate-length-first",
        (
            "(args.last_log_term, args.last_log_index) >= (self._term_at(last_index), last_index)",
            "(args.last_log_index, args.last_log_term) >= (last_index, self._term_at(last_index))",
        ),
    ),
    same(
        "heartbeat-no-prev-check",
        (
            "and self._has(args.prev_log_index, args.prev_log_term)",
            "and (not args.entries or self._has(args.prev_log_index, args.prev_log_term))",
        ),
    ),
    same(
        "truncate-always",
        (
            "        if matches:\n            for",
            "        if matches:\n"
            "            del self.log[max(args.prev_log_index + 1 - self.snapshot_index, 1) :]\n"
            "            unsaved = True\n"
            "            for",
        ),
    ),
    same(
        "no-tail-truncate",
        ("del self.log[index - self.snapshot_index :]\n", "at = index - self.snapshot_index\n"),
        (
            "self.log += args.entries[index - args.prev_log_index - 1 :]",
            "new = args.entries[index - args.prev_log_index - 1 :]\n"
            "                    self.log[at : at + len(new)] = new",
        ),
    ),
    same(
        "commit-past-last-new",
        (
            "min(args.leader_commit, args.prev_log_index + len(args.entries))",
            "min(args.leader_commit, self._last_index())",
        ),
        *EMPTY_HEARTBEATS,
    ),
    same(
        "commit-unbounded",
        ("min(args.leader_commit, args.prev_log_index + len(args.entries))", "args.leader_commit"),
        *EMPTY_HEARTBEATS,
    ),
    same(
        "match-regresses",
        ("if matched >= progress.match_index:", "if True:"),
        ("progress.next_index = max(progress.next_index, matched + 1)", "progress.next_index = matched + 1"),
    ),
    same("match-from-own-log", ("matched = args.prev_log_index + len(args.entries)", "matched = self._last_index()")),
    same(
        "stale-ae-reply-used",
        (
            "elif channel is self.answers and self._is_current(item, AppendEntriesArgs, InstallSnapshotArgs):",
            "elif (\n"
            "                channel is self.answers\n"
            "                and isinstance(item.args, AppendEntriesArgs | InstallSnapshotArgs)\n"
            "                and item.reply.term <= self.current_term\n"
            "            ):",
        ),
    ),
    same(
        "timeout-as-reject",
        (
            "            if reply is not None:\n",
            "            if reply is None and isinstance(args, AppendEntriesArgs):\n"
            "                reply = AppendEntriesReply(args.term, False)\n"
            "            if reply is not None:\n",
        ),
    ),
    same(
        "apply-duplicate",
        (
            "        threading.Thread(target=self._applier, daemon=True).start()\n",
            "        threading.Thread(target=self._applier, daemon=True).start()\n"
            "        threading.Thread(target=self._applier, daemon=True).start()\n",
        ),
        (
            "                _, message = self.applier_inbox.select()\n",
            "                _, message = self.applier_inbox.select()\n"
            "                self.to_apply.items.appendleft(message)\n",
        ),
        (
            "                    if self.applier_inbox.closed:\n                        return\n",
            "                    if self.applier_inbox.closed:\n                        return\n"
            "                if message in self.to_apply.items:\n"
            "                    self.to_apply.items.remove(message)\n",
        ),
    ),
    same(
        "shared-entry-alias",
        ("    match_index: int = 0\n", "    match_index: int = 0\n    args: Any = None\n"),
        (
            'progress.newest_call = self._call(peer, "Raft.append_entries", self._append_args(prev, entries))',
            "progress.args = args = progress.args or self._append_args(prev, entries)\n"
            "        args.prev_log_index, args.prev_log_term = prev, self._term_at(prev)\n"
            "        args.entries, args.leader_commit = entries, self.commit_index\n"
            '        progress.newest_call = self._call(peer, "Raft.append_entries", args)',
        ),
    ),
    same("commit-half", ("matched[(len(matched) - 1) // 2]", "matched[len(matched) // 2]")),
]

DISKS = [
    same("figure8-commit", (" and self._term_at(on_majority) == self.current_term:", ":")),
    same("no-persist-votedfor", ("state.encode(self.voted_for)", "state.encode(NOBODY)")),
    same("no-persist-term", ("state.encode(self.current_term)", "state.encode(0)")),
    same(
        "campaign-not-persisted",
        ("        self._persist()\n        votes = {self.me}", "        votes = {self.me}"),
    ),
    same("grant-not-persisted", ("            unsaved |= self.voted_for == NOBODY\n", "")),
    same(
        "stepdown-not-persisted",
        (
            "if self._adopt(item.reply.term):\n"
            "                self._persist()\n"
            "                return True\n"
            "            return False",
            "return self._adopt(item.reply.term)",
        ),
        ("self._vote(args, newer_term)", "self._vote(args, False)"),
        ("self._append(args, newer_term)", "self._append(args, False)"),
        ("self._install(args, newer_term)", "self._install(args, False)"),
    ),
    same(
        "start-not-persisted",
        ("        self._persist()\n        first = ", "        first = "),
    ),
    same("append-not-persisted", ("                    unsaved = True\n", "")),
    same(
        "truncation-not-persisted",
        (
            "                    del self.log[index - self.snapshot_index :]\n",
            "                    unsaved |= index > self._last_index()\n"
            "                    del self.log[index - self.snapshot_index :]\n",
        ),
        ("                    unsaved = True\n", ""),
    ),
    same(
        "persist-after-reply",
        (
            "        if unsaved:\n            self._persist()\n        return RequestVoteReply",
            "        if unsaved:\n            threading.Thread(target=self._save, daemon=True).start()\n"
            "        return RequestVoteReply",
        ),
        (
            "        if unsaved:\n            self._persist()\n        if matches:",
            "        if unsaved:\n            threading.Thread(target=self._save, daemon=True).start()\n"
            "        if matches:",
        ),
        (
            "    def _read_persist(self",
            "    def _save(self) -> None:\n"
            "        if not self.inbox.closed:\n"
            "            self._persist()\n\n"
            "    def _read_persist(self",
        ),
    ),
]

# Without the check for old snapshots, an installed one may be older than our own, which leaves none of our entries
# after it.
OLDER_HAS_NO_SUFFIX = (
    "if args.last_included_index <= self._last_index() and self._has(",
    "if self.snapshot_index <= args.last_included_index <= self._last_index() and self._has(",
)

SNAPSHOTS = [
    same(
        "snap-rollback",
        (
            "if args.term < self.current_term or args.last_included_index <= self.commit_index:",
            "if args.term < self.current_term:",
        ),
        OLDER_HAS_NO_SUFFIX,
    ),
    same(
        "snap-log-goes-back",
        (
            "if args.term < self.current_term or args.last_included_index <= self.commit_index:",
            "if args.term < self.current_term:",
        ),
        OLDER_HAS_NO_SUFFIX,
        (
            "self.snapshot_index = self.commit_index = self.last_applied = args.last_included_index\n"
            "        self._persist(args.data)\n"
            "        self._send_snapshot_up(args.data)",
            "self.snapshot_index = args.last_included_index\n"
            "        self._persist(args.data)\n"
            "        if self.snapshot_index > self.commit_index:\n"
            "            self.commit_index = self.last_applied = self.snapshot_index\n"
            "            self._send_snapshot_up(args.data)",
        ),
    ),
    same(
        "snap-drops-suffix",
        ("kept = self.log[args.last_included_index - self.snapshot_index + 1 :]", "kept = []"),
    ),
    same(
        "snap-keeps-everything",
        (
            "if args.last_included_index <= self._last_index() and self._has(\n"
            "            args.last_included_index, args.last_included_term\n"
            "        ):",
            "if args.last_included_index <= self._last_index():",
        ),
    ),
    same("snap-install-not-saved", ("        self._persist(args.data)\n", "")),
    same(
        "snap-term-lost",
        ("[LogEntry(self._term_at(index), None), *self.log", "[LogEntry(0, None), *self.log"),
        ("[LogEntry(args.last_included_term, None), *kept]", "[LogEntry(0, None), *kept]"),
    ),
    same(
        "snap-then-old-command",
        (
            "        self._send_snapshot_up(args.data)\n        return",
            "        message = ApplyMsg(\n"
            "            snapshot_valid=True,\n"
            "            snapshot=args.data,\n"
            "            snapshot_term=args.last_included_term,\n"
            "            snapshot_index=args.last_included_index,\n"
            "        )\n"
            "        threading.Thread(target=self.apply_ch.put, args=(message,), daemon=True).start()\n"
            "        return",
        ),
    ),
    same("snap-goes-back", ("if self.snapshot_index < index <= self.last_applied:", "if index <= self.last_applied:")),
]

# This peer has no lock. The equivalent bugs are to access the state from a thread other than its owner, or to block
# the owner.
THREADS = [
    same(
        "applych-under-lock",
        (
            "        with suppress(Closed):  # killed just now; our own inbox says so next\n"
            "            self.to_apply.send(message)",
            "        self.apply_ch.put(message)",
        ),
    ),
    same(
        "start-without-lock",
        (
            "return self._ask(self.commands, command, otherwise=(-1, 0, False))",
            "if self.inbox.closed or not self.leading:\n"
            "            return -1, self.current_term, False\n"
            "        request = Request(command)\n"
            "        self._take_commands([request])\n"
            "        return request.wait()",
        ),
    ),
    same(
        "snapshot-without-lock",
        (
            "self._ask(self.own_snapshots, (index, snapshot), otherwise=None)",
            "if not self.inbox.closed:\n            self._cut_log(index, snapshot)",
        ),
    ),
    same(
        "lock-taken-twice",
        (
            "            self._commit(on_majority)\n",
            "            self.get_state()\n            self._commit(on_majority)\n",
        ),
    ),
    same(
        "leak-after-kill",
        (
            "        self.applier_inbox.close()\n"
            "        for item in self.inbox.close():\n"
            "            if isinstance(item, Request):\n"
            "                item.answer(None)\n",
            "        pass\n",
        ),
    ),
]

SAME_MISTAKES = [*ELECTIONS, *LOGS, *DISKS, *SNAPSHOTS, *THREADS]
