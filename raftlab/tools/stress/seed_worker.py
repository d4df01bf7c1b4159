"""One worker of a campaign, seen from outside: give it seeds, get an Outcome for each, as a line of JSON.

Promise: every seed gets exactly one line, also the one that took its process along. Only the standard library is used
here, because this module is also sent by value to machines that have nothing of the lab (dask.py).

Start at `SeedWorker.run()`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from raftlab.tools.workers.process import Lost, WorkerProcess, python_worker, restore_paths

_STACK_LINES_MAX = 12


class SeedWorker(WorkerProcess):
    def __init__(self, setup: dict[str, Any], folder: Path, lab: Path) -> None:
        """`setup` is the first line the worker gets, `folder` its working directory, `lab` where the lab lies."""
        super().__init__(lambda: python_worker("raftlab.tools.stress.worker", setup, folder=folder, lab=lab))
        self._setup = setup
        self._run_limit_s: float = setup["run_limit_s"]

    def run(self, test: str, seeds: list[int]) -> list[bytes]:
        """One line of JSON, an Outcome, for each seed, in order."""
        requests = [json.dumps({"test": test, "seed": seed}).encode() for seed in seeds]
        answers = zip(seeds, self.ask(requests, self._run_limit_s), strict=True)
        return [self._outcome_of_lost_run(test, seed, a) if isinstance(a, Lost) else a for seed, a in answers]

    def _outcome_of_lost_run(self, test: str, seed: int, lost: Lost) -> bytes:
        """An Outcome for the run that took its process along."""
        if lost.late:
            cause = f"The run took longer than {self._run_limit_s:g} s of real time and was ended."
        else:
            cause = f"The worker process {lost.how} during the run."
        own = re.search(r'File "(?!/)(.+?)", line (\d+)( in \w+)', lost.output)
        lines = "".join(f"\n  {line}" for line in lost.output.splitlines()[:_STACK_LINES_MAX])
        shown_as = self._setup.get("shown_as", {})
        outcome = {
            "test": test,
            "seed": seed,
            "ending": "late" if lost.late else "died",
            "text": cause,
            "where": restore_paths("{}:{}{}".format(*own.groups()), shown_as) if own else "",
            "real_s": self._run_limit_s if lost.late else 0.0,
            "report": restore_paths(f"{test}  seed {seed}\n  {cause}{lines}", shown_as),
        }
        return json.dumps(outcome).encode()
