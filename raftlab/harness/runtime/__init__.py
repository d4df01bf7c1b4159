"""Where a Config's peers run: in a simulation (virtual.py), or on real threads (real_time.py).

runtime.py is the common interface. Only `VirtualRuntime` has a trace, crashes at any point, pauses and frozen clocks.
Start at `current_runtime()`.
"""

from labsim import current_simulation
from raftlab.harness.runtime.real_time import RealTimeRuntime
from raftlab.harness.runtime.runtime import CallTimeout, Runtime
from raftlab.harness.runtime.virtual import VirtualRuntime

__all__ = ["CallTimeout", "RealTimeRuntime", "Runtime", "VirtualRuntime", "current_runtime"]


def current_runtime() -> Runtime:
    """A runtime for the current simulation; outside of one, a new runtime with real threads."""
    simulation = current_simulation()
    return RealTimeRuntime() if simulation is None else VirtualRuntime(simulation)
