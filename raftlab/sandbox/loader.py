"""Whoever loads a peer chooses here where it runs: in this process, or in a sandbox."""

from __future__ import annotations

from pathlib import Path

from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.loader import load_peer


def launcher_for(path: Path, *, isolated: bool, kv: Path | None = None, race: bool = False) -> PeerLauncher:
    """As load_peer(). `isolated`: in processes of their own, and no line of the files is run in this one."""
    if not isolated:
        return load_peer(path, kv=kv, race=race)
    from raftlab.sandbox.launcher import load_sandboxed  # most runs need none

    return load_sandboxed(path, kv, race=race)
