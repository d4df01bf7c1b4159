"""Scratch files: what a sandboxed peer writes stays in the memory of its process, and ends with it.

Correct peers may write a log or a temporary file, and must not fail because of that. No other process can read these.
Not promised: folders, or independent positions of two readers of one file.

Start at `install()`.
"""

from __future__ import annotations

import builtins
import io
import os
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FILE_BYTES_MAX = 1 << 20
FILES_MAX = 64

_files: dict[str, int] = {}  # by full path
_real_io_open, _real_os_open, _real_unlink = io.open, os.open, os.unlink


def install() -> None:
    """Replace open() and its relatives in this process."""
    builtins.open = io.open = _open
    os.open = _os_open
    os.unlink = os.remove = _unlink
    os.mkdir = _mkdir


def _descriptor(path: Any) -> int:
    """The descriptor of the scratch file of that name. Creates it if necessary."""
    name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # resolved as open() does
    if name not in _files:
        _files[name] = os.memfd_create(os.path.basename(name)[:200])  # noqa: PTH119  # for humans only
    return _files[name]


def _is_scratch(path: Any) -> bool:
    return os.path.abspath(os.fsdecode(path)) in _files  # noqa: PTH100  # as above


def _open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    if isinstance(file, int) or not (set(mode) & set("wax+") or _is_scratch(file)):
        return _real_io_open(file, mode, *args, **kwargs)
    if "x" in mode and _is_scratch(file):
        raise FileExistsError(f"{file!r} exists")
    fd = os.dup(_descriptor(file))
    if "w" in mode:
        os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_END if "a" in mode else os.SEEK_SET)
    kwargs["opener"] = None
    return _real_io_open(fd, mode.replace("x", "w"), *args, **kwargs)


def _os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    if not flags & _WRITING and not _is_scratch(path):
        return _real_os_open(path, flags, *args, **kwargs)
    fd = os.dup(_descriptor(path))
    if flags & os.O_TRUNC:
        os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_END if flags & os.O_APPEND else os.SEEK_SET)
    return fd


def _unlink(path: Any, **kwargs: Any) -> None:
    if _is_scratch(path):
        os.close(_files.pop(os.path.abspath(os.fsdecode(path))))  # noqa: PTH100  # as above
    else:
        _real_unlink(path, **kwargs)


def _mkdir(path: Any, mode: int = 0o777, **kwargs: Any) -> None:
    """Does nothing: any path can be written, without folders."""
