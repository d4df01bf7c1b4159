"""Which tasks of a simulation are blocked and on what, and who holds the locks that others wait for: `blocked()`."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from labsim.simulation import NS_PER_S, Simulation
from labsim.stacks import is_user_code, user_frames
from labsim.task import Task
from labsim.waits import Wait, WaitKind, kind_of, wait_of

_BLOCKED_NS = NS_PER_S
_HELD_NS = 50_000_000
# Whatever a thread is for, it should not wait long for these. A call from outside should not wait long at all.
_BLOCKED_KINDS = (WaitKind.OWN_LOCK, WaitKind.LOST_LOCK, WaitKind.LOCK, WaitKind.ROOM)


class ThreadReport(Protocol):
    """What blocked(), own_threads() and held_locks() have found elsewhere, of one node."""

    @property
    def blocked(self) -> Sequence[Wait]: ...
    @property
    def threads(self) -> Sequence[Wait]: ...
    @property
    def held_lock(self) -> str:
        """The name of a WaitKind; "" if no lock is held."""


class RemoteThreads(Protocol):
    """Where the threads of a node run that are not here."""

    def observe(self, asked: Task | None = None) -> ThreadReport | None:
        """What they are at; None if that cannot be found out. `asked`: a call that did not return."""


def blocked(simulation: Simulation, asked: Task | None = None) -> list[Wait]:
    """Tasks of nodes that have not got on for over a second, whoever keeps the others back first.

    A node's own thread is blocked if it waits for a lock or for room in a queue, or holds a lock that a blocked one
    waits for. A call from outside (a handler, start(), the service's snapshot()) is blocked whatever it waits for.
    Order: the call that was `asked` and did not return, and its node; who waits for its own lock; who holds a lock;
    who waits for room; the node's own threads; calls that merely queue up behind them, one for each line of code.
    """
    waiting = {task: None for task in simulation.tasks() if task is asked or _is_blocked(simulation, task)}
    holders = {holder: None for task in waiting if (holder := waiting_holder(task)) is not None}
    found: dict[Any, Wait] = {}
    for task in sorted([*holders, *(task for task in waiting if task not in holders)], key=_rank(asked, holders)):
        if task is simulation.current:
            continue
        wait = wait_of(simulation, task)
        queues_up = task is not asked and task not in holders and _is_call(simulation, task)
        found.setdefault((wait.node, wait.kind, wait.where) if queues_up else task, wait)
    return list(found.values())


def held_locks(simulation: Simulation) -> dict[str, WaitKind]:
    """By node, where some of its tasks have waited for a lock for a while: what its holder waits for.

    LOST_LOCK, if there is no holder any more.
    NOTHING, if the holder has just got on, or the lock is on its way from one to the next.
    """
    held: dict[str, WaitKind] = {}
    for_ever = (WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)
    for task in simulation.tasks():
        kind = kind_of(task)
        if task.node is None or kind not in (WaitKind.LOCK, *for_ever):
            continue
        if task.since_ns <= simulation.now_ns - _HELD_NS:
            holder = waiting_holder(task)
            held_for = WaitKind.NOTHING if holder is None else kind_of(holder)
            if kind in for_ever:
                held[task.node.name] = kind
            elif held.get(task.node.name, WaitKind.NOTHING) is WaitKind.NOTHING:
                held[task.node.name] = held_for
    return held


def node_threads(simulation: Simulation) -> list[Wait]:
    """What the threads that nodes have made wait for, oldest first; not the calls from outside."""
    threads = (task for task in simulation.tasks() if task.node is not None and task.thread is not None)
    return [wait_of(simulation, task) for task in threads]


def waiting_holder(task: Task) -> Task | None:
    """Who holds the lock that this task waits for, while it waits itself for something other than a lock."""
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
    """Whether a caller outside waits for it: the network or the tester (an entry), or the service, in snapshot()."""
    if task.entry_point:
        return True
    # The service's own thread is the tester's and no Thread. While it waits for messages, no line is the peer's.
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
            kind is not WaitKind.ROOM,
            task.thread is None,
        )

    return rank
