"""`lab stress --dask` against a real scheduler and two real worker processes, one of which is killed."""

import json
import subprocess
import sys
import time

import pytest

from raftlab import tools
from raftlab.tools import selection
from raftlab.tools.stress.stress_run import Plan, run_stress
from raftlab.tools.stress.tally import Tally
from raftlab.tools.workers.job_bundle import JobBundle
from raftlab.tools.workers.pool import PoolLost
from raftlab.tools.workers.process import CannotStart, WorkerProcess, python_worker
from unit.tools.peers import ROOT, lab, make_peer

WORKER = "raftlab.tools.stress.worker"
PATIENCE_S = 60.0  # with a busy machine
# The lab itself must have come by content, and not from where the worker's Python would find it.
HIDDEN = """
import raftlab

def test_hidden(make_config):
    assert "lab-workers-" in raftlab.__file__, raftlab.__file__
    cfg = make_config(servers=3)
    cfg.check_one_leader()
"""


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_without_dask_it_says_how_to_install_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert lab("stress", "2a", "--dask", "tcp://127.0.0.1:1", "--out", tmp_path) == 2
    assert "install it with: pip install 'distributed>=2024.8'" in capsys.readouterr().err


def start(*arguments, log):
    # Only the loopback device, no dashboard, no nanny: what is killed stays dead.
    return subprocess.Popen(
        [sys.executable, "-m", *arguments, "--host", "127.0.0.1", "--no-dashboard"], stdout=log, stderr=log
    )


@pytest.fixture
def cluster(tmp_path):
    """The address, and the two workers."""
    pytest.importorskip("distributed")
    processes = []
    with (tmp_path / "cluster.log").open("w") as log:
        try:
            info = tmp_path / "scheduler.json"
            scheduler = start("distributed.cli.dask_scheduler", "--port", "0", "--scheduler-file", str(info), log=log)
            processes.append(scheduler)
            until_s = time.monotonic() + PATIENCE_S
            while not info.exists() or not info.read_text().strip():
                assert time.monotonic() < until_s and scheduler.poll() is None, (tmp_path / "cluster.log").read_text()
                time.sleep(0.05)
            address = json.loads(info.read_text())["address"]
            options = ["--nthreads", "1", "--no-nanny", "--memory-limit", "0", "--local-directory", str(tmp_path)]
            processes += [start("distributed.cli.dask_worker", address, *options, log=log) for _ in range(2)]
            wait_for_workers(address)
            yield address, processes[1:]
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def wait_for_workers(address):
    from distributed import Client

    with Client(address, set_as_default=False, timeout=PATIENCE_S) as client:
        client.wait_for_workers(2, timeout=PATIENCE_S)


# Its own event loop and sockets are not ours to tidy.
@pytest.mark.filterwarnings("default")
def test_a_cluster_that_loses_a_worker_in_the_middle_loses_no_run_and_counts_none_twice(cluster, tmp_path):
    from raftlab.tools.workers.dask import DaskPool

    address, workers = cluster
    assert address.startswith("tcp://127.0.0.1:")
    hidden = tmp_path / "hidden_test.py"
    hidden.write_text(HIDDEN)
    peer = make_peer(tmp_path / "peer", "import os\nif seed == 33: os._exit(4)\nassert seed != 44")
    tests = selection.select([], [hidden])
    bundle = JobBundle.of(peer, tests, run_limit_s=20, memory_mb=0)
    # By content: from here on nobody needs these.
    peer.unlink()
    hidden.unlink()

    seeds = []
    killed_at = []

    class Counting(Tally):
        def add(self, outcomes):
            seeds.extend(outcome.seed for outcome in outcomes)
            super().add(outcomes)

    def watch():
        if len(seeds) >= 20 and not killed_at:
            killed_at.append(len(seeds))
            workers[0].kill()

    tally = Counting(["test_hidden"], 0)
    pool = DaskPool(WORKER, bundle.setup, address, files=bundle.files)
    try:
        assert pool.slots == 2
        run_stress(pool, bundle.setup, Plan(200), tally, watch)
    finally:
        pool.shutdown()
    assert killed_at and killed_at[0] < 150, "the worker was killed too late to matter"
    assert workers[0].wait() == -9 and workers[1].poll() is None
    assert sorted(seeds) == list(range(200))
    found = {cause.shortest.seed: (cause.count, cause.shortest.cause) for cause in tally.causes}
    assert found == {
        33: (1, "The worker process ended itself with exit status 4 during the run."),
        44: (1, "AssertionError"),
    }

    # While there is a cluster: a peer that cannot be loaded is told as it is locally.
    (tmp_path / "raft.py").write_text("class Raft:\n    def start(self:\n")
    broken = JobBundle.of(tmp_path / "raft.py", selection.select(["2a"]), run_limit_s=20, memory_mb=0)
    with pytest.raises(CannotStart, match=r"raft\.py:2: SyntaxError"):
        DaskPool(WORKER, broken.setup, address, files=broken.files)


WITHOUT_THE_LAB = """
import sys
sys.modules["raftlab"] = None  # importing it raises
import cloudpickle
with open(sys.argv[1], "rb") as file:
    make_worker = cloudpickle.load(file)
worker = make_worker()
try:
    print(worker.ask([b'{"test": "test_initial_election_2a", "seed": 7}'], 60)[0].decode())
finally:
    worker.fresh()
"""


def test_what_looks_after_workers_needs_nothing_of_the_lab_where_it_is_sent(tmp_path):
    cloudpickle = pytest.importorskip("cloudpickle")
    bundle = JobBundle.of(
        ROOT / "raft" / "raft.py", selection.select(["test_initial_election_2a"]), run_limit_s=20, memory_mb=0
    )
    bundle.unpack(tmp_path)
    setup, root = bundle.setup, ROOT
    cloudpickle.register_pickle_by_value(tools)
    try:
        (tmp_path / "sent").write_bytes(
            cloudpickle.dumps(lambda: WorkerProcess(lambda: python_worker(WORKER, setup, folder=tmp_path, lab=root)))
        )
    finally:
        cloudpickle.unregister_pickle_by_value(tools)
    command = [sys.executable, "-P", "-c", WITHOUT_THE_LAB, str(tmp_path / "sent")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"]


@pytest.mark.filterwarnings("default")
def test_an_address_where_nobody_answers_is_named(monkeypatch):
    pytest.importorskip("distributed")
    from raftlab.tools.workers import dask

    monkeypatch.setattr(dask, "_CONNECT_S", 1)
    bundle = JobBundle.of(ROOT / "raft" / "raft.py", selection.select(["2a"]), run_limit_s=20, memory_mb=0)
    with pytest.raises(PoolLost, match=r"--dask tcp://127\.0\.0\.1:9: no scheduler answers there"):
        dask.DaskPool(WORKER, bundle.setup, "tcp://127.0.0.1:9", files=bundle.files)
