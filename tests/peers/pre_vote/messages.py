"""The messages of a Raft peer: the RPCs of Figures 2 and 13, PreVote, and the ApplyMsg that it delivers to its service.

Promise: the fields of Figure 2 and Figure 13 under the paper's names, one for one. Indexes and terms count
from 1; 0 means "before the first". You may add fields (with defaults), but not rename or remove any:
the tester reads the wire. Not promised: that a message arrives, arrives once, or arrives in order.
"""

from dataclasses import dataclass
from typing import Any

from raftapi import ApplyMsg as ApplyMsg


@dataclass(slots=True)
class LogEntry:
    """One place in the log (Figure 2): a command, and the term in which a leader received it."""

    term: int
    command: Any


@dataclass(slots=True)
class RequestVoteArgs:
    """A candidate asks for a vote (§5.2)."""

    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int


@dataclass(slots=True)
class RequestVoteReply:
    term: int
    vote_granted: bool


@dataclass(slots=True)
class PreVoteArgs:
    """A peer asks whether it would get a vote, if it asked for one in `term`. It is not in that term yet."""

    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int


@dataclass(slots=True)
class PreVoteReply:
    """`term` is the answering peer's own. A granted pre-vote is not a promise, and is not remembered."""

    term: int
    vote_granted: bool


@dataclass(slots=True)
class AppendEntriesArgs:
    """A leader replicates entries (§5.3); without entries, a heartbeat (§5.2)."""

    term: int
    leader_id: int
    prev_log_index: int
    prev_log_term: int
    entries: list[LogEntry]
    leader_commit: int


@dataclass(slots=True)
class AppendEntriesReply:
    """The reply. A follower whose log does not match at prev_log_index adds hints (§5.3, last page).

    If it has an entry there, x_term is that entry's term and x_index the first index it has of that term.
    If its log is too short, x_term is 0 and x_len is the first index it lacks.
    """

    term: int
    success: bool
    x_term: int = 0
    x_index: int = 0
    x_len: int = 0


@dataclass(slots=True)
class InstallSnapshotArgs:
    """A leader sends its snapshot to a follower that needs entries already discarded (§7).

    Figure 13 without `offset` and `done`: the whole snapshot travels in one message.
    """

    term: int
    leader_id: int
    last_included_index: int
    last_included_term: int
    data: bytes


@dataclass(slots=True)
class InstallSnapshotReply:
    term: int
