"""Bugs in persistence (Figure 2), and in the commitment rule that matters after crashes (§5.4.2)."""

from tests.mutants.tool.mutants import Mutant

MUTANTS = [
    Mutant(
        "figure8-commit",
        "2c",
        "a leader counts replicas only of its own term's entries (§5.4.2, Figure 8)",
        "commits an older term's entry because a majority stores it",
        ((" and self._term_at(majority_has) == self.current_term:", ":"),),
        go="S",
        go_caught=False,
    ),
    Mutant(
        "no-persist-votedfor",
        "2c",
        "voted_for is persistent (Figure 2)",
        "forgets its vote when it restarts",
        (("state.encode(self.voted_for)", "state.encode(None)"),),
        go="R",
        go_caught=False,
    ),
    Mutant(
        "no-persist-term",
        "2c",
        "current_term is persistent (Figure 2)",
        "forgets its term when it restarts",
        (("state.encode(self.current_term)", "state.encode(0)"),),
        go="S",
    ),
    Mutant(
        "no-persist-log",
        "2c",
        "log[] is persistent (Figure 2)",
        "forgets its entries when it restarts",
        (("state.encode(self.log)", "state.encode(self.log[:1])"),),
        go="A",
    ),
    Mutant(
        "campaign-not-persisted",
        "2c",
        "a candidate's term and its vote for itself are saved before they are sent (Figure 2)",
        "does not save when it campaigns",
        (("self._persist()\n        self.votes = {}", "self.votes = {}"),),
        go="R",
        go_caught=False,
    ),
    Mutant(
        "grant-not-persisted",
        "2c",
        "a vote is saved before it is sent (Figure 2)",
        "does not save a vote that it grants",
        (
            (
                "self.voted_for = args.candidate_id\n                    self._persist()",
                "self.voted_for = args.candidate_id",
            ),
        ),
    ),
    Mutant(
        "stepdown-not-persisted",
        "2c",
        "an adopted term is saved before it is sent (Figure 2)",
        "does not save when it adopts a term",
        (("self.voted_for = None\n            self._persist()", "self.voted_for = None"),),
        go="R",
        go_caught=False,
    ),
    Mutant(
        "start-not-persisted",
        "2c",
        "a leader's own entry is saved before it is sent (Figure 2)",
        "does not save a command that it accepts as leader",
        (("self._persist()\n            self.match_index", "self.match_index"),),
    ),
    Mutant(
        "append-not-persisted",
        "2c",
        "a follower's entries are saved before they are acknowledged (Figure 2)",
        "does not save entries that it appends as a follower",
        (("self.log.extend(entries[i:])\n                self._persist()", "self.log.extend(entries[i:])"),),
    ),
    Mutant(
        "truncation-not-persisted",
        "2c",
        "a truncated log is saved before it is acknowledged (Figure 2)",
        "saves entries that it appends, but not if it had to truncate its log before that",
        (
            (
                "del self.log[index + i - self.last_included_index :]\n",
                "cut = index + i <= self._last_log_index()\n"
                "                del self.log[index + i - self.last_included_index :]\n",
            ),
            (
                "self.log.extend(entries[i:])\n                self._persist()",
                "self.log.extend(entries[i:])\n                if not cut:\n                    self._persist()",
            ),
        ),
        go="R",
    ),
    Mutant(
        "state-in-module-variable",
        "2c",
        "only what is on disk survives a crash (Figure 2: persistent state)",
        "restores its state from a module variable, not from the persister",
        (
            ("class Role(enum.Enum):", "SAVED: dict[int, bytes] = {}\n\n\nclass Role(enum.Enum):"),
            (
                "self.persister.save(state.bytes(), snapshot)",
                "SAVED[self.me] = state.bytes()\n        self.persister.save(state.bytes(), snapshot)",
            ),
            ("saved = self.persister.read_raft_state()", 'saved = SAVED.get(self.me, b"")'),
        ),
    ),
    Mutant(
        "state-in-class-variable",
        "2c",
        "only what is on disk survives a crash (Figure 2: persistent state)",
        "restores its state from a class variable, not from the persister",
        (
            (
                "    def __init__(self, peers: list[ClientEnd], me: int,",
                "    saved: dict[int, bytes] = {}\n\n    def __init__(self, peers: list[ClientEnd], me: int,",
            ),
            (
                "self.persister.save(state.bytes(), snapshot)",
                "Raft.saved[self.me] = state.bytes()\n        self.persister.save(state.bytes(), snapshot)",
            ),
            ("saved = self.persister.read_raft_state()", 'saved = Raft.saved.get(self.me, b"")'),
        ),
    ),
    Mutant(
        "persist-after-reply",
        "2c",
        "persistent state is saved before a reply is sent (Figure 2)",
        "replies first and saves later, in another thread",
        (
            (
                "self.voted_for = args.candidate_id\n                    self._persist()",
                "self.voted_for = args.candidate_id\n                    self._spawn(self._save)",
            ),
            (
                "self.log.extend(entries[i:])\n                self._persist()",
                "self.log.extend(entries[i:])\n                self._spawn(self._save)",
            ),
            (
                "    def _read_persist(self) -> None:",
                "    def _save(self) -> None:\n"
                "        with self.mu:\n"
                "            if not self.dead.is_set():\n"
                "                self._persist()\n\n"
                "    def _read_persist(self) -> None:",
            ),
        ),
        go="N",
    ),
]
