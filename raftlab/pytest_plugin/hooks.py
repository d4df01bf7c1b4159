"""Hooks that tools can implement to be notified of failures, and the stash key of an item's LabTest.

The plugin does not import the tools.
"""

from __future__ import annotations

from typing import Any

import pytest

from raftlab.harness.lab_test import LabTest

LAB_TEST = pytest.StashKey[LabTest]()


@pytest.hookspec
def pytest_raftlab_failed(item: Any, run: Any) -> str | None:
    """A run of a lab test failed (`run` is a raftlab.harness.run.Run): a line for the report, or None."""
