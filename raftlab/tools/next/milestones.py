"""The milestones of each part, in the order in which a student reaches them: what to build, and which tests check it.

Promise: a correct peer of any design passes them all (a scenario that it must skip counts as passed), and a peer in
which a milestone is missing fails a test of that milestone, or of one before it. Start at `PARTS`.
"""

from __future__ import annotations

from typing import NamedTuple


class Milestone(NamedTuple):
    title: str
    section: str  # of the paper
    build: str  # what to write
    shown_by: tuple[str, ...]  # tests and scenarios, or a part: all its tests
    race: bool = False  # with threads that are preempted at any line


class Part(NamedTuple):
    name: str
    title: str
    milestones: tuple[Milestone, ...]


def _part(name: str, title: str, *milestones: Milestone) -> Part:
    """The last two milestones are the same in each part."""
    rest = (
        Milestone("all tests of the part pass", "", "Find the cause of this failure.", (name,)),
        Milestone(
            "no data races",
            "",
            "Hold self.mu wherever two threads use a field, and from a check to the change that depends on it.",
            tuple(test for milestone in milestones for test in milestone.shown_by),
            race=True,
        ),
    )
    return Part(name, title, (*milestones, *rest))


PARTS = (
    _part(
        "2a",
        "leader election",
        Milestone(
            "a peer starts as a follower",
            "Figure 2, §5.1",
            "Set the fields of Figure 2 in __init__, and return the term and your role from get_state().",
            ("starts_as_a_follower",),
        ),
        Milestone(
            "the election timer fires, and the peer requests votes",
            "§5.2",
            "Start _ticker() in a thread. When the election timeout has passed, begin a new term, vote for "
            "yourself, and send RequestVote to each other peer, each in its own thread.",
            ("timer_fires",),
        ),
        Milestone(
            "a voter grants one vote in each term",
            "§5.2",
            "request_vote() adopts a higher term, votes for the first candidate of a term, and refuses all others.",
            ("grants_a_vote", "candidate_refuses_another"),
        ),
        Milestone(
            "a candidate with a majority becomes leader",
            "§5.2",
            "Count the votes of this term, your own included. When they are a majority, become leader, and send "
            "AppendEntries at once.",
            ("first_election", "one_vote_in_a_term", "split_vote", "vote_of_an_older_campaign"),
        ),
        Milestone(
            "a leader sends heartbeats",
            "§5.2",
            "Send AppendEntries without entries at once, and then ten times per second. append_entries() resets "
            "the election timer of a follower.",
            ("test_initial_election_2a",),
        ),
        Milestone(
            "leaders and candidates step down",
            "§5.1",
            "Any peer becomes a follower when it receives a request or reply with a higher term. A candidate also "
            "becomes a follower when it receives an AppendEntries of its own term.",
            ("higher_term_deposes_a_leader", "candidate_yields_to_the_leader_of_its_term", "test_reelection_2a"),
        ),
    ),
    _part(
        "2b",
        "log replication",
        Milestone(
            "a leader takes a command",
            "Figure 2 (Leaders)",
            "start() appends an entry to the leader's log and returns its index and term. Other peers refuse commands.",
            ("takes_a_command",),
        ),
        Milestone(
            "entries reach the followers, are committed, and are applied",
            "§5.3",
            "Send each follower the entries from its next_index on. An entry on a majority is committed. One "
            "thread puts committed entries into apply_ch, and does not hold the lock meanwhile.",
            ("agreement", "test_basic_agree_2b"),
        ),
        Milestone(
            "a minority commits nothing",
            "§5.3",
            "Count all peers whose match_index has reached the entry. Count the leader once.",
            ("no_majority_no_commit", "leader_counts_itself_once", "test_fail_no_agree_2b"),
        ),
        Milestone(
            "followers whose logs differ catch up",
            "§5.3",
            "append_entries() refuses entries that do not follow its log, deletes only entries that conflict, and "
            "replies where the conflict begins. The leader then moves next_index back.",
            ("missing_entries", "backs_up_over_terms", "heartbeat_does_not_cut_off", "test_rejoin_2b"),
        ),
        Milestone(
            "voters refuse a candidate whose log is behind",
            "§5.4.1",
            "The log with the later last term is more up to date. If the last terms are equal, the longer log is.",
            ("later_term_beats_longer_log", "of_equal_terms_the_longer_log"),
        ),
        Milestone(
            "a leader commits only through entries of its own term",
            "§5.4.2",
            "Advance commit_index only to an entry of the current term.",
            ("older_terms_are_not_counted",),
        ),
    ),
    _part(
        "2c",
        "persistence",
        Milestone(
            "term and vote survive a crash",
            "Figure 2 (Persistent state)",
            "Save in _persist(), restore in _read_persist(), and call _persist() after each change, before any "
            "message leaves.",
            ("term_survives_a_crash", "vote_survives_a_crash", "own_vote_survives_a_crash"),
        ),
        Milestone(
            "the log survives a crash",
            "Figure 2 (Persistent state)",
            "Save the log too, before a follower acknowledges entries and before a leader counts itself.",
            ("acknowledged_entry_survives_a_crash", "leaders_entry_survives_a_crash", "test_persist1_2c"),
        ),
        Milestone(
            "Figure 8",
            "§5.4.2",
            "A majority is not enough for an entry of an older term.",
            ("figure_8_d", "figure_8_e", "test_figure8_2c"),
        ),
    ),
    _part(
        "2d",
        "snapshots",
        Milestone(
            "snapshot() shortens the log",
            "§7",
            "Discard the entries up to the index, and keep the index and term of the last discarded entry. Save the "
            "snapshot and the shorter log together. Every access to the log must now start from that index.",
            ("snapshot_keeps_what_follows", "test_snapshot_basic_2d"),
        ),
        Milestone(
            "a peer restarts from its snapshot",
            "§7",
            "After a crash, last_applied and commit_index begin at the snapshot.",
            ("restart_with_a_snapshot",),
        ),
        Milestone(
            "a leader sends its snapshot",
            "Figure 13",
            "If the entry at a follower's next_index is no longer in the log, send InstallSnapshot. The follower saves "
            "the snapshot and puts it into apply_ch.",
            ("lagging_follower_gets_a_snapshot", "test_snapshot_install_2d"),
        ),
        Milestone(
            "old messages do no harm",
            "§7",
            "Ignore a snapshot that is older than what was applied. commit_index must never move back.",
            ("old_snapshot_arrives_again", "old_commit_behind_a_snapshot", "snapshot_from_an_old_term"),
        ),
    ),
    _part(
        "3a",
        "key/value service",
        Milestone(
            "one client reads the values that it wrote",
            "§8",
            "The clerk finds the leader and tries again. The server passes each operation to start(), and replies "
            "when it comes out of apply_ch.",
            ("test_basic_3a",),
        ),
        Milestone(
            "a repeated request takes effect once",
            "§8",
            "Number the requests of each clerk, and remember the last one of each that was applied.",
            ("test_unreliable_3a",),
        ),
        Milestone(
            "a deposed leader does not leave a client waiting",
            "§8",
            "Reply with an error when another operation is applied at its index, or when the term has changed.",
            ("test_one_partition_3a", "test_persist_partition_unreliable_linearizable_3a"),
        ),
    ),
    _part(
        "3b",
        "service with snapshots",
        Milestone(
            "the service makes snapshots",
            "§7",
            "When the saved state exceeds max_raft_state, pass a snapshot of the keys and of the clerks' last "
            "requests to snapshot().",
            ("test_snapshot_rpc_3b", "test_snapshot_size_3b"),
        ),
        Milestone(
            "the service restores its snapshots",
            "§7",
            "Restore from the persister at the start, and from each snapshot that comes out of apply_ch.",
            ("test_snapshot_recover_3b",),
        ),
    ),
)
