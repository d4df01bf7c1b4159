"""What workers run, by content: the peer's files and the test files as they were when the command began.

A student edits raft.py during the runs; a worker may be on another machine. So the files are read once, and
every worker, also one that replaces another an hour later, gets these. They lie in a folder by the paths that
the reader knows, and the worker works there, so that reports name `raft/raft.py:41` and not a place in /tmp.

Start at `JobBundle.of()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labsim.stacks import short_path
from raftlab.harness import records
from raftlab.harness.lab_test import LabTest
from raftlab.harness.options import KV, Values, run_line
from raftlab.layout import ROOT, peer_files, run_files, tool_files
from raftlab.tools.selection import default_files


@dataclass
class JobBundle:
    """Files by their path in the worker's folder, and what a worker has to know about them."""

    files: dict[str, bytes]
    setup: dict[str, Any]
    code: dict[str, dict[str, str]] = field(default_factory=dict)  # records.code_hashes(), by test
    of_service: frozenset[str] = frozenset()  # which tests

    @classmethod
    def of(
        cls,
        raft: Path,
        tests: Sequence[LabTest],
        *,
        kv: Path | None = None,
        run_limit_s: float,
        memory_mb: int,
        given: Values | None = None,
    ) -> JobBundle:
        """Reads every file now. `raft` must exist, and `kv`, the service, if it is given. `given`: how the runs are
        made, as options.given() has it.
        """
        files: dict[str, bytes] = {}
        shown_as: dict[str, str] = {}

        def take(path: Path) -> str:
            shown = short_path(str(path.resolve()))
            inside = shown.lstrip("/")
            if inside != shown:  # outside the working directory
                shown_as[str(Path(inside).parent) + "/"] = str(Path(shown).parent) + "/"
            files[inside] = path.read_bytes()
            return inside

        raft_inside, *_ = [take(path) for path in records.files_of(raft)]
        kv_inside, *_ = [""] if kv is None else [take(path) for path in records.files_of_service(kv)]
        test_files = {test.name: test.file for test in tests}
        inside = {file: take(file) for file in dict.fromkeys(test_files.values())}
        setup = {
            "raft": raft_inside,
            "tests": {name: inside[file] for name, file in test_files.items()},
            "kv": kv_inside,
            "given": {"raft": str(raft), "kv": "" if kv is None else str(kv), **(given or {})},
            "files_given": _own_files(tests),
            "run_limit_s": run_limit_s,
            "memory_mb": memory_mb,
            "shown_as": shown_as,
        }
        with_kv = frozenset(test.name for test in tests if test.wants_service)
        code = {
            name: records.code_hashes(raft, file, kv if name in with_kv else None) for name, file in test_files.items()
        }
        return cls(files, setup, code, with_kv)

    def unpack(self, folder: Path) -> None:
        write_files(self.files, folder)

    def given(self, test: str) -> Values:
        """How its runs are made: the service is no business of a test of peers alone."""
        values: Values = self.setup["given"]
        return values if test in self.of_service else {**values, KV.name: None}

    def replay_line(self, test: str, seed: int, does: str = "replay") -> str:
        return run_line(does, test, seed, self.given(test), file=self.setup["files_given"].get(test, ""))


def _own_files(tests: Iterable[LabTest]) -> dict[str, str]:
    """The test file to name in a test's replay line; the lab's own need no name."""
    lab_files = {file.resolve() for file in default_files()}
    return {test.name: short_path(str(test.file)) for test in tests if test.file.resolve() not in lab_files}


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def lab_itself() -> dict[str, bytes]:
    """The lab's packages, for a machine that has none, or another version."""
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in [*run_files(), *peer_files(), *tool_files()]}
