"""Finished runs on disk, one line each, so that an interrupted grader resumes.

Promise: a run is found only if nothing that affects it has changed: the student's files, the test's file, the lab,
Python, the limits. An incomplete line is ignored.

Start at `Store`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from raftlab.harness.outcome import Outcome
from raftlab.tools.grade.values.results import Artifacts

Kind = TypeVar("Kind", bound=Outcome | Artifacts)


class _Line(msgspec.Struct, Generic[Kind]):
    code: str  # a digest of everything that affects the run
    run: Kind


class Store(Generic[Kind]):
    """The runs of one submission, or their artifacts. For one thread."""

    def __init__(self, path: Path, kind: type[Kind]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._runs: dict[tuple[str, str, int], Kind] = {}
        content = path.read_bytes() if path.exists() else b""
        lines: msgspec.json.Decoder[_Line[Kind]] = msgspec.json.Decoder(_Line[kind])  # type: ignore[valid-type]  # it is
        for line in content.splitlines():
            try:
                entry = lines.decode(line)
            except msgspec.MsgspecError:
                continue  # incomplete
            self._runs[entry.code, entry.run.test, entry.run.seed] = entry.run
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if content and not content.endswith(b"\n"):
            os.write(self._file, b"\n")

    def get(self, code: str, test: str, seed: int) -> Kind | None:
        return self._runs.get((code, test, seed))

    def add(self, code: str, run: Kind) -> None:
        self._runs[code, run.test, run.seed] = run
        data = msgspec.json.encode(_Line(code, run)) + b"\n"
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        os.close(self._file)


def write_whole(path: Path, content: bytes | str) -> None:
    """Replace a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    beside.replace(path)
