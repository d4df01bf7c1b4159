"""Bugs in locking: no lock, a lock released too early, fields read outside it, updates in two critical sections.

Each is the reference with one locking bug. Most need a thread to be preempted at the wrong moment, so all of them run
with --race (docs/student/races.md). Without it, 30 of these 41 passed all tests of a peer with seed 0.

Not included, because all 6 seeds missed it: a peer that compares the term of an AppendEntries reply in one critical
section and counts the reply in the next.
"""

from tests.mutants.tool.mutants import Edit, Mutant


def _race(id_: str, part: str, what: str, *edits: Edit) -> Mutant:
    rule = "every access to shared state is ordered by the lock that guards it"
    return Mutant(f"race-{id_}", part, rule, what, edits, races=True)


MUTANTS = [
    # ---- start() ----
    _race(
        "start-checks-outside",
        "2b",
        "checks its role before it takes the lock, in start()",
        (
            "        with self.mu:\n"
            "            if self.role is not Role.LEADER:\n"
            "                return -1, self.current_term, False\n"
            "            self.log.append",
            "        if self.role is not Role.LEADER:\n"
            "            return -1, self.current_term, False\n"
            "        with self.mu:\n"
            "            self.log.append",
        ),
    ),
    _race(
        "start-without-lock",
        "2b",
        "does not take the lock in start()",
        (
            "        with self.mu:\n"
            "            if self.role is not Role.LEADER:\n"
            "                return -1, self.current_term, False\n"
            "            self.log.append",
            "        if True:\n"
            "            if self.role is not Role.LEADER:\n"
            "                return -1, self.current_term, False\n"
            "            self.log.append",
        ),
    ),
    _race(
        "start-lets-go-to-save",
        "2b",
        "releases the lock in start() while it saves, so another call may use the same index",
        (
            "            self.log.append(LogEntry(self.current_term, command))\n            self._persist()\n",
            "            self.log.append(LogEntry(self.current_term, command))\n"
            "        self._persist()\n"
            "        with self.mu:\n",
        ),
    ),
    _race(
        "start-returns-later-index",
        "2b",
        "reads the index that start() returns after it has released the lock",
        (
            "            self._replicate()\n            return self._last_log_index(), self.current_term, True\n",
            "            self._replicate()\n        return self._last_log_index(), self.current_term, True\n",
        ),
    ),
    _race(
        "start-in-two-sections",
        "2c",
        "checks its role in one critical section and appends in the next",
        (
            "                return -1, self.current_term, False\n            self.log.append",
            "                return -1, self.current_term, False\n        with self.mu:\n            self.log.append",
        ),
    ),
    # ---- get_state() ----
    _race(
        "get-state-without-lock",
        "2a",
        "does not take the lock in get_state()",
        (
            "        with self.mu:\n            return self.current_term, self.role is Role.LEADER\n",
            "        return self.current_term, self.role is Role.LEADER\n",
        ),
    ),
    _race(
        "get-state-in-two-halves",
        "2a",
        "reads the term under the lock, but the role without the lock, in get_state()",
        (
            "        with self.mu:\n            return self.current_term, self.role is Role.LEADER\n",
            "        with self.mu:\n"
            "            term = self.current_term\n"
            "        return term, self.role is Role.LEADER\n",
        ),
    ),
    # ---- snapshot() ----
    _race(
        "snapshot-without-lock",
        "2d",
        "does not take the lock in snapshot()",
        (
            "        with self.mu:\n            if index > self.last_applied:\n                raise",
            "        if True:\n            if index > self.last_applied:\n                raise",
        ),
    ),
    _race(
        "snapshot-checks-outside",
        "2d",
        "reads last_applied before it takes the lock, in snapshot()",
        (
            "        with self.mu:\n"
            "            if index > self.last_applied:\n"
            '                raise ValueError(f"snapshot(): index must be at most {self.last_applied}, got {index}")\n',
            "        if index > self.last_applied:\n"
            '            raise ValueError(f"snapshot(): index must be at most {self.last_applied}, got {index}")\n'
            "        with self.mu:\n",
        ),
    ),
    _race(
        "snapshot-in-two-sections",
        "2d",
        "checks in one critical section that a snapshot is newer, and installs it in the next, in snapshot()",
        (
            "            if index > self.last_included_index and not self.dead.is_set():\n"
            "                self._discard_log_through(index, self._term_at(index))\n",
            "            newer = index > self.last_included_index and not self.dead.is_set()\n"
            "            term = self._term_at(index) if newer else 0\n"
            "        with self.mu:\n"
            "            if newer:\n"
            "                self._discard_log_through(index, term)\n",
        ),
    ),
    _race(
        "snapshot-saves-outside",
        "2d",
        "releases the lock in snapshot() before it saves",
        (
            "                self._discard_log_through(index, self._term_at(index))\n"
            "                self._persist(snapshot)\n",
            "                self._discard_log_through(index, self._term_at(index))\n"
            "            else:\n"
            "                return\n"
            "        self._persist(snapshot)\n",
        ),
    ),
    # ---- kill() ----
    _race(
        "kill-without-lock",
        "2a",
        "does not take the lock when it steps down in kill()",
        (
            "        with self.mu:\n"
            "            self.dead.set()\n"
            "            self.role = Role.FOLLOWER\n"
            "            self.committed.notify_all()\n",
            "        self.dead.set()\n"
            "        self.role = Role.FOLLOWER\n"
            "        with self.mu:\n"
            "            self.committed.notify_all()\n",
        ),
    ),
    # ---- the ticker ----
    _race(
        "tick-reads-role-outside",
        "2a",
        "reads its role without the lock, in the ticker",
        (
            "        with self.mu:\n"
            "            if self.role is Role.LEADER:\n"
            "                self._replicate(heartbeat=True)\n"
            "                return HEARTBEAT_S\n",
            "        if self.role is Role.LEADER:\n"
            "            with self.mu:\n"
            "                self._replicate(heartbeat=True)\n"
            "                return HEARTBEAT_S\n"
            "        with self.mu:\n",
        ),
    ),
    _race(
        "deadline-read-outside",
        "2a",
        "computes its pause from a deadline that it reads without the lock",
        (
            "            left_s = self.election_deadline - time.monotonic()\n"
            "            return left_s if self.role is Role.FOLLOWER else min(left_s, HEARTBEAT_S)\n",
            "            follows = self.role is Role.FOLLOWER\n"
            "        left_s = self.election_deadline - time.monotonic()\n"
            "        return left_s if follows else min(left_s, HEARTBEAT_S)\n",
        ),
    ),
    _race(
        "threads-before-fields",
        "2a",
        "starts its threads before it has set the fields they read",
        (
            "        self._reset_election_timer()\n"
            "        self._spawn(self._ticker)\n"
            "        self._spawn(self._applier)\n",
            "",
        ),
        (
            "        # Volatile state on candidates, new in each campaign: the answers so far, by peer.\n",
            "        self._reset_election_timer()\n"
            "        self._spawn(self._ticker)\n"
            "        self._spawn(self._applier)\n",
        ),
    ),
    # ---- the applier ----
    _race(
        "applier-without-lock",
        "2b",
        "increments last_applied without the lock",
        (
            "            self.last_applied += 1\n"
            "            entry = self.log[self.last_applied - self.last_included_index]\n"
            "            return",
            "        self.last_applied += 1\n"
            "        with self.mu:\n"
            "            entry = self.log[self.last_applied - self.last_included_index]\n"
            "            return",
        ),
    ),
    _race(
        "applier-reads-log-outside",
        "2b",
        "reads the entry to apply without the lock",
        (
            "            self.last_applied += 1\n"
            "            entry = self.log[self.last_applied - self.last_included_index]\n"
            "            return ApplyMsg(command_valid=True, command=entry.command, command_index=self.last_applied)\n",
            "            self.last_applied += 1\n"
            "            index = self.last_applied\n"
            "        entry = self.log[index - self.last_included_index]\n"
            "        return ApplyMsg(command_valid=True, command=entry.command, command_index=index)\n",
        ),
    ),
    _race(
        "applier-waits-once",
        "2b",
        "waits on its condition without a loop, so any wakeup counts as a change",
        (
            "            while self.last_applied == self.commit_index and not self.dead.is_set():\n"
            "                self.committed.wait()\n",
            "            if self.last_applied == self.commit_index and not self.dead.is_set():\n"
            "                self.committed.wait(HEARTBEAT_S)\n",
        ),
    ),
    _race(
        "applier-waits-in-another-section",
        "2b",
        "checks in one critical section that it has nothing to apply, and waits in the next",
        (
            "            while self.last_applied == self.commit_index and not self.dead.is_set():\n"
            "                self.committed.wait()\n",
            "            idle = self.last_applied == self.commit_index and not self.dead.is_set()\n"
            "        with self.mu:\n"
            "            if idle:\n"
            "                self.committed.wait()\n",
        ),
    ),
    _race(
        "applier-in-two-sections",
        "2d",
        "checks in one critical section whether to apply a snapshot, and picks the next entry in another",
        (
            "            if self.last_applied < self.last_included_index:\n                # install_snapshot() has",
            "            covered = self.last_applied < self.last_included_index\n"
            "        with self.mu:\n"
            "            if covered:\n"
            "                # install_snapshot() has",
        ),
    ),
    _race(
        "snapshot-read-outside",
        "2d",
        "reads the snapshot to deliver without the lock",
        (
            "                self.last_applied = self.last_included_index\n                return ApplyMsg(\n",
            "                self.last_applied = self.last_included_index\n"
            "                self.mu.release()\n"
            "                time.sleep(0)\n"
            "                handed = self.last_included_index\n"
            "                self.mu.acquire()\n"
            "                return ApplyMsg(\n",
        ),
        (
            "                    snapshot_index=self.last_included_index,\n",
            "                    snapshot_index=handed,\n",
        ),
    ),
    # ---- the threads that ask for votes ----
    _race(
        "vote-args-outside",
        "2a",
        "builds its RequestVote without the lock",
        (
            "            last = self._last_log_index()\n"
            "            args = RequestVoteArgs(self.current_term, self.me, last, self._term_at(last))\n"
            "        reply: RequestVoteReply",
            "        last = self._last_log_index()\n"
            "        args = RequestVoteArgs(self.current_term, self.me, last, self._term_at(last))\n"
            "        reply: RequestVoteReply",
        ),
    ),
    _race(
        "vote-counted-outside",
        "2a",
        "counts a vote after it has released the lock",
        (
            "            if self.role is Role.CANDIDATE and args.term == self.current_term:\n"
            "                self._count_vote(peer, granted=reply.vote_granted)\n",
            "            counts = self.role is Role.CANDIDATE and args.term == self.current_term\n"
            "        if counts:\n"
            "            self._count_vote(peer, granted=reply.vote_granted)\n",
        ),
    ),
    _race(
        "vote-counted-in-two-sections",
        "2a",
        "checks in one critical section that a vote is from its campaign, and counts it in the next",
        (
            "            if self.role is Role.CANDIDATE and args.term == self.current_term:\n"
            "                self._count_vote(peer, granted=reply.vote_granted)\n",
            "            counts = self.role is Role.CANDIDATE and args.term == self.current_term\n"
            "        with self.mu:\n"
            "            if counts:\n"
            "                self._count_vote(peer, granted=reply.vote_granted)\n",
        ),
    ),
    # ---- the threads that replicate ----
    _race(
        "replication-args-outside",
        "2b",
        "builds its AppendEntries without the lock",
        (
            "                self.sent_at[peer] = time.monotonic()\n"
            "                args = self._replication_args(peer)\n",
            "                self.sent_at[peer] = time.monotonic()\n            args = self._replication_args(peer)\n",
        ),
    ),
    _race(
        "replication-checks-only",
        "2b",
        "holds the lock while it checks its role, but not afterwards",
        (
            "                if self.role is not Role.LEADER:\n"
            "                    return\n"
            "                self.sent_at[peer] = time.monotonic()\n"
            "                args = self._replication_args(peer)\n",
            "                if self.role is not Role.LEADER:\n"
            "                    return\n"
            "            self.sent_at[peer] = time.monotonic()\n"
            "            args = self._replication_args(peer)\n",
        ),
    ),
    _race(
        "replication-in-two-sections",
        "2c",
        "checks its role in one critical section and builds its AppendEntries in the next",
        (
            "                    return\n                self.sent_at[peer] = time.monotonic()\n",
            "                    return\n"
            "            with self.mu:\n"
            "                self.sent_at[peer] = time.monotonic()\n",
        ),
    ),
    _race(
        "answers-counted-outside",
        "2b",
        "counts acknowledgements without the lock",
        (
            "                elif isinstance(args, AppendEntriesArgs):\n"
            "                    lacking = self._append_entries_answered(peer, args, reply)\n",
            "                elif isinstance(args, AppendEntriesArgs):\n"
            "                    self.mu.release()\n"
            "                    lacking = self._append_entries_answered(peer, args, reply)\n"
            "                    self.mu.acquire()\n",
        ),
    ),
    _race(
        "sender-put-back-outside",
        "2b",
        "resets the sender of a follower without the lock",
        (
            "                if not lacking:\n                    self.sender[peer] = None\n",
            "            if not lacking:\n                self.sender[peer] = None\n",
        ),
    ),
    # ---- the handlers ----
    _race(
        "request-vote-without-lock",
        "2a",
        "does not take the lock in request_vote()",
        (
            "        with self.mu:\n"
            "            if not self._observe_term(args.term):\n"
            "                return RequestVoteReply",
            "        if True:\n"
            "            if not self._observe_term(args.term):\n"
            "                return RequestVoteReply",
        ),
    ),
    _race(
        "vote-saved-outside",
        "2a",
        "releases the lock in request_vote() before it saves its vote",
        (
            "                    self.voted_for = args.candidate_id\n"
            "                    self._persist()\n"
            "            return RequestVoteReply(self.current_term, granted)\n",
            "                    self.voted_for = args.candidate_id\n"
            "        self._persist()\n"
            "        with self.mu:\n"
            "            return RequestVoteReply(self.current_term, granted)\n",
        ),
    ),
    _race(
        "vote-in-two-sections",
        "2a",
        "checks in one critical section that it may vote for a candidate, and votes in the next",
        (
            "            granted = up_to_date and self.voted_for in (None, args.candidate_id)\n"
            "            if granted:\n",
            "            granted = up_to_date and self.voted_for in (None, args.candidate_id)\n"
            "        with self.mu:\n"
            "            if granted:\n",
        ),
        (
            "                if self.voted_for is None:\n"
            "                    self.voted_for = args.candidate_id\n"
            "                    self._persist()\n",
            "                self.voted_for = args.candidate_id\n                self._persist()\n",
        ),
    ),
    _race(
        "vote-replies-outside",
        "2a",
        "reads the term of its RequestVote reply after it has released the lock",
        (
            "            return RequestVoteReply(self.current_term, granted)\n",
            "        return RequestVoteReply(self.current_term, granted)\n",
        ),
    ),
    _race(
        "append-entries-without-lock",
        "2b",
        "does not take the lock in append_entries()",
        (
            "        with self.mu:\n            if not self._hear_leader(args.term):  # 1\n",
            "        if True:\n            if not self._hear_leader(args.term):  # 1\n",
        ),
    ),
    _race(
        "append-entries-in-two-sections",
        "2c",
        "checks the term of AppendEntries in one critical section, and stores the entries in the next",
        (
            "                return AppendEntriesReply(self.current_term, False)\n"
            "            prev = args.prev_log_index\n",
            "                return AppendEntriesReply(self.current_term, False)\n"
            "        with self.mu:\n"
            "            prev = args.prev_log_index\n",
        ),
    ),
    _race(
        "append-entries-stores-later",
        "2c",
        "checks in one critical section that its log matches the leader's, and stores the entries in the next",
        (
            "                return self._conflict(prev)\n            self._append_new",
            "                return self._conflict(prev)\n        with self.mu:\n            self._append_new",
        ),
    ),
    _race(
        "follower-commits-outside",
        "2b",
        "adopts leader_commit after it has released the lock",
        (
            "            self._commit_through(min(args.leader_commit, prev + len(args.entries)))\n"
            "            return AppendEntriesReply(self.current_term, True)\n",
            "        if args.leader_commit > self.commit_index:\n"
            "            with self.mu:\n"
            "                self._commit_through(min(args.leader_commit, prev + len(args.entries)))\n"
            "        with self.mu:\n"
            "            return AppendEntriesReply(self.current_term, True)\n",
        ),
    ),
    _race(
        "install-snapshot-without-lock",
        "2d",
        "does not take the lock in install_snapshot()",
        (
            "        with self.mu:\n            # If all of it is committed here",
            "        if True:\n            # If all of it is committed here",
        ),
    ),
    _race(
        "install-snapshot-in-two-sections",
        "2d",
        "checks in one critical section that a snapshot is newer, and installs it in the next",
        (
            "            if self._hear_leader(args.term) and args.last_included_index > self.commit_index:\n",
            "            newer = self._hear_leader(args.term) and args.last_included_index > self.commit_index\n"
            "        with self.mu:\n"
            "            if newer:\n",
        ),
    ),
    _race(
        "install-snapshot-commits-later",
        "2d",
        "installs a snapshot in one critical section, and updates commit_index in the next",
        (
            "                self._persist(args.data)\n"
            "                self._commit_through(args.last_included_index)\n",
            "                self._persist(args.data)\n"
            "        with self.mu:\n"
            "            self._commit_through(args.last_included_index)\n",
        ),
    ),
    _race(
        "install-snapshot-replies-outside",
        "2d",
        "reads the term of its InstallSnapshot reply after it has released the lock",
        (
            "            return InstallSnapshotReply(self.current_term)",
            "        return InstallSnapshotReply(self.current_term)",
        ),
    ),
]
