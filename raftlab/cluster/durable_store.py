"""A peer's durable storage: saved data survives kill -9 and power failures.

Promise: saves are atomic and durable when write() returns. A torn last save (by a power failure) is detected, and the
save before it is used. Any other damage is refused with the file's name, because a peer that has lost a vote or an
entry can undo a decision. A save writes only the blocks that changed.

Format: a save is one record: its number, the digest of the previous record, and the changed blocks. Records alternate
between two files: if one file is truncated, the other has later records or the previous one. Only the very last record
may be damaged. After each start, and when the files grow large, a new pair of files starts with a full record; the old
pair is deleted when the new one has two records. Not promised: to distinguish later damage to the last record from a
torn save.

Start at `DurableStore.write()`, then `_read_pair()`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from raftapi import Persister

if sys.platform != "win32":
    import fcntl

# Compare in large blocks first, then in small ones.
_LARGE, _SMALL = 16 << 10, 128
# A new pair starts when the files exceed this, and several times the size of a full record.
PAIR_BYTES_MIN = 4 << 20
_PAIR_IMAGES = 4

_HEADER = struct.Struct(">4sQI16s")  # mark, number, length of the body, digest of the previous record
_MARK = b"save"
_DIGEST_BYTES = 16
_NO_DIGEST = bytes(_DIGEST_BYTES)
_FILES = ("a", "b")
_OWNER = "owner.json"
_LOCK = "lock"

_ADVICE = (
    "this peer may have lost votes or entries that it acknowledged. Restore the folder from a copy that is not "
    "older than the last message of this peer, or leave this peer stopped: the others continue without it"
)


class StoreError(Exception):
    """The data cannot be used; the text has the file."""


class DataOwner(msgspec.Struct, frozen=True):
    """The peer that the data belongs to, and the number of peers."""

    peer: int
    peers: int

    def __str__(self) -> str:
        return f"peer {self.peer} of {self.peers}"


class _SaveBody(msgspec.Struct, array_like=True, frozen=True):
    """The body of a record: sizes, and changed blocks as (offset, bytes)."""

    raft_state_size: int
    snapshot_size: int
    raft_state: list[tuple[int, bytes]]
    snapshot: list[tuple[int, bytes]]


class _SaveRecord(NamedTuple):
    number: int
    previous: bytes
    body: bytes
    digest: bytes
    size: int


class _FilePair(NamedTuple):
    """The records of a pair of files in order, and the file with a torn record at its end."""

    records: list[_SaveRecord]
    torn: Path | None


class DurableStore:
    """One peer's folder. `raft_state` and `snapshot` are those of the last save."""

    def __init__(self, folder: Path, owner: DataOwner) -> None:
        """Open or create the folder. Raises StoreError or OSError."""
        self.folder = folder
        self.raft_state = b""
        self.snapshot = b""
        self.number = 0
        self.torn = ""  # the file with a torn save that was ignored
        self.saves_s: deque[float] = deque(maxlen=256)  # durations of recent saves, including fsync
        self._digest = _NO_DIGEST
        self._fds: tuple[int, int] | None = None
        self._first = 0  # number of the first record of this pair
        self._pair_bytes = 0
        self._old_files: list[Path] = []  # deleted when the new pair has two records
        if not folder.exists():
            _create(folder, owner)
        self._lock = _lock(folder)
        try:
            _check_owner(folder, owner)
            self._read()
        except BaseException:
            self.close()
            raise

    # ---- Saving ----------------------------------------------------------------------------------------------

    def write(self, raft_state: bytes, snapshot: bytes) -> None:
        """Save. One thread at a time. After an OSError the state of the disk is unknown, and no more may be written."""
        started_s = time.perf_counter()
        full_size = 64 + len(raft_state) + len(snapshot)
        if self._fds is None or self._pair_bytes > max(PAIR_BYTES_MIN, _PAIR_IMAGES * full_size):
            self._begin_pair()
            save = _SaveBody(len(raft_state), len(snapshot), [(0, raft_state)], [(0, snapshot)])
        else:
            save = _SaveBody(
                len(raft_state),
                len(snapshot),
                list(_differences(self.raft_state, raft_state)),
                list(_differences(self.snapshot, snapshot)) if snapshot is not self.snapshot else [],
            )
        assert self._fds is not None
        record, self._digest = _pack(self.number + 1, self._digest, msgspec.msgpack.encode(save))
        fd = self._fds[(self.number + 1 - self._first) % 2]
        rest = memoryview(record)
        while rest:
            rest = rest[os.write(fd, rest) :]
        _sync(fd)
        if self.number + 1 == self._first:
            _sync_folder(self.folder)
        self.number += 1
        self._pair_bytes += len(record)
        self.raft_state, self.snapshot = raft_state, snapshot
        if self._old_files and self.number > self._first:
            for path in self._old_files:
                path.unlink(missing_ok=True)
            self._old_files = []
        self.saves_s.append(time.perf_counter() - started_s)

    def _begin_pair(self) -> None:
        self._close_pair()
        self._old_files = [path for path in self.folder.iterdir() if path.suffix[1:] in _FILES]
        self._first = self.number + 1
        self._digest = _NO_DIGEST
        self._pair_bytes = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        a, b = (os.open(path, flags, 0o600) for path in _pair(self.folder, self._first))
        self._fds = (a, b)

    def _close_pair(self) -> None:
        for fd in self._fds or ():
            os.close(fd)
        self._fds = None

    def close(self) -> None:
        """Close the files and release the lock."""
        self._close_pair()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- Reading ---------------------------------------------------------------------------------------------

    def _read(self) -> None:
        firsts = sorted({_first_of(path) for path in self.folder.iterdir() if path.suffix[1:] in _FILES})
        if not firsts:
            raise StoreError(f"{self.folder}: the save files are missing: {_ADVICE}")
        newest = _read_pair(self.folder, firsts[-1])
        if len(newest.records) < 2 and len(firsts) > 1:
            # The pair before the newest one is still needed, or was until just now.
            previous = _read_pair(self.folder, firsts[-2])
            if not previous.records or previous.records[-1].number != firsts[-1] - 1:
                raise _damaged(_pair(self.folder, firsts[-2])[(firsts[-1] - 1 - firsts[-2]) % 2])
            if not newest.records:
                for path in _pair(self.folder, firsts[-1]):
                    path.unlink(missing_ok=True)
                newest = _FilePair(previous.records, newest.torn or previous.torn)
        if not newest.records:
            raise _damaged(_pair(self.folder, firsts[-1])[0])
        for record in newest.records:
            try:
                save = msgspec.msgpack.decode(record.body, type=_SaveBody)
            except msgspec.DecodeError:
                raise StoreError(
                    f"{self.folder}: save {record.number} has a valid checksum but cannot be decoded"
                ) from None
            self.raft_state = _apply_differences(self.raft_state, save.raft_state_size, save.raft_state)
            self.snapshot = _apply_differences(self.snapshot, save.snapshot_size, save.snapshot)
        self.number = newest.records[-1].number
        self.torn = "" if newest.torn is None else str(newest.torn)


