"""A pytest plugin: writes the timeline of every failed run of a lab test into a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlab.harness.run import Run

_WIDTH = 120
_MAX_ROWS = 10_000  # twice what a long run has; an endless run would write 30 MB


def pytest_raftlab_failed(item: pytest.Function, run: Run) -> str | None:
    if run.simulation is None or not run.simulation.trace:
        return None
    from raftlab.tools.timeline.command import print_timeline  # imported only for a failure

    file = Path("build/pytest/timelines") / f"{item.originalname}-{run.seed}.txt"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf-8") as text:
            ending = f"FAILED: {run.error}".splitlines()[0]
            print_timeline(run.simulation.trace, file=text, width=_WIDTH, max_rows=_MAX_ROWS, ending=ending)
    except OSError:
        return None  # still report the failure if the folder is not writable
    return f"timeline  {file}"
