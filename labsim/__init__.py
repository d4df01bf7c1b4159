"""labsim: runs ordinary threaded Python in seeded virtual time.

    from labsim import Simulation, threading, time

    def main():
        done = threading.Event()
        threading.Timer(3600, done.set).start()
        done.wait()                     # an hour passes, and costs nothing
        return time.monotonic()

    Simulation(seed=7).run(main)        # 3600.0

`threading`, `time`, `queue` and `random` are drop-ins for the standard modules: inside a simulation they use virtual
time and the seed, outside they are the standard library's. `log(topic, text)` writes a line to the trace. Start reading
at simulation.py.
"""

from labsim import queue, random, threading, time
from labsim.current import run_context
from labsim.errors import (
    Deadlock,
    Livelock,
    NodeKilled,
    NoProgress,
    RealWorldError,
    SimulationError,
    TaskFailed,
    Unresponsive,
)
from labsim.log import log
from labsim.simulation import Simulation
from labsim.task import Node, Task
from labsim.trace import LOG, Event, LogLine
from labsim.waits import Wait, WaitKind

__all__ = [
    "LOG",
    "Deadlock",
    "Event",
    "Livelock",
    "LogLine",
    "NoProgress",
    "Node",
    "NodeKilled",
    "RealWorldError",
    "Simulation",
    "SimulationError",
    "Task",
    "TaskFailed",
    "Unresponsive",
    "Wait",
    "WaitKind",
    "current_node",
    "current_simulation",
    "log",
    "queue",
    "random",
    "threading",
    "time",
    "work_for",
]


def current_simulation() -> Simulation | None:
    """The simulation that the caller runs in, or None outside one."""
    return run_context.simulation


def current_node() -> Node | None:
    """The node of the calling task; outside a simulation, the node that the thread works for."""
    simulation = run_context.simulation
    return run_context.node if simulation is None else simulation.current.node


def work_for(node: Node | None) -> None:
    """Outside a simulation: assign the calling OS thread to this node."""
    run_context.node = node
