"""One test body, several runtimes: the drop-ins must behave as the standard library does.

Promise: a test decorated with @alike runs in three runtimes and must hold in each of them.

    simulated   labsim's drop-ins inside a Simulation, over several seeds (so over several schedules)
    real        the standard library's modules on real threads: what the other two are measured against
    outside     labsim's drop-ins where no simulation runs, on real threads

Not promised: an upper bound on wall time; assert_elapsed() is exact on virtual time, a lower bound elsewhere.
Start at alike().
"""

import contextlib
import functools
import queue as standard_queue
import random as standard_random
import threading as standard_threading
import time as standard_time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

# One short wait. Real threads pay for it, so it is small; nothing may depend on it being long enough.
TICK_S = 0.02
# Longer than any wait that is going to succeed. Only a failing test ever spends it.
PATIENCE_S = 10.0

SEEDS = range(8)


class Runtime:
    """The four modules of one runtime, and helpers for the tests."""

    def __init__(self, kind: str) -> None:
        self.simulated = kind == "simulated"
        if kind == "real":
            self.threading: Any = standard_threading
            self.time: Any = standard_time
            self.queue: Any = standard_queue
            self.random: Any = standard_random
        else:
            import labsim

            self.threading = labsim.threading
            self.time = labsim.time
            self.queue = labsim.queue
            self.random = labsim.random

    def run(self, body: Callable[[], object]) -> None:
        if self.simulated:
            self._run_on_every_seed(body)
        else:
            self._run_on_real_threads(body)

    def _run_on_every_seed(self, body: Callable[[], object]) -> None:
        from labsim import Simulation

        for seed in SEEDS:
            try:
                Simulation(seed).run(body)
            except BaseException as error:
                error.add_note(f"simulated, seed {seed}")
                raise

    def _run_on_real_threads(self, body: Callable[[], object]) -> None:
        threads_before = set(standard_threading.enumerate())
        random_before = standard_random.getstate()
        try:
            body()
        finally:
            standard_random.setstate(random_before)
        leaked = set(standard_threading.enumerate()) - threads_before
        assert not leaked, f"the test left threads behind: {leaked}"

    def spawn(self, target: Callable[..., object], *args: object) -> Any:
        """A started thread; a daemon, so that a failing test does not keep the interpreter from ending."""
        thread = self.threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        return thread

    def join(self, *threads: Any) -> None:
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread!r} did not end"

    def until(self, holds: Callable[[], object]) -> None:
        deadline_s = self.time.monotonic() + PATIENCE_S
        while not holds():
            assert self.time.monotonic() < deadline_s, "what the test waits for did not happen"
            self.time.sleep(0.001)

    def assert_elapsed(self, started_s: float, at_least: float) -> None:
        elapsed_s = self.time.monotonic() - started_s
        if self.simulated:
            assert abs(elapsed_s - at_least) < 1e-9, f"took {elapsed_s} s of virtual time, not {at_least} s"
        else:
            # A real timeout may end a little early where its clock is not the one we read.
            assert elapsed_s >= 0.6 * at_least, f"took {elapsed_s} s, less than {at_least} s"

    @contextlib.contextmanager
    def held_elsewhere(self, lock: Any) -> Iterator[None]:
        """Inside the with block another thread holds `lock`."""
        held, let_go = self.threading.Event(), self.threading.Event()

        def hold() -> None:
            with lock:
                held.set()
                let_go.wait(PATIENCE_S)

        holder = self.spawn(hold)
        assert held.wait(PATIENCE_S)
        yield
        let_go.set()
        self.join(holder)

    def elsewhere(self, call: Callable[[], Any]) -> Any:
        """What `call` returns in another thread, or the exception it raised there."""
        outcomes: list[Any] = []
        self.join(self.spawn(lambda: outcomes.append(outcome(call))))
        [only] = outcomes
        return only

    def free(self, lock: Any) -> bool:
        """Whether another thread could take `lock` (or a unit of a semaphore) right now."""

        def try_it() -> bool:
            taken: bool = lock.acquire(blocking=False)
            if taken:
                lock.release()
            return taken

        answer = self.elsewhere(try_it)
        assert isinstance(answer, bool), f"acquire(blocking=False) gave {answer!r}"
        return answer


def outcome(call: Callable[[], Any]) -> Any:
    """What `call` returns, or the exception it raised."""
    try:
        return call()
    except Exception as error:
        return error


def _in_worlds(kinds: list[str], body: Callable[..., object]) -> Callable[..., None]:
    @pytest.mark.parametrize("runtime", kinds)
    @functools.wraps(body)
    def test(runtime: str, **others: object) -> None:
        there = Runtime(runtime)
        there.run(lambda: body(there, **others))

    return test


def alike(body: Callable[..., object]) -> Callable[..., None]:
    """Make a body that takes `runtime` first into a test that runs, and must hold, in every runtime."""
    return _in_worlds(["simulated", "real", "outside"], body)


def simulated_only(body: Callable[..., object]) -> Callable[..., None]:
    """As alike(), for what only a simulation promises or only a simulation can afford."""
    return _in_worlds(["simulated"], body)
