"""Write the tree a student starts from: the lab without the solution, the wrong Rafts and the grading.

Promise: what goes in is listed in raftlab/layout.py, folder by folder; what is named nowhere stays out. The written
tree stands on its own: it can be moved, and needs Python and make, nothing of this project. Not promised: anything
about a student's own files, which are never written over. Start at `files()`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from raftlab import layout
from raftlab.layout import ROOT

PROJECT = ROOT

# What differs from the project's own: its place in the handout, and its source.
INSTEAD = {
    "README.md": "handout/README.md",
    "kv/client.py": "handout/kv_client.py",
    "kv/messages.py": "handout/kv_messages.py",
    "kv/server.py": "handout/kv_server.py",
    "raft/messages.py": "handout/messages.py",
    "raft/raft.py": "handout/raft.py",
}

# The students' Makefile is ours down to this line.
MAKEFILE_ENDS = "# ---- From here on, only in the whole project"

# What students change. An older handout that is written over keeps them.
STUDENTS = ("kv/client.py", "kv/messages.py", "kv/server.py", "raft/messages.py", "raft/raft.py")


class HandoutError(Exception):
    """It cannot be written; the text says why, and what would do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; must be new or empty")
    parser.add_argument(
        "--force",
        action="store_true",
        help=f"write into a folder that is not empty; {', '.join(STUDENTS)} are kept if they differ, as are files "
        "that are not part of the handout",
    )


def main(args: argparse.Namespace) -> int:
    try:
        kept = write(args.out, force=args.force)
    except HandoutError as error:
        print(f"lab handout: {error}", file=sys.stderr)
        return 2
    for name in kept:
        print(f"kept {args.out / name}: it is not the handout's")
    print(f"wrote {len(files()) - len(kept)} files to {args.out}; students begin with its README.md")
    return 0


def files() -> dict[str, bytes]:
    """Every file of the handout: its path there, and its contents."""
    if not (PROJECT / "handout").is_dir():
        raise HandoutError(
            f"{PROJECT} must be the project's source tree, and has no folder handout; run it from a clone"
        )
    try:
        as_it_is = layout.paths(layout.FOR_ALL, layout.FOR_STUDENTS, root=PROJECT)
    except layout.LayoutError as error:
        raise HandoutError(str(error)) from None
    found = {path.relative_to(PROJECT).as_posix(): path.read_bytes() for path in as_it_is}
    found |= {name: (PROJECT / source).read_bytes() for name, source in INSTEAD.items()}
    found["Makefile"] = _makefile().encode()
    return dict(sorted(found.items()))


def _makefile() -> str:
    ours, end, _ = (PROJECT / "Makefile").read_text(encoding="utf-8").partition(MAKEFILE_ENDS)
    if not end:
        raise HandoutError(f"Makefile must have the line {MAKEFILE_ENDS!r}, where the students' copy ends")
    return ours.rstrip() + "\n"


def write(out: Path, *, force: bool = False) -> list[str]:
    """Write it; returns the students' files that were kept because they differ."""
    out = out.resolve()
    if out == PROJECT:
        raise HandoutError(f"OUT must be a folder of its own, got the project itself, {out}")
    if out.exists() and not out.is_dir():
        raise HandoutError(f"OUT must be a folder, new or empty; {out} is a file")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise HandoutError(f"OUT must be new or empty; {out} is not empty (--force writes into it all the same)")
    kept = []
    for name, contents in files().items():
        path = out / name
        if name in STUDENTS and path.exists() and path.read_bytes() != contents:
            kept.append(name)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    return kept
