"""A real thread that detects a task which never waits; inside the simulation no other task could run to notice.

It measures the processor time of the simulation's thread, so that a busy machine causes no false report. For a task
blocked in a real call, which uses no processor, real time counts, with a much longer limit. A task under a debugger is
left alone.

Not promised: interrupting a call that blocks in C (a real lock, a socket) outside the process's main thread, which
Python cannot do. The watchdog reports it on stderr instead.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from greenlet import getcurrent  # type: ignore[import-untyped]  # it ships no types

from labsim import stacks
from labsim.current import run_context
from labsim.errors import Unresponsive

if TYPE_CHECKING:
    from labsim.simulation import Simulation

_STUCK_FACTOR = 6  # real seconds allowed for each second of processor time allowed
_CHECKS_PER_LIMIT = 10
_PAUSE_S_MAX = 0.5

# The one signal that is ignored by default, that no test plugin uses, and that is harmless when it comes late.
_SIGNAL = getattr(signal, "SIGURG", None)

_DEBUGGERS = ("bdb", "pdb", "cmd", "code", "pydevd", "_pydevd_bundle", "_pydevd_frame_eval")


class _Watch:
    """The state of one simulation since its last task switch."""

    def __init__(self, simulation: Simulation, limit_s: float) -> None:
        self.simulation = simulation
        self.limit_s = limit_s
        self.pause_s = min(_PAUSE_S_MAX, limit_s / _CHECKS_PER_LIMIT)
        self.os_thread = simulation.os_thread
        self.by_signal = _SIGNAL is not None and self.os_thread == threading.main_thread().ident
        # Get the clock here, in the thread itself: for a thread that has ended the call is invalid.
        self.clock = time.pthread_getcpuclockid(self.os_thread) if hasattr(time, "pthread_getcpuclockid") else None
        self.reset()

    def processor_s(self) -> float:
        return time.process_time() if self.clock is None else time.clock_gettime(self.clock)

    def reset(self) -> None:
        self.switches = self.simulation.switches
        self.processor_s_then = self.processor_s()
        # Counted in pauses and not read off a clock: time in which the whole process was stopped does not count.
        self.real_s = 0.0
        self.report = ""
        self.where: stacks.CodeLocation | None = None


_watched: dict[int, _Watch] = {}
_any_watched = threading.Event()
_changing = _thread.allocate_lock()
_thread_started = False


@contextmanager
def watched(simulation: Simulation) -> Iterator[None]:
    if simulation.unresponsive_s is None:
        yield
        return
    watch = _Watch(simulation, simulation.unresponsive_s)
    previous = signal.signal(_SIGNAL, _interrupt) if watch.by_signal else None  # type: ignore[arg-type]
    with _changing:
        _ensure_thread()
        _watched[watch.os_thread] = watch
        _any_watched.set()
    try:
        yield
    finally:
        with _changing:
            del _watched[watch.os_thread]
            if not _watched:
                _any_watched.clear()
        # Nothing is sent to this thread any more. An exception already in flight must not hit the code after the run.
        if not watch.by_signal:
            _raise_in(watch.os_thread, None)
        else:
            signal.signal(_SIGNAL, previous or signal.SIG_DFL)  # type: ignore[arg-type]


def _ensure_thread() -> None:
    """Start the thread, once per process; it idles while no simulation runs. Caller holds _changing."""
    global _thread_started
    if not _thread_started:
        _thread_started = True
        threading.Thread(target=_watch, name="labsim-watchdog", daemon=True).start()


def _reset_in_child() -> None:
    """A forked child has neither the thread nor its simulations, and may have inherited a lock that stays locked."""
    global _thread_started, _any_watched, _changing
    _thread_started = False
    _watched.clear()
    _any_watched = threading.Event()
    _changing = _thread.allocate_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def _watch() -> None:
    while True:
        _any_watched.wait()
        with _changing:
            pause_s = min((watch.pause_s for watch in _watched.values()), default=_PAUSE_S_MAX)
        time.sleep(pause_s)
        _check_all(pause_s)


def _check_all(pause_s: float) -> None:
    with _changing:
        for watch in _watched.values():
            _check(watch, pause_s)


def _check(watch: _Watch, pause_s: float) -> None:
    """Caller holds _changing."""
    frame = None
    if watch.simulation.switches == watch.switches:
        watch.real_s += pause_s
        busy = watch.processor_s() - watch.processor_s_then > watch.limit_s
        if not busy and watch.real_s <= watch.limit_s * _STUCK_FACTOR:
            return
        frame = sys._current_frames().get(watch.os_thread)
    if frame is None or _debugging(frame):
        watch.reset()
        return
    if busy:
        what = f"has run for {watch.limit_s:g} s of processor time without waiting"
    else:
        what = f"has been blocked for {watch.limit_s * _STUCK_FACTOR:g} s of real time in a real call"
    reported, watch.report = bool(watch.report), describe_unresponsive(watch.simulation, what, frame)
    own = (f for f in stacks.user_frames(frame) if stacks.is_user_code(f.f_code.co_filename))
    watch.where = next(map(stacks.location_of, own), None)
    if watch.by_signal:
        signal.pthread_kill(watch.os_thread, _SIGNAL)  # type: ignore[arg-type]
        return
    if not busy and not reported:
        print(f"labsim: {watch.report}", file=sys.stderr, flush=True)
    _raise_in(watch.os_thread, _Interruption)


def _raise_in(os_thread: int, error: type[BaseException] | None) -> None:
    argument = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(os_thread), argument)


def _debugging(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def _interrupt(*_: object) -> None:
    """Runs on top of the task that does not wait, and never returns to it."""
    watch = _watched.get(_thread.get_ident())
    if watch is None or not watch.report or watch.simulation.switches != watch.switches:
        return  # too late: the task has waited since
    simulation = watch.simulation
    if run_context.simulation is not simulation or getcurrent() is simulation.main_greenlet:
        return  # the run itself, between its tasks
    report, where = watch.report, watch.where
    watch.reset()
    simulation.fail(Unresponsive(report, where=where))


class _Interruption(Unresponsive):
    """Like `_interrupt()`, where signals cannot be used: Python creates and raises this exception in the thread.

    Its creation ends the run, before an `except` of the task could swallow the exception.
    """

    def __init__(self) -> None:
        super().__init__("a task did not wait")
        _interrupt()


def describe_unresponsive(simulation: Simulation, what: str, frame: FrameType | None) -> str:
    """The report on a task that does not wait."""
    return (
        f"task {simulation.current} {what}, at {simulation.now:.6f} s (virtual). It is here:\n"
        f"{stacks.describe_stack(frame)}\n"
        "Virtual time does not advance while a task runs. Every loop must wait (time.sleep, Condition.wait, "
        "Queue.get); use only labsim's locks, and make them inside the simulation."
    )
