"""Where a Config's peers run: in a simulation (virtual.py), or on real threads (real_time.py).

runtime.py is what both can do. What only virtual time can do (a trace, a power cut, a pause, a frozen clock) is asked
of a `VirtualRuntime`, and what only real threads need of a `RealTimeRuntime`. Start at `current_runtime()`.
"""

from labsim import current_simulation
from raftlab.harness.runtime.real_time import RealTimeRuntime
from raftlab.harness.runtime.runtime import CallTimeout, Runtime
from raftlab.harness.runtime.virtual import VirtualRuntime

__all__ = ["CallTimeout", "RealTimeRuntime", "Runtime", "VirtualRuntime", "current_runtime"]


def current_runtime() -> Runtime:
    """The simulation that is running, or new real threads."""
    simulation = current_simulation()
    return RealTimeRuntime() if simulation is None else VirtualRuntime(simulation)
