"""Wrong Rafts as edits of the reference: what one is, how it is made, and how it is kept from rotting.

A mutant is a short list of replacements in raft/raft.py. Each old text must stand there exactly once and the result
must compile; otherwise applying it raises StaleMutant, so that a change to the reference that a mutant does not survive
is noticed at once. A control is made the same way, but is a correct Raft of another kind, and must pass.

Promise: nothing here runs a peer. The mutants themselves are in tests/zoo, a file per part; labtools.zoo hunts them.
"""

from __future__ import annotations

import difflib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from labtest.rooms import PEER_FILES

REFERENCE = Path("raft")  # raft.py and messages.py, where they lie in the source tree
ZOO = Path("tests/zoo")
BUILD = Path("build/zoo")

Edit = tuple[str, str]


class StaleMutant(Exception):
    """The reference has changed under a mutant; the text says which edit no longer fits."""


@dataclass(frozen=True)
class Mutant:
    """One mistake. `what` completes "a peer that ..."; `rule` says what it breaks."""

    id: str
    part: str  # the part whose tests should notice first: "2a" ... "2d"
    rule: str
    what: str
    edits: tuple[Edit, ...]
    # How often the classical Go suite notices: A always, S sometimes, R rarely, N never; a judgement, "" where there
    # is none. go_caught: what one full run of that suite said, where we know.
    go: str = ""
    go_caught: bool | None = None
    # Not wrong in any one message, only in how often it gets nowhere: judged by how many seeds fail.
    liveness: bool = False
    # A correct peer: must pass everything.
    control: bool = False
    message_edits: tuple[Edit, ...] = ()  # the same for raft/messages.py

    def source(self) -> str:
        return _apply(self.id, REFERENCE / "raft.py", self.edits)

    def messages_source(self) -> str:
        return _apply(self.id, REFERENCE / "messages.py", self.message_edits)

    def write(self, build: Path = BUILD) -> Path:
        """Write it where a peer can be loaded from, build/zoo/ID/raft.py, and return that path."""
        folder = build / self.id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "raft.py").write_text(self.source())
        # A file alone uses the reference's messages; with its own beside it, it brings its package.
        messages = folder / "messages.py"
        if self.message_edits:
            messages.write_text(self.messages_source())
            for name in set(PEER_FILES) - {messages.name}:
                (folder / name).write_text((REFERENCE / name).read_text())
        else:
            messages.unlink(missing_ok=True)
        return folder / "raft.py"

    def diff(self) -> str:
        """The mistake as a reader wants to see it."""
        parts = [("raft.py", self.source())]
        if self.message_edits:
            parts.append(("messages.py", self.messages_source()))
        lines: list[str] = []
        for name, mutated in parts:
            reference = (REFERENCE / name).read_text().splitlines(keepends=True)
            lines += difflib.unified_diff(
                reference, mutated.splitlines(keepends=True), f"raft/{name}", f"{self.id}/{name}", n=2
            )
        return "".join(lines)


def _apply(id_: str, file: Path, edits: tuple[Edit, ...]) -> str:
    source = file.read_text()
    for old, new in edits:
        found = source.count(old)
        if found != 1:
            raise StaleMutant(
                f"{id_}: the text to replace must stand in {file} once, but stands there {found} times; "
                f"adapt the edit in {ZOO} to the reference:\n{old}"
            )
        source = source.replace(old, new)
    try:
        compile(source, f"{id_}/{file.name}", "exec")
    except SyntaxError as error:
        raise StaleMutant(f"{id_}: {file} edited is no Python any more: {error}") from error
    return source


def load_zoo(folder: Path = ZOO) -> list[Mutant]:
    """Every mutant and control, file by file in the order of the parts, and as they stand there."""
    order = ("election", "log", "persistence", "snapshots", "concurrency", "controls")
    files = sorted(folder.glob("*.py"), key=lambda f: (order.index(f.stem) if f.stem in order else len(order), f.stem))
    if not files:
        raise StaleMutant(f"there are no mutants in {folder}; run this where the source tree lies")
    zoo: list[Mutant] = []
    for file in files:
        spec = importlib.util.spec_from_file_location(f"zoo_{file.stem}", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        zoo += module.MUTANTS
    ids = [mutant.id for mutant in zoo]
    twice = sorted({id_ for id_ in ids if ids.count(id_) > 1})
    if twice:
        raise StaleMutant(f"an id names one mutant, but these stand twice: {', '.join(twice)}")
    return zoo
