"""The harness does not depend on where peers run, nor their processes on the harness."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raftlab import layout
from raftlab.sandbox.launcher import SandboxedLauncher

ROOT = Path(__file__).parents[3]
PEERS_SIDE = """
import json, sys
import raftlab.guest.fork_server, raftlab.guest.race_client
print(json.dumps([module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)]))
"""


def test_sandboxed_process_does_not_import_the_harness():
    done = subprocess.run([sys.executable, "-c", PEERS_SIDE], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [
        Path(file).relative_to(ROOT).as_posix() for file in json.loads(done.stdout) if Path(file).is_relative_to(ROOT)
    ]
    known = {layout.package_of(file) for file in files} - {None, "sandbox"}  # which is the fork server
    assert "guest" in known
    assert known <= {"guest", *layout.may_import("guest")}


def test_a_run_in_one_process_loads_no_sandbox():
    program = (
        "import sys; from pathlib import Path; from raftlab.sandbox.loader import launcher_for\n"
        "from raftlab.scenarios.collection import collect; from raftlab.harness.run import run_test\n"
        "launcher = launcher_for(Path('raft/raft.py'), isolated=False)\n"
        "run = run_test(collect(lambda make_config: make_config(servers=3).check_one_leader()), launcher, 1)\n"
        "assert run.error is None\n"
        "print(*sorted(name for name in sys.modules if name.startswith('raftlab.sandbox.')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["raftlab.sandbox.loader"]


def test_sandboxed_peers_need_virtual_time():
    launcher = SandboxedLauncher({}, "raft/raft.py")
    with pytest.raises(ValueError, match="sandboxed peers run in virtual time"), launcher.run(None):
        pass
