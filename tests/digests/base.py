"""The file of recorded digests, and the file of renamed tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).with_name("base.txt")
RENAMED = Path(__file__).with_name("renamed.txt")

MODES = ("in-process", "isolated", "race")
FORMAT = "raftlab digests, version 1"


class BaseError(Exception):
    """A file cannot be used; the text says which line and why."""


@dataclass
class Base:
    """Recorded digests. By test and seed: one for each of MODES, "" if that mode was not run."""

    python: str  # its minor version
    commit: str  # that recorded these runs
    digests: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        lines = [FORMAT, f"python {self.python}", f"commit {self.commit}", f"test seed {' '.join(MODES)}"]
        lines += [
            " ".join([test, str(seed), *(digest or "-" for digest in digests)])
            for (test, seed), digests in sorted(self.digests.items())
        ]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_base(file: Path = FILE) -> Base:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BaseError(f"{file}: {error.strerror}; python -m tests.digests record writes it") from None
    if not lines or lines[0] != FORMAT:
        raise BaseError(f"{file}:1: got {lines[0] if lines else ''!r}, expected {FORMAT!r}; record it again")
    try:
        base = Base(lines[1].removeprefix("python "), lines[2].removeprefix("commit "))
        for line in lines[4:]:
            test, seed, *digests = line.split()
            base.digests[test, int(seed)] = ["" if digest == "-" else digest for digest in digests]
    except (IndexError, ValueError) as error:
        raise BaseError(f"{file}: {error}; record it again") from None
    return base


def read_renamed(file: Path, recorded: set[str], known: set[str]) -> dict[str, str]:
    """Old name -> new name. The old name must be in the base and not a test; the new one the reverse."""
    renamed = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match line.split():
            case [old, new] if old not in recorded:
                raise BaseError(f"{file}:{number}: {old} is not in the base; remove this line")
            case [old, new] if old in known:
                raise BaseError(f"{file}:{number}: test {old} still exists; remove this line")
            case [old, new] if new not in known or new in recorded:
                why = "is not a test" if new not in known else "is in the base already"
                raise BaseError(f"{file}:{number}: {new} {why}; write: old_name new_name")
            case [old, new]:
                renamed[old] = new
            case _:
                raise BaseError(f"{file}:{number}: got {line!r}; write: old_name new_name")
    return renamed
