"""Makes a LabTest from a test function, for the tools and for pytest.

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
    """None if the function has no parameter of a lab test. Name, file and parameters override the function's own."""
    parameters = inspect.signature(function).parameters if parameters is None else parameters
    kind = next((kind for kind in LabTestKind if kind.value in parameters), None)
    if kind is None:
        return None
    file = Path(inspect.getfile(function)) if file is None else file
    return LabTest(
        name or function.__name__, file, kind, with_make_config(function) if kind is LabTestKind.SCENARIO else function
    )


def with_make_config(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Turns a function that takes make_scenario into one that takes make_config."""

    @wraps(function)
    def run(make_config: Any) -> Any:
        from raftlab.scenarios.scenario import make_scenario  # most runs do not need it

        return function(partial(make_scenario, make_config))

    return run
