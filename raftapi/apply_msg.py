"""What a Raft peer hands to the service above it, on apply_ch."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ApplyMsg:
    """What a peer puts on apply_ch: one committed command, or (2D) a snapshot received from the leader.

    Exactly one of command_valid and snapshot_valid is true, and says which fields count. snapshot_index and
    snapshot_term name the last entry the snapshot stands for.
    """

    command_valid: bool = False
    command: Any = None
    command_index: int = 0

    snapshot_valid: bool = False
    snapshot: bytes = b""
    snapshot_term: int = 0
    snapshot_index: int = 0
