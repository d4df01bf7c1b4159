"""What the pytest plugin shares with others: hooks that they may implement, and where an item's LabTest is.

The tester does not know its tools; they hear of failures here.
"""

from __future__ import annotations

from typing import Any

import pytest

from raftlab.harness.lab_test import LabTest

LAB_TEST = pytest.StashKey[LabTest]()


@pytest.hookspec
def pytest_raftlab_failed(item: Any, run: Any) -> str | None:
    """A run of a lab test failed (`run` is a raftlab.harness.run.Run): a line for the report, or None."""
