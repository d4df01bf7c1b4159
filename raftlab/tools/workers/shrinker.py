"""Shrinking in a process of its own, for tools that have other runs to make.

Start at `shrunk_elsewhere()`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from raftlab.harness.options import Values, arguments
from raftlab.layout import ROOT

_STARTING_S = 60.0  # of real time, for a process to begin and to end


def shrunk_elsewhere(
    test: str, seed: int, values: Values, *, limit_s: float, out: Path, folder: Path, figures: Path
) -> dict[str, Any] | None:
    """What telling.figures() says of it, by way of the file `figures`; None if it could not be shrunk in time.

    `values` of the command's options, with paths as seen from `folder`, in which it works.
    """
    figures.unlink(missing_ok=True)
    values = {**values, "seed": seed, "out": out}
    command = [sys.executable, "-m", "raftlab", "shrink", test, *arguments(values)]
    command += ["--limit", f"{limit_s:g}", "--json", str(figures)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # With isolated peers most of the time is not the process's own, and a machine may be busy.
    patience_s = limit_s * 30 + _STARTING_S
    try:
        subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=patience_s
        )
        found: dict[str, Any] = json.loads(figures.read_text())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return found
