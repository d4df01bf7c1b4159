"""`time`, on the virtual clock inside a simulation and the standard one outside.

`monotonic()` and `perf_counter()` start at 0, like the times in traces and reports. `time()` starts
at a fixed date, so that formatting it gives the same text in every run.
"""

from __future__ import annotations

import math
import time as _time
from time import asctime, mktime, strptime, struct_time
from typing import SupportsIndex

from labsim.guard import EPOCH_NS
from labsim.here import here
from labsim.simulation import seconds_to_ns

__all__ = [
    "asctime",
    "ctime",
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
    "time",
    "time_ns",
]


def sleep(secs: float | SupportsIndex) -> None:
    simulation = here.simulation
    if simulation is None:
        _time.sleep(secs)
        return
    if secs.__class__ is not float:
        if isinstance(secs, (str, bytes)) or not (hasattr(secs, "__float__") or hasattr(secs, "__index__")):
            raise TypeError(f"'{type(secs).__name__}' object cannot be interpreted as an integer")
        secs = float(secs)
    if secs < 0:
        raise ValueError("sleep length must be non-negative")
    if math.isnan(secs):
        raise ValueError("Invalid value NaN (not a number)")
    if math.isinf(secs):
        raise OverflowError("timestamp out of range for platform time_t")
    simulation.sleep(seconds_to_ns(secs))


def time_ns() -> int:
    simulation = here.simulation
    return _time.time_ns() if simulation is None else EPOCH_NS + simulation.now_ns


def time() -> float:
    simulation = here.simulation
    return _time.time() if simulation is None else (EPOCH_NS + simulation.now_ns) / 1e9


def monotonic_ns() -> int:
    simulation = here.simulation
    return _time.monotonic_ns() if simulation is None else simulation.now_ns


def monotonic() -> float:
    simulation = here.simulation
    return _time.monotonic() if simulation is None else simulation.now_ns / 1e9


def perf_counter_ns() -> int:
    simulation = here.simulation
    return _time.perf_counter_ns() if simulation is None else simulation.now_ns


def perf_counter() -> float:
    simulation = here.simulation
    return _time.perf_counter() if simulation is None else simulation.now_ns / 1e9


def process_time_ns() -> int:
    """Computing takes no virtual time, so inside a simulation this is the virtual clock too."""
    simulation = here.simulation
    return _time.process_time_ns() if simulation is None else simulation.now_ns


def process_time() -> float:
    return process_time_ns() / 1e9


def localtime(secs: float | None = None) -> struct_time:
    return _time.localtime(time() if secs is None else secs)


def gmtime(secs: float | None = None) -> struct_time:
    return _time.gmtime(time() if secs is None else secs)


def ctime(secs: float | None = None) -> str:
    return _time.ctime(time() if secs is None else secs)


def strftime(format: str, t: struct_time | None = None) -> str:  # noqa: A002  the standard name
    return _time.strftime(format, localtime() if t is None else t)
