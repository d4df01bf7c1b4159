"""The registry of diagnoses. To add one, decorate a function with `@diagnosis(...)`.

Start at `diagnosis()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from raftlab.check.diagnosis.trace_analysis import TraceAnalysis


class Finding(NamedTuple):
    """`facts` can be checked against the timeline; `likely` is the suspected cause, and what to do."""

    facts: str
    likely: str


Examine = Callable[[TraceAnalysis], Finding | None]


@dataclass(frozen=True)
class Diagnosis:
    """A function of a `TraceAnalysis`, and the failures that it explains; see the parameters of `diagnosis()`."""

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
    """Register a function as a diagnosis.

    - `order`: it explains unmet expectations; lower numbers are tried first. The most specific come first: what one
      peer did wrong, then what no peer did, then what was slow. It is also the order for other failures. None if
      correct peers may do what it finds.
    - `costs`: it explains why too much was sent; tried in this order
    - `rules`, `every_rule_but`: it explains why one of these rules was broken, or any but these
    - `exceptions`, `deadlocks`: it explains exceptions in a peer, or deadlocks
    - `any_fields`: it does not need the fields of Figure 2
    - `alone`: other findings would be consequences of this one
    - `last_resort`: it helps only if nothing else was found
    """
    if order is None and costs is None:
        raise TypeError("diagnosis(): order or costs is required")

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
    """All registered diagnoses, by their order; those that are only about costs last."""
    asked = sorted((one for one in _registered if one.order is not None), key=lambda one: one.order or 0)
    return (*asked, *(one for one in about_costs() if one.order is None))


def about_costs() -> tuple[Diagnosis, ...]:
    return tuple(sorted((one for one in _registered if one.costs is not None), key=lambda one: one.costs or 0))
