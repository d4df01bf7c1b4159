"""`--race` inside a peer process: its code is rewritten, and the supervisor decides where its threads are preempted.

Start at `RaceClient`.
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
    return RaceInstrumentation(PEER_FILES, make_preempter=_make_preempter)


class RaceClient:
    """Serves one peer process. Replaces its choice source for the choices that the supervisor makes."""

    def __init__(
        self, simulation: PeerSimulation, race: RaceInstrumentation, first: dict[str, list[tuple[int, int]]]
    ) -> None:
        """`first`: the first batch of preemptions, by kind."""
        self._simulation = simulation
        self._instrumentation = race
        self._source: ChoiceSource = simulation.choice_source
        self._preemptions = {kind: first[kind][::-1] for kind in DISTRIBUTIONS}
        self._delayed: dict[tuple[str, int], Task] = {}
        self._reported = 0  # benign races that were sent
        self.pick = simulation.choice_source.pick
        simulation.choice_source = self
        race.begin_run(simulation)

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[Any]) -> Any:
        kind = point[0]
        if kind not in DISTRIBUTIONS:
            return self._source.choose(point, ordinal, distribution)
        if not self._preemptions[kind]:
            self._simulation.request_from_supervisor(PreemptionRequest(kind))
        at, delayed = self._preemptions[kind].pop()
        return Preemption(at, delayed)  # only the supervisor knows the delay

    def on_batch(self, batch: PreemptionBatch) -> None:
        self._preemptions[batch.kind] = batch.blocks[::-1]

    def preempt(self, kind: str, block: int, preemption: Preemption, where: Preempted) -> None:
        simulation = self._simulation
        simulation.add_effect(PreemptionReached(kind, block, _encodable_name(where.task), where.file, where.line))
        if preemption.late_ns and simulation.can_wait:
            self._delayed[kind, block] = simulation.current
            simulation.park("preemption")
        else:
            simulation.preempt()

    def on_resume(self, resume: ResumeThread) -> None:
        task = self._delayed.pop((resume.kind, resume.block), None)
        if task is not None:
            self._simulation.wake(task)

    def on_constructed(self, *, one_at_a_time: bool = False) -> None:
        """A constructor of the peer has returned."""
        self._instrumentation.on_constructed(one_at_a_time=one_at_a_time)

    def new_benign_races(self) -> Iterator[BenignRaceFound]:
        """The benign races found since the last call."""
        for benign in islice(self._instrumentation.benign_races(), self._reported, protocol.BENIGN_RACES_MAX):
            self._reported += 1
            comment = None if benign.comment is None else _encodable_name(benign.comment)
            yield BenignRaceFound(BenignRace(_encodable_race(benign.race), comment))


class SupervisedPreempter(Preempter):
    """Reports each preemption to the supervisor, which decides about the delay."""

    def preempt_at(self, kind: str, block: int, preemption: Preemption, where: Preempted) -> None:
        race: RaceClient = self._simulation.race  # type: ignore[attr-defined]  # a PeerSimulation
        race.preempt(kind, block, preemption, where)


class _NoPreempter:
    """In a process that only loads the peer."""

    @staticmethod
    def statement() -> None:
        pass

    unlocked = relock = statement


def _make_preempter(simulation: PeerSimulation, node: Node) -> Any:
    return _NoPreempter() if simulation.race is None else SupervisedPreempter(simulation, node)


def race_found(race: DataRace) -> RaceFound:
    return RaceFound(_encodable_race(race))


def _encodable_race(race: DataRace) -> DataRace:
    return DataRace(_encodable_name(race.variable), *map(_encodable_access, (race.first, race.second)))


def _encodable_access(access: Access) -> Access:
    locks = tuple(map(_encodable_name, access.locks[: protocol.HELD_LOCKS_MAX]))
    location = access.location._replace(function=_encodable_name(access.location.function))
    return msgspec.structs.replace(
        access,
        expression=_encodable_name(access.expression),
        entry_point=_encodable_name(access.entry_point),
        location=location,
        locks=locks,
    )


def _encodable_name(text: str) -> str:
    """A name as the supervisor accepts it."""
    return "".join(char if char.isprintable() else "?" for char in text[: protocol.NAME_MAX])
