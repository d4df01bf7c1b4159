"""The disk of one peer, which survives crashes.

Promise: save() writes state and snapshot atomically; a crash leaves both old or both new, never one of each.
Not promised: any meaning of the bytes, which only the peer interprets. An empty disk reads as b"".
"""

from collections.abc import Callable


class Persister:
    """One peer's disk: its Raft state, and the service's snapshot."""

    def __init__(self) -> None:
        self._saved = (b"", b"")  # one tuple, so that replacing it is one step
        # For the tester; both get the number of the save. before_save: when the save begins; it may wait. on_save: just
        # before the save takes effect, with the bytes; if it does not return, nothing is saved.
        self.before_save: Callable[[int], None] | None = None
        self.on_save: Callable[[int, bytes, bytes], None] | None = None
        self._begun = 0

    def save(self, raft_state: bytes, snapshot: bytes | None = None) -> None:
        """Save both at once. Without a snapshot (None), the one already there stays."""
        self._begun = number = self._begun + 1
        if self.before_save is not None:
            self.before_save(number)
        # Read it only now: another thread may have saved a newer snapshot meanwhile.
        if snapshot is None:
            snapshot = self._saved[1]
        if self.on_save is not None:
            self.on_save(number, raft_state, snapshot)
        self._saved = (raft_state, snapshot)

    def read_raft_state(self) -> bytes:
        return self._saved[0]

    def read_snapshot(self) -> bytes:
        return self._saved[1]

    def raft_state_size(self) -> int:
        return len(self._saved[0])

    def snapshot_size(self) -> int:
        return len(self._saved[1])

    def copy(self) -> "Persister":
        """A disk with the same contents and no hooks, for the next incarnation; the old one cannot write to it."""
        disk = Persister()
        disk._saved = self._saved
        return disk
