"""The objects of a simulation: tasks, the nodes they belong to, and timers.

They only hold state. simulation.py decides what happens to them, and when.
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
        self.threads = 0  # number of threads made without a name
        # Stopped, like a process with SIGSTOP: ready tasks and arrived messages wait here.
        self.paused = False
        self.parked: list[Task] = []
        self.arrivals: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        # Its own clock: how far it is behind the simulation's; while it is frozen, its time and its tasks' timers.
        self.clock_frozen = False
        self.behind_ns = 0
        self.frozen_at_ns = 0
        self.timers: list[tuple[int, int, Task]] = []
        self.delayed = 0  # number of its tasks that are preempted with a delay
        # The ranges of simulation time that it could not use, for any of these reasons, and when the current one began.
        self.lost_time: list[tuple[int, int]] = []
        self.unavailable_since_ns: int | None = None
        self.program: Any = None  # the program that it runs, if each node has its own modules
        self.remote: RemoteThreads | None = None  # its threads, if they run in another process
        self.lineage: Any = None  # the NodeClocks of its tasks, if happens-before is tracked (clocks.py)
        self.on_kill: Callable[[], None] | None = None  # called when it is killed

    def __str__(self) -> str:
        return self.name if self.incarnation == 1 else f"{self.name} (incarnation {self.incarnation})"

    def __repr__(self) -> str:
        return f"<Node {self}{'' if self.alive else ', dead'}>"


class Task:
    """One thread of control. Made by `Simulation.spawn`; no code outside labsim changes its fields."""

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
            entry_point  # for a call from outside the node, the called method; "" for a thread of the node
        )
        self.greenlet: greenlet | None = None  # None before the task starts and after it has ended
        self.dead = False  # finished or killed
        self.timer = 0  # sequence number of its timer, 0 for none
        self.woken = False  # whether wake(), and not the timer, ended the last wait
        self.waiting_for: Any = None
        self.since_ns = 0
        self.joiners: list[Task] | None = None
        self.value: Any = None  # what fn returned
        self.thread: Any = None  # the labsim.threading.Thread it belongs to, if any
        self.order: Any = None  # its TaskClock, if happens-before is tracked (clocks.py)

    @property
    def killed(self) -> bool:
        """Whether its node is dead. Then it holds no locks any more; a task that merely ended still does."""
        return self.node is not None and not self.node.alive

    def __repr__(self) -> str:
        return f"<Task {self}>"

    def __str__(self) -> str:
        return self.name if self.node is None else f"{self.name} of {self.node}"


class TimerHandle:
    """A function that a timer calls at its time, unless canceled. It must not wait."""

    __slots__ = ("args", "fn", "timer")

    def __init__(self, fn: Callable[..., None], args: tuple[Any, ...], timer: int) -> None:
        self.fn = fn
        self.args = args
        self.timer = timer
