"""Bugs that need a particular history to show: two crashes, an old message, a truncated log.

Earlier versions of the tests and scenarios missed them all. Each now has a scenario or a test."""

from tests.mutants.tool.mutants import Mutant

_LAST_LOG_INDEX = (
    "return self.last_included_index + len(self.log) - 1",
    "last = self.last_included_index + len(self.log) - 1\n"
    '        self.longest = max(getattr(self, "longest", 0), last)\n'
    "        return last",
)
_APPLIED_ALL = (
    "while self.last_applied == self.commit_index and",
    "while self.last_applied >= self.commit_index and",
)
_FROM_THE_SNAPSHOT_ON = (
    "if prev >= self.last_included_index and not self._has_entry(prev, args.prev_log_term):",
    "if prev > self.last_included_index and not self._has_entry(prev, args.prev_log_term):",
)
_UP_TO_DATE = "up_to_date = (args.last_log_term, args.last_log_index) >= (self._term_at(last), last)"

MUTANTS = [
    Mutant(
        "vote-puts-nothing-off",
        "2a",
        "Followers: granting a vote resets the election timer (§5.2)",
        "does not reset its election timer when it grants a vote",
        (("if granted:\n                self._reset_election_timer()\n", "if granted:\n"),),
    ),
    Mutant(
        "claims-longest-log",
        "2b",
        "a candidate claims its real last entry (§5.4.1)",
        "campaigns with the highest index that it ever had, even after its log was truncated",
        (
            _LAST_LOG_INDEX,
            (
                "args = RequestVoteArgs(self.current_term, self.me, last, self._term_at(last))",
                "args = RequestVoteArgs(self.current_term, self.me, self.longest, self._term_at(last))",
            ),
        ),
    ),
    Mutant(
        "votes-by-longest-log",
        "2b",
        "a voter compares a candidate's last entry with its own real last entry (§5.4.1)",
        "votes only for logs as long as its own log ever was, even after its own log was truncated",
        (
            _LAST_LOG_INDEX,
            (_UP_TO_DATE, _UP_TO_DATE.replace("last)", "self.longest)").replace("at(self.longest", "at(last")),
        ),
    ),
    Mutant(
        "cut-saved-before-append",
        "2c",
        "a follower's entries are saved before they are acknowledged (Figure 2)",
        "saves after it truncates its log for a new leader, but before it appends the leader's entries",
        (
            (
                "                del self.log[index + i - self.last_included_index :]\n"
                "                self.log.extend(entries[i:])\n"
                "                self._persist()\n",
                "                cut = index + i <= self._last_log_index()\n"
                "                del self.log[index + i - self.last_included_index :]\n"
                "                if cut:\n"
                "                    self._persist()\n"
                "                self.log.extend(entries[i:])\n"
                "                if not cut:\n"
                "                    self._persist()\n",
            ),
        ),
    ),
    Mutant(
        "vote-lost-by-next-save",
        "2c",
        "voted_for is persistent (Figure 2)",
        "restores its vote after a crash, but omits it from the next save",
        (
            ("self.voted_for: int | None = None\n", "self.voted_for: int | None = None\n        self.to_save = None\n"),
            ("state.encode(self.voted_for)", "state.encode(self.to_save)"),
            ("            self.voted_for = None\n", "            self.voted_for = self.to_save = None\n"),
            ("self.voted_for = self.me\n", "self.voted_for = self.to_save = self.me\n"),
            ("self.voted_for = args.candidate_id\n", "self.voted_for = self.to_save = args.candidate_id\n"),
        ),
    ),
    Mutant(
        "snap-term-lost-by-next-save",
        "2d",
        "the last included term is saved for the consistency check and for elections (§7)",
        "restores the last included term after a crash, but omits it from the next save",
        (
            (
                "self.last_included_index = 0\n        self._read",
                "self.last_included_index = self.base = 0\n        self._read",
            ),
            ("state.encode(self.log)", "state.encode([LogEntry(self.base, None), *self.log[1:]])"),
            ("self.last_included_index = index\n", "self.last_included_index = index\n        self.base = term\n"),
        ),
    ),
    Mutant(
        "snap-commit-zero-after-restart",
        "2d",
        "entries that a snapshot covers are committed (§7)",
        "after a restart, treats no entry as committed, not even the entries that its snapshot covers",
        (("self.commit_index = self.last_included_index", "self.commit_index = 0"), _APPLIED_ALL),
    ),
    Mutant(
        "snap-commit-falls",
        "2d",
        "commit_index increases monotonically (Figure 2)",
        "adopts the lower commit index of an old AppendEntries, and can then install an old snapshot",
        (
            _APPLIED_ALL,
            (
                "self._commit_through(min(args.leader_commit, prev + len(args.entries)))",
                "self.commit_index = min(args.leader_commit, prev + len(args.entries))\n"
                "            self.committed.notify()",
            ),
        ),
    ),
    Mutant(
        "snap-old-one-to-disk",
        "2d",
        "a snapshot older than the one in place is ignored (§7)",
        "overwrites its snapshot on disk with the data of an older InstallSnapshot, and changes nothing else",
        (
            (
                "                self._commit_through(args.last_included_index)\n"
                "            return InstallSnapshotReply",
                "                self._commit_through(args.last_included_index)\n"
                "            elif args.term == self.current_term and not self.dead.is_set():\n"
                "                self._persist(args.data)\n"
                "            return InstallSnapshotReply",
            ),
        ),
    ),
    Mutant(
        "snap-votes-as-if-empty",
        "2d",
        "if the log is empty, the snapshot's last entry decides whose log is more up to date (§5.4.1, §7)",
        "uses 0 as its last term if its log is empty after a snapshot",
        ((_UP_TO_DATE, _UP_TO_DATE.replace("self._term_at(last)", "self._term_at(last) if self.log[1:] else 0")),),
    ),
    Mutant(
        "snap-votes-as-before",
        "2d",
        "if the log is empty, the snapshot's last entry decides whose log is more up to date (§5.4.1, §7)",
        "updates its last index and term when it appends, but not when it installs a snapshot",
        (
            (
                "self._read_persist()\n\n",
                "self._read_persist()\n        self.last = (self.log[-1].term, self._last_log_index())\n\n",
            ),
            (
                "self.log.append(LogEntry(self.current_term, command))\n",
                "self.log.append(LogEntry(self.current_term, command))\n"
                "            self.last = (self.current_term, self._last_log_index())\n",
            ),
            (_UP_TO_DATE, "up_to_date = (args.last_log_term, args.last_log_index) >= self.last"),
            (
                "self.log.extend(entries[i:])\n",
                "self.log.extend(entries[i:])\n"
                "                self.last = (entries[-1].term, self._last_log_index())\n",
            ),
        ),
    ),
    Mutant(
        "snap-term-of-today",
        "2d",
        "the last included term is the term of the last included entry (§7)",
        "records its current term as the last included term if no entry is left in its log",
        (
            (
                "self._persist(snapshot)",
                "if not self.log[1:]:\n"
                "                    self.log[0] = LogEntry(self.current_term, None)\n"
                "                self._persist(snapshot)",
            ),
            _FROM_THE_SNAPSHOT_ON,
        ),
    ),
    Mutant(
        "snap-sent-with-leaders-term",
        "2d",
        "InstallSnapshot carries the last included entry's term (Figure 13)",
        "sends its own term as the last included term",
        (("base, self._term_at(base), data)", "base, term, data)"), _FROM_THE_SNAPSHOT_ON),
    ),
    Mutant(
        "snap-sends-its-own-only",
        "2d",
        "a follower that needs discarded entries gets the snapshot (§7)",
        "sends the last snapshot of its own service, even if it has installed a later one",
        (
            (
                "self._read_persist()\n\n",
                "self._read_persist()\n        self.made = self.persister.read_snapshot()\n\n",
            ),
            ("self._persist(snapshot)", "self.made = snapshot\n                self._persist(snapshot)"),
            ("data = self.persister.read_snapshot()\n", "data = self.made\n"),
        ),
    ),
    Mutant(
        "snap-backs-up-too-far",
        "2d",
        "entries that a snapshot covers are not in the log (§7)",
        "looks for the conflicting term in entries that its snapshot has replaced",
        (
            (
                "while last > self.last_included_index and self._term_at(last) >",
                "while last > 0 and self._term_at(last) >",
            ),
        ),
    ),
    Mutant(
        "snap-refusal-is-a-match",
        "2d",
        "a reply counts only in the term of its request (§5.1)",
        "treats a late rejection of a snapshot that it sent in an earlier leadership as a match",
        (
            (
                "if reply is None or not self._observe_term(reply.term) or args.term != self.current_term:\n",
                "stale = isinstance(args, AppendEntriesArgs) and args.term != self.current_term\n"
                "                if reply is None or not self._observe_term(reply.term) and (\n"
                "                    stale or self.role is not Role.LEADER\n"
                "                ) or stale:\n",
            ),
            (
                "self.next_index[peer] = max(self.next_index[peer], args.last_included_index + 1)\n",
                "self.match_index[peer] = max(self.match_index[peer], args.last_included_index)\n"
                "        self.next_index[peer] = max(self.next_index[peer], args.last_included_index + 1)\n",
            ),
        ),
    ),
    Mutant(
        "snap-reply-term-ignored",
        "2d",
        "a leader steps down on a higher term in a reply (§5.1)",
        "ignores the term in replies to InstallSnapshot",
        (
            (
                "if reply is None or not self._observe_term(reply.term) or args.term != self.current_term:\n",
                "told = reply.term if isinstance(reply, AppendEntriesReply) else args.term\n"
                "                if reply is None or not self._observe_term(told) or args.term != self.current_term:\n",
            ),
        ),
    ),
    Mutant(
        "leader-forgets-its-vote",
        "2a",
        "one vote per term, including a candidate's own (§5.2)",
        "forgets that it voted for itself when it becomes leader",
        (("        self.role = Role.LEADER\n", "        self.role = Role.LEADER\n        self.voted_for = None\n"),),
    ),
    Mutant(
        "match-kept-unless-cut",
        "2b",
        "match_index is reinitialized to 0 after election (Figure 2)",
        "keeps the match_index of an earlier leadership if its own log has not been truncated since then",
        (
            (
                "        self.match_index = [0] * len(self.peers)\n        self.match_index[self.me]",
                "        if self.was_cut:\n"
                "            self.match_index = [0] * len(self.peers)\n"
                "        self.was_cut = False\n"
                "        self.match_index[self.me]",
            ),
            ("self.voted_for: int | None = None\n", "self.voted_for: int | None = None\n        self.was_cut = True\n"),
            (
                "                del self.log[index + i - self.last_included_index :]\n",
                "                self.was_cut |= index + i <= self._last_log_index()\n"
                "                del self.log[index + i - self.last_included_index :]\n",
            ),
            ("self._persist(args.data)", "self.was_cut = True\n                self._persist(args.data)"),
        ),
    ),
    Mutant(
        "cut-tail-stays-on-disk",
        "2c",
        "truncated entries are removed from the disk, too (Figure 2)",
        "leaves truncated entries on its disk",
        (
            (
                "        state.encode(self.log)\n",
                "        end = self.last_included_index + len(self.log) - self.base_on_disk\n"
                "        self.on_disk = [*self.log, *self.on_disk[end:]]\n"
                "        self.base_on_disk = self.last_included_index\n"
                "        state.encode(self.on_disk)\n",
            ),
            (
                "            self.log = state.decode(list[LogEntry])\n",
                "            self.log = state.decode(list[LogEntry])\n"
                "            self.on_disk, self.base_on_disk = list(self.log), self.last_included_index\n",
            ),
            (
                "self.voted_for: int | None = None\n",
                "self.voted_for: int | None = None\n        self.on_disk, self.base_on_disk = [], 0\n",
            ),
        ),
    ),
    Mutant(
        "snap-save-loses-vote",
        "2d",
        "voted_for is persistent (Figure 2)",
        "omits its vote when it saves a snapshot of its service",
        (
            (
                "                self._persist(snapshot)\n",
                "                vote, self.voted_for = self.voted_for, None\n"
                "                self._persist(snapshot)\n"
                "                self.voted_for = vote\n",
            ),
        ),
    ),
    Mutant(
        "snap-save-takes-old-term",
        "2d",
        "current_term is persistent (Figure 2)",
        "when it saves a snapshot, saves the term of its last entry as its current term",
        (
            (
                "        state.encode(self.current_term)\n",
                "        state.encode(self.current_term if snapshot is None else self.log[-1].term)\n",
            ),
        ),
    ),
    Mutant(
        "snap-install-loses-vote",
        "2d",
        "voted_for is persistent (Figure 2)",
        "omits its vote when it saves a snapshot of the leader",
        (
            (
                "                self._persist(args.data)\n",
                "                vote, self.voted_for = self.voted_for, None\n"
                "                self._persist(args.data)\n"
                "                self.voted_for = vote\n",
            ),
        ),
    ),
    Mutant(
        "snap-old-tail-on-disk",
        "2d",
        "a snapshot replaces a log that differs (Figure 13, 7)",
        "saves the entries that a snapshot replaces, and discards them only in memory",
        (
            (
                "                self._discard_log_through(args.last_included_index, args.last_included_term)\n"
                "                self._persist(args.data)\n",
                "                suffix = self.log[args.last_included_index - self.last_included_index + 1 :]\n"
                "                self._discard_log_through(args.last_included_index, args.last_included_term)\n"
                "                kept = self.log\n"
                "                self.log = [kept[0], *suffix]\n"
                "                self._persist(args.data)\n"
                "                self.log = kept\n",
            ),
        ),
    ),
    Mutant(
        "refused-append-no-reset",
        "2b",
        "AppendEntries of the current leader resets the election timer (§5.2)",
        "resets its election timer only for a snapshot or an AppendEntries that it accepts",
        (
            (
                "        self._reset_election_timer()\n        return True",
                "        return True",
            ),
            (
                "            self._append_new(prev + 1, args.entries)  # 3, 4\n",
                "            self._reset_election_timer()\n"
                "            self._append_new(prev + 1, args.entries)  # 3, 4\n",
            ),
            (
                "            # If all of it is committed here, the log brings it to the service, or already has.\n",
                "            if args.term >= self.current_term:\n                self._reset_election_timer()\n",
            ),
        ),
    ),
    Mutant(
        "big-entry-never-sent",
        "2b",
        "a leader sends what a follower lacks (§5.3)",
        "limits its messages to 64 KiB, and never sends a larger entry",
        (
            (
                "        entries = self.log[prev + 1 - base :]\n",
                "        entries, size = [], 0\n"
                "        for entry in self.log[prev + 1 - base :]:\n"
                "            size += len(labgob.encode([entry.command]))\n"
                "            if size > 65536:\n"
                "                break\n"
                "            entries.append(entry)\n",
            ),
        ),
    ),
    Mutant(
        "heard-commit-saved",
        "2c",
        "leader_commit refers to the leader's log (Figure 2: AppendEntries 5)",
        "saves the highest leader_commit that it has received, and commits its own log up to that index after a crash",
        (
            (
                "        self.last_included_index = 0\n        self._read_persist()\n",
                "        self.last_included_index = 0\n        self.heard_commit = 0\n        self._read_persist()\n",
            ),
            (
                "        self.commit_index = self.last_included_index\n",
                "        heard = min(self.heard_commit, self._last_log_index())\n"
                "        self.commit_index = max(self.last_included_index, heard)\n",
            ),
            (
                "        state.encode(self.log)\n",
                "        state.encode(self.log)\n        state.encode(self.heard_commit)\n",
            ),
            (
                "            self.log = state.decode(list[LogEntry])\n",
                "            self.log = state.decode(list[LogEntry])\n"
                "            self.heard_commit = state.decode(int)\n",
            ),
            (
                "            if not self._hear_leader(args.term):  # 1\n",
                "            if args.term >= self.current_term:\n"
                "                self.heard_commit = max(self.heard_commit, args.leader_commit)\n"
                "            if not self._hear_leader(args.term):  # 1\n",
            ),
        ),
    ),
    Mutant(
        "snap-bytes-of-the-next",
        "2d",
        "a snapshot is delivered with its own index (§7)",
        "records the index of each snapshot that arrives, but delivers the data that is on disk by then",
        (
            (
                "        self.votes: dict[int, bool] = {}\n",
                "        self.votes: dict[int, bool] = {}\n        self.pending: list[tuple[int, int]] = []\n",
            ),
            (
                "            if self.last_applied < self.last_included_index:\n",
                "            if self.last_applied < self.last_included_index and self.pending:\n"
                "                self.last_applied, term = self.pending.pop(0)\n"
                "                snapshot = self.persister.read_snapshot()\n"
                "                return ApplyMsg(False, None, 0, True, snapshot, term, self.last_applied)\n"
                "            if self.last_applied < self.last_included_index:\n",
            ),
            (
                "                self._persist(args.data)\n",
                "                self._persist(args.data)\n"
                "                self.pending.append((args.last_included_index, args.last_included_term))\n",
            ),
        ),
    ),
    Mutant(
        "snap-commit-falls-before-apply",
        "2d",
        "commit_index never falls (Figure 2: volatile state)",
        "lowers commit_index to an older leader_commit if it has not applied entries beyond that",
        (("        if index > self.commit_index:\n", "        if index > self.last_applied:\n"),),
    ),
    Mutant(
        "snap-refuses-what-it-covers",
        "2d",
        "entries that a snapshot covers always match (§5.4.3, §7)",
        "rejects AppendEntries that begin before the end of its snapshot; its hint does not advance next_index",
        (
            (
                "            if prev >= self.last_included_index and not self._has_entry(prev, args.prev_log_term):\n",
                "            if prev < self.last_included_index:\n"
                "                return AppendEntriesReply(self.current_term, False, 0, max(prev, 1))\n"
                "            if not self._has_entry(prev, args.prev_log_term):\n",
            ),
        ),
    ),
]
