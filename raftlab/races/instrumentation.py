"""Instruments a peer for `--race`: rewrites its modules, and gives each incarnation a preempter and a race detector.

Start at `RaceInstrumentation`.
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

_MAX_FILES = 100  # that are searched for fields


class RaceInstrumentation:
    """Instruments one peer. `given_files`: names of files that students get, which are not rewritten.

    `preempt`, `detect`: parts that measurements switch off. `make_preempter`: in a sandboxed process the supervisor
    decides about preemptions.
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
        """The rewritten code of a module; None for the files that students get."""
        path = Path(file)
        if path.name in self._given_files:
            return None
        if self._fields is None:
            self.read_fields(self._sources(folders))
        return self.compile_source([name], path.read_bytes(), file)

    def read_fields(self, sources: Iterable[bytes]) -> None:
        """Find the fields in all files of the peer. Must be called first."""
        self._fields = FieldNames(_trees(sources))

    def compile_source(self, names: Iterable[str], source: bytes, file: str) -> Any:
        """The rewritten code of a module that can be imported by any of these names."""
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
        """The benign races of the last run."""
        return (benign for detector in self._detectors for benign in detector.benign_races.values())

    @property
    def remarks(self) -> list[str]:
        """The benign races of the last run as text, a line each."""
        return list(dict.fromkeys(map(describe_benign_race, self.benign_races())))

    def helpers(self) -> dict[str, Callable[..., Any]]:
        """The functions that rewritten code of a new incarnation calls."""
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
        """A constructor on the current node has returned. `one_at_a_time`: its calls never overlap, as for a clerk."""
        simulation, node = current_simulation(), current_node()
        if simulation is not None and node is not None and simulation.ordering is not None:
            simulation.ordering.made(node, one_at_a_time=one_at_a_time)


def _trees(sources: Iterable[bytes]) -> Iterator[ast.Module]:
    for source in sources:
        with suppress(SyntaxError, ValueError):  # reported when it is imported
            yield ast.parse(source)


def _put(value: Any, obj: Any, name: str, _: int) -> None:
    setattr(obj, name, value)


# Outside a run, rewritten code behaves like the original.
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
