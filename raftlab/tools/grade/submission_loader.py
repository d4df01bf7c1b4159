"""What was handed in: a folder, a zip or tar, or a single raft.py, read and never unpacked.

Promise: only the student's own files are taken (raft.py and messages.py beside it, and of a service the same in its
folder kv), by content, each of a sane size.
No name in an archive ever reaches the file system, no link is followed, and no archive is read further than a limit.
What is wrong becomes a sentence, not an exception: a class is graded to its end.

Start at `take_in()`.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from raftlab.layout import PEER, PEER_FILES, SERVICE

_FILE_BYTES_MAX = 1 << 20
_ARCHIVE_BYTES_MAX = 64 << 20
_UNPACKED_BYTES_MAX = 256 << 20
_MEMBERS_MAX = 20_000
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz", ".tbz2")
# Said to be unreadable, so that whoever handed one in is not missing from the class.
_OTHER_ARCHIVES = (".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".lz", ".z")
_NAME_BYTES_MAX = 80
_NAMED_MAX = 5  # files, in a sentence
SERVICE_ITSELF = ("server.py", "client.py")
SERVER = f"{SERVICE}/{SERVICE_ITSELF[0]}"
# Where tools keep their own things, and where nobody's raft.py is.
_NOBODYS = ("__MACOSX", "__pycache__", "node_modules", "site-packages", "venv", "build")


class IntakeError(Exception):
    """Nothing can be graded; the text says why."""


class _Unreadable(Exception):
    """This submission cannot be read; the text is a whole sentence for the student."""


@dataclass(frozen=True)
class Submission:
    name: str
    path: Path
    files: dict[str, bytes]  # by name, those of a service as kv/server.py; empty if there is a problem
    problem: str = ""
    remarks: tuple[str, ...] = ()
    file: str = ""  # what was handed in, by its own name; `name` is made from it

    @property
    def digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, content in sorted(self.files.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()


@dataclass(frozen=True)
class Wanted:
    """What is taken of a submission."""

    peer: tuple[str, ...]  # raft.py, and what may lie beside it
    service: tuple[str, ...] = ()  # server.py and client.py, and what may lie beside them; none: it is not graded
    needs_peer: bool = True  # whether nothing can be run without raft.py

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.peer, *(self.service or SERVICE_ITSELF)))


@dataclass(frozen=True)
class _Member:
    """One regular file of a submission, wherever it lies."""

    path: PurePosixPath
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Intake:
    submissions: list[Submission]
    passed_over: dict[str, str]  # what else lies there, and why it is no submission
    whole: bool  # a folder of submissions, which is the class; otherwise one of a class


def take_in(path: Path, wanted: Wanted, *, single: bool = False, not_these: Iterable[Path] = ()) -> Intake:
    """Those of a folder, in the order of their names; or the one that `path` is.

    `not_these` are the grader's own, should they lie there too.
    """
    if not path.exists():
        raise IntakeError(
            f"{path}: no such file or folder; SUBMISSIONS must be a folder of submissions, or one submission"
        )
    tops = [wanted.peer[0], f"{PEER}/{wanted.peer[0]}", *([f"{SERVICE}/{wanted.service[0]}"] if wanted.service else [])]
    single = single or path.is_file() or any((path / top).is_file() for top in tops)
    own = {os.path.realpath(p) for p in not_these}
    taken: list[Submission] = []
    passed_over: dict[str, str] = {}
    for entry in [path] if single else sorted(path.iterdir()):
        why = _why_not(entry, is_own=os.path.realpath(entry) in own and not single)
        if why:
            passed_over[_printable(entry.name)] = why
        else:
            taken.append(_take(entry, path, [s.name for s in taken], wanted))
    if not taken:
        raise IntakeError(f"{path}: no submissions found; expected folders, {', '.join(_ARCHIVES[:3])} or .py files")
    return Intake(taken, passed_over, whole=not single)


def _why_not(entry: Path, *, is_own: bool) -> str:
    """Why an entry is no submission; "" if it is one."""
    if entry.name.startswith("."):
        return "hidden file"
    if entry.name.startswith("__MACOSX"):
        return "metadata of macOS"
    if is_own:
        return "OUT, hidden tests or the solution"
    endings = (".py", *_ARCHIVES, *_OTHER_ARCHIVES)
    if entry.is_symlink() or entry.is_dir() or entry.name.lower().endswith(endings):
        return ""
    return "not a folder, an archive or a .py file"


def _is_archive(path: Path) -> bool:
    return path.name.lower().endswith(_ARCHIVES)


def _take(entry: Path, top: Path, names: Iterable[str], wanted: Wanted) -> Submission:
    file, stem = entry.name, _stem(entry)
    if entry == top and stem in ("", PEER, SERVICE):
        # Everybody's is called so; whose it is, the folder says.
        place = entry.resolve()
        stem = place.parent.name if entry.is_file() else place.name
        file = f"{stem}/{file}" if entry.is_file() else stem
    taken = _taken(entry, _name(stem, names), wanted)
    remarks = tuple(map(_printable, taken.remarks))
    return replace(taken, problem=_printable(taken.problem), remarks=remarks, file=_printable(file))


def _stem(entry: Path) -> str:
    stem = entry.name
    for ending in (*_ARCHIVES, *_OTHER_ARCHIVES, ".py"):
        if stem.lower().endswith(ending) and not entry.is_dir():
            stem = stem[: -len(ending)]
    return stem


def _name(stem: str, taken: Iterable[str]) -> str:
    """A name for files and links: without what would be trouble in a path, and nobody else's."""
    name = re.sub(r"[^\w.@+-]+", "_", stem).strip("._") or "submission"
    name = name.encode()[:_NAME_BYTES_MAX].decode(errors="ignore")
    number = 2
    unique = name
    while unique in taken:
        unique = f"{name}_{number}"
        number += 1
    return unique


