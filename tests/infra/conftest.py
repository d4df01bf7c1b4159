"""What several files of tests share as fixtures, and which files of them begin first."""

import signal
import sys
from pathlib import Path

import pytest

# Whoever is started in the background ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# They take longest, the longest first. A worker gets whole files: if one of these began last, the others would wait.
LONG = (
    "labtools/zoo/test_zoo.py",
    "labtools/grade/test_hostile.py",
    "labtest/test_isolation.py",
    "labtools/grade/test_grade.py",
    "labtools/stress/test_stress.py",
    "labtools/grade/test_proof.py",
    "labtools/page/test_page.py",
    "labtools/shrink/test_shrink.py",
    "labtools/grade/test_kept.py",
    "labtest/test_plugin.py",
    "labtest/test_isolated_services.py",
    "labtools/grade/test_showing.py",
    "labtools/hunt/test_hunting.py",
    "labtest/scenarios/test_library.py",
    "labtest/test_kv.py",
    "labtools/test_handout.py",
    "labtools/grade/test_store_key.py",
    "labtools/stress/test_dask.py",
    "labtest/test_determinism.py",
    "labtest/test_choices.py",
    "labtest/test_checks_reading.py",
    "labtools/replay/test_replay.py",
    "labtools/zoo/test_mutating.py",
    "labtools/cluster/test_commands.py",
    "labtools/hunt/test_command.py",
    "labtest/test_diagnose.py",
    "labtools/cluster/test_cluster.py",
    "labtools/timeline/test_timeline.py",
    "labtools/grade/test_services.py",
    "labtools/cluster/test_disk.py",
)


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):  # one of several workers
        places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: places.get(item.path, len(LONG)))


LOADED = ("raft", "kv", "raftapi")


@pytest.fixture
def raft_package_restored():
    """Loading a peer puts it into sys.modules, and its service too, where the tests that follow would find them."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in LOADED}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in LOADED]:
        del sys.modules[name]
    sys.modules.update(before)
