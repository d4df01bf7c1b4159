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
        given: Collection[str],
        *,
        turns: bool = True,
        watch: bool = True,
        make_turns: Callable[[Any, Node], Preempter] = Preempter,
    ) -> None:
        self._given = given
        self._make_turns = make_turns
        self._turns = turns
        self._watch = watch
        self._sites = SiteTable()
        self._fields: FieldNames | None = None
        self._rewritten: set[str] = set()
        self._watches: list[RaceDetector] = []

    def compile(self, name: str, file: str, folders: Iterable[Path]) -> Any:
        """The code of a module of the program's; None where it is not to be rewritten: what students are given."""
        path = Path(file)
        if path.name in self._given:
            return None
        if self._fields is None:
            self.read_fields(self._sources(folders))
        return self.rewritten([name], path.read_bytes(), file)

    def read_fields(self, sources: Iterable[bytes]) -> None:
        """First: of all files that are the program's own."""
        self._fields = FieldNames(_trees(sources))

    def rewritten(self, names: Iterable[str], source: bytes, file: str) -> Any:
        """The code of a module that may be imported under any of these names."""
        assert self._fields is not None
        code = rewrite(source, file, self._sites, self._fields, turns=self._turns, watch=self._watch)
        self._rewritten.update(names)
        return code

    def _sources(self, folders: Iterable[Path]) -> Iterator[bytes]:
        for file in (file for folder in folders for file in sorted(folder.glob("*.py"))[:_MAX_FILES]):
            if file.name not in self._given:
                with suppress(OSError):
                    yield file.read_bytes()

    def begin_run(self, simulation: Simulation) -> None:
        self._watches = []
        if self._watch:
            simulation.ordering = Ordering(simulation)

    def seen(self) -> Iterator[BenignRace]:
        """Of the last run: what was unordered and is no failure."""
        return (remark for watch in self._watches for remark in watch.remarks.values())

    @property
    def remarks(self) -> list[str]:
        """The same in words, a line each."""
        return list(dict.fromkeys(map(describe_benign_race, self.seen())))

    def helpers(self) -> dict[str, Callable[..., Any]]:
        """What the modules of a new incarnation get."""
        simulation, node = current_simulation(), current_node()
        if simulation is None or node is None:
            return _PASS_THROUGH
        turns = self._make_turns(simulation, node)
        given: dict[str, Callable[..., Any]] = {
            "__turn__": turns.turn,
            "__gap__": turns.gap,
            "__split__": turns.split,
        }
        if self._watch:
            watch = RaceDetector(simulation, node, self._sites, frozenset(self._rewritten))
            self._watches.append(watch)
            given |= watch.helpers()
        return given

    def made(self, *, one_at_a_time: bool = False) -> None:
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
    "__turn__": lambda: None,
    "__gap__": lambda: None,
    "__split__": lambda: None,
    "__see__": lambda obj, name, _: getattr(obj, name),
    "__put__": _put,
    "__target__": lambda obj, name, _: obj,
    "__read__": lambda thing, key, _: thing,
    "__write__": lambda thing, key, _: thing,
    "__item__": lambda thing, key, _: thing[key],
}