def _printable(text: str) -> str:
    """A name in an archive may be of any bytes: none that a page cannot hold, and none that steers a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _taken(entry: Path, name: str, wanted: Wanted) -> Submission:
    remarks: list[str] = []
    try:
        files = _wanted_of(list(_members(entry, wanted, remarks)), wanted, remarks)
    except _Unreadable as problem:
        return Submission(name, entry, {}, str(problem), tuple(remarks))
    except OSError as error:
        return Submission(name, entry, {}, f"The submission cannot be read: {error.strerror or error}.", tuple(remarks))
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        ValueError,
        RuntimeError,
    ) as error:
        text = str(error) or type(error).__name__
        return Submission(name, entry, {}, f"The archive is damaged or has an unknown format: {text}.", tuple(remarks))
    return Submission(name, entry, files, "", tuple(remarks))


def _wanted_of(members: list[_Member], wanted: Wanted, remarks: list[str]) -> dict[str, bytes]:
    peers = [m for m in members if m.path.name == wanted.peer[0] and not _passed_over(m.path)]
    services = _services(members)
    if not peers and (wanted.needs_peer or not services):
        python = sorted(str(m.path) for m in members if m.path.suffix == ".py")[:5]
        have = f"; it has {', '.join(python)}" if python else ""
        none = (
            f"The submission has no {wanted.peer[0]}"
            if wanted.needs_peer
            else f"The submission has neither {SERVER} nor raft.py"
        )
        raise _Unreadable(f"{none}{have}.")
    files = _with_beside(members, peers, wanted.peer, remarks) if peers else {}
    if not wanted.service:
        if services:
            remarks.append(f"{services[0].path} was not run: parts 3A and 3B are not graded.")
        return files
    if not services:
        remarks.append(f"The submission has no {SERVER}, so parts 3A and 3B were not run.")
        return files
    found = _with_beside(members, services, wanted.service, remarks)
    if wanted.service[1] not in found:
        remarks.append(
            f"There is no {wanted.service[1]} beside {wanted.service[0]}, so parts 3A and 3B were not run. They need "
            "both files."
        )
        return files
    both = files.keys() & found.keys()
    if both and {m.path.parent for m in peers} & {m.path.parent for m in services}:
        remarks.append(
            f"{wanted.peer[0]} and {wanted.service[0]} are in one folder, so {', '.join(sorted(both))} was used for "
            f"both. Submit the folders {PEER} and {SERVICE} instead."
        )
    return files | {f"{SERVICE}/{name}": content for name, content in found.items()}


def _services(members: list[_Member]) -> list[_Member]:
    """Every server.py that may be one's service: the lab has others. In a folder kv, or with its clerk beside it."""
    server, clerk = SERVICE_ITSELF
    with_clerk = {m.path.parent for m in members if m.path.name == clerk}
    return [
        m
        for m in members
        if m.path.name == server
        and not _passed_over(m.path)
        and (m.path.parent.name == SERVICE or m.path.parent in with_clerk)
    ]


def _with_beside(
    members: list[_Member], candidates: list[_Member], wanted: tuple[str, ...], remarks: list[str]
) -> dict[str, bytes]:
    """The one of them that lies highest, and what is wanted beside it."""
    first = wanted[0]
    depth = min(len(m.path.parts) for m in candidates)
    highest = [m for m in candidates if len(m.path.parts) == depth]
    if len(highest) > 1:
        names = ", ".join(sorted(str(m.path) for m in highest)[:4])
        raise _Unreadable(f"There are {len(highest)} files named {first} ({names}). Submit only one.")
    chosen = highest[0]
    if len(candidates) > 1:
        remarks.append(f"{len(candidates)} files are named {first}; {chosen.path} was used.")
    files = {}
    for member in members:
        if member.path.parent == chosen.path.parent and member.path.name in wanted:
            content = member.read()
            if len(content) > _FILE_BYTES_MAX:
                raise _Unreadable(f"{member.path} is larger than {_FILE_BYTES_MAX >> 20} MB.")
            files[member.path.name] = content
    beside = {m.path.name for m in members if m.path.parent == chosen.path.parent and m.path.suffix == ".py"}
    # Who hands in all in one folder has the others' files here, too.
    left = sorted(beside - {*wanted, *PEER_FILES, *SERVICE_ITSELF, "raft.py"})
    if left:
        more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
        remarks.append(
            f"Ignored beside {first}: {', '.join(left[:_NAMED_MAX])}{more}. Only {', '.join(wanted)} are used."
        )
    return files


