"""What a diagnosis is: the facts with their numbers, and what they most likely mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from labtest.diagnoses.story import Story


class Finding(NamedTuple):
    """`facts` can be checked against the timeline; `likely` is the guess, and what to do."""

    facts: str
    likely: str


Diagnosis = Callable[[Story], Finding | None]
