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
from raftlab.guest.protocol import Back, Losses, Lost, More, Raced, Remarked
from raftlab.layout import PEER_FILES
from raftlab.races import Race
from raftlab.races.data_race import Remark, Touch, Unordered
from raftlab.races.preemption import CHANCES, Loss, Turns
from raftlab.trace.events import Preempted

if TYPE_CHECKING:
    from raftlab.guest.peer_process import GuestSimulation


def make_race() -> Race:
    return Race(PEER_FILES, make_turns=_make_turns)


class GuestRace:
    """Of one guest. It takes the place of the guest's choice source for what the host decides."""

    def __init__(self, guest: GuestSimulation, race: Race, first: dict[str, list[tuple[int, int]]]) -> None:
        """`first`: what the host has handed out to begin with."""
        self._guest = guest
        self._race = race
        self._own: ChoiceSource = guest.choice_source
        self._left = {kind: first[kind][::-1] for kind in CHANCES}
        self._late: dict[tuple[str, int], Task] = {}
        self._remarks = 0  # that were told
        self.pick = guest.choice_source.pick
        guest.choice_source = self
        race.begin_run(guest)

    def choose(self, place: ChoicePoint, ordinal: int, distribution: Distribution[Any]) -> Any:
        kind = place[0]
        if kind not in CHANCES:
            return self._own.choose(place, ordinal, distribution)
        if not self._left[kind]:
            self._guest.ask_host(More(kind))
        at, late = self._left[kind].pop()
        return Loss(at, late)  # how late, the host knows

    def handed_out(self, losses: Losses) -> None:
        self._left[losses.kind] = losses.blocks[::-1]

    def lose(self, kind: str, block: int, loss: Loss, where: Preempted) -> None:
        guest = self._guest
        guest.do(Lost(kind, block, _name(where.task), where.file, where.line))
        if loss.late_ns and guest.can_wait:
            self._late[kind, block] = guest.current
            guest.park("preemption")
        else:
            guest.preempt()

    def given_back(self, back: Back) -> None:
        task = self._late.pop((back.kind, back.block), None)
        if task is not None:
            self._guest.wake(task)

    def made(self, *, one_at_a_time: bool = False) -> None:
        """A constructor of the program has returned."""
        self._race.made(one_at_a_time=one_at_a_time)

    def news(self) -> Iterator[Remarked]:
        """At the end of a turn: what was remarked since the last one."""
        for remark in islice(self._race.seen(), self._remarks, protocol.REMARKS_MAX):
            self._remarks += 1
            excuse = None if remark.excuse is None else _name(remark.excuse)
            yield Remarked(Remark(_sayable(remark.race), excuse))


class GuestTurns(Turns):
    """Each loss is the host's to know."""

    def lose_at(self, kind: str, block: int, loss: Loss, where: Preempted) -> None:
        race: GuestRace = self._simulation.race  # type: ignore[attr-defined]  # a GuestSimulation
        race.lose(kind, block, loss, where)


class _NoTurns:
    """Of a guest that is only to be loaded."""

    @staticmethod
    def turn() -> None:
        pass

    gap = split = turn


def _make_turns(guest: GuestSimulation, node: Node) -> Any:
    return _NoTurns() if guest.race is None else GuestTurns(guest, node)


def raced(race: Unordered) -> Raced:
    return Raced(_sayable(race))


def _sayable(race: Unordered) -> Unordered:
    return Unordered(_name(race.name), *map(_sayable_touch, (race.first, race.second)))


def _sayable_touch(touch: Touch) -> Touch:
    held = tuple(map(_name, touch.held[: protocol.HELD_MAX]))
    place = touch.place._replace(function=_name(touch.place.function))
    return msgspec.structs.replace(touch, what=_name(touch.what), begins=_name(touch.begins), place=place, held=held)


def _name(text: str) -> str:
    """As the host takes it."""
    return "".join(char if char.isprintable() else "?" for char in text[: protocol.NAME_MAX])
