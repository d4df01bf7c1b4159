"""Reads submissions: a folder, a zip or tar, or a single raft.py. Archives are never unpacked.

Promise: only the student's own files are read (raft.py and messages.py, and a service in its folder kv), up to a size
limit. No name in an archive reaches the file system, and links are not followed. A defect of a submission becomes a
sentence for the student, not an exception, so the rest of the class is graded.

Start at `load_submissions()`.
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
# Listed as unreadable, so that the student is not missing from the class.
_OTHER_ARCHIVES = (".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".lz", ".z")
_NAME_BYTES_MAX = 80
_NAMED_MAX = 5  # files, in a sentence
SERVICE_ITSELF = ("server.py", "client.py")
SERVER = f"{SERVICE}/{SERVICE_ITSELF[0]}"
# Folders of tools, which hold no raft.py of a student.
_IGNORED_FOLDERS = ("__MACOSX", "__pycache__", "node_modules", "site-packages", "venv", "build")


class SubmissionError(Exception):
    """Nothing can be graded; the text says why."""


class _Unreadable(Exception):
    """This submission cannot be read; the text is a sentence for the student."""


@dataclass(frozen=True)
class Submission:
    name: str
    path: Path
    files: dict[str, bytes]  # by name; a service's as kv/server.py; empty if there is a problem
    problem: str = ""
    remarks: tuple[str, ...] = ()
    file: str = ""  # the submitted file or folder; `name` is derived from it

    @property
    def digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, content in sorted(self.files.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()


@dataclass(frozen=True)
class WantedFiles:
    """Which files of a submission are graded."""

    peer: tuple[str, ...]  # raft.py, and optional files beside it
    service: tuple[str, ...] = ()  # server.py, client.py, and optional files; (): services are not graded
    needs_peer: bool = True  # no test can run without raft.py

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.peer, *(self.service or SERVICE_ITSELF)))


@dataclass(frozen=True)
class _Member:
    """One regular file of a submission."""

    path: PurePosixPath
    read: Callable[[], bytes]


@dataclass(frozen=True)
class LoadedSubmissions:
    submissions: list[Submission]
    ignored: dict[str, str]  # other entries of the folder, and why they are not submissions
    is_class: bool  # a folder of submissions; False: a single submission


def load_submissions(
    path: Path, wanted: WantedFiles, *, single: bool = False, excluded: Iterable[Path] = ()
) -> LoadedSubmissions:
    """The submissions in a folder, sorted by name; or the single one at `path`.

    `excluded`: files of the grader, which may be in the same folder.
    """
    if not path.exists():
        raise SubmissionError(
            f"{path}: no such file or folder; SUBMISSIONS must be a folder of submissions, or one submission"
        )
    tops = [wanted.peer[0], f"{PEER}/{wanted.peer[0]}", *([f"{SERVICE}/{wanted.service[0]}"] if wanted.service else [])]
    single = single or path.is_file() or any((path / top).is_file() for top in tops)
    own = {os.path.realpath(p) for p in excluded}
    taken: list[Submission] = []
    ignored: dict[str, str] = {}
    for entry in [path] if single else sorted(path.iterdir()):
        why = _reason_ignored(entry, is_own=os.path.realpath(entry) in own and not single)
        if why:
            ignored[_printable(entry.name)] = why
        else:
            taken.append(_load(entry, path, [s.name for s in taken], wanted))
    if not taken:
        raise SubmissionError(
            f"{path}: no submissions found; expected folders, {', '.join(_ARCHIVES[:3])} or .py files"
        )
    return LoadedSubmissions(taken, ignored, is_class=not single)


def _reason_ignored(entry: Path, *, is_own: bool) -> str:
    """Why an entry is not a submission; "" if it is one."""
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


def _load(entry: Path, top: Path, names: Iterable[str], wanted: WantedFiles) -> Submission:
    file, stem = entry.name, _stem(entry)
    if entry == top and stem in ("", PEER, SERVICE):
        # Every submission has this name; its folder names the student.
        folder = entry.resolve()
        stem = folder.parent.name if entry.is_file() else folder.name
        file = f"{stem}/{file}" if entry.is_file() else stem
    taken = _read_submission(entry, _unique_name(stem, names), wanted)
    remarks = tuple(map(_printable, taken.remarks))
    return replace(taken, problem=_printable(taken.problem), remarks=remarks, file=_printable(file))


def _stem(entry: Path) -> str:
    stem = entry.name
    for ending in (*_ARCHIVES, *_OTHER_ARCHIVES, ".py"):
        if stem.lower().endswith(ending) and not entry.is_dir():
            stem = stem[: -len(ending)]
    return stem


def _unique_name(stem: str, taken: Iterable[str]) -> str:
    """A unique name that is safe in paths and links."""
    name = re.sub(r"[^\w.@+-]+", "_", stem).strip("._") or "submission"
    name = name.encode()[:_NAME_BYTES_MAX].decode(errors="ignore")
    number = 2
    unique = name
    while unique in taken:
        unique = f"{name}_{number}"
        number += 1
    return unique


def _printable(text: str) -> str:
    """Names in archives may be any bytes. Remove those that would break a page or control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _read_submission(entry: Path, name: str, wanted: WantedFiles) -> Submission:
    remarks: list[str] = []
    try:
        files = _wanted_files(list(_members(entry, wanted, remarks)), wanted, remarks)
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


