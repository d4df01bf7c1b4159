"""Which simulation, if any, the calling OS thread is running."""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labsim.simulation import Simulation


class _Here(_thread._local):
    """Per OS thread, so that a helper thread (a timeout plugin, a test runner) is never taken for a task."""

    simulation: Simulation | None = None


here = _Here()
