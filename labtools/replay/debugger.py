"""A simulation that stops in the debugger where it fails: before anything is unwound, in the peer's own frame.

Virtual time stands still meanwhile. What would wait (a lock that somebody holds, a sleep) is refused at the prompt,
because letting another task run would change the very state that is being looked at.

Start at `DebuggedSimulation.stop()`.
"""

from __future__ import annotations

import inspect
import pdb
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from labsim import Simulation, SimulationError
from labsim.deciding import Decider
from labsim.task import Task
from labtest.checks import CheckedTrace


class DebuggedSimulation(Simulation):
    """Use it where a Simulation is asked for."""

    def __init__(self, seed: int, decider: Decider, peer_class: Any, test_file: Path) -> None:
        super().__init__(seed, decider=decider)
        self.trace = CheckedTrace(self, at_once=True)
        self._own = (str(Path(inspect.getfile(peer_class)).resolve()), str(test_file))
        self._looking = False
        self._has_stopped = False

    def fail(self, failure: BaseException) -> NoReturn:
        """The lab's verdicts come here, on the stack of whoever gave the occasion."""
        if not isinstance(failure, KeyboardInterrupt):
            self.stop(failure, sys._getframe(1), None)
        super().fail(failure)

    def _failure_of(self, task: Task, error: BaseException, *, is_main: bool) -> BaseException:
        """Exceptions of tasks come here, with the frames they were raised in."""
        if isinstance(error, Exception):
            self.stop(error, None, error.__traceback__)
        return super()._failure_of(task, error, is_main=is_main)

    def _switch(self) -> None:
        if self._looking:
            raise SimulationError("virtual time stands still in the debugger, and this would wait")
        super()._switch()

    def stop(self, error: BaseException, frame: FrameType | None, tb: TracebackType | None) -> None:
        """Talk to whoever sits there; once, because what follows a failure is its aftermath."""
        if self._has_stopped:
            return
        self._has_stopped = self._looking = True
        who = f"peer {self.current.node}" if self.current.node is not None else "the tester"
        print(f"\n{str(error) or type(error).__name__}")
        print(f"Stopped at {self.now:.6f} s (virtual) in {self.current.name} of {who}. c or q ends the run.\n")
        debugger = _Debugger(self._own)
        debugger.reset()
        debugger.interaction(frame, tb)
        self._looking = False


class _Debugger(pdb.Pdb):
    """Pdb that begins in the reader's own innermost frame instead of the lab's."""

    def __init__(self, own: tuple[str, ...]) -> None:
        super().__init__(nosigint=True)
        self._own = own

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(f, t)
        # The peer's before the test's.
        for filename in self._own:
            for number in reversed(range(len(stack))):
                if stack[number][0].f_code.co_filename == filename:
                    return stack, number
        return stack, index
