"""The messages of a Raft peer: the RPCs of Figures 2 and 13, and ApplyMsg.

The fields have the names of Figures 2 and 13. Indexes and terms count from 1; 0 means "before the first". You may add
fields with defaults. Do not rename or remove any: the tester reads these messages. A message may be lost, arrive twice,
or arrive out of order.

ApplyMsg belongs to the lab; raftapi/apply_msg.py describes its fields. Do not change it.
"""

from dataclasses import dataclass
from typing import Any

from raftapi import ApplyMsg as ApplyMsg


@dataclass(slots=True)
class LogEntry:
    """One log entry (Figure 2): a command, and the term in which the leader received it."""

    term: int
    command: Any


@dataclass(slots=True)
class RequestVoteArgs:
    """A candidate requests a vote (§5.2)."""

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
    """A leader replicates entries (§5.3). Without entries it is a heartbeat (§5.2)."""

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


@dataclass(slots=True)
class InstallSnapshotArgs:
    """A leader sends its snapshot to a follower that needs entries the leader has discarded (§7).

    This is Figure 13 without `offset` and `done`: one message carries the whole snapshot.
    """

    term: int
    leader_id: int
    last_included_index: int
    last_included_term: int
    data: bytes


@dataclass(slots=True)
class InstallSnapshotReply:
    term: int
