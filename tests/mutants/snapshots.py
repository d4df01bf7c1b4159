"""Bugs in snapshots (§7, Figure 13): truncating, keeping, saving, sending and delivering."""

from tests.mutants.tool.mutants import Mutant

# A new leader may send its snapshot first, without checking who needs it: wasteful, but correct.
_LAST_FIRST = "self.next_index = [self._last_log_index() + 1] *"
_SNAPSHOT_FIRST = "self.next_index = [self.last_included_index or self._last_log_index() + 1] *"

MUTANTS = [
    Mutant(
        "snap-emptied-by-saves",
        "2d",
        "a snapshot stays on the disk until there is a later one (§7)",
        "saves an empty snapshot (b'') whenever it has no new one",
        (("self.persister.save(state.bytes(), snapshot)", 'self.persister.save(state.bytes(), snapshot or b"")'),),
    ),
    Mutant(
        "snap-rollback",
        "2d",
        "a snapshot older than what is applied is ignored (§7)",
        "installs every snapshot that arrives, even one older than what it has applied",
        (
            (
                "if self._hear_leader(args.term) and args.last_included_index > self.commit_index:",
                "if self._hear_leader(args.term):",
            ),
            (
                "self._commit_through(args.last_included_index)",
                "self.commit_index = args.last_included_index\n"
                "                self.last_applied = min(self.last_applied, args.last_included_index - 1)\n"
                "                self.committed.notify()",
            ),
        ),
        go="S",
    ),
    Mutant(
        "snap-drops-suffix",
        "2d",
        "entries after the snapshot's last are kept (Figure 13, 6)",
        "discards the entries that follow an installed snapshot",
        (("self._persist(args.data)", "del self.log[1:]\n                self._persist(args.data)"),),
        go="R",
    ),
    Mutant(
        "snap-keeps-everything",
        "2d",
        "a log that conflicts with the snapshot is discarded (Figure 13, 7)",
        "keeps the entries after an installed snapshot without checking that they match it",
        ((" if self._has_entry(index, term) else []", ""),),
    ),
    Mutant(
        "snap-not-saved",
        "2d",
        "a snapshot and the truncated log are saved together (§7)",
        "saves the truncated log without the snapshot",
        (("self._persist(snapshot)", "self._persist()"),),
        go="S",
    ),
    Mutant(
        "snap-install-not-saved",
        "2d",
        "a snapshot and the truncated log are saved together (§7)",
        "saves nothing when it installs the leader's snapshot",
        (
            ("self._persist(args.data)", "self.received = args.data"),
            ("snapshot=self.persister.read_snapshot()", "snapshot=self.received"),
        ),
    ),
    Mutant(
        "snap-restart-zero",
        "2d",
        "after a restart the service starts from its snapshot (§7)",
        "applies from index 1 after a restart, as if it had no snapshot",
        (
            (
                "self.last_applied = self.last_included_index\n        self.role",
                "self.last_applied = 0\n        self.role",
            ),
            (
                "if self.last_applied < self.last_included_index:",
                "if 0 < self.last_applied < self.last_included_index:",
            ),
        ),
        go="A",
    ),
    Mutant(
        "snap-term-lost",
        "2d",
        "the last included term is saved for the consistency check and for elections (§7)",
        "forgets the last included term of its snapshot",
        (("self.log = [LogEntry(term, None), *suffix]", "self.log = [LogEntry(0, None), *suffix]"),),
        go="S",
    ),
    Mutant(
        "snap-never-sent",
        "2d",
        "a follower that needs discarded entries gets the snapshot (§7)",
        "repeatedly sends the entries that it still has to a follower that needs a snapshot",
        (
            (
                "term, base, prev = self.current_term",
                "self.next_index[peer] = max(self.next_index[peer], self.last_included_index + 1)\n"
                "        term, base, prev = self.current_term",
            ),
            # With a pause: without one it would be another bug.
            (
                "return self.next_index[peer] <= args.prev_log_index",
                "return self.last_included_index < self.next_index[peer] <= args.prev_log_index",
            ),
        ),
        go="A",
    ),
    Mutant(
        "snap-no-compaction",
        "2d",
        "a snapshot truncates the log (§7)",
        "accepts snapshots from the service but never truncates its log",
        (("if index > self.last_included_index and not self.dead.is_set():", "if self.dead.is_set():"),),
        go="A",
    ),
    Mutant(
        "snap-then-old-command",
        "2d",
        "commands after a snapshot are delivered after it, in order (§7)",
        "delivers installed snapshots and commands from two threads",
        (
            (
                "self._commit_through(args.last_included_index)",
                "self.commit_index = args.last_included_index\n"
                "                self.last_applied = args.last_included_index\n"
                "                msg = ApplyMsg(\n"
                "                    snapshot_valid=True,\n"
                "                    snapshot=args.data,\n"
                "                    snapshot_term=args.last_included_term,\n"
                "                    snapshot_index=args.last_included_index,\n"
                "                )\n"
                "                self._spawn(self.apply_ch.put, msg)",
            ),
        ),
        go="S",
    ),
    Mutant(
        "snap-goes-back",
        "2d",
        "a snapshot older than the one in place is ignored (§7)",
        "accepts its service's snapshot even if the leader has sent a later one",
        (("if index > self.last_included_index and not self.dead.is_set():", "if not self.dead.is_set():"),),
    ),
    Mutant(
        "snap-log-goes-back",
        "2d",
        "InstallSnapshot of entries already committed changes nothing (§7)",
        "lets an old InstallSnapshot replace a log that is ahead of it",
        (
            (
                "if self._hear_leader(args.term) and args.last_included_index > self.commit_index:",
                "if self._hear_leader(args.term):",
            ),
        ),
    ),
    Mutant(
        "snap-saved-after-state",
        "2d",
        "a snapshot and the truncated log are saved together (§7)",
        "saves the truncated log first and its service's snapshot in a second save",
        (("self._persist(snapshot)", "self._persist()\n                self._persist(snapshot)"),),
    ),
    Mutant(
        "snap-saved-before-state",
        "2d",
        "a snapshot and the truncated log are saved together (§7)",
        "saves its service's snapshot first and the truncated log in a second save",
        (
            (
                "self._discard_log_through(index, self._term_at(index))\n                self._persist(snapshot)",
                "self._persist(snapshot)\n"
                "                self._discard_log_through(index, self._term_at(index))\n"
                "                self._persist()",
            ),
        ),
    ),
    Mutant(
        "snap-install-after-state",
        "2d",
        "a snapshot and the truncated log are saved together (§7)",
        "saves the truncated log first and the leader's snapshot in a second save",
        (("self._persist(args.data)", "self._persist()\n                self._persist(args.data)"),),
    ),
    Mutant(
        "snap-install-before-state",
        "2d",
        "a snapshot and the truncated log are saved together (§7)",
        "saves the leader's snapshot first and the truncated log in a second save",
        (
            (
                "self._discard_log_through(args.last_included_index, args.last_included_term)\n"
                "                self._persist(args.data)",
                "self._persist(args.data)\n"
                "                self._discard_log_through(args.last_included_index, args.last_included_term)\n"
                "                self._persist()",
            ),
        ),
    ),
    Mutant(
        "snap-hands-up-applied",
        "2d",
        "InstallSnapshot of entries already applied is not delivered (§7)",
        "delivers every snapshot later than its own last one, without checking last_applied",
        (
            (
                "args.last_included_index > self.commit_index:",
                "args.last_included_index > self.last_included_index:",
            ),
            (
                "self._commit_through(args.last_included_index)",
                "self._commit_through(args.last_included_index)\n"
                "                self.last_applied = min(self.last_applied, args.last_included_index - 1)\n"
                "                self.committed.notify()",
            ),
            # Its service may have applied more than last_applied now says.
            ("if index > self.last_applied:", "if index > self.commit_index:"),
        ),
    ),
    Mutant(
        "snap-applies-again",
        "2d",
        "InstallSnapshot of entries already committed changes nothing (§7)",
        "moves last_applied back to every snapshot later than its own last one, and applies later entries again",
        (
            (
                "args.last_included_index > self.commit_index:",
                "args.last_included_index > self.last_included_index:",
            ),
            (
                "self._commit_through(args.last_included_index)",
                "if self.last_applied > args.last_included_index:\n"
                "                    self.commit_index = self.last_applied = args.last_included_index\n"
                "                self._commit_through(args.last_included_index)",
            ),
        ),
    ),
    Mutant(
        "snap-drops-committed",
        "2d",
        "InstallSnapshot of entries already committed changes nothing (§7)",
        "replaces its whole log, with all later entries, by every snapshot later than its own last one",
        (
            (
                "args.last_included_index > self.commit_index:",
                "args.last_included_index > self.last_included_index:",
            ),
            ("self._persist(args.data)", "del self.log[1:]\n                self._persist(args.data)"),
            (
                "self._commit_through(args.last_included_index)",
                "self.last_applied = min(self.last_applied, args.last_included_index)\n"
                "                self.commit_index = args.last_included_index\n"
                "                self.committed.notify()",
            ),
        ),
    ),
    Mutant(
        "snap-no-timer-reset",
        "2d",
        "Followers: InstallSnapshot of the current leader resets the election timer (§5.2)",
        "campaigns although the leader's snapshots arrive",
        (
            (
                "if self._hear_leader(args.term) and args.last_included_index > self.commit_index:",
                "if not self._observe_term(args.term):\n"
                "                return InstallSnapshotReply(self.current_term)\n"
                "            self.role = Role.FOLLOWER\n"
                "            if args.last_included_index > self.commit_index:",
            ),
        ),
    ),
    Mutant(
        "snap-term-not-saved",
        "2d",
        "a term adopted from InstallSnapshot is saved before it is sent (Figure 2)",
        "does not save the term of an InstallSnapshot that it ignores (its leaders also send their snapshot first, "
        "which is correct)",
        (
            (_LAST_FIRST, _SNAPSHOT_FIRST),
            (
                "# If all of it is committed here, the log brings it to the service, or already has.\n",
                "if args.term > self.current_term and args.last_included_index <= self.commit_index:\n"
                "                self.current_term, self.voted_for, self.role = args.term, None, Role.FOLLOWER\n"
                "                self._reset_election_timer()\n"
                "                return InstallSnapshotReply(self.current_term)\n",
            ),
        ),
    ),
    Mutant(
        "snap-forgets-vote",
        "2d",
        "one vote per term, also after a snapshot (§5.2)",
        "forgets its vote when it installs a snapshot",
        (("self._persist(args.data)", "self.voted_for = None\n                self._persist(args.data)"),),
    ),
]
