"""A batch of runs: as requests to a worker, and their outcomes from its answers.

Promise: every seed has exactly one outcome, also one that ended the worker's process. Start at `SeedBatch`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from raftlab.harness.outcome import Ending, Outcome
from raftlab.tools.workers.process import Lost, restore_paths

_STACK_LINES_MAX = 12

_decode = msgspec.json.Decoder(Outcome).decode


class SeedBatch(NamedTuple):
    test: str
    seeds: list[int]

    @property
    def requests(self) -> list[bytes]:
        return [json.dumps({"test": self.test, "seed": seed}).encode() for seed in self.seeds]

    def outcomes(self, answers: Sequence[bytes | Lost], setup: Mapping[str, Any]) -> list[Outcome]:
        """`setup`: the workers'."""
        return [
            _lost(self.test, seed, answer, setup) if isinstance(answer, Lost) else _decode(answer)
            for seed, answer in zip(self.seeds, answers, strict=True)
        ]


def _lost(test: str, seed: int, lost: Lost, setup: Mapping[str, Any]) -> Outcome:
    """Of a run that ended its process, or had to be ended with it."""
    limit_s = setup["run_limit_s"]
    if lost.late:
        text = f"The run took longer than {limit_s:g} s of real time and was ended."
    else:
        text = f"The worker process {lost.how} during the run."
    line = re.search(r'File "(?!/)(.+?)", line (\d+)( in \w+)', lost.output)
    stack = "".join(f"\n  {line}" for line in lost.output.splitlines()[:_STACK_LINES_MAX])
    outcome = Outcome(
        test=test,
        seed=seed,
        ending=Ending.LATE if lost.late else Ending.DIED,
        text=text,
        where="{}:{}{}".format(*line.groups()) if line else "",
        real_s=limit_s if lost.late else 0.0,
        report=f"{test}  seed {seed}\n  {text}{stack}",
    )
    outcome.rewrite(lambda shown: restore_paths(shown, setup["shown_as"]))
    return outcome
