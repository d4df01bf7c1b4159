"""`time` on the virtual clock inside a simulation, and the standard module outside.

`monotonic()` and `perf_counter()` start at 0, like the times in traces and reports. `time()` starts at a fixed date, so
that formatting it gives the same text in every run.
"""

from __future__ import annotations

import time as _time
from operator import index
from threading import TIMEOUT_MAX
from time import altzone, daylight, mktime, strptime, struct_time, timezone, tzname
from typing import Any, NoReturn, SupportsIndex

from labsim.current import run_context
from labsim.guard import EPOCH_NS
from labsim.simulation import seconds_to_ns

__all__ = [
    "altzone",
    "asctime",
    "ctime",
    "daylight",
    "gmtime",
    "localtime",
    "mktime",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "sleep",
    "strftime",
    "strptime",
    "struct_time",
    "thread_time",
    "thread_time_ns",
    "time",
    "time_ns",
    "timezone",
    "tzname",
]


_TimeTuple = tuple[Any, ...] | struct_time


def __getattr__(name: str) -> Any:
    if hasattr(_time, name):
        raise AttributeError(f"labsim.time has no {name}: it has no meaning in virtual time")
    raise AttributeError(f"module 'labsim.time' has no attribute {name!r}")


def sleep(secs: float | SupportsIndex, /) -> None:
    simulation = run_context.simulation
    if simulation is None:
        _time.sleep(secs)
        return
    if secs.__class__ is not float and not isinstance(secs, float):
        secs = index(secs)  # no Fraction, no Decimal, as the standard one
    if not 0 <= secs <= TIMEOUT_MAX:
        _refuse_to_sleep(secs)
    simulation.sleep(seconds_to_ns(secs))


def _refuse_to_sleep(secs: float) -> NoReturn:
    if secs < 0:
        raise ValueError("sleep length must be non-negative")
    if secs != secs:
        raise ValueError("Invalid value NaN (not a number)")
    raise OverflowError("timestamp out of range for platform time_t")


def time_ns() -> int:
    simulation = run_context.simulation
    return _time.time_ns() if simulation is None else EPOCH_NS + simulation.time_of(simulation.current.node)


def time() -> float:
    simulation = run_context.simulation
    return _time.time() if simulation is None else (EPOCH_NS + simulation.time_of(simulation.current.node)) / 1e9


def monotonic_ns() -> int:
    simulation = run_context.simulation
    return _time.monotonic_ns() if simulation is None else simulation.time_of(simulation.current.node)


def monotonic() -> float:
    simulation = run_context.simulation
    if simulation is None:
        return _time.monotonic()
    if simulation.one_clock:
        return simulation.now_ns / 1e9  # as time_of() would say; peers ask all the time
    return simulation.time_of(simulation.current.node) / 1e9


def perf_counter_ns() -> int:
    simulation = run_context.simulation
    return _time.perf_counter_ns() if simulation is None else simulation.time_of(simulation.current.node)


def perf_counter() -> float:
    simulation = run_context.simulation
    return _time.perf_counter() if simulation is None else simulation.time_of(simulation.current.node) / 1e9


def process_time_ns() -> int:
    """Computing takes no virtual time, so inside a simulation this is the virtual clock too."""
    simulation = run_context.simulation
    return _time.process_time_ns() if simulation is None else simulation.time_of(simulation.current.node)


def process_time() -> float:
    return process_time_ns() / 1e9


def thread_time_ns() -> int:
    simulation = run_context.simulation
    return _time.thread_time_ns() if simulation is None else simulation.time_of(simulation.current.node)


def thread_time() -> float:
    return thread_time_ns() / 1e9


def localtime(secs: float | None = None, /) -> struct_time:
    return _time.localtime(time() if secs is None else secs)


def gmtime(secs: float | None = None, /) -> struct_time:
    return _time.gmtime(time() if secs is None else secs)


def ctime(secs: float | None = None, /) -> str:
    return _time.ctime(time() if secs is None else secs)


def asctime(t: _TimeTuple | None = None, /) -> str:
    return _time.asctime(localtime() if t is None else t)


def strftime(format: str, t: _TimeTuple | None = None, /) -> str:  # noqa: A002  the standard name
    return _time.strftime(format, localtime() if t is None else t)
