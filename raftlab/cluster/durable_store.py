"""A peer's disk that is one: what was saved is there after kill -9 and after a power cut.

Promise: when write() returns, both the Raft state and the snapshot are on the disk, or both are as they were. A save
that was torn (by a power cut in the middle of it) is known for one, and the save before it counts. Whatever else is
damaged or missing is refused with the file's name, and never guessed around: a peer that has forgotten a vote or an
entry can undo what was agreed on. One more entry writes little, though Raft saves its whole log each time.

How it is kept. A save is one record: its number, the digest of the record before it, and the blocks that differ from
the save before. Records go to two files in turn, so that each file vouches for the other: if one has lost its end, the
other still has later records, or the one before. Only the last record of all may be broken. Now and then, and after
each start, a new pair of files begins with a record of everything; the old pair goes when the new one has two records.

Not promised: that damage to the very last record is told from a torn save: both end with the one before it.

Start at `Disk.write()`, then `_read_pair()`.
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

# Two steps: most of a long log is passed over in large ones.
_LARGE, _SMALL = 16 << 10, 128
# When a pair of files is larger than this, and than several times all there is, a new one begins.
PAIR_BYTES_MIN = 4 << 20
_PAIR_IMAGES = 4

_HEADER = struct.Struct(">4sQI16s")  # mark, number, length of the body, digest of the record before
_MARK = b"save"
_DIGEST_BYTES = 16
_NO_DIGEST = bytes(_DIGEST_BYTES)
_FILES = ("a", "b")
_OWNER = "owner.json"
_LOCK = "lock"

_ADVICE = (
    "this peer may have lost votes or entries that it acknowledged. Restore the folder from a copy that is as new "
    "as the last message of this peer, or leave this peer stopped: the others continue without it"
)


class StoreError(Exception):
    """The data cannot be used; the text names the file."""


class Owner(msgspec.Struct, frozen=True):
    """Whose data it is: one peer's of so many."""

    peer: int
    peers: int

    def __str__(self) -> str:
        return f"peer {self.peer} of {self.peers}"


class _SaveBody(msgspec.Struct, array_like=True, frozen=True):
    """What a record's body says: the sizes, and what is new in each, as (offset, bytes)."""

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
    """What a pair of files says: the records in order, and which file has a broken one behind them."""

    records: list[_SaveRecord]
    torn: Path | None


class DurableStore:
    """One peer's folder. `raft_state` and `snapshot` are what was saved last."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        """Opens the folder, or makes it if there is none. Raises DiskError or OSError."""
        self.folder = folder
        self.raft_state = b""
        self.snapshot = b""
        self.number = 0
        self.torn = ""  # the file in which a torn save was passed over
        self.saves_s: deque[float] = deque(maxlen=256)  # how long the last ones took, fsync and all
        self._digest = _NO_DIGEST
        self._fds: tuple[int, int] | None = None
        self._first = 0  # record of this pair
        self._pair_bytes = 0
        self._old_files: list[Path] = []  # files that go when the new pair has two records
        if not folder.exists():
            _create(folder, owner)
        self._lock = _lock(folder)
        try:
            _check_owner(folder, owner)
            self._read()
        except BaseException:
            self.close()
            raise

    # ---- Saving --------------------------------------------------------------------------------------

    def write(self, raft_state: bytes, snapshot: bytes) -> None:
        """One thread at a time. After an OSError nobody knows what is on the disk, and nothing may be written again."""
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
        """Give the folder back."""
        self._close_pair()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- Reading -------------------------------------------------------------------------------------

    def _read(self) -> None:
        firsts = sorted({_first_of(path) for path in self.folder.iterdir() if path.suffix[1:] in _FILES})
        if not firsts:
            raise StoreError(f"{self.folder}: the save files are missing: {_ADVICE}")
        newest = _read_pair(self.folder, firsts[-1])
        if len(newest.records) < 2 and len(firsts) > 1:
            # The one before the newest pair is needed, or was a moment ago.
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
    """The Persister of the lab itself, with that disk below it: save() returns when the disk has it."""
    persister = Persister()
    persister.save(disk.raft_state, disk.snapshot)
    persister.on_save = lambda number, raft_state, snapshot: disk.write(raft_state, snapshot)
    return persister


# ---- Files -------------------------------------------------------------------------------------------------


def _pair(folder: Path, first: int) -> list[Path]:
    return [folder / f"{first:012}.{name}" for name in _FILES]


def _first_of(path: Path) -> int:
    try:
        return int(path.stem)
    except ValueError:
        raise StoreError(f"{path}: unknown file; move it elsewhere") from None


def _read_pair(folder: Path, first: int) -> _FilePair:
    """The records of a pair from its first on. Raises DiskError if anything but the very last one is broken."""
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
    # A save begins when the one before it is there.
    may_be_torn = paths[(last + 1 - first) % 2]
    for path in broken:
        if path != may_be_torn:
            raise _damaged(path)
    return _FilePair([found[number] for number in range(first, last + 1)], broken[0] if broken else None)


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged or incomplete, and not only in its last save: {_ADVICE}")


def _pack(number: int, previous: bytes, body: bytes) -> tuple[bytes, bytes]:
    """A record, and its digest."""
    head = _HEADER.pack(_MARK, number, len(body), previous)
    digest = hashlib.blake2b(head + body, digest_size=_DIGEST_BYTES).digest()
    return head + body + digest, digest


def _unpack(data: bytes, at: int) -> _SaveRecord | None:
    """The record that begins there, if a whole one does."""
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
    """What of the new differs, in blocks; neighbours together."""
    begin = end = 0  # of what is not yet told
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


# ---- The folder --------------------------------------------------------------------------------------------


def _create(folder: Path, owner: Owner) -> None:
    """All at once, by renaming: a folder that is there has its first save."""
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


def _check_owner(folder: Path, owner: Owner) -> None:
    path = folder / _OWNER
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Owner)
    except FileNotFoundError:
        raise StoreError(f"{folder} has no data of a peer (no {_OWNER}); choose another folder, or a new one") from None
    except msgspec.DecodeError as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    if found != owner:
        raise StoreError(f"{folder} has the data of {found}, not of {owner}; choose the folder of that peer")


def _lock(folder: Path) -> int | None:
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder")
    if not (folder / _OWNER).exists():
        return None  # not ours: not even a lock is put into it
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
        with suppress(OSError):  # not every file system has it
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    getattr(os, "fdatasync", os.fsync)(fd)


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # a folder cannot be opened there
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
