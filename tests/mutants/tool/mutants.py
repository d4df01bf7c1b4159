"""Mutants and correct peers, as edits of the reference or as folders.

A mutant is a short list of replacements in raft/raft.py. Each old text must occur there exactly once, and the result
must compile; otherwise applying it raises StaleMutant, so a change of the reference that breaks a mutant is noticed at
once. A variant is made the same way, but is a correct peer, and must pass.

Independent implementations are correct peers of other designs, each in a folder. A SameMistake puts the bug of a mutant
of the reference into one of them.

A ServiceMutant is the same for the service of parts 3A and 3B, made in kv/server.py and kv/client.py and run on the
reference peer. Correct services of other designs are folders of tests/peers/services.

Promise: nothing here runs a peer. The mutants themselves are in tests/mutants, a file per part.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import tokenize
from dataclasses import dataclass, replace
from pathlib import Path

from raftlab.layout import PEER_FILES

REFERENCE = Path("raft")  # raft.py and messages.py of the source tree
SERVICE = Path("kv")  # server.py, client.py and messages.py
FOLDER = Path("tests/mutants")
PEERS = Path("tests/peers")
SERVICES = PEERS / "services"
BUILD = Path("build/mutants")

Edit = tuple[str, str]


class StaleMutant(Exception):
    """The reference has changed under a mutant; the text says which edit no longer fits."""


@dataclass(frozen=True)
class Mutant:
    """One bug. `what` completes "a peer that ..."; `rule` is the rule of the paper that it violates."""

    id: str
    part: str  # the part whose tests should notice first: "2a" ... "3b"
    rule: str
    what: str
    edits: tuple[Edit, ...]
    # How often MIT's suite in Go would catch it, as an estimate: A always, S sometimes, R rarely, N never, "" unknown.
    # go_caught: the result of one full run of that suite, if we have one.
    go: str = ""
    go_caught: bool | None = None
    # Each message is correct, but progress is slow: measured by how many seeds fail.
    liveness: bool = False
    # A locking bug: run with --race.
    races: bool = False
    # A correct peer: must pass all tests.
    correct: bool = False
    message_edits: tuple[Edit, ...] = ()  # the same for raft/messages.py
    base: Path = REFERENCE  # the folder of the peer that is edited

    def source(self) -> str:
        return _apply(self.id, self.base / "raft.py", self.edits)

    def messages_source(self) -> str:
        return _apply(self.id, self._beside("messages.py"), self.message_edits)

    def _beside(self, name: str) -> Path:
        """A file beside raft.py: its own, or the reference's."""
        own = self.base / name
        return own if own.exists() else REFERENCE / name

    @property
    def of_reference(self) -> bool:
        return self.base in (REFERENCE, SERVICE)

    @property
    def of_service(self) -> bool:
        return False

    @property
    def kind(self) -> str:
        """The noun before `what`: peer or service."""
        return "service" if self.of_service else "peer"

    def write(self, build: Path = BUILD) -> Path:
        """Write it to build/mutants/ID/raft.py, and return that path."""
        folder = build / self.id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "raft.py").write_text(self.source())
        # A single file uses the reference's messages; with its own messages.py, it is a package.
        messages = folder / "messages.py"
        if self.message_edits or (not self.of_reference and (self.base / "messages.py").exists()):
            messages.write_text(self.messages_source())
            own = set() if self.of_reference else {file.name for file in self.base.glob("*.py")}
            for name in sorted({*PEER_FILES, *own} - {"raft.py", "messages.py"}):
                (folder / name).write_text(self._beside(name).read_text())
        else:
            messages.unlink(missing_ok=True)
        return folder / "raft.py"

    def diff(self) -> str:
        """The bug as a diff."""
        parts = [("raft.py", self.source())]
        if self.message_edits:
            parts.append(("messages.py", self.messages_source()))
        lines: list[str] = []
        for name, mutated in parts:
            base = self._beside(name)
            lines += difflib.unified_diff(
                base.read_text().splitlines(keepends=True),
                mutated.splitlines(keepends=True),
                str(base),
                f"{self.id}/{name}",
                n=2,
            )
        return "".join(lines)


