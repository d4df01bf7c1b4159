"""The same campaign on a Dask cluster: every thread of every Dask worker looks after one worker process of ours.

The cluster's machines need Python, greenlet and msgspec, but nothing of the lab: a worker plugin brings the lab,
the peer and the tests by content. The runs are made in child processes there, so a peer that ends or fills its
process costs a run and never a Dask worker.

Promise: a run that is lost with a Dask worker is made again elsewhere, and counted once: the scheduler repeats the
batch, and the campaign counts futures. Not promised: a cluster that other people do not trust.

Start at `DaskPool`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from importlib import import_module
from typing import Any

from raftlab import tools
from raftlab.harness.outcome import Outcome
from raftlab.tools.stress.pool import SeedBatch, outcomes
from raftlab.tools.stress.seed_worker import SeedWorker
from raftlab.tools.stress.stress_run import PoolLost
from raftlab.tools.workers.job_bundle import JobBundle, lab_itself
from raftlab.tools.workers.process import CannotStart

INSTALL = "pip install 'distributed>=2024.8'"
_CONNECT_S = 10
# The scheduler makes a batch again when its worker is lost, but gives up after a few; machines come and go.
_TRIES = 5


class DaskPool:
    """A pool whose workers are on a cluster."""

    def __init__(self, bundle: JobBundle, address: str) -> None:
        """Raises PoolLost if there is no cluster, CannotStart if the peer cannot be loaded there."""
        try:
            # As Any: the types, like the packages, may be there or not.
            cloudpickle: Any = import_module("cloudpickle")
            distributed: Any = import_module("distributed")
        except ImportError as error:
            raise PoolLost(f"--dask needs dask.distributed ({error}); install it with: {INSTALL}") from None
        # Its own error is told once, by us.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        # By value: over there is no raftlab, or another version of it.
        cloudpickle.register_pickle_by_value(tools)
        try:
            self._client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise PoolLost(f"--dask {address}: no scheduler answers there ({error or type(error).__name__})") from None
        self._executor = self._client.get_executor(pure=False, retries=0)
        self._name = f"raftlab-{os.urandom(8).hex()}"
        try:
            self.slots = sum(self._client.nthreads().values())
            if not self.slots:
                raise PoolLost(f"--dask {address}: the scheduler has no workers")
            self._client.register_plugin(_make_plugin(bundle), name=self._name)
            self._run = _make_task(self._name)
            self._check()
        except BaseException:
            self.shutdown()
            raise

    def _check(self) -> None:
        error = self._executor.submit(self._run, "", []).result()
        if isinstance(error, str):
            raise CannotStart(error)

    def submit(self, batch: SeedBatch) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        future.set_running_or_notify_cancel()
        self._send(batch, future, tries=_TRIES)
        return future

    def _send(self, batch: SeedBatch, future: Future[list[Outcome]], tries: int) -> None:
        def done(remote: Future[Any]) -> None:
            error = CancelledError() if remote.cancelled() else remote.exception()
            if type(error).__name__ == "KilledWorker" and tries > 1:
                self._send(batch, future, tries - 1)
            elif error is not None:
                future.set_exception(PoolLost(f"the cluster gave runs up: {type(error).__name__}: {error}"))
            elif isinstance(remote.result(), str):
                future.set_exception(CannotStart(remote.result()))
            else:
                future.set_result(outcomes(remote.result()))

        self._executor.submit(self._run, batch.test, batch.seeds).add_done_callback(done)

    def shutdown(self) -> None:
        try:
            self._executor.shutdown(wait=False)
            self._client.unregister_worker_plugin(self._name)
        except Exception:
            pass  # no cluster, or none any more: then there is nothing to end
        self._client.close(timeout=2)


def _make_plugin(bundle: JobBundle) -> Any:
    """What every Dask worker, also one that joins later, keeps for the campaign: our files and our processes."""
    import queue
    import tempfile
    from pathlib import Path

    base: Any = import_module("distributed").WorkerPlugin
    files = {
        **{f"lab/{name}": content for name, content in lab_itself().items()},
        **{f"here/{name}": content for name, content in bundle.files.items()},
    }
    setup = bundle.setup
    # By these names and not by the module's: a module that travels by value takes its loader along.
    seed_worker, cannot_start = SeedWorker, CannotStart

    # A class inside a function has no name that another process could import, so it travels by value.
    class DaskRuns(base):  # type: ignore[misc]  # see above
        def setup(self, worker: Any) -> None:
            self.folder = tempfile.TemporaryDirectory(prefix="lab-stress-", dir=worker.local_directory)
            root = Path(self.folder.name)
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(content)
            self.idle: Any = queue.SimpleQueue()
            self.all = [seed_worker(setup, root / "here", root / "lab") for _ in range(worker.state.nthreads)]
            for process in self.all:
                self.idle.put(process)

        def run(self, test: str, seeds: list[int]) -> list[bytes] | str:
            process = self.idle.get()
            try:
                process.start()
                lines: list[bytes] = process.run(test, seeds)
                return lines
            except cannot_start as error:
                return str(error)
            finally:
                self.idle.put(process)

        def teardown(self, worker: Any) -> None:
            for process in self.all:
                process.close()
            while not self.idle.empty():
                self.idle.get().fresh()
            self.folder.cleanup()

    return DaskRuns()


def _make_task(name: str) -> Callable[[str, list[int]], list[bytes] | str]:
    def run(test: str, seeds: list[int]) -> list[bytes] | str:
        """Outcomes as they came from the worker process, or the text of a CannotStart."""
        from importlib import import_module

        plugins: Any = import_module("distributed").get_worker().plugins
        return plugins[name].run(test, seeds)  # type: ignore[no-any-return]  # see above

    return run
