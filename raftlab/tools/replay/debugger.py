"""A simulation that stops in the debugger at the failure, before the stack is unwound, in the failing peer's frame.

A mistake is often detected elsewhere: in the service above the peer, or when the tester crashes another peer. Then the
debugger opens in the peer's own thread, where `self` is the peer; `peer N` switches to another peer.

Virtual time is stopped in the debugger. Code at the prompt that would wait (for a lock, a sleep) is refused, because
running another task would change the inspected state.

Start at `DebuggedSimulation.stop()`.
"""

from __future__ import annotations

import inspect
import pdb
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from labsim import Simulation, SimulationError
from labsim.choices import ChoiceSource
from labsim.task import Task
from labsim.trace import Listener
from raftlab.check.failure import Failure
from raftlab.harness.records import place_of_peer


class DebuggedSimulation(Simulation):
    """A Simulation that opens pdb at a failure."""

    def __init__(self, seed: int, choice_source: ChoiceSource, peer_class: type, test_file: Path) -> None:
        super().__init__(seed, choice_source=choice_source)
        self._peer_files = place_of_peer(Path(inspect.getfile(peer_class)))
        self._test_file = test_file
        self._woken_by: dict[Task, Task] = {}
        self._in_debugger = False
        self._has_stopped = False

    def subscribe(self, listener: Listener, *, chunk: int = 1) -> None:
        """Ignores `chunk` and delivers each event at once, so that it stops on the stack that causes a violation."""
        super().subscribe(listener)

    def wake(self, task: Task) -> None:
        """The task that wakes a service has just put a message into its apply_ch."""
        self._woken_by[task] = self.current
        super().wake(task)

    def fail(self, failure: BaseException) -> NoReturn:
        """Called for failures that the lab reports, on the stack that caused them."""
        if not isinstance(failure, KeyboardInterrupt):
            self.stop(failure, sys._getframe(1), None)
        super().fail(failure)

    def _failure_of(self, task: Task, error: BaseException, *, is_main: bool) -> BaseException:
        """Called for exceptions of tasks, with the frames that raised them."""
        if isinstance(error, Exception):
            self.stop(error, None, error.__traceback__)
        return super()._failure_of(task, error, is_main=is_main)

    def _switch(self) -> None:
        if self._in_debugger:
            raise SimulationError("virtual time is stopped in the debugger, so this call would wait forever")
        super()._switch()

    def stop(self, error: BaseException, frame: FrameType | None, tb: TracebackType | None) -> None:
        """Open the debugger, but only for the first failure: later ones are its consequences."""
        if self._has_stopped:
            return
        self._has_stopped = self._in_debugger = True
        noticed_by = f"peer {self.current.node}" if self.current.node is not None else "the tester"
        print(f"\n{str(error) or type(error).__name__}")
        print(f"Stopped at {self.now:.6f} s (virtual) in {self.current.name} of {noticed_by}. c or q ends the run.")
        debugger = _Debugger(self, self._peer_files, self._test_file)
        suspect = self._suspect(error)
        current = None if self.current.node is None else self.current.node.name
        if suspect is not None and (suspect != current or not debugger.is_in_peer(frame, tb)):
            task = debugger.thread_of(suspect, first=self._woken_by.get(self.current))
            if task is not None:
                print(f"Now in {task.name}, a waiting thread of peer {suspect}; `peer N` switches to peer N.")
                frame, tb = self.frames_of(task), None
        print()
        debugger.interaction(frame, tb)
        self._in_debugger = False

    def _suspect(self, error: BaseException) -> str | None:
        """The peer that broke the rule, as the failure names it, or the one that ran or acted last."""
        if isinstance(error, Failure) and error.peer is not None:
            return error.peer
        if self.current.node is not None:
            return self.current.node.name
        if isinstance(error, Failure) and error.rule is not None and self.trace:
            return self.trace[-1].node or None
        return None


class _Debugger(pdb.Pdb):
    """Pdb that starts in the innermost frame of the peer or the test instead of the lab's; `peer N` switches peers."""

    def __init__(self, simulation: Simulation, peer_files: tuple[Path, ...], test_file: Path) -> None:
        super().__init__(nosigint=True)
        self._simulation = simulation
        self._own = (peer_files, (test_file,))  # the peer's files first
        self.reset()

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(f, t)
        for files in self._own:
            for number in reversed(range(len(stack))):
                if _is_in(stack[number][0], files):
                    return stack, number
        return stack, index

    def is_in_peer(self, f: FrameType | None, t: TracebackType | None) -> bool:
        stack, index = self.get_stack(f, t)
        return bool(stack) and _is_in(stack[index][0], self._own[0])

    def thread_of(self, peer: str, *, first: Task | None = None) -> Task | None:
        """`first`, or the thread that ran last, of the peer's threads that are running the peer's own code."""
        tasks = [task for task in self._simulation.tasks() if task.node is not None and task.node.name == peer]
        own = [task for task in tasks if self.is_in_peer(self._simulation.frames_of(task), None)]
        return first if first in own else max(own, key=lambda task: (task.since_ns, task.id), default=None)

    def do_peer(self, arg: str) -> None:
        """peer N
        Switch to the thread of peer N that ran last. There `self` is that peer.
        """
        task = self.thread_of(arg.strip())
        if task is None:
            self.error(f"no peer {arg.strip()!r} has a thread in the peer's own code")
            return
        self.message(f"In {task.name} of peer {arg.strip()}:")
        self.setup(self._simulation.frames_of(task), None)
        self.print_stack_entry(self.stack[self.curindex])


def _is_in(frame: FrameType, files: tuple[Path, ...]) -> bool:
    path = Path(frame.f_code.co_filename)
    return any(file == path or file in path.parents for file in files)