def _passed_over(path: PurePosixPath) -> bool:
    return any(part in _NOBODYS or part.startswith(".") for part in path.parts[:-1])


def _members(entry: Path, wanted: Wanted, remarks: list[str]) -> Iterator[_Member]:
    if entry.is_symlink():
        raise _Unreadable("The submission is a link; links are not followed.")
    if entry.is_dir():
        return _of_folder(entry, remarks)
    if not entry.is_file():
        raise _Unreadable("The submission is neither a file nor a folder.")
    if entry.name.lower().endswith(_OTHER_ARCHIVES) and not _is_archive(entry):
        raise _Unreadable(f"{entry.suffix} archives cannot be read. Submit a .zip.")
    if not _is_archive(entry):
        return iter([_Member(PurePosixPath(wanted.peer[0]), lambda: _read(entry.open("rb")))])
    if entry.stat().st_size > _ARCHIVE_BYTES_MAX:
        raise _Unreadable(f"The archive is larger than {_ARCHIVE_BYTES_MAX >> 20} MB.")
    return (_of_zip if zipfile.is_zipfile(entry) else _of_tar)(entry, wanted, remarks)


def _read(file: IO[bytes]) -> bytes:
    """One byte more than is allowed is enough to know."""
    with file:
        return file.read(_FILE_BYTES_MAX + 1)


def _of_folder(folder: Path, remarks: list[str]) -> Iterator[_Member]:
    found = 0
    stack = [folder]
    while stack:
        here = stack.pop()
        for path in sorted(here.iterdir(), reverse=True):
            found += 1
            if found > _MEMBERS_MAX:
                raise _Unreadable(f"The submission has more than {_MEMBERS_MAX:,} files.")
            inside = PurePosixPath(path.relative_to(folder).as_posix())
            if path.is_symlink():
                _remark(remarks, f"{inside} is a link and was ignored.")
            elif path.is_dir():
                if not _passed_over(inside / "x"):
                    stack.append(path)
            elif path.is_file():
                yield _Member(inside, lambda path=path: _read(path.open("rb")))  # type: ignore[misc]  # bound now


def _of_zip(entry: Path, wanted: Wanted, remarks: list[str]) -> Iterator[_Member]:
    with zipfile.ZipFile(entry) as archive:
        members = archive.infolist()
        if len(members) > _MEMBERS_MAX:
            raise _Unreadable(f"The archive has more than {_MEMBERS_MAX:,} files.")
        for member in members:
            path = _safe(member.filename, remarks)
            if path is None or member.is_dir():
                continue
            if (member.external_attr >> 16) & 0o170000 == 0o120000:
                _remark(remarks, f"{path} is a link and was ignored.")
                continue
            if member.flag_bits & 1:
                raise _Unreadable("The archive is encrypted.")
            # Read here and now, while it is open, and only what might be wanted.
            if path.suffix == ".py":
                content = _read(archive.open(member)) if path.name in wanted.names else b""
                yield _Member(path, lambda content=content: content)  # type: ignore[misc]  # bound now


class _Limited(io.RawIOBase):
    """A stream that refuses to be longer than an archive of homework can be."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self._left = _UNPACKED_BYTES_MAX

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(min(size if size >= 0 else self._left + 1, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise _Unreadable(f"The archive unpacks to more than {_UNPACKED_BYTES_MAX >> 20} MB.")
        return data


def _of_tar(entry: Path, wanted: Wanted, remarks: list[str]) -> Iterator[_Member]:
    with _decompressed(entry) as stream, tarfile.open(fileobj=_Limited(stream), mode="r|") as archive:
        for number, member in enumerate(archive):
            if number >= _MEMBERS_MAX:
                raise _Unreadable(f"The archive has more than {_MEMBERS_MAX:,} files.")
            path = _safe(member.name, remarks)
            if path is None or member.isdir():
                continue
            if not member.isreg():
                _remark(remarks, f"{path} is a link or a device and was ignored.")
                continue
            if path.suffix == ".py":
                file = archive.extractfile(member)
                content = _read(file) if file is not None and path.name in wanted.names else b""
                yield _Member(path, lambda content=content: content)  # type: ignore[misc]  # bound now


def _decompressed(entry: Path) -> IO[bytes]:
    with entry.open("rb") as file:
        head = file.read(6)
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(entry, "rb")  # type: ignore[return-value]  # a GzipFile reads bytes
    if head.startswith(b"BZh"):
        return bz2.open(entry, "rb")
    if head.startswith(b"\xfd7zXZ"):
        return lzma.open(entry, "rb")
    return entry.open("rb")


def _safe(name: str, remarks: list[str]) -> PurePosixPath | None:
    """The path, if it stays inside; else None and a remark."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", name) or "\0" in name:
        _remark(remarks, f"{name[:80]!r} points outside the archive and was ignored.")
        return None
    return path


def _remark(remarks: list[str], text: str) -> None:
    if len(remarks) < 10:
        remarks.append(text)
