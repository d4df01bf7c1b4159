"""What `--race` asks of the host: it says which turns a guest's threads lose and how late they are, and hears of races.

The choices are those of a run in one process, under the same keys, handed out some blocks at a time; so a run is
recorded, repeated and shrunk alike. How late a thread is, and that this time is not the peer's, is the host's own
business: a guest can only say that a thread has come to a loss that it was given.

A race is a guest's own word. Who lies about one is accused of it, and that is all. Start at `RaceHost`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from labsim import Node, Simulation
from raftlab.guest import protocol
from raftlab.guest.protocol import (
    Arrival,
    BenignRaceFound,
    PreemptionBatch,
    PreemptionReached,
    PreemptionRequest,
    RaceFound,
    ResumeThread,
)
from raftlab.races.data_race import Access, BenignRace, DataRace
from raftlab.races.preemption import DISTRIBUTIONS, Preemption, ResumeDelays, choice_point
from raftlab.races.report import RaceFailure
from raftlab.trace.events import CAUGHT_UP, PREEMPT, Preempted

BLOCKS = 32  # that are handed out at a time
_REQUESTS_MAX = 200_000  # of one guest: far more than its processor time is good for
_LINE_MAX = 10_000_000


class RaceSupervisor:
    """Of one guest. `arrive` tells the guest something; `misbehaves` ends the run; `remark` gets its remarks."""

    def __init__(
        self,
        simulation: Simulation,
        node: Node,
        files: Mapping[str, bytes],
        arrive: Callable[[Arrival], None],
        misbehaves: Callable[[str], NoReturn],
        remark: Callable[[BenignRace], None],
    ) -> None:
        self._simulation = simulation
        self._node = node
        self._files = files
        self._arrive = arrive
        self._misbehaves = misbehaves
        self._remark = remark
        self._lateness = ResumeDelays(simulation)
        self._asks = 0
        self._handed_out = dict.fromkeys(DISTRIBUTIONS, 0)  # blocks
        # By kind and block, what was handed out lately and has not been lost.
        self._losses: dict[str, dict[int, Preemption]] = {kind: {} for kind in DISTRIBUTIONS}
        self.effects: dict[type, Callable[[Any], None]] = {
            PreemptionRequest: self._more,
            PreemptionReached: self._lost,
            RaceFound: self._raced,
            BenignRaceFound: self._remarked,
        }

    def first(self) -> dict[str, list[tuple[int, int]]]:
        """What it begins with."""
        return {kind: self._hand_out(kind) for kind in DISTRIBUTIONS}

    def _hand_out(self, kind: str) -> list[tuple[int, int]]:
        """The next blocks: at which statement of each the turn is lost, 0 for none, and whether it comes back late."""
        chance, place = DISTRIBUTIONS[kind], choice_point(kind, self._node)
        first = self._handed_out[kind] + 1
        self._handed_out[kind] += BLOCKS
        losses = self._losses[kind]
        # The last block that was handed out may have begun, and its loss be still to come.
        for block in [block for block in losses if block < first - 1]:
            del losses[block]
        given = []
        for block in range(first, first + BLOCKS):
            loss = self._simulation.choice_source.choose(place, block, chance)
            if 0 < loss.at <= chance.block:  # written by hand, it may be anything
                losses[block] = loss
                given.append((loss.at, int(loss.late_ns > 0)))
            else:
                given.append((0, 0))
        return given

    def _more(self, deed: PreemptionRequest) -> None:
        self._asks += 1
        if deed.kind not in DISTRIBUTIONS or self._asks > _REQUESTS_MAX:
            self._misbehaves("that it wants more turns to lose")
        self._arrive(PreemptionBatch(deed.kind, self._hand_out(deed.kind)))

    def _lost(self, deed: PreemptionReached) -> None:
        kind, block = deed.kind, deed.block
        loss = self._losses.get(kind, {}).pop(block, None)
        if loss is None or not _is_name(deed.task) or not self._is_line(deed.file, deed.line):
            self._misbehaves("a turn that it cannot have lost")
        simulation, node = self._simulation, self._node
        late_ns = self._lateness.of(kind, loss)
        simulation.emit(PREEMPT, node, Preempted(deed.task, deed.file, deed.line, late_ns), 0)
        if late_ns:
            simulation.begin_delay(node)
            simulation.call_later(late_ns, self._give_back, kind, block)
        elif loss.late_ns:
            self._arrive(ResumeThread(kind, block))

    def _give_back(self, kind: str, block: int) -> None:
        node = self._node
        if node.alive:
            self._simulation.end_delay(node)
            if not node.delayed:
                self._simulation.emit(CAUGHT_UP, node, None, 0)
            self._arrive(ResumeThread(kind, block))

    def _raced(self, deed: RaceFound) -> None:
        self._check(deed.race)
        self._simulation.fail(RaceFailure(deed.race, self._node.name))

    def _remarked(self, deed: BenignRaceFound) -> None:
        self._check(deed.remark.race)
        if len(deed.remark.excuse or "") > protocol.NAME_MAX or not (deed.remark.excuse or "").isprintable():
            self._misbehaves("an excuse that is none")
        self._remark(deed.remark)

    def _check(self, race: DataRace) -> None:
        if not _is_name(race.name) or not self._is_touch(race.first) or not self._is_touch(race.second):
            self._misbehaves("a race that cannot be")

    def _is_touch(self, touch: Access) -> bool:
        names = (touch.what, touch.begins, touch.place.function, *touch.held[: protocol.HELD_LOCKS_MAX])
        return (
            self._is_line(touch.place.file, touch.place.line)
            and len(touch.held) <= protocol.HELD_LOCKS_MAX
            and all(map(_is_name, names))
        )

    def _is_line(self, file: str, line: int) -> bool:
        """Of the peer's own files: a report may show it."""
        return file in self._files and 0 < line <= _LINE_MAX


def _is_name(text: str) -> bool:
    return len(text) <= protocol.NAME_MAX and text.isprintable()
