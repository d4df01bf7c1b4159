"""What a failed run was made of, kept on disk, so that a replay can say whether it is that run again.

Promise: a record names the digest of the run and a hash of every file that had a part in it. A replay with equal
hashes and another digest is a broken promise of determinism; with other hashes it is simply another run, and says so.
The pytest plugin and `lab stress` write records; `lab replay` reads them.

Start at `Record`.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

import msgspec

from labsim.stacks import short_path
from raftlab.layout import peer_files, run_files

# Where the records of each kind of run lie, under the working directory.
STRESS = Path("build/stress/failures")
PYTEST = Path("build/pytest/failures")

# Counted up when a field changes its meaning, and when the same code with the same seed gives another run than before.
VERSION = 2

_PYTHON = "Python"
_THE_LAB = "the lab"


class RecordError(Exception):
    """There is a record, and this version cannot read it; the text says which and why."""


class Record(msgspec.Struct, kw_only=True):
    """One failed run."""

    version: int = VERSION
    test: str
    seed: int
    raft: str  # as it was given
    kv: str = ""  # the same of the service, where one was tested
    isolated: bool = False
    race: bool = False
    digest: str  # "" if the run ended with its process
    report: str
    code: dict[str, str]  # what code_hashes() returned then

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _file_name(self.test, self.seed, self.raft, self.kv, isolated=self.isolated, race=self.race)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        return path


class _Versioned(msgspec.Struct):
    version: int = 1  # which had no such field


def find(
    folders: Iterable[Path],
    test: str,
    seed: int,
    raft: Path,
    kv: Path | None = None,
    *,
    isolated: bool = False,
    race: bool = False,
) -> Record | None:
    """The newest record of that run, or None. What cannot be read counts as not there; RecordError if it is too old."""
    name = _file_name(test, seed, str(raft), "" if kv is None else str(kv), isolated=isolated, race=race)
    found = []
    for folder in folders:
        path = folder / name
        try:
            content = path.read_bytes()
            version = msgspec.json.decode(content, type=_Versioned).version
            found.append((path.stat().st_mtime, path, version, content))
        except (OSError, msgspec.DecodeError):
            continue
    if not found:
        return None
    _, path, version, content = max(found)
    if version != VERSION:
        raise RecordError(f"{path} has format version {version}; this version of the lab reads {VERSION}")
    try:
        return msgspec.json.decode(content, type=Record)
    except msgspec.DecodeError:
        return None


def latest(folders: Iterable[Path]) -> Record | None:
    """The failed run that was recorded last; None if there is none that can be read."""
    paths = [path for folder in folders for path in folder.glob("*.json")]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):
            continue
        if record.version == VERSION:
            return record
    return None


def _file_name(test: str, seed: int, raft: str, kv: str, *, isolated: bool, race: bool) -> str:
    # The same seed may have failed for several peers.
    files = "\n".join(str(Path(path).resolve()) for path in (raft, kv) if path)
    peer = hashlib.blake2b(files.encode(), digest_size=4).hexdigest()
    return f"{test}-{seed}-{peer}{'-isolated' if isolated else ''}{'-race' if race else ''}.json"


def files_of(raft: Path) -> list[Path]:
    """The files that come with a raft.py: its package if it has its own messages.py beside it, else only itself."""
    raft = (raft / "raft.py" if raft.is_dir() else raft).resolve()
    if place_of_peer(raft) == (raft,):
        return [raft]
    package = sorted(p for p in raft.parent.rglob("*.py") if not any(part.startswith(".") for part in p.parts))
    return [raft, *(path for path in package if path != raft)]


def files_of_service(kv: Path) -> list[Path]:
    """The same of a service: its server.py, its clerk beside it, and its package if it has its own messages.py."""
    kv = (kv / "server.py" if kv.is_dir() else kv).resolve()
    beside = ["*.py"] if (kv.parent / "messages.py").exists() else ["client.py"]
    return [kv, *(path for pattern in beside for path in sorted(kv.parent.glob(pattern)) if path != kv)]


def place_of_peer(raft: Path, kv: Path | None = None) -> tuple[Path, ...]:
    """What a line must be in to be the peer's, or the service's: its package's folder, or its one file."""
    raft = (raft / "raft.py" if raft.is_dir() else raft).resolve()
    peers = raft.parent if (raft.parent / "messages.py").exists() else raft
    return (peers,) if kv is None else (peers, *files_of_service(kv))


def code_hashes(raft: Path, test_file: Path, kv: Path | None = None) -> dict[str, str]:
    """Every part of a run by name, with its hash: the peer's files, the test file, the lab, Python."""
    service = [] if kv is None else files_of_service(kv)
    files = [*files_of(raft), *peer_files(), *service, test_file.resolve()]
    code = {short_path(str(path)): _hash([path]) for path in files}
    code[_THE_LAB] = _hash(run_files())
    code[_PYTHON] = platform.python_version()
    return code


def changes(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """The parts that differ, in words; empty if the code is the same."""
    changed = []
    for part in [*then, *(part for part in now if part not in then)]:
        if then.get(part) == now.get(part):
            continue
        if part == _PYTHON:
            changed.append(f"Python {then.get(part)} then, {now.get(part)} now")
        elif part not in now:
            changed.append(f"{part} (gone)")
        elif part not in then:
            changed.append(f"{part} (new)")
        else:
            changed.append(part)
    return changed


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        content = path.read_bytes() if path.exists() else b""
        digest.update(f"{path.name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()
