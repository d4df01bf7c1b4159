"""Requests runs from a worker process: a submission, a test and a seed in, an outcome out.

Promise: run() always returns an outcome. If the worker process is lost, run() starts another and repeats the run. The
submission cannot cause that, because none of its code runs there. Start at `RunWorker.run()`; worker.py makes the runs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from raftlab.harness.outcome import Outcome
from raftlab.layout import ROOT
from raftlab.sandbox import confinement
from raftlab.tools.grade.runs.worker import RunAnswer, RunRequest, broken_tester
from raftlab.tools.workers.process import CannotStart, Closed, Lost, WorkerProcess, python_worker

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
    return f"{what}; install what is missing ({confinement.INSTALL}), or grade without the sandbox: --no-sandbox"


class RunWorker:
    """A process that makes runs. Used by one thread, except close()."""

    def __init__(self) -> None:
        # A folder without raft/raft.py, so that reports do not quote that file.
        here = Path(__file__).parent
        self._worker = WorkerProcess(
            lambda: python_worker("raftlab.tools.grade.runs.worker", None, folder=here, lab=ROOT)
        )

    def run(self, request: RunRequest) -> Outcome:
        limit_s = request.setup.limits.real_s * _TRIES + _GRACE_S
        lost = None
        for attempt in range(1, _TRIES + 1):
            try:
                (answer,) = self._worker.ask([msgspec.json.encode(request)], limit_s)
            except Closed:
                raise RunWorkerError("it was closed") from None
            except CannotStart as error:
                if not error.refused and attempt < _TRIES:
                    continue  # another process may have ended it
                raise RunWorkerError(
                    str(error) if error.refused else error.output[:_OUTPUT_MAX] or str(error)
                ) from None
            if not isinstance(answer, Lost):
                reply = msgspec.json.decode(answer, type=RunAnswer)
                if reply.run is None:
                    raise RunWorkerError(reply.trouble)
                return reply.run
            lost = answer
        assert lost is not None
        report = f"The process that makes the runs {lost.how}, {_TRIES} times.\n{lost.output[:_OUTPUT_MAX]}".rstrip()
        return broken_tester(request, report)

    def close(self) -> None:
        """From any thread. A pending run() raises RunWorkerError."""
        self._worker.close()

    def end(self) -> None:
        """Call this when no thread uses it any more."""
        self._worker.fresh()
