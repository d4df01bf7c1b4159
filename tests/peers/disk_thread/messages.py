"""The messages of a Raft peer: the RPCs of Figures 2 and 13, and the ApplyMsg that it delivers to its service.

Promise: the fields of Figure 2 and Figure 13 under the paper's names, one for one. Indexes and terms count
from 1; 0 means "before the first". You may add fields (with defaults), but not rename or remove any:
the tester reads the wire. Not promised: that a message arrives, arrives once, or arrives in order.
"""

from dataclasses import dataclass, field
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
    term: int
    success: bool
    conflict_term: int = 0  # of the entry at prev_log_index, if there is another one
    conflict_index: int = 0  # the first of that term; or, if there is none, the index behind our last


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
    entries: list[LogEntry] = field(default_factory=list)  # what follows last_included_index, all of it


@dataclass(slots=True)
class InstallSnapshotReply:
    term: int
    match_index: int = 0  # up to there our log is the leader's, and saved
