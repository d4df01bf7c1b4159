"""What each cause of failure needs: its shortest run, shrunk, in processes of their own and within a budget.

Start at `shrink_causes()`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from labtest.rooms import ROOT
from labtools.stress.kit import Kit
from labtools.stress.summary import SHRUNK
from labtools.stress.tally import Cause, ended_its_process

_EACH_S_MIN = 2.0
_STARTING_S = 60.0  # of real time, for a process to begin and to end


def shrink_causes(causes: Sequence[Cause], kit: Kit, out: Path, budget_s: float) -> None:
    """Of as many as there is time for, the first found first. One that repeats in no fresh process is left alone."""
    chosen = [cause for cause in causes if cause.repeats and not ended_its_process(cause.shortest)]
    chosen = chosen[: int(budget_s / _EACH_S_MIN)]
    if not chosen:
        return
    each_s = budget_s / len(chosen)
    with tempfile.TemporaryDirectory(prefix="lab-stress-") as folder:
        kit.unpack(Path(folder))
        try:
            for cause in chosen:
                cause.recipe = _shrunk(cause, kit, Path(folder), out.resolve() / SHRUNK, each_s)
        except KeyboardInterrupt:
            pass  # then those that are left are not shrunk


def _shrunk(cause: Cause, kit: Kit, folder: Path, out: Path, limit_s: float) -> list[str]:
    run, setup = cause.shortest, kit.setup
    figures = folder / "figures.json"
    figures.unlink(missing_ok=True)
    command = [sys.executable, "-m", "labtools", "shrink", run.test, "--seed", str(run.seed), "--raft", setup["raft"]]
    command += [
        "--file",
        setup["tests"][run.test],
        "--limit",
        f"{limit_s:g}",
        "--json",
        str(figures),
        "--out",
        str(out),
    ]
    command += ["--kv", setup["kv"]] if setup["kv"] and run.test in kit.kv_of else []
    command += ["--isolated"] if setup["isolated"] else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # With isolated peers most of the time is not the process's own.
    patience_s = limit_s * 10 + _STARTING_S
    try:
        subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=patience_s
        )
        told: list[str] = json.loads(figures.read_text())["told"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return []  # the failure has been told already
    return told
