"""Tells user code from library code, and formats stacks with the user's own frames only."""

from __future__ import annotations

import linecache
import os
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_LABSIM = str(Path(__file__).parent) + os.sep
_libraries = [
    *{str(Path(sysconfig.get_path(name))) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    _LABSIM,
    "<frozen ",
]
_MAX_FRAMES = 6


class CodeLocation(NamedTuple):
    """A line of code: file, line and function."""

    file: str
    line: int
    function: str = ""


def location_of(frame: FrameType, line: int | None = None) -> CodeLocation:
    return CodeLocation(frame.f_code.co_filename, frame.f_lineno if line is None else line, frame.f_code.co_name)


def short_path(filename: str) -> str:
    """The path relative to the working directory, if it lies below it."""
    return filename.removeprefix(f"{Path.cwd()}{os.sep}")


def add_library(package_file: str) -> None:
    """Treat the package of this `__file__` as library code, like the standard library and labsim."""
    _libraries.append(str(Path(package_file).parent) + os.sep)
    is_library.cache_clear()


@lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    return filename.startswith(tuple(_libraries))


def is_user_code(filename: str) -> bool:
    """Whether this file is a peer or a test, and not part of a library or the lab."""
    return not is_library(filename) and not filename.startswith("<")


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """The frames outside all libraries, innermost first; if there are none, the frames outside labsim."""
    all_frames = []
    while frame is not None:
        all_frames.append(frame)
        frame = frame.f_back
    own = [f for f in all_frames if not is_library(f.f_code.co_filename)]
    return own or [f for f in all_frames if not f.f_code.co_filename.startswith(_LABSIM)]


def describe_stack(frame: FrameType | None, indent: str = "      ") -> str:
    """`file:line in function    the line`, innermost first."""
    lines = []
    frames = user_frames(frame)
    for f in frames[:_MAX_FRAMES]:
        where = f"{short_path(f.f_code.co_filename)}:{f.f_lineno} in {f.f_code.co_name}"
        source = linecache.getline(f.f_code.co_filename, f.f_lineno).strip()
        lines.append(f"{indent}{where:<40}  {source}".rstrip())
    if len(frames) > _MAX_FRAMES:
        lines.append(f"{indent}... {len(frames) - _MAX_FRAMES} more")
    return "\n".join(lines)
