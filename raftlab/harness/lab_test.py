"""A lab test: what run_test() runs, and what every tool knows of it.

Promise: what a test is a test of is its `kind`, and nobody looks at its parameters to find out. A LabTest is made of a
function in raftlab/scenarios/collection.py, of a scenario in raftlab/scenarios/runner.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class LabTestKind(Enum):
    """What a test is a test of. The value is the parameter by which a test function asks for it."""

    PEER = "make_config"
    SCENARIO = "make_scenario"
    SERVICE = "make_kv_config"


@dataclass(frozen=True)
class LabTest:
    """`function` takes what makes a Config, or for a service a KVConfig, and nothing else."""

    name: str
    file: Path
    kind: LabTestKind
    function: Callable[[Any], Any]
    breaks_rule: str = ""  # of a scenario for an incorrect peer: it passes if this rule is broken

    @property
    def part(self) -> str:
        return part_of(self.name)

    @property
    def wants_service(self) -> bool:
        """Whether it is a test of parts 3A and 3B."""
        return self.kind is LabTestKind.SERVICE


def part_of(name: str) -> str:
    """ "2a" ... "3b", or "" where a test's name has none."""
    found = re.search(r"_(2[a-d]|3[ab])(_|$)", name)
    return found.group(1) if found else ""