def persister_on(disk: DurableStore) -> Persister:
    """The lab's Persister on this store: save() returns when the data is durable."""
    persister = Persister()
    persister.save(disk.raft_state, disk.snapshot)
    persister.on_save = lambda number, raft_state, snapshot: disk.write(raft_state, snapshot)
    return persister


# ---- Files ---------------------------------------------------------------------------------------------------


def _pair(folder: Path, first: int) -> list[Path]:
    return [folder / f"{first:012}.{name}" for name in _FILES]


def _first_of(path: Path) -> int:
    try:
        return int(path.stem)
    except ValueError:
        raise StoreError(f"{path}: unknown file; move it elsewhere") from None


def _read_pair(folder: Path, first: int) -> _FilePair:
    """Read the records of a pair. Raises StoreError if any but the very last one is damaged."""
    paths = _pair(folder, first)
    found: dict[int, _SaveRecord] = {}
    broken: list[Path] = []
    for turn, path in enumerate(paths):
        data = path.read_bytes() if path.exists() else b""
        at, number = 0, first + turn
        while (record := _unpack(data, at)) is not None and record.number == number:
            found[number] = record
            at, number = at + record.size, number + 2
        if at < len(data):
            broken.append(path)
    last = max(found, default=first - 1)
    previous = _NO_DIGEST
    for number in range(first, last + 1):
        record = found.get(number)
        if record is None or record.previous != previous:
            raise _damaged(paths[(number - first) % 2])
        previous = record.digest
    # A save starts only after the previous one is durable.
    may_be_torn = paths[(last + 1 - first) % 2]
    for path in broken:
        if path != may_be_torn:
            raise _damaged(path)
    return _FilePair([found[number] for number in range(first, last + 1)], broken[0] if broken else None)


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged or incomplete, and not only in its last save: {_ADVICE}")


