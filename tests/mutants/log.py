"""Bugs in the log (§5.3, §5.4): consistency, truncation, commitment and what the service is given."""

from tests.mutants.tool.mutants import Mutant

# A common correct design: heartbeats carry no entries, even to a follower that lacks some. A leader that always sends
# all its entries never sends a leader_commit beyond the message's last entry.
EMPTY_HEARTBEATS = (
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
)

MUTANTS = [
    Mutant(
        "leader-state-kept",
        "2b",
        "Leaders: next_index and match_index are reinitialized after election (Figure 2)",
        "keeps next_index and match_index of an earlier leadership",
        (
            (
                "        self.next_index = [self._last_log_index() + 1] * len(self.peers)\n"
                "        self.match_index = [0] * len(self.peers)\n",
                "        if not self.next_index:\n"
                "            self.next_index = [self._last_log_index() + 1] * len(self.peers)\n"
                "            self.match_index = [0] * len(self.peers)\n",
            ),
        ),
        go="R",
    ),
    Mutant(
        "uptodate-length-first",
        "2b",
        "the last term decides whose log is more up to date, then the length (§5.4.1)",
        "compares log lengths before terms",
        (
            (
                "(args.last_log_term, args.last_log_index) >= (self._term_at(last), last)",
                "(args.last_log_index, args.last_log_term) >= (last, self._term_at(last))",
            ),
        ),
        go="A",
        go_caught=True,
    ),
    Mutant(
        "heartbeat-no-prev-check",
        "2b",
        "AppendEntries 2: success only where the log matches at prev_log_index (§5.3)",
        "skips the consistency check when there are no entries",
        (("if prev >= self.last_included_index and", "if args.entries and prev >= self.last_included_index and"),),
        go="S",
        go_caught=True,
    ),
    Mutant(
        "truncate-always",
        "2b",
        "AppendEntries 3: only a conflict truncates (§5.3)",
        "truncates its log at prev_log_index on every AppendEntries",
        (
            (
                "for i, entry in enumerate(entries):",
                "del self.log[max(index - self.last_included_index, 1) :]\n"
                "        self._persist()\n"
                "        for i, entry in enumerate(entries):",
            ),
        ),
        go="R",
        go_caught=True,
    ),
    Mutant(
        "no-tail-truncate",
        "2b",
        "AppendEntries 3: a conflicting entry and all that follow it are deleted (§5.3)",
        "overwrites conflicting entries and keeps the entries after them",
        (
            ("del self.log[index + i - self.last_included_index :]\n", "at = index + i - self.last_included_index\n"),
            ("self.log.extend(entries[i:])", "self.log[at : at + len(entries) - i] = entries[i:]"),
        ),
        go="S",
    ),
    Mutant(
        "commit-past-last-new",
        "2b",
        "AppendEntries 5: commit at most through the last new entry (§5.3)",
        "commits up to leader_commit or the end of its own log, without checking the entries",
        (
            ("min(args.leader_commit, prev + len(args.entries))", "min(args.leader_commit, self._last_log_index())"),
            *EMPTY_HEARTBEATS,
        ),
        go="R",
    ),
    Mutant(
        "commit-unbounded",
        "2b",
        "AppendEntries 5: commit at most through the last new entry (§5.3)",
        "commits up to leader_commit although its own log is shorter",
        (("min(args.leader_commit, prev + len(args.entries))", "args.leader_commit"), *EMPTY_HEARTBEATS),
    ),
    Mutant(
        "commit-minority",
        "2b",
        "Leaders: commit what a majority stores (§5.3)",
        "commits an entry when half of the peers store it",
        (("[(len(self.peers) - 1) // 2]", "[(len(self.peers) - 1) // 2 + 1]"),),
    ),
    Mutant(
        "match-regresses",
        "2b",
        "match_index increases monotonically (Figure 2)",
        "lowers match_index when an older success arrives late",
        (
            (
                "max(self.match_index[peer], args.prev_log_index + len(args.entries))",
                "args.prev_log_index + len(args.entries)",
            ),
        ),
        go="R",
    ),
    Mutant(
        "match-from-own-log",
        "2b",
        "match_index is the highest entry that a follower is known to store (Figure 2)",
        "treats a success as a match of its whole current log, not of the entries that it sent",
        (
            (
                "max(self.match_index[peer], args.prev_log_index + len(args.entries))",
                "self._last_log_index()",
            ),
        ),
    ),
    Mutant(
        "stale-ae-reply-used",
        "2b",
        "a reply counts only in the term of its request (§5.1)",
        "uses replies to AppendEntries of an earlier term",
        (
            (
                "if reply is None or not self._observe_term(reply.term) or args.term != self.current_term:",
                "if reply is not None:\n"
                "                    self._observe_term(reply.term)\n"
                "                if reply is None or self.role is not Role.LEADER:",
            ),
        ),
        go="S",
        go_caught=False,
    ),
    Mutant(
        "timeout-as-reject",
        "2b",
        "only a rejection moves next_index back (§5.3)",
        "treats a lost RPC as a rejection and moves next_index back",
        (
            (
                "if reply is None or not self._observe_term(reply.term) or args",
                "if reply is None and self.role is Role.LEADER and args.term == self.current_term:\n"
                "                    self.next_index[peer] = max(1, self.next_index[peer] - 1)\n"
                "                if reply is None or not self._observe_term(reply.term) or args",
            ),
        ),
        go="R",
        liveness=True,
    ),
    Mutant(
        "next-index-below-one",
        "2b",
        "next_index is at least 1 (§5.3)",
        "treats a lost RPC as a rejection and moves next_index back, even below 1",
        (
            (
                "if reply is None or not self._observe_term(reply.term) or args",
                "if reply is None and self.role is Role.LEADER and args.term == self.current_term:\n"
                "                    self.next_index[peer] -= 1\n"
                "                if reply is None or not self._observe_term(reply.term) or args",
            ),
            ("if prev < base:", "if 0 <= prev < base:"),
        ),
    ),
    Mutant(
        "bad-conflict-hint",
        "2b",
        "the leader finds where the logs diverge (§5.3)",
        "answers a conflict with a hint that is one too high, so the leader repeats its request",
        (("False, term, first)", "False, term, first + 1)"),),
        go="S",
    ),
    Mutant(
        "no-commit-on-heartbeat",
        "2b",
        "AppendEntries 5: leader_commit counts in every AppendEntries (Figure 2)",
        "ignores leader_commit in AppendEntries without entries",
        (("self._commit_through(min(", "args.entries and self._commit_through(min("),),
        go="A",
    ),
    Mutant(
        "apply-uncommitted",
        "2b",
        "only committed entries are applied (§5.3)",
        "applies a command as soon as start() accepts it",
        (("self._advance_commit_index()  # a peer", "self._commit_through(self._last_log_index())  # a peer"),),
        go="A",
    ),
    Mutant(
        "follower-applies-on-append",
        "2b",
        "only committed entries are applied (§5.3)",
        "applies entries as soon as it appends them as a follower, before they are committed",
        (("min(args.leader_commit, prev + len(args.entries))", "prev + len(args.entries)"),),
    ),
    Mutant(
        "apply-duplicate",
        "2b",
        "All Servers: each entry is applied once (§5.3)",
        "applies entries in two threads, which update last_applied only after they deliver an entry",
        (
            ("self._spawn(self._applier)", "self._spawn(self._applier)\n        self._spawn(self._applier)"),
            ("self.last_applied += 1\n            entry =", "index = self.last_applied + 1\n            entry ="),
            ("self.log[self.last_applied - self.last_included_index]", "self.log[index - self.last_included_index]"),
            ("command_index=self.last_applied)", "command_index=index)"),
            (
                "                    break\n",
                "                    self.last_applied = max(self.last_applied, msg.command_index)\n"
                "                    break\n",
            ),
        ),
        go="N",
    ),
    Mutant(
        "start-wrong-index",
        "2b",
        "start() returns the index the command will have",
        "returns an index from start() that is one too high",
        (("return self._last_log_index(), self", "return self._last_log_index() + 1, self"),),
        go="A",
    ),
    Mutant(
        "start-blocks",
        "2b",
        "start() returns at once",
        "waits in start() until the command is committed",
        (
            (
                "return self._last_log_index(), self.current_term, True",
                "index, term = self._last_log_index(), self.current_term\n"
                "            while self.commit_index < index and self.current_term == term:\n"
                "                self.mu.release()\n"
                "                time.sleep(0.005)\n"
                "                self.mu.acquire()\n"
                "            return index, term, True",
            ),
        ),
        go="A",
    ),
    Mutant(
        "start-anywhere",
        "2b",
        "start() takes a command only from a leader",
        "claims in start() that it is the leader, although it is not",
        (("return -1, self.current_term, False", "return self._last_log_index() + 1, self.current_term, True"),),
    ),
    Mutant(
        "shared-entry-alias",
        "2b",
        "the arguments of a call in flight do not change",
        "keeps one arguments object per follower and changes it while the previous call is in flight",
        (
            (
                "        self._reset_election_timer()\n        self._spawn(self._ticker)",
                "        self.shared: dict[int, Any] = {}\n"
                "        self._reset_election_timer()\n        self._spawn(self._ticker)",
            ),
            (
                "return AppendEntriesArgs(term, self.me, prev, self._term_at(prev), entries, self.commit_index)",
                "args = self.shared.setdefault(peer, AppendEntriesArgs(0, self.me, 0, 0, [], 0))\n"
                "        args.term, args.prev_log_index, args.prev_log_term = term, prev, self._term_at(prev)\n"
                "        args.entries, args.leader_commit = entries, self.commit_index\n"
                "        return args",
            ),
        ),
        go="R",
    ),
    Mutant(
        "commits-on-replies-only",
        "2b",
        "a majority decides, and one of one is a majority (§5.3)",
        "advances commit_index only when a follower answers, so a single server commits nothing",
        (("            self._advance_commit_index()  # a peer alone is its own majority\n", ""),),
    ),
    Mutant(
        "commit-half",
        "2b",
        "a majority is more than half (§5.3)",
        "commits entries that only half of an even number of servers store",
        (("sorted(self.match_index)[(len(self.peers) - 1) // 2]", "sorted(self.match_index)[len(self.peers) // 2]"),),
    ),
]
