"""The harness starts peers without knowing where they run, and their processes know nothing of the harness."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from labtest.isolation.programs import SandboxedLauncher

ROOT = Path(__file__).parents[3]
LABTEST = ROOT / "labtest"
# Of labtest, what stands left of the peer's side of the sandbox: what happened, what is wrong with it, races.
MAY_KNOW = {
    *("checks", "events", "failure", "peer_contract", "race", "rooms", "snapshot", "task_errors", "unordered"),
}
PEERS_SIDE = """
import json, sys
import labtest.isolation.nursery, labtest.isolation.race_guest
print(json.dumps(sorted(name for name in sys.modules if name.startswith("labtest."))))
"""


def imported(file):
    for statement in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def test_only_the_plugin_and_tools_know_the_sandbox():
    files = [file for file in LABTEST.rglob("*.py") if LABTEST / "isolation" not in file.parents]
    found = [file.name for file in files if any(name.startswith("labtest.isolation") for name in imported(file))]
    assert found == ["plugin.py"]


def test_a_peers_process_imports_nothing_of_the_harness():
    done = subprocess.run([sys.executable, "-c", PEERS_SIDE], cwd=ROOT, capture_output=True, text=True, check=True)
    known = {name.split(".")[1] for name in json.loads(done.stdout)} - {"isolation"}
    assert known <= MAY_KNOW


def test_a_run_in_one_process_loads_no_sandbox():
    program = (
        "import sys; from pathlib import Path; from labtest.isolation.loader import launcher_for\n"
        "from labtest.running import run_test\n"
        "launcher = launcher_for(Path('raft/raft.py'), isolated=False)\n"
        "run = run_test(lambda make_config: make_config(servers=3).check_one_leader(), launcher, 1)\n"
        "assert run.error is None\n"
        "print(*sorted(name for name in sys.modules if name.startswith('labtest.isolation.')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["labtest.isolation.loader"]


def test_sandboxed_peers_need_virtual_time():
    launcher = SandboxedLauncher({}, "raft/raft.py")
    with pytest.raises(ValueError, match="sandboxed peers run in virtual time"), launcher.run(None):
        pass
