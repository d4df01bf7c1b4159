"""A lab test, as run_test() and every tool use it.

Promise: its `kind` says what it tests; tools do not inspect its parameters. raftlab/scenarios/collection.py makes a
LabTest from a function, raftlab/scenarios/runner.py from a scenario.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class LabTestKind(Enum):
    """What is tested. The value is the parameter by which a test function requests it."""

    PEER = "make_config"
    SCENARIO = "make_scenario"
    SERVICE = "make_kv_config"


@dataclass(frozen=True)
class LabTest:
    """`function` takes one argument: the factory of a Config or, for a service, of a KVConfig."""

    name: str
    file: Path
    kind: LabTestKind
    function: Callable[[Any], Any]
    breaks_rule: str = ""  # of a scenario for an incorrect peer: it passes if this rule is violated

    @property
    def part(self) -> str:
        return part_of(self.name)

    @property
    def wants_service(self) -> bool:
        """Whether it is a test of part 3A or 3B."""
        return self.kind is LabTestKind.SERVICE


def part_of(name: str) -> str:
    """ "2a" ... "3b", or "" if the name has no part."""
    found = re.search(r"_(2[a-d]|3[ab])(_|$)", name)
    return found.group(1) if found else ""