def _wanted_files(members: list[_Member], wanted: WantedFiles, remarks: list[str]) -> dict[str, bytes]:
    peers = [m for m in members if m.path.name == wanted.peer[0] and not _is_ignored(m.path)]
    services = _service_candidates(members)
    if not peers and (wanted.needs_peer or not services):
        python = sorted(str(m.path) for m in members if m.path.suffix == ".py")[:5]
        have = f"; it has {', '.join(python)}" if python else ""
        none = (
            f"The submission has no {wanted.peer[0]}"
            if wanted.needs_peer
            else f"The submission has neither {SERVER} nor raft.py"
        )
        raise _Unreadable(f"{none}{have}.")
    files = _choose(members, peers, wanted.peer, remarks) if peers else {}
    if not wanted.service:
        if services:
            remarks.append(f"{services[0].path} was not run: parts 3A and 3B are not graded.")
        return files
    if not services:
        remarks.append(f"The submission has no {SERVER}, so parts 3A and 3B were not run.")
        return files
    found = _choose(members, services, wanted.service, remarks)
    if wanted.service[1] not in found:
        remarks.append(
            f"There is no {wanted.service[1]} beside {wanted.service[0]}, so parts 3A and 3B were not run. "
            "These parts need both files."
        )
        return files
    both = files.keys() & found.keys()
    if both and {m.path.parent for m in peers} & {m.path.parent for m in services}:
        remarks.append(
            f"{wanted.peer[0]} and {wanted.service[0]} are in one folder, so {', '.join(sorted(both))} was used for "
            f"both. Submit the folders {PEER} and {SERVICE} instead."
        )
    return files | {f"{SERVICE}/{name}": content for name, content in found.items()}


def _service_candidates(members: list[_Member]) -> list[_Member]:
    """Every server.py in a folder kv, or with a client.py beside it. The lab has other files of that name."""
    server, clerk = SERVICE_ITSELF
    with_clerk = {m.path.parent for m in members if m.path.name == clerk}
    return [
        m
        for m in members
        if m.path.name == server
        and not _is_ignored(m.path)
        and (m.path.parent.name == SERVICE or m.path.parent in with_clerk)
    ]


def _choose(
    members: list[_Member], candidates: list[_Member], wanted: tuple[str, ...], remarks: list[str]
) -> dict[str, bytes]:
    """The candidate nearest to the top, and the wanted files beside it."""
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
    # A submission may have the peer and the service in one folder.
    unused = sorted(beside - {*wanted, *PEER_FILES, *SERVICE_ITSELF, "raft.py"})
    if unused:
        more = f" and {len(unused) - _NAMED_MAX} more" if len(unused) > _NAMED_MAX else ""
        remarks.append(
            f"These files beside {first} were ignored: {', '.join(unused[:_NAMED_MAX])}{more}. "
            f"Only {', '.join(wanted)} are used."
        )
    return files


