"""What a program that is loaded for races has more than others, and what each of its incarnations gets.

Start at `Race`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from labsim import Node, Simulation, current_node, current_simulation
from labsim.ordered import Ordering
from raftlab.races.data_race import BenignRace
from raftlab.races.detector import RaceDetector
from raftlab.races.fields import FieldNames
from raftlab.races.preemption import Preempter
from raftlab.races.report import describe_benign_race
from raftlab.races.rewriter import rewrite
from raftlab.races.sites import SiteTable

_MAX_FILES = 100  # that are read for their fields


class RaceInstrumentation:
    """Of one program. `given`: the names of the files that students are given, and which stay as they are.

    `turns`, `watch`: what of the two is wanted; both, unless somebody measures.
    `make_turns`: what takes turns away from a node, if it is not this process that decides.
    """

    def __init__(
        self,
        given_files: Collection[str],
        *,
        preempt: bool = True,
        detect: bool = True,
        make_preempter: Callable[[Any, Node], Preempter] = Preempter,
    ) -> None:
        self._given_files = given_files
        self._make_preempter = make_preempter
        self._preempt = preempt
        self._detect = detect
        self._sites = SiteTable()
        self._fields: FieldNames | None = None
        self._module_names: set[str] = set()
        self._detectors: list[RaceDetector] = []

    def compile(self, name: str, file: str, folders: Iterable[Path]) -> Any:
        """The code of a module of the program's; None where it is not to be rewritten: what students are given."""
        path = Path(file)
        if path.name in self._given_files:
            return None
        if self._fields is None:
            self.read_fields(self._sources(folders))
        return self.compile_source([name], path.read_bytes(), file)

    def read_fields(self, sources: Iterable[bytes]) -> None:
        """First: of all files that are the program's own."""
        self._fields = FieldNames(_trees(sources))

    def compile_source(self, names: Iterable[str], source: bytes, file: str) -> Any:
        """The code of a module that may be imported under any of these names."""
        assert self._fields is not None
        code = rewrite(source, file, self._sites, self._fields, preempt=self._preempt, detect=self._detect)
        self._module_names.update(names)
        return code

    def _sources(self, folders: Iterable[Path]) -> Iterator[bytes]:
        for file in (file for folder in folders for file in sorted(folder.glob("*.py"))[:_MAX_FILES]):
            if file.name not in self._given_files:
                with suppress(OSError):
                    yield file.read_bytes()

    def begin_run(self, simulation: Simulation) -> None:
        self._detectors = []
        if self._detect:
            simulation.ordering = Ordering(simulation)

    def benign_races(self) -> Iterator[BenignRace]:
        """Of the last run: what was unordered and is no failure."""
        return (benign for detector in self._detectors for benign in detector.benign_races.values())

    @property
    def remarks(self) -> list[str]:
        """The same in words, a line each."""
        return list(dict.fromkeys(map(describe_benign_race, self.benign_races())))

    def helpers(self) -> dict[str, Callable[..., Any]]:
        """What the modules of a new incarnation get."""
        simulation, node = current_simulation(), current_node()
        if simulation is None or node is None:
            return _PASS_THROUGH
        preempter = self._make_preempter(simulation, node)
        helpers: dict[str, Callable[..., Any]] = {
            "__preempt__": preempter.statement,
            "__unlocked__": preempter.unlocked,
            "__relock__": preempter.relock,
        }
        if self._detect:
            detector = RaceDetector(simulation, node, self._sites, frozenset(self._module_names))
            self._detectors.append(detector)
            helpers |= detector.helpers()
        return helpers

    def on_constructed(self, *, one_at_a_time: bool = False) -> None:
        """The constructor of the current node's program has returned. A clerk is asked for one thing at a time."""
        simulation, node = current_simulation(), current_node()
        if simulation is not None and node is not None and simulation.ordering is not None:
            simulation.ordering.made(node, one_at_a_time=one_at_a_time)


def _trees(sources: Iterable[bytes]) -> Iterator[ast.Module]:
    for source in sources:
        with suppress(SyntaxError, ValueError):  # told when it is imported, if it is
            yield ast.parse(source)


def _put(value: Any, obj: Any, name: str, _: int) -> None:
    setattr(obj, name, value)


# Where there is no run: what is rewritten does what it did.
_PASS_THROUGH: dict[str, Callable[..., Any]] = {
    "__preempt__": lambda: None,
    "__unlocked__": lambda: None,
    "__relock__": lambda: None,
    "__read_field__": lambda obj, name, _: getattr(obj, name),
    "__write_field__": _put,
    "__write_target__": lambda obj, name, _: obj,
    "__read_container__": lambda thing, key, _: thing,
    "__write_container__": lambda thing, key, _: thing,
    "__read_item__": lambda thing, key, _: thing[key],
}
