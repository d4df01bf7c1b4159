"""Which simulation, if any, the calling OS thread is running; and outside one, for which node it works."""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labsim.simulation import Simulation
    from labsim.task import Node


class _RunContext(_thread._local):
    """Per OS thread, so that a helper thread (a timeout plugin, a test runner) is never taken for a task."""

    simulation: Simulation | None = None
    node: Node | None = None  # of a real thread. A task knows its own


run_context = _RunContext()
