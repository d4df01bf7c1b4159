"""One command at a time writes into a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labsim.stacks import short_path


class FolderInUse(Exception):
    """Another process writes there; the text says which command, and what to do."""


@contextmanager
def exclusive_lock(out: Path, command: str) -> Iterator[None]:
    """Two of them would take each other's files away. The lock ends with its process at last."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"another {command} is writing to {short_path(str(out.resolve()))}; "
                "wait until it ends, or name another folder with --out (make: OUT=dir)"
            ) from None
        yield
