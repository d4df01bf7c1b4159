"""The message that a Raft peer puts on apply_ch for its service."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ApplyMsg:
    """One committed command, or (2D) a snapshot received from the leader.

    Exactly one of command_valid and snapshot_valid is true; it says which fields are used. snapshot_index and
    snapshot_term belong to the last entry that the snapshot replaces.
    """

    command_valid: bool = False
    command: Any = None
    command_index: int = 0

    snapshot_valid: bool = False
    snapshot: bytes = b""
    snapshot_term: int = 0
    snapshot_index: int = 0
