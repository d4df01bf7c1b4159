"""The worker of one submission, seen from outside: load tests, run one with a seed, get a record.

Promise: run() always gives a record, whatever the submission does to its processes. Hidden tests come through the pipe,
and only when their turn has come.

Start at `Sandbox.run()`; the walls are walls.py, what happens inside is worker.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from labtools.grade.results import DIED, FORCED, RunRecord
from labtools.grade.rubric import Limits
from labtools.grade.sandbox import walls
from labtools.grade.sandbox.worker import Answer, Request, Setup, too_long
from labtools.workers.process import CannotStart, Closed, Launch, Lost, WorkerProcess

_LOAD_LIMIT_S = 60.0
_GRACE_S = 30.0  # for the worker to notice that a run is over its limit
_LAST_WORDS_MAX = 4000


class SandboxError(Exception):
    """The sandbox itself does not work here; the text says why."""


class Sandbox:
    """The worker of one submission, started when it is needed and again when it is gone. For one thread."""

    def __init__(self, lab: walls.LabCopy, files: Mapping[str, bytes], raft: str, limits: Limits) -> None:
        self._lab = lab
        self._limits = limits
        self._uid = walls.another_user()
        own_pids = walls.bubblewrap() is not None
        # What is loaded from now on is in it, for a worker that replaces this one.
        self._setup = Setup(dict(files), raft, limits, uid=self._uid, own_pids=own_pids, load={})
        self._worker = WorkerProcess(self._launch)

    def _launch(self) -> Launch:
        return walls.launch(self._lab, self._limits, msgspec.json.encode(self._setup))

    def load(self, files: Mapping[str, bytes]) -> None:
        """Test files, by a relative path that reports shall name. They are there from now on."""
        self._ask(Request(load=dict(files)), _LOAD_LIMIT_S)
        self._setup.load |= files

    def run(self, test: str, seed: int, replay: str) -> RunRecord:
        answer = self._ask(Request(test=test, seed=seed, replay=replay), self._limits.real_s + _GRACE_S)
        if not isinstance(answer, Lost):
            assert answer.run is not None
            return answer.run
        if answer.late:
            kind, cause = FORCED, too_long(self._limits)
        else:
            kind, cause = DIED, "The run ended the process that watches over it."
        report = f"{test}  seed {seed}\n  {cause}\n\n  replay    {replay}"
        return RunRecord(test=test, seed=seed, kind=kind, cause=cause, report=report)

    def close(self) -> None:
        """From any thread; a run under way raises SandboxError."""
        self._worker.close()

    def end(self) -> None:
        """By the thread that used it."""
        self._worker.fresh()

    def _ask(self, request: Request, limit_s: float) -> Answer | Lost:
        try:
            (line,) = self._worker.ask([msgspec.json.encode(request)], limit_s)
        except Closed:
            raise SandboxError("it was closed") from None
        except CannotStart as error:
            said = error.said[:_LAST_WORDS_MAX] or "it says nothing"
            text = str(error) if error.refused else f"the sandbox does not start: {said}"
            raise SandboxError(text) from None
        if isinstance(line, Lost):
            self._fail_if_it_was_us(line)
            return line
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise SandboxError(answer.error)
        return answer

    def _fail_if_it_was_us(self, lost: Lost) -> None:
        """A run cannot write where the worker does. If that died of its own error, no student shall pay for it.

        Unless they share a user: then a run can take from the worker what it needs, and nobody else shall pay for that.
        """
        if not lost.late and "Traceback" in lost.said and self._uid:
            raise SandboxError(f"the grader's own worker failed:\n{lost.said[:_LAST_WORDS_MAX]}")