def _pack(number: int, previous: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Encode a record. Returns it and its digest."""
    head = _HEADER.pack(_MARK, number, len(body), previous)
    digest = hashlib.blake2b(head + body, digest_size=_DIGEST_BYTES).digest()
    return head + body + digest, digest


def _unpack(data: bytes, at: int) -> _SaveRecord | None:
    """The record at that offset, if it is complete."""
    if len(data) < at + _HEADER.size:
        return None
    mark, number, length, previous = _HEADER.unpack_from(data, at)
    end = at + _HEADER.size + length
    if mark != _MARK or len(data) < end + _DIGEST_BYTES:
        return None
    digest = data[end : end + _DIGEST_BYTES]
    if hashlib.blake2b(data[at:end], digest_size=_DIGEST_BYTES).digest() != digest:
        return None
    return _SaveRecord(number, previous, data[at + _HEADER.size : end], digest, end + _DIGEST_BYTES - at)


def _differences(old: bytes, new: bytes) -> Iterator[tuple[int, bytes]]:
    """The blocks that differ, with adjacent ones merged."""
    begin = end = 0  # of the pending block
    for large in range(0, len(new), _LARGE):
        if new[large : large + _LARGE] == old[large : large + _LARGE]:
            continue
        for at in range(large, min(large + _LARGE, len(new)), _SMALL):
            block = new[at : at + _SMALL]
            if block == old[at : at + _SMALL]:
                continue
            if at != end:
                if end > begin:
                    yield begin, new[begin:end]
                begin = at
            end = at + len(block)
    if end > begin:
        yield begin, new[begin:end]


def _apply_differences(old: bytes, size: int, differences: list[tuple[int, bytes]]) -> bytes:
    data = bytearray(old[:size].ljust(size, b"\0"))
    for offset, block in differences:
        data[offset : offset + len(block)] = block
    return bytes(data)


# ---- The folder ----------------------------------------------------------------------------------------------


def _create(folder: Path, owner: DataOwner) -> None:
    """Create the folder atomically, by renaming: it always has its first save."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    record, _ = _pack(0, _NO_DIGEST, msgspec.msgpack.encode(_SaveBody(0, 0, [], [])))
    a, b = _pair(temporary, 0)
    for path, data in ((a, record), (b, b""), (temporary / _OWNER, msgspec.json.encode(owner) + b"\n")):
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            _sync(file.fileno())
    _sync_folder(temporary)
    temporary.rename(folder)
    _sync_folder(folder.parent)


def _check_owner(folder: Path, owner: DataOwner) -> None:
    path = folder / _OWNER
    try:
        found = msgspec.json.decode(path.read_bytes(), type=DataOwner)
    except FileNotFoundError:
        raise StoreError(f"{folder} has no data of a peer (no {_OWNER}); choose another folder") from None
    except msgspec.DecodeError as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    if found != owner:
        raise StoreError(f"{folder} has the data of {found}, not of {owner}; choose the folder of that peer")


def _lock(folder: Path) -> int | None:
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder")
    if not (folder / _OWNER).exists():
        return None  # not our folder: do not even create a lock file
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    if sys.platform != "win32":
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise StoreError(f"{folder} is in use by another process; stop it first") from None
    return fd


def _sync(fd: int) -> None:
    if sys.platform == "darwin":
        with suppress(OSError):  # not supported by every file system
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    getattr(os, "fdatasync", os.fsync)(fd)


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # folders cannot be opened on Windows
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
