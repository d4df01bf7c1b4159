"""Shared fixtures, and the order in which parallel workers get test files."""

import signal
import sys
from pathlib import Path

import pytest

# A shell's background process ignores SIGINT, and so would all processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The slowest files, slowest first. A worker gets whole files, so a slow one must not start last.
LONG = (
    "mutants/test_mutants.py",
    "tools/grade/test_hostile.py",
    "sandbox/test_sandbox.py",
    "tools/grade/test_grade.py",
    "tools/stress/test_stress.py",
    "tools/grade/test_validation.py",
    "tools/page/test_page.py",
    "tools/shrink/test_shrink.py",
    "tools/grade/test_results_store.py",
    "pytest_plugin/test_plugin.py",
    "sandbox/test_services.py",
    "tools/grade/test_artifacts.py",
    "tools/fuzz/test_minimizer.py",
    "scenarios/test_library.py",
    "harness/test_kv.py",
    "tools/test_handout.py",
    "tools/grade/test_store_key.py",
    "tools/stress/test_dask.py",
    "harness/test_determinism.py",
    "trace/test_choice_file.py",
    "trace/test_decoding.py",
    "tools/replay/test_replay.py",
    "mutants/test_random_command.py",
    "cluster/test_commands.py",
    "tools/fuzz/test_command.py",
    "check/test_diagnosis.py",
    "cluster/test_cluster.py",
    "tools/timeline/test_timeline.py",
    "tools/grade/test_services.py",
    "cluster/test_disk.py",
)


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):  # one of several workers
        places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: places.get(item.path, len(LONG)))


LOADED = ("raft", "kv", "raftapi")


@pytest.fixture
def raft_package_restored():
    """Loading a peer and its service adds them to sys.modules, where later tests would find them."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in LOADED}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in LOADED]:
        del sys.modules[name]
    sys.modules.update(before)
