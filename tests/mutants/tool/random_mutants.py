"""Random mutants: the reference with one small change anywhere.

`m0137-append_entries-lt-le` is change 137 of all possible ones in raft/raft.py, so an id means the same in every draw
until the reference changes.

Promise: a number and a seed give the same list in any process, and a longer list of the same seed extends the shorter.
No two mutants of a list compile to the same program, and none to the reference. Draws alternate between functions and
families of changes, so long functions do not dominate a short list.

Start at `draw()`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from tests.mutants.tool.mutants import REFERENCE, Mutant, StaleMutant
from tests.mutants.tool.source_changes import Change, changes_of, meaning

_ID = re.compile(r"m[0-9]{4}-")


@dataclass(frozen=True)
class Drawn(Mutant):
    """A random mutant. `lines_were` and `lines_are`: the changed lines, for survivors.toml."""

    text: str = ""
    function: str = ""
    lines_were: str = ""
    lines_are: str = ""

    def source(self) -> str:
        return self.text


def all_changes() -> tuple[str, list[Change]]:
    """The reference, and all possible changes of it."""
    source = (REFERENCE / "raft.py").read_text()
    return source, changes_of(source)


def draw(number: int, seed: int) -> list[Drawn]:
    source, changes = all_changes()
    seen = {meaning(source)}
    drawn: list[Drawn] = []
    for place in _order(changes, seed):
        mutant = _mutant(source, changes, place)
        means = meaning(mutant.text)
        if means not in seen:
            seen.add(means)
            drawn.append(mutant)
            if len(drawn) == number:
                return drawn
    raise ValueError(f"N must be at most {len(drawn)}, the number of possible changes of {REFERENCE / 'raft.py'}")


def drawn_by_id(id_: str) -> Drawn:
    """The random mutant with this id."""
    source, changes = all_changes()
    place = int(id_[1:5]) - 1 if is_drawn(id_) else -1
    if 0 <= place < len(changes):
        mutant = _mutant(source, changes, place)
        if mutant.id == id_:
            return mutant
    raise StaleMutant(f"{id_} is not a change of the current {REFERENCE / 'raft.py'}; see lab mutants random N --list")


def is_drawn(id_: str) -> bool:
    return _ID.match(id_) is not None


def _order(changes: list[Change], seed: int) -> Iterator[int]:
    """Indexes in `changes`: one of each function and family, then another of each, and so on."""
    chance = random.Random(seed)
    heaps: dict[tuple[str, str], list[int]] = {}
    for place, change in enumerate(changes):
        heaps.setdefault((change.function, change.family), []).append(place)
    shuffled = list(heaps.values())
    for heap in shuffled:
        chance.shuffle(heap)
    chance.shuffle(shuffled)
    for turn in zip_longest(*shuffled):
        yield from (place for place in turn if place is not None)


def _mutant(source: str, changes: list[Change], place: int) -> Drawn:
    change = changes[place]
    text = change.applied_to(source)
    pairs = zip(source.splitlines(), text.splitlines(), strict=True)
    changed = [(old.strip(), new.strip()) for old, new in pairs if old != new]
    were, are = ("\n".join(filter(None, lines)) for lines in zip(*changed, strict=True))
    first_was, first_is = changed[0]
    instead = f"has {first_is} instead of" if first_is not in ("", "pass") else "lacks"
    return Drawn(
        f"m{place + 1:04}-{change.function}-{change.kind}",
        "",  # any part may catch it
        "unknown: the change is random",
        f"{instead} {first_was} (line {change.line})",
        (),
        text=text,
        function=change.function,
        lines_were=were,
        lines_are=are,
    )
