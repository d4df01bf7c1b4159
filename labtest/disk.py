"""The disk that the tester gives to every peer: the lab's own Persister.

A submission may bring a package `raft` with a persister.py of its own, an older one perhaps, and then that name leads
there. So it is bound here, by whoever loads peers, before any peer is loaded.
"""

from raft.persister import Persister

__all__ = ["Persister", "write"]


def write(disk: Persister, raft_state: bytes, snapshot: bytes) -> None:
    """What a peer has saved that is in another process. Its hooks have had their say."""
    disk._saved = (raft_state, snapshot)
