"""`--race` in the supervisor: decides where threads of a sandboxed peer are preempted and for how long.

The choices have the same keys as in an in-process run and are sent in batches, so runs are recorded, replayed and
shrunk alike. The supervisor keeps the time of a delay: a peer process only reports that it has reached a preemption.
Races are reported by the peer process; a false report only harms that peer. Start at `RaceSupervisor`.
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

BLOCKS = 32  # in a batch
_REQUESTS_MAX = 200_000  # of one peer process: far more than its CPU time allows
_LINE_MAX = 10_000_000


class RaceSupervisor:
    """Serves one peer process. `protocol_violation` ends the run; `add_benign_race` gets its benign races."""

    def __init__(
        self,
        simulation: Simulation,
        node: Node,
        files: Mapping[str, bytes],
        deliver: Callable[[Arrival], None],
        protocol_violation: Callable[[str], NoReturn],
        add_benign_race: Callable[[BenignRace], None],
    ) -> None:
        self._simulation = simulation
        self._node = node
        self._files = files
        self._deliver = deliver
        self._protocol_violation = protocol_violation
        self._add_benign_race = add_benign_race
        self._delays = ResumeDelays(simulation)
        self._requests = 0
        self._blocks_sent = dict.fromkeys(DISTRIBUTIONS, 0)  # blocks
        # By kind and block: the preemptions that were sent and not yet reached.
        self._preemptions: dict[str, dict[int, Preemption]] = {kind: {} for kind in DISTRIBUTIONS}
        self.handlers: dict[type, Callable[[Any], None]] = {
            PreemptionRequest: self._on_request,
            PreemptionReached: self._on_reached,
            RaceFound: self._on_race,
            BenignRaceFound: self._on_benign_race,
        }

    def first_batches(self) -> dict[str, list[tuple[int, int]]]:
        """The first batch of each kind."""
        return {kind: self._next_batch(kind) for kind in DISTRIBUTIONS}

    def _next_batch(self, kind: str) -> list[tuple[int, int]]:
        """The next blocks: the statement at which a thread is preempted (0: none), and whether it is delayed."""
        distribution, point = DISTRIBUTIONS[kind], choice_point(kind, self._node)
        first = self._blocks_sent[kind] + 1
        self._blocks_sent[kind] += BLOCKS
        preemptions = self._preemptions[kind]
        # The last block of the previous batch may be in progress.
        for block in [block for block in preemptions if block < first - 1]:
            del preemptions[block]
        batch = []
        for block in range(first, first + BLOCKS):
            preemption = self._simulation.choice_source.choose(point, block, distribution)
            if 0 < preemption.at <= distribution.block:  # a choice file may have any number
                preemptions[block] = preemption
                batch.append((preemption.at, int(preemption.late_ns > 0)))
            else:
                batch.append((0, 0))
        return batch

    def _on_request(self, effect: PreemptionRequest) -> None:
        self._requests += 1
        if effect.kind not in DISTRIBUTIONS or self._requests > _REQUESTS_MAX:
            self._protocol_violation("an invalid request for preemptions")
        self._deliver(PreemptionBatch(effect.kind, self._next_batch(effect.kind)))

    def _on_reached(self, effect: PreemptionReached) -> None:
        kind, block = effect.kind, effect.block
        preemption = self._preemptions.get(kind, {}).pop(block, None)
        if preemption is None or not _is_name(effect.task) or not self._is_line(effect.file, effect.line):
            self._protocol_violation("a preemption that was not scheduled")
        simulation, node = self._simulation, self._node
        late_ns = self._delays.delay_ns(kind, preemption)
        simulation.emit(PREEMPT, node, Preempted(effect.task, effect.file, effect.line, late_ns), 0)
        if late_ns:
            simulation.begin_delay(node)
            simulation.call_later(late_ns, self._resume, kind, block)
        elif preemption.late_ns:
            self._deliver(ResumeThread(kind, block))

    def _resume(self, kind: str, block: int) -> None:
        node = self._node
        if node.alive:
            self._simulation.end_delay(node)
            if not node.delayed:
                self._simulation.emit(CAUGHT_UP, node, None, 0)
            self._deliver(ResumeThread(kind, block))

    def _on_race(self, effect: RaceFound) -> None:
        self._check(effect.race)
        self._simulation.fail(RaceFailure(effect.race, self._node.name))

    def _on_benign_race(self, effect: BenignRaceFound) -> None:
        self._check(effect.race.race)
        if len(effect.race.comment or "") > protocol.NAME_MAX or not (effect.race.comment or "").isprintable():
            self._protocol_violation("an invalid comment on a race")
        self._add_benign_race(effect.race)

    def _check(self, race: DataRace) -> None:
        if not _is_name(race.variable) or not self._is_access(race.first) or not self._is_access(race.second):
            self._protocol_violation("an invalid race")

    def _is_access(self, access: Access) -> bool:
        names = (
            access.expression,
            access.entry_point,
            access.location.function,
            *access.locks[: protocol.HELD_LOCKS_MAX],
        )
        return (
            self._is_line(access.location.file, access.location.line)
            and len(access.locks) <= protocol.HELD_LOCKS_MAX
            and all(map(_is_name, names))
        )

    def _is_line(self, file: str, line: int) -> bool:
        """Whether it is a line of the peer's files, which a report may show."""
        return file in self._files and 0 < line <= _LINE_MAX


def _is_name(text: str) -> bool:
    return len(text) <= protocol.NAME_MAX and text.isprintable()
