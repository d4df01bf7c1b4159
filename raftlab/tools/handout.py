"""`lab handout`: writes the source tree that students start from: the lab without solution, mutants and grading.

Promise: raftlab/layout.py lists what goes in, folder by folder; anything else stays out. The tree needs only Python and
make and can be moved. Students' own files are never overwritten. Start at `files()`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from raftlab import layout
from raftlab.layout import ROOT

PROJECT = ROOT

# Files that differ from the project's: path in the handout, and source.
INSTEAD = {
    "README.md": "handout/README.md",
    "kv/client.py": "handout/kv_client.py",
    "kv/messages.py": "handout/kv_messages.py",
    "kv/server.py": "handout/kv_server.py",
    "raft/messages.py": "handout/messages.py",
    "raft/raft.py": "handout/raft.py",
}

# The students' Makefile is the project's Makefile above this line.
MAKEFILE_ENDS = "# ---- From here on, only in the whole project"

# Files that students change; --force keeps them.
STUDENTS = ("kv/client.py", "kv/messages.py", "kv/server.py", "raft/messages.py", "raft/raft.py")


class HandoutError(Exception):
    """The handout cannot be written; the message names the reason and the fix."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; must be new or empty")
    parser.add_argument(
        "--force",
        action="store_true",
        help="write into a folder that is not empty; keep its files that are not part of the handout, and "
        f"{', '.join(STUDENTS)} if they differ from the handout",
    )


def main(args: argparse.Namespace) -> int:
    try:
        kept = write(args.out, force=args.force)
    except HandoutError as error:
        print(f"lab handout: {error}", file=sys.stderr)
        return 2
    for name in kept:
        print(f"kept {args.out / name}: it differs from the file in the handout")
    print(f"wrote {len(files()) - len(kept)} files to {args.out}; start with its README.md")
    return 0


def files() -> dict[str, bytes]:
    """Every file of the handout: its path there, and its contents."""
    if not (PROJECT / "handout").is_dir():
        raise HandoutError(f"{PROJECT} has no folder handout; run lab handout from a clone of the project")
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
        raise HandoutError(f"Makefile must contain the line {MAKEFILE_ENDS!r}, where the students' copy ends")
    return ours.rstrip() + "\n"


def write(out: Path, *, force: bool = False) -> list[str]:
    """Write it; returns the students' files that were kept because they differ."""
    out = out.resolve()
    if out == PROJECT:
        raise HandoutError(f"OUT must not be the project itself, got {out}")
    if out.exists() and not out.is_dir():
        raise HandoutError(f"OUT must be a new or empty folder; {out} is a file")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise HandoutError(f"OUT must be new or empty; {out} is not empty (use --force to write into it)")
    kept = []
    for name, contents in files().items():
        path = out / name
        if name in STUDENTS and path.exists() and path.read_bytes() != contents:
            kept.append(name)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    return kept
