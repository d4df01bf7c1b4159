"""What a simulation is made of: tasks that take turns, the nodes they belong to, and calls that the clock makes.

They hold state and decide nothing: what happens to them, and when, is simulation.py.
"""

from __future__ import annotations

import random as _random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import greenlet  # type: ignore[import-untyped]  # it ships no types

if TYPE_CHECKING:
    from labsim.blocked import RemoteThreads


class Node:
    """One incarnation of one peer. Its tasks live and die together."""

    __slots__ = (
        "alive",
        "arrivals",
        "behind_ns",
        "clock_frozen",
        "delayed",
        "frozen_at_ns",
        "incarnation",
        "lineage",
        "lost_time",
        "name",
        "on_kill",
        "parked",
        "paused",
        "program",
        "remote",
        "stream",
        "tasks",
        "threads",
        "timers",
        "unavailable_since_ns",
    )

    def __init__(self, name: str, incarnation: int, stream: _random.Random) -> None:
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        self.stream = stream
        # A dict for its order: a set's would leak memory addresses into the run.
        self.tasks: dict[Task, None] = {}
        self.threads = 0  # that were made without a name
        # Stopped, like a process with SIGSTOP: who is ready, and what has arrived, waits here.
        self.paused = False
        self.parked: list[Task] = []
        self.arrivals: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        # Its own clock: how far behind the world's it is or, while it is held, where it stands, and its tasks' timers.
        self.clock_frozen = False
        self.behind_ns = 0
        self.frozen_at_ns = 0
        self.timers: list[tuple[int, int, Task]] = []
        self.delayed = 0  # how many of its tasks have lost their turn and get it back late
        # The stretches of the world's time that it could not use, for any of these reasons, and when the latest began.
        self.lost_time: list[tuple[int, int]] = []
        self.unavailable_since_ns: int | None = None
        self.program: Any = None  # what it runs, for whoever gives each node modules of its own
        self.remote: RemoteThreads | None = None  # where its threads run, if not here
        self.lineage: Any = None  # what its tasks' order is kept in, where it is kept (clocks.py)
        self.on_kill: Callable[[], None] | None = None  # called when it dies, for whoever has more to end than tasks

    def __str__(self) -> str:
        return self.name if self.incarnation == 1 else f"{self.name} (incarnation {self.incarnation})"

    def __repr__(self) -> str:
        return f"<Node {self}{'' if self.alive else ', dead'}>"


class Task:
    """One thread of control. Made by `Simulation.spawn`; nothing outside this room changes its fields."""

    __slots__ = (
        "args",
        "dead",
        "entry_point",
        "fn",
        "greenlet",
        "id",
        "joiners",
        "kwargs",
        "name",
        "node",
        "order",
        "since_ns",
        "stream",
        "thread",
        "timer",
        "value",
        "waiting_for",
        "woken",
    )

    def __init__(
        self,
        id_: int,
        name: str,
        node: Node | None,
        stream: _random.Random,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        entry_point: str = "",
    ) -> None:
        self.id = id_
        self.name = name
        self.node = node
        self.stream = stream
        self.fn: Callable[..., Any] | None = fn
        self.args = args
        self.kwargs = kwargs
        self.entry_point = (
            entry_point  # the method that somebody outside its node has called, "" for a thread of its own
        )
        self.greenlet: greenlet | None = None  # None before the first turn and after the last
        self.dead = False  # finished or killed
        self.timer = 0  # sequence number of the timer that may wake it, 0 for none
        self.woken = False  # whether the last wait ended by wake() and not by its timer
        self.waiting_for: Any = None
        self.since_ns = 0
        self.joiners: list[Task] | None = None
        self.value: Any = None  # what fn returned
        self.thread: Any = None  # the labsim.threading.Thread it belongs to, if any
        self.order: Any = None  # what it comes after, where that is kept (clocks.py)

    @property
    def killed(self) -> bool:
        """Whether its node is dead. Then it holds no lock any more; a task that merely ended still does."""
        return self.node is not None and not self.node.alive

    def __repr__(self) -> str:
        return f"<Task {self}>"

    def __str__(self) -> str:
        return self.name if self.node is None else f"{self.name} of {self.node}"


class TimerHandle:
    """A function that the clock calls at its time, unless cancelled. It must not wait."""

    __slots__ = ("args", "fn", "timer")

    def __init__(self, fn: Callable[..., None], args: tuple[Any, ...], timer: int) -> None:
        self.fn = fn
        self.args = args
        self.timer = timer
