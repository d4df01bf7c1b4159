"""What tasks wait for, as values. Code reads the values; the text is only for reports.

An object that tasks wait for has two methods, `wait_kind(task)` and `describe_wait(task)`. Start at `waits_of()`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from labsim.stacks import CodeLocation, describe_stack, is_user_code, location_of, user_frames

if TYPE_CHECKING:
    from labsim.simulation import Simulation
    from labsim.task import Task


class WaitKind(Enum):
    NOTHING = "nothing (it is ready to run)"
    SLEEP = "a timeout"
    LOCK = "a lock"
    OWN_LOCK = "a lock that it holds itself"
    LOST_LOCK = "a lock whose holder has ended"
    CONDITION = "a notification"
    EVENT = "an event"
    SEMAPHORE = "a semaphore"
    ITEM = "an item in a queue"
    SPACE = "space in a queue"
    TASK_DONE = "all items of a queue to be done"
    TASK_END = "another task to end"
    REPLY = "the reply to a call"


class Wait(msgspec.Struct, frozen=True):
    """A task that does not run: what it waits for, for how long, and a text for reports, with its stack."""

    task: str
    node: str | None  # None: a task of the tester
    kind: WaitKind
    waited_ns: int
    text: str
    stack: tuple[CodeLocation, ...] = ()  # user code only, innermost first
    left_ns: int | None = None  # until its timeout, if it has one

    @property
    def where(self) -> CodeLocation | None:
        return self.stack[0] if self.stack else None


def wait_of(simulation: Simulation, task: Task) -> Wait:
    (wait,) = waits_of(simulation, [task])
    return wait


def waits_of(simulation: Simulation, tasks: Iterable[Task]) -> list[Wait]:
    timeouts_ns = simulation.timeouts_ns()
    return [_wait_of(simulation, task, timeouts_ns.get(task)) for task in tasks]


def _wait_of(simulation: Simulation, task: Task, left_ns: int | None) -> Wait:
    kind = kind_of(task)
    waited_ns = 0 if kind is WaitKind.NOTHING else simulation.now_ns - task.since_ns
    if kind is WaitKind.NOTHING:
        paused = task.node is not None and task.node.paused
        text = f"  {task} is ready to run" + (", and its node is paused" if paused else "")
    else:
        text = f"  {task} has waited {waited_ns / 1e9:.3f} s {describe_wait(task)}"
    frame = simulation.frames_of(task)
    stack = describe_stack(frame)
    node = None if task.node is None else task.node.name
    user_code = tuple(location_of(f) for f in user_frames(frame) if is_user_code(f.f_code.co_filename))
    text = f"{text}\n{stack}" if stack else text
    return Wait(task.name, node, kind, waited_ns, text, user_code, left_ns)


def kind_of(task: Task) -> WaitKind:
    what: Any = task.waiting_for
    if what is None:
        return WaitKind.NOTHING
    if isinstance(what, str):
        return WaitKind.SLEEP
    wait_kind = getattr(what, "wait_kind", None)
    return WaitKind.TASK_END if wait_kind is None else wait_kind(task)


def describe_wait(task: Task) -> str:
    """A phrase that follows "waits"."""
    what: Any = task.waiting_for
    describe = getattr(what, "describe_wait", None)
    if describe is not None:
        return f"for {describe(task)}"
    if isinstance(what, str):
        return f"in {what}"
    return f"for {what} to end"


_MAX_TASKS = 30


def describe_waits(waits: list[Wait]) -> str:
    lines = [wait.text for wait in waits[:_MAX_TASKS]]
    if len(waits) > _MAX_TASKS:
        lines.append(f"  ... and {len(waits) - _MAX_TASKS} more tasks")
    return "\n".join(lines)
