"""Chooses where a peer runs: in this process, or in a sandbox."""

from __future__ import annotations

from pathlib import Path

from raftlab.harness.launcher import PeerLauncher


def launcher_for(path: Path, *, isolated: bool, kv: Path | None = None, race: bool = False) -> PeerLauncher:
    """As load_peer(). `isolated`: run the files in sandboxed processes, and none of them in this one."""
    # Only what is asked for: a process that grades has nothing in it that could load a peer.
    if not isolated:
        from raftlab.harness.loader import load_peer

        return load_peer(path, kv=kv, race=race)
    from raftlab.sandbox.launcher import load_sandboxed

    return load_sandboxed(path, kv, race=race)
