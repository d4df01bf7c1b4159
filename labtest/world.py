"""Where a Config's peers live: in a simulation, where a crash is a power cut, or on real threads.

On real threads nothing can end a thread from outside, so a crash there is what the MIT lab does: the peer is told
to stop, is cut off, and its disk is copied before anybody can write to it again.
"""

from __future__ import annotations

import threading as _threading
import time as _time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from labsim import Node, Simulation, current_simulation
from labsim.stacks import describe_task

T = TypeVar("T")

_STUCK_S = 1.0


class Stuck(Exception):
    """A call on a peer did not return in time."""


class VirtualWorld:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    @property
    def now(self) -> float:
        return self.simulation.now

    def node(self, name: str) -> Node:
        return self.simulation.node(name)

    def call(self, node: Node | None, fn: Callable[..., T], *args: Any, limit_s: float) -> T:
        """Run fn as a task of the node, so that its threads and its random numbers are the node's."""
        simulation = self.simulation
        task = simulation.spawn(fn, *args, node=node)
        if not simulation.join(task, int(limit_s * 1e9)):
            raise Stuck
        return task.value  # type: ignore[no-any-return]

    def spawn(self, node: Node | None, fn: Callable[..., None], *args: Any, name: str) -> None:
        self.simulation.spawn(fn, *args, node=node, name=name)

    def kill(self, node: Node | None, stop: Callable[[], None]) -> None:
        assert node is not None
        self.simulation.kill(node)

    def after(self, delay_s: float, fn: Callable[[], None]) -> None:
        self.simulation.call_later(int(delay_s * 1e9), fn)

    def emit(self, kind: str, node: Node | None, detail: Any, fingerprint: int, note: str = "") -> None:
        self.simulation.emit(kind, node, 0, detail, fingerprint, note)

    def fail(self, failure: BaseException) -> NoReturn:
        self.simulation.fail(failure)

    def raise_if_failed(self) -> None:
        """fail() ends the run at once; there is never anything left to raise."""

    def stuck_tasks(self) -> list[str]:
        """Tasks of peers that have waited for a lock, or for room in apply_ch, for over a second."""
        since_ns = self.simulation.now_ns - int(_STUCK_S * 1e9)
        return [
            describe_task(self.simulation, task)
            for task in self.simulation.tasks()
            if task.node is not None
            and task.since_ns <= since_ns
            and type(task.waiting_for).__name__ in ("Lock", "RLock", "Queue")
            and not task.name.startswith("service")
        ]


class RealWorld:
    def __init__(self) -> None:
        self._began_s = _time.monotonic()
        self._failure: BaseException | None = None

    @property
    def now(self) -> float:
        return _time.monotonic() - self._began_s

    def node(self, name: str) -> Node | None:
        return None

    def call(self, node: Node | None, fn: Callable[..., T], *args: Any, limit_s: float) -> T:
        return fn(*args)

    def spawn(self, node: Node | None, fn: Callable[..., None], *args: Any, name: str) -> None:
        _threading.Thread(target=fn, args=args, name=name, daemon=True).start()

    def kill(self, node: Node | None, stop: Callable[[], None]) -> None:
        stop()

    def after(self, delay_s: float, fn: Callable[[], None]) -> None:
        timer = _threading.Timer(delay_s, fn)
        timer.daemon = True
        timer.start()

    def emit(self, kind: str, node: Node | None, detail: Any, fingerprint: int, note: str = "") -> None:
        pass

    def fail(self, failure: BaseException) -> NoReturn:
        if self._failure is None:
            self._failure = failure
        raise failure

    def raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stuck_tasks(self) -> list[str]:
        return []


def current_world() -> VirtualWorld | RealWorld:
    simulation = current_simulation()
    return RealWorld() if simulation is None else VirtualWorld(simulation)
