"""What a test asks for, and so what it is a test of: a Raft, or a service above it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

MAKE_CONFIG = "make_config"
MAKE_SCENARIO = "make_scenario"
MAKE_KV_CONFIG = "make_kv_config"


def wants_service(test: Callable[..., Any]) -> bool:
    """Whether it is a test of parts 3A and 3B."""
    return MAKE_KV_CONFIG in inspect.signature(test).parameters
