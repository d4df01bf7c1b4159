"""What a program that is loaded for races has more than others, and what each of its incarnations gets.

Start at `Race`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from labsim import Simulation, current_node, current_simulation
from labsim.ordered import Ordering
from labtest.race.fields import Fields
from labtest.race.rewriting import rewrite
from labtest.race.sites import Sites
from labtest.race.turns import Turns
from labtest.race.watching import Watch
from labtest.rooms import PEER_FILES

_MAX_FILES = 100  # that are read for their fields


class Race:
    """Of one program. `turns`, `watch`: what of the two is wanted; both, unless somebody measures."""

    def __init__(self, *, turns: bool = True, watch: bool = True) -> None:
        self._turns = turns
        self._watch = watch
        self._sites = Sites()
        self._fields: Fields | None = None
        self._rewritten: set[str] = set()
        self._remarks: list[dict[str, None]] = []

    def compile(self, name: str, file: str, folders: Iterable[Path]) -> Any:
        """The code of a module of the program's; None where it is not to be rewritten: what students are given."""
        path = Path(file)
        if path.name in PEER_FILES:
            return None
        if self._fields is None:
            self._fields = Fields(_trees(folders))
        code = rewrite(path.read_bytes(), file, self._sites, self._fields, turns=self._turns, watch=self._watch)
        self._rewritten.add(name)
        return code

    def begin_run(self, simulation: Simulation) -> None:
        self._remarks = []
        if self._watch:
            simulation.ordering = Ordering(simulation)

    @property
    def remarks(self) -> list[str]:
        """Of the last run: what was unordered and is no failure, a line each."""
        return list(dict.fromkeys(line for remarks in self._remarks for line in remarks))

    def helpers(self) -> dict[str, Callable[..., Any]]:
        """What the modules of a new incarnation get."""
        simulation, node = current_simulation(), current_node()
        if simulation is None or node is None:
            return _OUTSIDE
        turns = Turns(simulation, node)
        given: dict[str, Callable[..., Any]] = {"__turn__": turns.turn, "__gap__": turns.gap}
        if self._watch:
            watch = Watch(simulation, node, self._sites, frozenset(self._rewritten))
            self._remarks.append(watch.remarks)
            given |= watch.helpers()
        return given

    def made(self, *, one_at_a_time: bool = False) -> None:
        """The constructor of the current node's program has returned. A clerk is asked for one thing at a time."""
        simulation, node = current_simulation(), current_node()
        if simulation is not None and node is not None and simulation.ordering is not None:
            simulation.ordering.made(node, one_at_a_time=one_at_a_time)


def _trees(folders: Iterable[Path]) -> list[ast.Module]:
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))[:_MAX_FILES]]
    trees = []
    for file in files:
        if file.name in PEER_FILES:
            continue
        try:
            trees.append(ast.parse(file.read_bytes()))
        except (OSError, SyntaxError, ValueError):
            continue  # told when it is imported, if it is
    return trees


def _put(value: Any, obj: Any, name: str, _: int) -> None:
    setattr(obj, name, value)


# Where there is no run: what is rewritten does what it did.
_OUTSIDE: dict[str, Callable[..., Any]] = {
    "__turn__": lambda: None,
    "__gap__": lambda: None,
    "__see__": lambda obj, name, _: getattr(obj, name),
    "__put__": _put,
    "__target__": lambda obj, name, _: obj,
    "__read__": lambda thing, key, _: thing,
    "__write__": lambda thing, key, _: thing,
    "__item__": lambda thing, key, _: thing[key],
}
