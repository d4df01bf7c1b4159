"""Bugs in elections (§5.2, §5.4.1): terms, votes, quorums and timers."""

from tests.mutants.tool.mutants import Mutant

MUTANTS = [
    Mutant(
        "ignore-higher-term",
        "2a",
        "All Servers: a higher term in any message is adopted (§5.1)",
        "never adopts a higher term",
        (("if term > self.current_term:", "if False:"),),
        go="A",
    ),
    Mutant(
        "leader-ignores-higher-term",
        "2a",
        "All Servers: a higher term in any message is adopted (§5.1)",
        "never adopts a higher term while it leads",
        (("if term > self.current_term:", "if term > self.current_term and self.role is not Role.LEADER:"),),
    ),
    Mutant(
        "reply-term-ignored",
        "2a",
        "All Servers: a higher term in any message, also in a reply, is adopted (§5.1)",
        "ignores a higher term when it comes in a reply",
        (
            ("if reply is None or not self._observe_term(reply.term):", "if reply is None:"),
            ("if reply is None or not self._observe_term(reply.term) or args", "if reply is None or args"),
        ),
        go="R",
        go_caught=False,
    ),
    Mutant(
        "votedfor-not-reset",
        "2a",
        "All Servers: a new term begins without a vote (§5.2)",
        "keeps its old vote in a new term",
        (("self.voted_for = None\n            self._persist()", "self._persist()"),),
        go="A",
    ),
    Mutant(
        "votedfor-reset-same-term",
        "2a",
        "one vote per term (§5.2)",
        "forgets its vote when it hears the leader of the same term",
        (
            (
                "self._reset_election_timer()\n        return True",
                "self._reset_election_timer()\n        self.voted_for = None\n        return True",
            ),
        ),
        go="R",
        go_caught=False,
    ),
    Mutant(
        "double-vote",
        "2a",
        "one vote per term (§5.2)",
        "grants every vote request without checking voted_for",
        (
            ("granted = up_to_date and self.voted_for in (None, args.candidate_id)", "granted = up_to_date"),
            ("if self.voted_for is None:", "if True:"),
        ),
        go="S",
        go_caught=False,
    ),
    Mutant(
        "stale-vote-counted",
        "2a",
        "a vote counts only in the term it was requested in (§5.2)",
        "counts a vote from an earlier campaign in the current one",
        (
            (
                "if reply is None or not self._observe_term(reply.term):\n                return",
                "if reply is None:\n                return\n            self._observe_term(reply.term)",
            ),
            ("if self.role is Role.CANDIDATE and args.term == self.current_term:", "if self.role is Role.CANDIDATE:"),
        ),
        go="R",
        go_caught=False,
    ),
    Mutant(
        "wrong-quorum",
        "2a",
        "a leader has the votes of a majority (§5.2)",
        "treats half of the votes as a majority",
        (("sum(self.votes.values()) > len(self.peers) // 2", "sum(self.votes.values()) >= len(self.peers) // 2"),),
        go="A",
    ),
    Mutant(
        "uptodate-strict",
        "2a",
        "a log as up to date as the voter's is enough (§5.4.1)",
        "votes only for a log more up to date than its own",
        (("(args.last_log_term, args.last_log_index) >= (", "(args.last_log_term, args.last_log_index) > ("),),
        go="A",
    ),
    Mutant(
        "candidate-keeps-on",
        "2a",
        "a candidate that hears the leader of its term follows it (§5.2)",
        "stays a candidate when it hears the leader of its term",
        (
            (
                "self.role = Role.FOLLOWER  # a candidate",
                "self.role = Role.CANDIDATE if self.role is Role.CANDIDATE else Role.FOLLOWER  # a candidate",
            ),
        ),
    ),
    Mutant(
        "stale-leader-followed",
        "2a",
        "AppendEntries 1: a request of an older term is rejected (§5.1)",
        "accepts AppendEntries of an older term",
        (
            (
                "if not self._observe_term(term):\n            return False\n        self.role",
                "if not self._observe_term(term) and self.dead.is_set():\n            return False\n        self.role",
            ),
        ),
    ),
    Mutant(
        "heartbeat-no-timer-reset",
        "2a",
        "Followers: AppendEntries of the current leader resets the election timer (§5.2)",
        "campaigns although the leader's heartbeats arrive",
        (("self._reset_election_timer()\n        return True", "return True"),),
    ),
    Mutant(
        "timer-reset-any-rpc",
        "2a",
        "only a granted vote and the current leader reset the election timer (§5.2)",
        "also resets its election timer when it denies a vote or rejects a stale leader",
        (
            (
                "if not self._observe_term(args.term):\n                return RequestVoteReply",
                "self._reset_election_timer()\n"
                "            if not self._observe_term(args.term):\n                return RequestVoteReply",
            ),
            (
                "if not self._observe_term(term):\n            return False",
                "self._reset_election_timer()\n        if not self._observe_term(term):\n            return False",
            ),
        ),
        go="R",
        go_caught=False,
        liveness=True,
    ),
    Mutant(
        "timer-reset-stale-leader",
        "2a",
        "only the current leader resets the election timer (§5.2)",
        "resets its election timer when it rejects the leader of an older term",
        (
            (
                "if not self._observe_term(term):\n            return False",
                "self._reset_election_timer()\n        if not self._observe_term(term):\n            return False",
            ),
        ),
    ),
    Mutant(
        "candidate-never-retries",
        "2a",
        "Candidates: if an election times out, start another (§5.2)",
        "campaigns once and then waits forever",
        (
            (
                "if time.monotonic() >= self.election_deadline:",
                "if self.role is Role.FOLLOWER and time.monotonic() >= self.election_deadline:",
            ),
            ("min(left_s, HEARTBEAT_S)", "HEARTBEAT_S"),
        ),
        go="S",
    ),
    Mutant(
        "identical-timers",
        "2a",
        "election timeouts are random (§5.2)",
        "has the same election timeout as every other peer",
        (("ELECTION_TIMEOUT_S = (0.4, 0.8)", "ELECTION_TIMEOUT_S = (0.6, 0.6)"),),
        go="S",
        liveness=True,
    ),
    Mutant(
        "narrow-timeouts",
        "2a",
        "election timeouts are spread over many round trips (§5.6, §9.3)",
        "draws its election timeout from a range of 10 ms",
        (("ELECTION_TIMEOUT_S = (0.4, 0.8)", "ELECTION_TIMEOUT_S = (0.600, 0.610)"),),
        go="N",
        liveness=True,
    ),
    Mutant(
        "rerandomize-each-tick",
        "2a",
        "a random timeout is drawn once per wait (§5.2, §9.3)",
        "draws a new election timeout each time it checks the clock, so the shortest timeout always decides",
        (
            ("time.monotonic() + random.uniform(*ELECTION_TIMEOUT_S)", "time.monotonic()"),
            (
                "if time.monotonic() >= self.election_deadline:",
                "if time.monotonic() >= self.election_deadline + random.uniform(*ELECTION_TIMEOUT_S):",
            ),
            # Checks the clock more often, but does not repeat its requests each time: that would be another bug.
            ("self.election_deadline - time.monotonic()", "0.002"),
            ("self._canvass()  # again", "pass  # again"),
        ),
        go="N",
        liveness=True,
    ),
    Mutant(
        "late-first-heartbeat",
        "2a",
        "Leaders: upon election, send AppendEntries at once (§5.2)",
        "sends no message when it is elected, but waits for its next heartbeat",
        (("self._replicate()  # §5.2", "pass  # §5.2"),),
        go="S",
        liveness=True,
    ),
    Mutant(
        "campaigns-at-start",
        "2c",
        "a server starts as a follower, and waits an election timeout for its leader (§5.2)",
        "campaigns as soon as it starts",
        (("self._reset_election_timer()\n        self._spawn(self._ticker)", "self._spawn(self._ticker)"),),
    ),
    Mutant(
        "heartbeat-waits-for-reply",
        "2a",
        "Leaders: heartbeats are sent in every idle period (§5.2)",
        "sends a follower no heartbeat while a call to it is pending",
        (("(idle or (heartbeat and self.sent_at[peer] < long_ago))", "idle"),),
    ),
]
