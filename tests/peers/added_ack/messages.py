"""The messages of a Raft peer: the RPCs of Figures 2 and 13, and the ApplyMsg that it delivers to its service.

Promise: the fields of Figure 2 and Figure 13 under the paper's names, one for one. Indexes and terms count
from 1; 0 means "before the first". Not promised: that a message arrives, arrives once, or arrives in order.

Added here: what a follower has saved of its leader's log (`saved_index`, and the mark of Raft.saved_up_to), and
where the logs diverge (`conflict_term`, `conflict_index`).
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
    """success: the log matches up to the last entry sent, and all that is saved.

    Without success conflict_index tells the two reasons apart. Above 0, the log does not match at prev_log_index:
    conflict_term is the term of the entry there, conflict_index the first one of that term; or conflict_term is 0, and
    conflict_index the first entry that is lacking. 0, and nothing is wrong: the entries came, and will be saved.

    saved_index: everything of the leader of this term up to here is saved, whatever success says.
    """

    term: int
    success: bool
    saved_index: int = 0
    conflict_term: int = 0
    conflict_index: int = 0


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
    """saved_index as in AppendEntriesReply."""

    term: int
    saved_index: int = 0


def to_mark(term: int, index: int, follower_id: int) -> int:
    """The argument of Raft.saved_up_to: of the log of this term's leader the follower has saved all up to index.

    One number, in the order in which acknowledgements count: by term, then by index.
    """
    return term << 40 | index << 8 | follower_id


def from_mark(mark: int) -> tuple[int, int, int]:
    """Its term, index and follower_id."""
    return mark >> 40, mark >> 8 & 0xFFFFFFFF, mark & 0xFF
