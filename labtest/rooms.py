"""Which rooms the lab has, and which files have a part in every run. The one list; whatever else lists them asks here.

A run's record, whose line a report shows, and every copy of the lab that is made for somebody follow from it. A new
file in a room is in all of them at once, and so is a new room that is named here. Start at `run_files()`.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What a run is made of, beside the peer and the test.
ROOMS = ("labsim", "labgob", "labrpc", "raftapi", "labtest")
# What is run around the tests. No run depends on it.
TOOLS = "labtools"
# Lines in these are ours, and never the student's.
OURS = (*ROOMS, TOOLS)
# The student's room, and what in it is ours.
PEER = "raft"
PEER_FILES = ("__init__.py", "messages.py", "persister.py")
# The student's other room, of parts 3A and 3B; all of it is the student's.
SERVICE = "kv"


def run_files() -> list[Path]:
    """Every file of the lab that has a part in a run."""
    rooms = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return [*rooms, *(ROOT / PEER / name for name in PEER_FILES)]


def tool_files() -> list[Path]:
    """Every module of the tools that are here; a student has fewer of them."""
    return sorted((ROOT / TOOLS).rglob("*.py"))
