"""Makes a LabTest of a function, for the tools and for pytest.

Start at `collect()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import partial, wraps
from pathlib import Path
from typing import Any

from raftlab.harness.lab_test import LabTest, LabTestKind


def collect(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    file: Path | None = None,
    parameters: Collection[str] | None = None,
) -> LabTest | None:
    """None if it asks for nothing that a lab test asks for. Its parameters, name and file are the function's own unless
    they are given."""
    parameters = inspect.signature(function).parameters if parameters is None else parameters
    kind = next((kind for kind in LabTestKind if kind.value in parameters), None)
    if kind is None:
        return None
    file = Path(inspect.getfile(function)) if file is None else file
    return LabTest(
        name or function.__name__, file, kind, with_make_config(function) if kind is LabTestKind.SCENARIO else function
    )


def with_make_config(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that takes make_scenario, as one that takes make_config."""

    @wraps(function)
    def run(make_config: Any) -> Any:
        from raftlab.scenarios.scenario import make_scenario  # most runs have no scenarios

        return function(partial(make_scenario, make_config))

    return run
