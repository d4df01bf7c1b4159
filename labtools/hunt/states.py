"""What a cluster is like, seen from far away: so far that different runs reach the same.

An abstract state is who leads, who campaigns, whose term is higher, how the logs and what is committed of them lie to
each other. Numbers of peers, terms and commands are forgotten. All of it is read off the wire, as the rules read it,
so it holds for any peer.

Start at `abstract()`.
"""

from __future__ import annotations

from hashlib import blake2b

from labtest.checks.facts import Facts
from labtest.scenarios.scenario import Scenario

_ALIKE = 2  # entries of one term in a row that are told apart: one, or more


def leads(facts: Facts, i: int) -> bool:
    """Whether it has won an election, and has not shown a later term since."""
    seat = facts.seats[str(i)]
    return 0 < seat.office == seat.term


def abstract(scenario: Scenario, facts: Facts) -> int:
    """A number; the same for clusters that differ in names alone."""
    config, seen = scenario.config, scenario.seen
    peers = range(config.n)
    seats = [facts.seats[str(i)] for i in peers]
    terms = _ranks([seat.term for seat in seats] + [term for log in seen.logs.values() for term in log])
    commits = _ranks([seat.known_committed for seat in seats])
    rows = []
    for i, seat in zip(peers, seats, strict=True):
        status = "down" if not config.is_up(i) else "paused" if config.is_paused(i) else "up"
        campaigns = i in seen.campaigning and seen.campaigns[i] == seat.term and not seen.follows(i, seat.term)
        role = "leader" if leads(facts, i) else "candidate" if campaigns else "follower"
        log = _shape([terms[term] for term in seen.logs[i]])
        committed = (commits[seat.known_committed], seat.known_committed >= len(seen.logs[i]))
        applied = seat.applied >= seat.known_committed
        rows.append((status, role, terms[seat.term], log, committed, applied, bool(seat.snapshot_saved)))
    # Not hash(): that differs from one process to the next.
    return int.from_bytes(blake2b(repr(sorted(rows)).encode(), digest_size=8).digest())


def _ranks(numbers: list[int]) -> dict[int, int]:
    return {number: rank for rank, number in enumerate(sorted(set(numbers)))}


def _shape(terms: list[int]) -> tuple[int, ...]:
    """A log, where many entries of one term are as good as two."""
    shape: list[int] = []
    for term in terms:
        if shape[-_ALIKE:] != [term] * _ALIKE:
            shape.append(term)
    return tuple(shape)