def _is_ignored(path: PurePosixPath) -> bool:
    return any(part in _IGNORED_FOLDERS or part.startswith(".") for part in path.parts[:-1])


def _members(entry: Path, wanted: WantedFiles, remarks: list[str]) -> Iterator[_Member]:
    if entry.is_symlink():
        raise _Unreadable("The submission is a link; links are not followed.")
    if entry.is_dir():
        return _folder_members(entry, remarks)
    if not entry.is_file():
        raise _Unreadable("The submission is neither a file nor a folder.")
    if entry.name.lower().endswith(_OTHER_ARCHIVES) and not _is_archive(entry):
        raise _Unreadable(f"{entry.suffix} archives cannot be read. Submit a .zip.")
    if not _is_archive(entry):
        return iter([_Member(PurePosixPath(wanted.peer[0]), lambda: _read(entry.open("rb")))])
    if entry.stat().st_size > _ARCHIVE_BYTES_MAX:
        raise _Unreadable(f"The archive is larger than {_ARCHIVE_BYTES_MAX >> 20} MB.")
    return (_zip_members if zipfile.is_zipfile(entry) else _tar_members)(entry, wanted, remarks)


def _read(file: IO[bytes]) -> bytes:
    """Up to one byte more than the limit, which shows that the file is too large."""
    with file:
        return file.read(_FILE_BYTES_MAX + 1)


def _folder_members(folder: Path, remarks: list[str]) -> Iterator[_Member]:
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
                _add_remark(remarks, f"{inside} is a link and was ignored.")
            elif path.is_dir():
                if not _is_ignored(inside / "x"):
                    stack.append(path)
            elif path.is_file():
                yield _Member(inside, lambda path=path: _read(path.open("rb")))  # type: ignore[misc]  # bound now


def _zip_members(entry: Path, wanted: WantedFiles, remarks: list[str]) -> Iterator[_Member]:
    with zipfile.ZipFile(entry) as archive:
        members = archive.infolist()
        if len(members) > _MEMBERS_MAX:
            raise _Unreadable(f"The archive has more than {_MEMBERS_MAX:,} files.")
        for member in members:
            path = _safe_path(member.filename, remarks)
            if path is None or member.is_dir():
                continue
            if (member.external_attr >> 16) & 0o170000 == 0o120000:
                _add_remark(remarks, f"{path} is a link and was ignored.")
                continue
            if member.flag_bits & 1:
                raise _Unreadable("The archive is encrypted.")
            # Read while the archive is open, and only files that may be wanted.
            if path.suffix == ".py":
                content = _read(archive.open(member)) if path.name in wanted.names else b""
                yield _Member(path, lambda content=content: content)  # type: ignore[misc]  # bound now


class _Limited(io.RawIOBase):
    """A stream that fails beyond a size limit."""

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


def _tar_members(entry: Path, wanted: WantedFiles, remarks: list[str]) -> Iterator[_Member]:
    with _decompressed(entry) as stream, tarfile.open(fileobj=_Limited(stream), mode="r|") as archive:
        for number, member in enumerate(archive):
            if number >= _MEMBERS_MAX:
                raise _Unreadable(f"The archive has more than {_MEMBERS_MAX:,} files.")
            path = _safe_path(member.name, remarks)
            if path is None or member.isdir():
                continue
            if not member.isreg():
                _add_remark(remarks, f"{path} is a link or a device and was ignored.")
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


def _safe_path(name: str, remarks: list[str]) -> PurePosixPath | None:
    """The path; or None, and a remark, if it points outside the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", name) or "\0" in name:
        _add_remark(remarks, f"{name[:80]!r} points outside the archive and was ignored.")
        return None
    return path


def _add_remark(remarks: list[str], text: str) -> None:
    if len(remarks) < 10:
        remarks.append(text)
