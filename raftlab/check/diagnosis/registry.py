"""What a diagnosis is, and the registry of them: `@diagnosis(...)` above a function is all that adding one takes.

Start at `diagnosis()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from raftlab.check.diagnosis.trace_analysis import TraceAnalysis


class Finding(NamedTuple):
    """`facts` can be checked against the timeline; `likely` is the guess, and what to do."""

    facts: str
    likely: str


Examine = Callable[[TraceAnalysis], Finding | None]


@dataclass(frozen=True)
class Diagnosis:
    """A function of a `Story`, and which failures it is asked about; the parameters of `diagnosis()`."""

    examine: Examine
    order: int | None
    costs: int | None
    rules: tuple[str, ...]
    every_rule_but: tuple[str, ...] | None
    exceptions: bool
    deadlocks: bool
    any_fields: bool
    alone: bool
    last_resort: bool

    @property
    def name(self) -> str:
        return self.examine.__name__

    def explains(self, rule: str) -> bool:
        return rule in self.rules or (self.every_rule_but is not None and rule not in self.every_rule_but)


_registered: list[Diagnosis] = []


def diagnosis(
    order: int | None = None,
    *,
    costs: int | None = None,
    rules: tuple[str, ...] = (),
    every_rule_but: tuple[str, ...] | None = None,
    exceptions: bool = False,
    deadlocks: bool = False,
    any_fields: bool = False,
    alone: bool = False,
    last_resort: bool = False,
) -> Callable[[Examine], Examine]:
    """Register a function as a diagnosis; it stays an ordinary function.

    - `order`: it is asked why an expectation was not met, and the lower, the earlier. The more telling first: what one
      peer visibly did wrong, then what nobody did, then what was merely slow. Also its place wherever else it is asked.
      None, if what it finds does no harm, and right peers do some of it.
    - `costs`: it is asked why too much was sent, in this order
    - `rules`, `every_rule_but`: it is asked why one of these rules was broken, or any but these. A rule that was seen
      to be broken has said what is wrong; it can say why
    - `exceptions`, `deadlocks`: it is asked what an exception in a peer, or a deadlock, comes from
    - `any_fields`: it holds whatever fields the peers' messages have, not only Figure 2's
    - `alone`: whatever else is to be seen follows from it
    - `last_resort`: it helps only where nothing else was found
    """
    if order is None and costs is None:
        raise TypeError("diagnosis(): say its order, or its place in costs")

    def register(examine: Examine) -> Examine:
        new = Diagnosis(
            examine, order, costs, rules, every_rule_but, exceptions, deadlocks, any_fields, alone, last_resort
        )
        for other in _registered:
            if order is not None and order == other.order:
                raise ValueError(f"diagnosis(): {new.name} has the order {order} of {other.name}; give it another")
            if costs is not None and costs == other.costs:
                raise ValueError(f"diagnosis(): {new.name} has the costs {costs} of {other.name}; give it another")
        _registered.append(new)
        return examine

    return register


def in_order() -> tuple[Diagnosis, ...]:
    """All that are registered, by their order; those about costs alone last."""
    asked = sorted((one for one in _registered if one.order is not None), key=lambda one: one.order or 0)
    return (*asked, *(one for one in about_costs() if one.order is None))


def about_costs() -> tuple[Diagnosis, ...]:
    return tuple(sorted((one for one in _registered if one.costs is not None), key=lambda one: one.costs or 0))
