"""Where runs are made: worker processes on this machine, behind the small part of an Executor that a campaign needs.

Not a ProcessPoolExecutor: there one dead worker breaks the whole pool, and here workers are expected to die.
A batch of seeds goes in, a future of its outcomes comes out. Start at `Pool`, the interface.
"""

from __future__ import annotations

import queue
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from raftlab.harness.outcome import Outcome
from raftlab.layout import ROOT
from raftlab.tools.stress.seed_worker import SeedWorker
from raftlab.tools.workers.job_bundle import JobBundle

_decode = msgspec.json.Decoder(Outcome).decode


class SeedBatch(NamedTuple):
    test: str
    seeds: list[int]


class Pool(Protocol):
    """What a campaign asks of whoever makes the runs."""

    @property
    def slots(self) -> int:
        """How many runs it makes at a time."""

    def submit(self, batch: SeedBatch) -> Future[list[Outcome]]:
        """One outcome for each seed of the batch, however often a worker dies on the way."""

    def shutdown(self) -> None:
        """End every worker, now, whatever it is doing."""


def outcomes(lines: list[bytes]) -> list[Outcome]:
    return [_decode(line) for line in lines]


class LocalPool:
    """Worker processes on this machine, each with a thread here that looks after it."""

    def __init__(self, bundle: JobBundle, jobs: int) -> None:
        """Raises CannotStart if the peer or a test cannot be loaded."""
        self.slots = jobs
        self._work: queue.SimpleQueue[tuple[SeedBatch, Future[list[Outcome]]] | None] = queue.SimpleQueue()
        self._folder = tempfile.TemporaryDirectory(prefix="lab-stress-") if bundle.files else None
        folder = Path.cwd() if self._folder is None else Path(self._folder.name)
        bundle.unpack(folder)
        self._workers = [SeedWorker(bundle.setup, folder, ROOT) for _ in range(jobs)]
        self._threads = [threading.Thread(target=self._look_after, args=(w,), daemon=True) for w in self._workers]
        try:
            # One alone: what cannot be loaded is said once. The others start when they get work.
            self._workers[0].start()
        except BaseException:
            self.shutdown()
            raise
        for thread in self._threads:
            thread.start()

    def submit(self, batch: SeedBatch) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        self._work.put((batch, future))
        return future

    def shutdown(self) -> None:
        for worker in self._workers:
            worker.close()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for worker in self._workers:
            worker.fresh()
        if self._folder is not None:
            self._folder.cleanup()

    def _look_after(self, worker: SeedWorker) -> None:
        while (entry := self._work.get()) is not None:
            batch, future = entry
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(outcomes(worker.run(batch.test, batch.seeds)))
            except Exception as error:
                future.set_exception(error)
