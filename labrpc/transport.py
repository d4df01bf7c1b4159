"""How a network waits, delays messages and runs handlers: in virtual time or on real threads.

The network's own steps run one at a time: in a simulation because only one task runs at a time, on real threads because
each step holds `lock`.
"""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from labrpc.errors import RpcError
from labsim import Node, Simulation, Task, TaskFailed, current_simulation, work_for
from labsim.choices import SeededSource

F = TypeVar("F", bound=Callable[..., Any])


def make_transport(seed: int | None) -> VirtualTransport | RealTransport:
    simulation = current_simulation()
    return RealTransport(seed) if simulation is None else VirtualTransport(simulation)


class VirtualTransport:
    """The simulation's own methods, bound directly: a layer in between would slow down every call."""

    lock: AbstractContextManager[Any] = nullcontext()

    def __init__(self, simulation: Simulation) -> None:
        # The current task, for wake().
        self.caller: Callable[[], Task] = partial(attrgetter("current"), simulation)
        self.number = simulation.next_number("network")
        self.choose = simulation.choice_source.choose
        self.emit = simulation.emit
        self.later = simulation.call_later
        self.serve = simulation.spawn
        self.when_running = simulation.when_running
        self.wait = simulation.park
        self.wake: Callable[[Any], None] = simulation.wake

    def with_lock(self, step: F) -> F:
        return step

    def raise_if_failed(self) -> None:
        """Nothing: a failure ends a simulation at once."""

    def close(self) -> None:
        """Nothing: delayed steps run in virtual time, or end with the simulation."""


class RealThreadCaller(threading.Event):
    """A caller on a real thread: an event that is set when its wait is over."""

    node = None
    dead = False


class RealTransport:
    """Real threads, the real clock, no trace. For single tests in real time, not for many runs.

    A failed handler cannot end the program from its thread. So the thread prints its traceback as usual, and every
    pending call, every later call and cleanup() raise TaskFailed.
    """

    def __init__(self, seed: int | None) -> None:
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self.number = 1
        self.choose = SeededSource(random.SystemRandom().getrandbits(64) if seed is None else seed).choose
        self._callers: set[RealThreadCaller] = set()
        self._delayed: dict[threading.Timer, Callable[[], None]] = {}
        self._failure: tuple[str, str, str, BaseException] | None = None
        self._closed = False

    def with_lock(self, step: F) -> F:
        def locked_step(*args: Any) -> Any:
            with self.lock:
                return step(*args)

        return locked_step  # type: ignore[return-value]  # same arguments, same result

    def caller(self) -> RealThreadCaller:
        """Caller holds lock."""
        if current_simulation() is not None:
            raise RpcError("call(): this Network was made outside the simulation; make it inside")
        self.raise_if_failed()
        caller = RealThreadCaller()
        self._callers.add(caller)
        return caller

    def emit(
        self, kind: str, node: Node | None, detail: Any, fingerprint: int, message: int = 0, note: str = ""
    ) -> None:
        pass

    def later(self, delay_ns: int, fn: Callable[..., None], *args: Any) -> None:
        """Caller holds lock."""
        if self._closed:
            fn(*args)
            return

        def fire() -> None:
            with self.lock:
                if self._delayed.pop(timer, None) is not None:  # else close() has run it already
                    fn(*args)

        timer = threading.Timer(delay_ns / 1e9, fire)
        timer.daemon = True
        self._delayed[timer] = lambda: fn(*args)
        timer.start()

    def when_running(self, node: Node, fn: Callable[..., None], *args: Any) -> None:
        """Call it now: nodes on real threads are never paused."""
        fn(*args)

    def serve(self, fn: Callable[..., None], *args: Any, name: str, node: Node | None, entry_point: str) -> None:
        name = name if node is None else f"{name} of {node}"

        def handle() -> None:
            work_for(node)
            try:
                fn(*args)
            except BaseException as error:
                # Print it before any caller gets the error: the caller may end the program or replace the hook.
                try:
                    hook_args = (type(error), error, error.__traceback__, threading.current_thread())
                    threading.excepthook(threading.ExceptHookArgs(hook_args))
                finally:
                    self._fail(name, entry_point, error)

        threading.Thread(target=handle, name=name, daemon=True).start()

    def _fail(self, name: str, entry_point: str, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error)).rstrip()
        with self.lock:
            if self._failure is None:
                self._failure = (name, entry_point, f"task {name} ended with an exception:\n{text}", error)
            for caller in self._callers:
                caller.set()

    def raise_if_failed(self) -> None:
        if self._failure is not None:
            name, entry_point, text, error = self._failure
            # A new exception each time: several threads may raise it.
            raise TaskFailed(text, task=name, node=None, entry_point=entry_point) from error

    def wait(self, waiting_for: Any) -> None:
        caller: RealThreadCaller = waiting_for.caller
        caller.wait()
        with self.lock:
            self._callers.discard(caller)
        self.raise_if_failed()

    def wake(self, caller: Any) -> None:
        caller.set()

    def close(self) -> None:
        """Run all delayed steps now, and later ones at once. Caller holds lock."""
        self._closed = True
        for timer, fn in list(self._delayed.items()):
            timer.cancel()
            if self._delayed.pop(timer, None) is not None:
                fn()
