"""The simulation that the calling OS thread runs, if any; outside a simulation, the node that the thread works for."""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labsim.simulation import Simulation
    from labsim.task import Node


class _RunContext(_thread._local):
    """Per OS thread, so that a helper thread (a timeout plugin, a test runner) is never mistaken for a task."""

    simulation: Simulation | None = None
    node: Node | None = None  # of a real thread; a task has its own


run_context = _RunContext()
