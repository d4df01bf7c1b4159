"""The pool on a Dask cluster: every thread of every Dask worker uses one worker process of ours.

The cluster's machines need Python, greenlet and msgspec, but nothing of the lab: a worker plugin brings the lab, the
peer and the tests by content. Runs are made in child processes there, so a peer that ends or fills its process costs
a run and never a Dask worker.

Promise: requests that are lost with a Dask worker are made again elsewhere, and answered once. Not promised: a cluster
that others may not trust. Start at `DaskPool`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from importlib import import_module
from typing import Any

from raftlab import tools
from raftlab.tools.workers.job_bundle import lab_itself
from raftlab.tools.workers.pool import PREFIX, PoolLost
from raftlab.tools.workers.process import CannotStart, Lost, WorkerProcess, python_worker

INSTALL = "pip install 'distributed>=2024.8'"
_CONNECT_S = 10
# The scheduler makes requests again when its worker is lost, but gives up after a few; machines come and go.
_TRIES = 5

# An answer as it travels: a line, or the fields of a Lost.
_Sent = bytes | tuple[str, str, bool]


class DaskPool:
    """A pool whose workers are on a cluster."""

    def __init__(self, module: str, setup: Any, address: str, *, files: Mapping[str, bytes]) -> None:
        """As LocalPool. PoolLost if there is no cluster, CannotStart if the peer or a test cannot be loaded there."""
        try:
            # As Any: the types, like the packages, may be there or not.
            cloudpickle: Any = import_module("cloudpickle")
            distributed: Any = import_module("distributed")
        except ImportError as error:
            raise PoolLost(f"--dask needs dask.distributed ({error}); install it with: {INSTALL}") from None
        # We report its errors ourselves, once.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        # By value: there is no raftlab on the cluster, or another version of it.
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
            self._client.register_plugin(_make_plugin(module, setup, files), name=self._name)
            self._ask = _make_task(self._name)
            started = self._executor.submit(self._ask, [], 0.0).result()
            if isinstance(started, str):
                raise CannotStart(started)
        except BaseException:
            self.shutdown()
            raise

    def ask(self, requests: Sequence[bytes], limit_s: float) -> Future[list[bytes | Lost]]:
        future: Future[list[bytes | Lost]] = Future()
        future.set_running_or_notify_cancel()
        self._send(list(requests), limit_s, future, tries=_TRIES)
        return future

    def _send(self, requests: list[bytes], limit_s: float, future: Future[list[bytes | Lost]], tries: int) -> None:
        def done(remote: Future[Any]) -> None:
            error = CancelledError() if remote.cancelled() else remote.exception()
            if type(error).__name__ == "KilledWorker" and tries > 1:
                self._send(requests, limit_s, future, tries - 1)
            elif error is not None:
                future.set_exception(
                    PoolLost(f"the Dask cluster did not finish the runs: {type(error).__name__}: {error}")
                )
            elif isinstance(remote.result(), str):
                future.set_exception(CannotStart(remote.result()))
            else:
                future.set_result([_received(sent) for sent in remote.result()])

        self._executor.submit(self._ask, requests, limit_s).add_done_callback(done)

    def shutdown(self) -> None:
        try:
            self._executor.shutdown(wait=False)
            self._client.unregister_worker_plugin(self._name)
        except Exception:
            pass  # no cluster, or none any more: then there is nothing to end
        self._client.close(timeout=2)


def _received(sent: _Sent) -> bytes | Lost:
    return sent if isinstance(sent, bytes) else Lost(sent[0], sent[1], late=sent[2])


def _make_plugin(module: str, setup: Any, job_files: Mapping[str, bytes]) -> Any:
    """What every Dask worker keeps, also one that joins later: our files and our processes."""
    import queue
    import tempfile
    from pathlib import Path

    base: Any = import_module("distributed").WorkerPlugin
    files = {
        **{f"lab/{name}": content for name, content in lab_itself().items()},
        **{f"here/{name}": content for name, content in job_files.items()},
    }
    # By these names and not by the module's: a module that travels by value takes its loader along.
    prefix, process_of, launch, lost, cannot_start = PREFIX, WorkerProcess, python_worker, Lost, CannotStart

    # A class inside a function has no name that another process could import, so it travels by value.
    class Workers(base):  # type: ignore[misc]  # see above
        def setup(self, worker: Any) -> None:
            self.folder = tempfile.TemporaryDirectory(prefix=prefix, dir=worker.local_directory)
            root = Path(self.folder.name)
            (root / "here").mkdir()
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(content)
            self.idle: Any = queue.SimpleQueue()
            start = lambda: launch(module, setup, folder=root / "here", lab=root / "lab")  # noqa: E731  # by value
            self.all = [process_of(start) for _ in range(worker.state.nthreads)]
            for process in self.all:
                self.idle.put(process)

        def ask(self, requests: list[bytes], limit_s: float) -> list[_Sent] | str:
            process = self.idle.get()
            try:
                process.start()
                answers = process.ask(requests, limit_s)
                return [(one.how, one.output, one.late) if isinstance(one, lost) else one for one in answers]
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

    return Workers()


def _make_task(name: str) -> Callable[[list[bytes], float], list[_Sent] | str]:
    def ask(requests: list[bytes], limit_s: float) -> list[_Sent] | str:
        """The answers, or the text of a CannotStart."""
        from importlib import import_module

        plugins: Any = import_module("distributed").get_worker().plugins
        return plugins[name].ask(requests, limit_s)  # type: ignore[no-any-return]  # see above

    return ask
