"""Finds the blocked tasks of a simulation, what they wait for, and who holds the locks: `blocked()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from labsim.simulation import NS_PER_S, Simulation
from labsim.stacks import is_user_code, user_frames
from labsim.task import Node, Task
from labsim.waits import Wait, WaitKind, kind_of, waits_of

_BLOCKED_NS = NS_PER_S
_HELD_NS = 50_000_000
_THREADS_MAX = 50  # of a node, that are described
# A node's own thread should not wait long for these; a call from outside should not wait long for anything.
_BLOCKED_KINDS = (WaitKind.OWN_LOCK, WaitKind.LOST_LOCK, WaitKind.LOCK, WaitKind.SPACE)


class ThreadReport(Protocol):
    """The results of blocked(), node_threads() and held_locks() for one node in another process."""

    @property
    def blocked(self) -> Sequence[Wait]: ...
    @property
    def threads(self) -> Sequence[Wait]: ...
    @property
    def held_lock(self) -> str:
        """The name of a WaitKind; "" if no thread holds a lock."""


class RemoteThreads(Protocol):
    """The threads of a node in another process."""

    def observe(self, asked: Task | None = None) -> ThreadReport | None:
        """What they wait for; None if that cannot be determined. `asked`: a call that has not returned."""


def blocked(simulation: Simulation, asked: Task | None = None) -> list[Wait]:
    """Tasks of nodes that have been blocked for over a second, those that block others first.

    A node's own thread is blocked if it waits for a lock or for space in a queue, or holds a lock that a blocked task
    waits for. A call from outside (a handler, start(), the service's snapshot()) is blocked whatever it waits for.
    Order: the call `asked`, which has not returned, and its node; tasks that wait for their own lock; holders of locks;
    tasks that wait for space; the node's own threads; calls that queue up behind them, one for each line of code.
    """
    waiting = {task: None for task in simulation.tasks() if task is asked or _is_blocked(simulation, task)}
    holders = {holder: None for task in waiting if (holder := waiting_holder(task)) is not None}
    found: dict[Any, Wait] = {}
    first = sorted([*holders, *(task for task in waiting if task not in holders)], key=_rank(asked, holders))
    tasks = [task for task in first if task is not simulation.current]
    for task, wait in zip(tasks, waits_of(simulation, tasks), strict=True):
        queues_up = task is not asked and task not in holders and _is_call(simulation, task)
        found.setdefault((wait.node, wait.kind, wait.where) if queues_up else task, wait)
    return list(found.values())


def held_locks(simulation: Simulation) -> dict[str, WaitKind]:
    """By node, if some of its tasks have waited for a lock for a while: what the holder of the lock waits for.

    LOST_LOCK, if there is no holder any more.
    NOTHING, if the holder has just run, or the lock is being handed over.
    """
    held: dict[str, WaitKind] = {}
    forever = (WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)
    for task in simulation.tasks():
        kind = kind_of(task)
        if task.node is None or kind not in (WaitKind.LOCK, *forever):
            continue
        if task.since_ns <= simulation.now_ns - _HELD_NS:
            holder = waiting_holder(task)
            held_for = WaitKind.NOTHING if holder is None else kind_of(holder)
            if kind in forever:
                held[task.node.name] = kind
            elif held.get(task.node.name, WaitKind.NOTHING) is WaitKind.NOTHING:
                held[task.node.name] = held_for
    return held


def node_threads(simulation: Simulation) -> list[Wait]:
    """What the oldest threads of each node wait for, oldest first, without the calls from outside."""
    threads = []
    found: Counter[Node] = Counter()
    for task in simulation.tasks():
        if task.node is not None and task.thread is not None:
            found[task.node] += 1
            if found[task.node] <= _THREADS_MAX:
                threads.append(task)
    return waits_of(simulation, threads)


def waiting_holder(task: Task) -> Task | None:
    """The holder of the lock that this task waits for, if the holder itself waits for something other than a lock."""
    holder = task.waiting_for.holder if kind_of(task) is WaitKind.LOCK else None
    kinds = (WaitKind.NOTHING, WaitKind.LOCK, WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)
    return None if holder is None or holder.dead or kind_of(holder) in kinds else holder


def _is_blocked(simulation: Simulation, task: Task) -> bool:
    node = task.node
    if node is None or node.paused:
        return False
    if simulation.now_ns - task.since_ns - simulation.lost_time_ns(node, task.since_ns) < _BLOCKED_NS:
        return False
    kind = kind_of(task)
    return kind in _BLOCKED_KINDS or (kind is not WaitKind.NOTHING and _is_call(simulation, task))


def _is_call(simulation: Simulation, task: Task) -> bool:
    """Whether an outside caller (the network, the tester, or the service in snapshot()) waits for it."""
    if task.entry_point:
        return True
    # The service's own thread belongs to the tester and is not a Thread. While it waits for messages, no frame is the
    # peer's.
    return task.thread is None and any(
        is_user_code(frame.f_code.co_filename) for frame in user_frames(simulation.frames_of(task))
    )


def _rank(asked: Task | None, holders: Container[Task]) -> Callable[[Task], tuple[bool, ...]]:
    def rank(task: Task) -> tuple[bool, ...]:
        kind = kind_of(task)
        return (
            task is not asked,
            asked is not None and task.node is not asked.node,
            kind is not WaitKind.OWN_LOCK,
            task not in holders,
            kind is not WaitKind.SPACE,
            task.thread is None,
        )

    return rank
