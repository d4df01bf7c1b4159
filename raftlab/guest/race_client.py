"""What `--race` asks of a guest: its code is rewritten, and which turns its threads lose, the host says.

Start at `GuestRace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from labsim import Node, Task
from labsim.choices import ChoicePoint, ChoiceSource, Distribution
from raftlab.guest import protocol
from raftlab.guest.protocol import (
    BenignRaceFound,
    PreemptionBatch,
    PreemptionReached,
    PreemptionRequest,
    RaceFound,
    ResumeThread,
)
from raftlab.layout import PEER_FILES
from raftlab.races import RaceInstrumentation
from raftlab.races.data_race import Access, BenignRace, DataRace
from raftlab.races.preemption import DISTRIBUTIONS, Preempter, Preemption
from raftlab.trace.events import Preempted

if TYPE_CHECKING:
    from raftlab.guest.peer_process import PeerSimulation


def make_race_instrumentation() -> RaceInstrumentation:
    return RaceInstrumentation(PEER_FILES, make_turns=_make_preempter)


class RaceClient:
    """Of one guest. It takes the place of the guest's choice source for what the host decides."""

    def __init__(
        self, guest: PeerSimulation, race: RaceInstrumentation, first: dict[str, list[tuple[int, int]]]
    ) -> None:
        """`first`: what the host has handed out to begin with."""
        self._guest = guest
        self._race = race
        self._own: ChoiceSource = guest.choice_source
        self._left = {kind: first[kind][::-1] for kind in DISTRIBUTIONS}
        self._late: dict[tuple[str, int], Task] = {}
        self._remarks = 0  # that were told
        self.pick = guest.choice_source.pick
        guest.choice_source = self
        race.begin_run(guest)

    def choose(self, place: ChoicePoint, ordinal: int, distribution: Distribution[Any]) -> Any:
        kind = place[0]
        if kind not in DISTRIBUTIONS:
            return self._own.choose(place, ordinal, distribution)
        if not self._left[kind]:
            self._guest.ask_host(PreemptionRequest(kind))
        at, late = self._left[kind].pop()
        return Preemption(at, late)  # how late, the host knows

    def handed_out(self, losses: PreemptionBatch) -> None:
        self._left[losses.kind] = losses.blocks[::-1]

    def lose(self, kind: str, block: int, loss: Preemption, where: Preempted) -> None:
        guest = self._guest
        guest.do(PreemptionReached(kind, block, _encodable_name(where.task), where.file, where.line))
        if loss.late_ns and guest.can_wait:
            self._late[kind, block] = guest.current
            guest.park("preemption")
        else:
            guest.preempt()

    def given_back(self, back: ResumeThread) -> None:
        task = self._late.pop((back.kind, back.block), None)
        if task is not None:
            self._guest.wake(task)

    def made(self, *, one_at_a_time: bool = False) -> None:
        """A constructor of the program has returned."""
        self._race.made(one_at_a_time=one_at_a_time)

    def news(self) -> Iterator[BenignRaceFound]:
        """At the end of a turn: what was remarked since the last one."""
        for remark in islice(self._race.seen(), self._remarks, protocol.BENIGN_RACES_MAX):
            self._remarks += 1
            excuse = None if remark.excuse is None else _encodable_name(remark.excuse)
            yield BenignRaceFound(BenignRace(_encodable_race(remark.race), excuse))


class SupervisedPreempter(Preempter):
    """Each loss is the host's to know."""

    def lose_at(self, kind: str, block: int, loss: Preemption, where: Preempted) -> None:
        race: RaceClient = self._simulation.race  # type: ignore[attr-defined]  # a PeerSimulation
        race.lose(kind, block, loss, where)


class _NoPreempter:
    """Of a guest that is only to be loaded."""

    @staticmethod
    def turn() -> None:
        pass

    gap = split = turn


def _make_preempter(guest: PeerSimulation, node: Node) -> Any:
    return _NoPreempter() if guest.race is None else SupervisedPreempter(guest, node)


def race_found(race: DataRace) -> RaceFound:
    return RaceFound(_encodable_race(race))


def _encodable_race(race: DataRace) -> DataRace:
    return DataRace(_encodable_name(race.name), *map(_encodable_access, (race.first, race.second)))


def _encodable_access(touch: Access) -> Access:
    held = tuple(map(_encodable_name, touch.held[: protocol.HELD_LOCKS_MAX]))
    place = touch.place._replace(function=_encodable_name(touch.place.function))
    return msgspec.structs.replace(
        touch, what=_encodable_name(touch.what), begins=_encodable_name(touch.begins), place=place, held=held
    )


def _encodable_name(text: str) -> str:
    """As the host takes it."""
    return "".join(char if char.isprintable() else "?" for char in text[: protocol.NAME_MAX])
