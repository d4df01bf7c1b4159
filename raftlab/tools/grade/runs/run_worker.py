"""Requests runs from a worker process: a submission, a test and a seed in, an outcome out.

Promise: make_run() always returns an outcome. If the worker process is lost, it starts another and repeats the run. The
submission cannot cause that, because none of its code runs there. Start at `make_run()`; worker.py makes the runs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from raftlab.harness.outcome import Outcome
from raftlab.sandbox import confinement
from raftlab.tools.grade.runs.worker import RunAnswer, RunRequest, broken_tester
from raftlab.tools.workers.pool import LocalPool
from raftlab.tools.workers.process import CannotStart, Closed, Lost, WorkerProcess

_WORKER = "raftlab.tools.grade.runs.worker"
_GRACE_S = 60.0  # beyond the limit of a run, which the worker keeps itself
_TRIES = 5
_OUTPUT_MAX = 4000


class RunWorkerError(Exception):
    """Runs cannot be made here; the text says why."""


def missing_sandbox() -> str:
    """What this machine lacks for the sandbox, as an error; "" if nothing."""
    if confinement.bubblewrap() is None:
        what = "bubblewrap cannot be used here, so submissions could read this machine's files and use its network"
    elif not confinement.syscall_filter():
        what = "libseccomp cannot be used here, so submissions could communicate and start processes"
    else:
        return ""
    return f"{what}; install what is missing ({confinement.INSTALL})"


def run_pool(jobs: int) -> LocalPool:
    """Worker processes for make_run()."""
    # In a folder without raft/raft.py, so that reports do not quote that file.
    return LocalPool(_WORKER, None, jobs, folder=Path(__file__).parent)


def make_run(worker: WorkerProcess, request: RunRequest) -> Outcome:
    """The outcome. RunWorkerError if no run can be made here."""
    limit_s = request.setup.limits.real_s * _TRIES + _GRACE_S
    lost = None
    for attempt in range(1, _TRIES + 1):
        try:
            (answer,) = worker.ask([msgspec.json.encode(request)], limit_s)
        except Closed:
            raise RunWorkerError("the process that makes the runs was closed") from None
        except CannotStart as error:
            if not error.refused and attempt < _TRIES:
                continue  # another process may have ended it
            raise RunWorkerError(str(error) if error.refused else error.output[:_OUTPUT_MAX] or str(error)) from None
        if not isinstance(answer, Lost):
            reply = msgspec.json.decode(answer, type=RunAnswer)
            if reply.outcome is None:
                raise RunWorkerError(reply.problem)
            return reply.outcome
        lost = answer
    assert lost is not None
    report = f"In {_TRIES} attempts, the process that makes the runs {lost.how}.\n{lost.output[:_OUTPUT_MAX]}".rstrip()
    return broken_tester(request, report)
