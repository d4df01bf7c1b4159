"""What hunts have reached: how runs began that came to something new, and the states that they came to.

A corpus can be kept in a file, and another hunt goes on from there. Start at `Corpus`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

_FORMAT = "raftlab corpus 1"


class Steps(msgspec.Struct, frozen=True):
    """A run, or how one began: the lines of a scenario."""

    peers: int
    snapshots: bool
    lines: tuple[str, ...] = ()

    @property
    def header(self) -> list[str]:
        return [*([] if self.peers == 3 else [f"peers {self.peers}"]), *(["snapshots"] if self.snapshots else [])]


class Corpus(msgspec.Struct):
    states: set[int] = msgspec.field(default_factory=set)
    beginnings: list[Steps] = msgspec.field(default_factory=list)

    def take(self, other: Corpus) -> int:
        """What another one has reached besides: how many states are new."""
        new = len(other.states - self.states)
        if new:
            self.states |= other.states
            self.beginnings += other.beginnings
        return new


class _File(msgspec.Struct):
    format: str
    states: list[int]
    beginnings: list[Steps]


class DamagedCorpus(Exception):
    """The file is no corpus; the text says which, and what to do."""


def read_corpus(path: Path) -> Corpus:
    """Empty if there is no such file yet."""
    if not path.exists():
        return Corpus()
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_File)
        if kept.format != _FORMAT:
            raise msgspec.ValidationError(f"it says {kept.format!r}")
    except OSError as error:
        raise DamagedCorpus(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedCorpus(f"{path} is no corpus of a hunt ({error}); name another file, or remove it") from None
    return Corpus(set(kept.states), kept.beginnings)


def write_corpus(path: Path, corpus: Corpus) -> None:
    """Whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Sorted: a set has no order of its own.
    kept = msgspec.json.encode(_File(_FORMAT, sorted(corpus.states), corpus.beginnings))
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(kept)
    temporary.replace(path)
