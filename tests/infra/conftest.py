"""What several files of tests share as fixtures."""

import sys

import pytest


@pytest.fixture
def raft_package_restored():
    """Loading a peer puts it into sys.modules, and its service too, where the tests that follow would find them."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("raft", "kv")}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("raft", "kv")]:
        del sys.modules[name]
    sys.modules.update(before)
