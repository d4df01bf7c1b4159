"""Runs, asked for: a submission, a test and a seed in, a record out.

Promise: run() always gives a record. If the process that makes the runs is lost it is started again, and the run made
again, because nothing of the submission runs in it. Start at `Box.run()`; the other side is worker.py.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from raftlab.harness.outcome import Outcome
from raftlab.layout import ROOT
from raftlab.sandbox import confinement
from raftlab.tools.grade.runs.worker import Answer, Request, broken_tester
from raftlab.tools.workers.process import CannotStart, Closed, Lost, WorkerProcess, python_worker

_GRACE_S = 60.0  # beyond the limit of a run, which the worker keeps itself
_TRIES = 5
_LAST_WORDS_MAX = 4000


class BoxError(Exception):
    """Runs cannot be made here; the text says why."""


def refusal() -> str:
    """What is missing here of the walls around a submission; "" if nothing is."""
    if confinement.bubblewrap() is None:
        what = "bubblewrap cannot be used here, so submissions could read this machine's files and use its network"
    elif not confinement.syscall_filter():
        what = "libseccomp cannot be used here, so submissions could speak to each other and start processes"
    else:
        return ""
    return f"{what}; install what is missing ({confinement.INSTALL}), or grade without the sandbox: --no-sandbox"


class Box:
    """A process that makes runs. For one thread, but for close()."""

    def __init__(self) -> None:
        # Not where a raft/raft.py lies: a report must not take its lines from there.
        here = Path(__file__).parent
        self._worker = WorkerProcess(
            lambda: python_worker("raftlab.tools.grade.runs.worker", None, folder=here, lab=ROOT)
        )

    def run(self, request: Request) -> Outcome:
        limit_s = request.setup.limits.real_s * _TRIES + _GRACE_S
        lost = None
        for attempt in range(1, _TRIES + 1):
            try:
                (answer,) = self._worker.ask([msgspec.json.encode(request)], limit_s)
            except Closed:
                raise BoxError("it was closed") from None
            except CannotStart as error:
                if not error.refused and attempt < _TRIES:
                    continue  # somebody may have ended it
                raise BoxError(str(error) if error.refused else error.said[:_LAST_WORDS_MAX] or str(error)) from None
            if not isinstance(answer, Lost):
                told = msgspec.json.decode(answer, type=Answer)
                if told.run is None:
                    raise BoxError(told.trouble)
                return told.run
            lost = answer
        assert lost is not None
        report = f"The process that makes the runs {lost.how}, {_TRIES} times.\n{lost.said[:_LAST_WORDS_MAX]}".rstrip()
        return broken_tester(request, report)

    def close(self) -> None:
        """From any thread; a run under way raises BoxError."""
        self._worker.close()

    def end(self) -> None:
        """When nobody uses it any more."""
        self._worker.fresh()
