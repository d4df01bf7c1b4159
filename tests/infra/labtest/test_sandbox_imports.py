"""What runs in a sandboxed peer's process knows rules and events, and nothing of the harness that asks for them."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Of labtest, what stands left of the peer's side of the sandbox: what happened, what is wrong with it, races.
MAY_KNOW = {
    *("checks", "events", "failure", "peer_contract", "race", "rooms", "snapshot", "task_errors", "unordered"),
}
PROGRAM = """
import json, sys
import labtest.isolation.nursery, labtest.isolation.race_guest
print(json.dumps(sorted(name for name in sys.modules if name.startswith("labtest."))))
"""


def test_peers_process_imports_nothing_of_the_harness():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    known = {name.split(".")[1] for name in json.loads(done.stdout)} - {"isolation"}
    assert known == MAY_KNOW
