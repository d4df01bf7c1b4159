"""Worker processes behind the few methods that tools need: requests go in, a future of their answers comes out.

Not a ProcessPoolExecutor: one dead worker breaks that, and here workers are expected to die. dask.py has the same on a
cluster. Start at `Pool`.
"""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

from raftlab.layout import ROOT
from raftlab.tools.workers.job_bundle import write_files
from raftlab.tools.workers.process import Lost, WorkerProcess, python_worker

T = TypeVar("T")

PREFIX = "lab-workers-"  # of temporary folders


class PoolLost(Exception):
    """The processes that make the runs are gone; the text says why."""


class Pool(Protocol):
    """What `lab stress` asks of the processes that make the runs."""

    @property
    def slots(self) -> int:
        """How many workers there are."""

    def ask(self, requests: Sequence[bytes], limit_s: float) -> Future[list[bytes | Lost]]:
        """One answer for each request, in order, however often a worker dies; `limit_s` is for each."""

    def shutdown(self) -> None:
        """End every worker, now, whatever it is doing."""


class LocalPool:
    """Worker processes on this machine, each used by one thread of this process."""

    def __init__(
        self,
        module: str,
        setup: Any,
        jobs: int,
        *,
        files: Mapping[str, bytes] | None = None,
        folder: Path | None = None,
        reuse: bool = True,
    ) -> None:
        """`module` serves requests; `setup` is the first line that it gets. It works in `folder`, or else in a
        temporary one with these files. Without `reuse` every request gets a new process.
        """
        self.slots = jobs
        self._reuse = reuse
        self._closed = False
        self._queue: queue.SimpleQueue[tuple[Callable[[WorkerProcess], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._temporary = tempfile.TemporaryDirectory(prefix=PREFIX) if folder is None else None
        place = Path(self._temporary.name) if self._temporary is not None else folder
        assert place is not None
        write_files(files or {}, place)
        self._workers = [
            WorkerProcess(lambda: python_worker(module, setup, folder=place, lab=ROOT)) for _ in range(jobs)
        ]
        self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
        for thread in self._threads:
            thread.start()

    def start(self) -> None:
        """Start one worker, before there are requests. CannotStart, once, if the peer or a test cannot be loaded."""
        try:
            self._workers[0].start()
        except BaseException:
            self.shutdown()
            raise

    def submit(self, work: Callable[[WorkerProcess], T]) -> Future[T]:
        """Call it with a worker that nothing else uses meanwhile."""
        future: Future[T] = Future()
        self._queue.put((work, future))
        if self._closed:
            future.cancel()  # the threads may be gone
        return future

    def ask(self, requests: Sequence[bytes], limit_s: float) -> Future[list[bytes | Lost]]:
        return self.submit(lambda worker: worker.ask(requests, limit_s))

    def shutdown(self) -> None:
        """As Pool has it. What waits for a worker is canceled; work under way raises Closed."""
        self._closed = True
        for worker in self._workers:
            worker.close()
        while True:
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                break
            if entry is not None:
                entry[1].cancel()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.fresh()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _serve(self, worker: WorkerProcess) -> None:
        while (entry := self._queue.get()) is not None:
            work, future = entry
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work(worker))
            except BaseException as error:
                future.set_exception(error)
            finally:
                if not self._reuse:
                    worker.fresh()