@dataclass(frozen=True)
class ServiceMutant(Mutant):
    """One bug in the service: `edits` are of kv/server.py, `message_edits` of kv/messages.py."""

    client_edits: tuple[Edit, ...] = ()  # the same for kv/client.py
    base: Path = SERVICE

    @property
    def of_service(self) -> bool:
        return True

    def source(self) -> str:
        return _apply(self.id, self.base / "server.py", self.edits)

    def client_source(self) -> str:
        return _apply(self.id, self._beside("client.py"), self.client_edits)

    def _beside(self, name: str) -> Path:
        own = self.base / name
        return own if own.exists() else SERVICE / name

    def write(self, build: Path = BUILD) -> Path:
        """Write it to build/mutants/ID/server.py, and return that path."""
        folder = build / self.id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.py").write_text(self.source())
        (folder / "client.py").write_text(self.client_source())
        (folder / "messages.py").write_text(self.messages_source())
        return folder / "server.py"

    def diff(self) -> str:
        lines: list[str] = []
        files = {"server.py": self.source(), "client.py": self.client_source(), "messages.py": self.messages_source()}
        for name, mutated in files.items():
            base = self._beside(name)
            texts = base.read_text().splitlines(keepends=True), mutated.splitlines(keepends=True)
            lines += difflib.unified_diff(*texts, str(base), f"{self.id}/{name}", n=2)
        return "".join(lines)


@dataclass(frozen=True)
class SameMistake:
    """A mutant of the reference, repeated in an independent implementation: the same bug in another design."""

    design: str  # its folder
    like: str  # the id of the reference's mutant
    edits: tuple[Edit, ...]
    message_edits: tuple[Edit, ...] = ()

    def mutant(self, original: Mutant) -> Mutant:
        return replace(
            original,
            id=f"{self.design}-{self.like}".replace("_", "-"),
            edits=self.edits,
            message_edits=self.message_edits,
            base=PEERS / self.design,
            go="",
            go_caught=None,
        )


def _designs() -> list[Mutant]:
    """All independent implementations, unchanged: correct peers."""
    found = []
    for file in sorted(PEERS.glob("*/raft.py")):
        told = _first_line(file)
        id_ = f"design-{file.parent.name}".replace("_", "-")
        what = f"has another design: {told}"
        found.append(Mutant(id_, "2b", "none: it is correct", what, (), correct=True, base=file.parent))
    return found


def _services() -> list[Mutant]:
    """All services of other designs, unchanged: correct peers."""
    found: list[Mutant] = []
    for file in sorted(SERVICES.glob("*/server.py")):
        told = _first_line(file)
        id_ = f"service-{file.parent.name}".replace("_", "-")
        what = f"has another design: {told}"
        found.append(ServiceMutant(id_, "3a", "none: it is correct", what, (), correct=True, base=file.parent))
    return found


def _first_line(file: Path) -> str:
    """The first line of a module's docstring. Reads only its start, because every load does this for all designs."""
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                told = ast.literal_eval(token.string) if token.type == tokenize.STRING else ""
                return str(told).partition("\n")[0]
    return ""


def _apply(id_: str, file: Path, edits: tuple[Edit, ...]) -> str:
    source = file.read_text()
    for old, new in edits:
        found = source.count(old)
        if found != 1:
            raise StaleMutant(
                f"{id_}: the text to replace must occur once in {file}, but occurs {found} times; "
                f"adapt the edit in {FOLDER} to the reference:\n{old}"
            )
        source = source.replace(old, new)
    try:
        compile(source, f"{id_}/{file.name}", "exec")
    except SyntaxError as error:
        raise StaleMutant(f"{id_}: the edited {file} is not valid Python: {error}") from error
    return source


def load_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """All mutants and correct peers, file by file."""
    order = ("election", "log", "persistence", "snapshots", "histories", "concurrency", "variants")
    found = [*folder.glob("*.py"), *([PEERS / "variants.py"] if folder == FOLDER else [])]
    files = sorted(found, key=lambda f: (order.index(f.stem) if f.stem in order else len(order), f.stem))
    if not files:
        raise StaleMutant(f"there are no mutants in {folder}; run this in the root of the source tree")
    entries: list[Mutant] = []
    repeated: list[SameMistake] = []
    for file in files:
        spec = importlib.util.spec_from_file_location(f"mutants_{file.stem}", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        entries += getattr(module, "MUTANTS", [])
        repeated += getattr(module, "SAME_MISTAKES", [])
    originals = {mutant.id: mutant for mutant in entries}
    for mistake in repeated:
        if mistake.like not in originals:
            raise StaleMutant(f"{mistake.design} repeats {mistake.like}, which is not a mutant of the reference")
        entries.append(mistake.mutant(originals[mistake.like]))
    if folder == FOLDER:
        entries += [*_designs(), *_services()]
    ids = [mutant.id for mutant in entries]
    twice = sorted({id_ for id_ in ids if ids.count(id_) > 1})
    if twice:
        raise StaleMutant(f"ids must be unique, but these are used twice: {', '.join(twice)}")
    return entries
