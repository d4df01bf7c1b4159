"""A lock on an output folder: one command at a time writes into it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labsim.stacks import short_path


class FolderInUse(Exception):
    """Another process is writing into the folder; the message names the command and the fix."""


@contextmanager
def exclusive_lock(out: Path, command: str) -> Iterator[None]:
    """Two commands would delete each other's files. The lock ends with the process at the latest."""
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
