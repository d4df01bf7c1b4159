"""Real processes, killed, paused, sent garbage and with full disks, under load: no acknowledged data is lost."""

import random
import resource
import socket
import struct
import time
from contextlib import suppress

import pytest

from raftlab.cluster import tcp
from raftlab.cluster.client import make_clerk, make_connections
from raftlab.cluster.processes import ProcessState
from raftlab.cluster.server import DISK_FAILED
from raftlab.cluster.tcp import Credentials
from raftlab.guest.contract import CLERK, PEER, SERVICE
from unit.cluster.running import Clients, processes, program
from unit.soak import SOAK
from unit.students import ROOT

pytestmark = [pytest.mark.usefixtures("raft_package_restored"), pytest.mark.timeout(900 if SOAK else 120)]


@pytest.fixture
def loaded(raft_package_restored):
    return program()


def test_lab_and_cluster_run_the_same_files(loaded):
    """`lab cluster serve` loads the same files as the lab's tests."""
    files = {name: loaded.template.module(name).__file__ for name in (PEER, SERVICE, CLERK, "raft.persister")}
    here = {PEER: "raft/raft.py", SERVICE: "kv/server.py", CLERK: "kv/client.py", "raft.persister": "raft/persister.py"}
    assert files == {name: str(ROOT / path) for name, path in here.items()}


# ---- Faults in a cluster with clients ------------------------------------------------------------------------


def kill_and_stop(running, clients, *, times, more):
    """Repeatedly kill or pause a random process, and bring it back."""
    chance = random.Random()
    for number in range(times):
        peer = chance.randrange(3)
        if number % 2:
            running.pause(peer)
            clients.wait_for(more)
            running.resume(peer)
        else:
            running.kill(peer)
            clients.wait_for(more)
            running.start(peer)
            running.wait_for([peer], leader=False)
        clients.wait_for(more)


def kill_all(running, clients):
    """Kill all processes: only the disks remain."""
    for peer in range(3):
        running.kill(peer)
    running.start_all()
    clients.wait_for(10)


def send_garbage(running, clients, *, frames):
    """Send all kinds of garbage. Each kind is logged once."""
    chance = random.Random(7)
    held = []
    said = [len(running.log(peer).read_text().splitlines()) for peer in range(3)]
    before = sum(running.status(peer).refused for peer in range(3))
    for number in range(frames):
        sock = socket.create_connection(chance.choice(running.addresses))
        garbage = chance.randbytes(chance.randint(1, 300))
        greeting = [tcp.MAGIC, tcp.pack(tcp.Hello())]
        framed = [struct.pack(">I", len(body)) + body for body in (*greeting, garbage)]
        first = [
            garbage,  # not a frame
            framed[2],  # a frame of garbage
            b"".join(framed),  # the same after a Hello
            b"".join(framed)[:-1],  # half a frame
            b"".join(framed[:2]) + b"\xff\xff\xff\xff" + garbage,  # a frame that is too long
        ][number % 5]
        with suppress(ConnectionError):
            sock.sendall(first)
        # Most disconnect at once; some stay connected and send nothing.
        if number % 40 == 3:
            held.append(sock)
        else:
            sock.close()
    clients.wait_for(10)
    for sock in held:
        sock.close()
    assert sum(running.status(peer).refused for peer in range(3)) - before > frames / 2
    for peer in range(3):
        assert len(running.log(peer).read_text().splitlines()) - said[peer] < 10


def fill_disk(running, clients):
    """Fill the leader's disk: it exits with a message, the others continue, and it can restart."""
    victim = next(peer for peer in range(3) if running.status(peer).leads)
    # A file size limit makes writes fail, as a full disk does.
    resource.prlimit(running.pid(victim), resource.RLIMIT_FSIZE, (6000, 6000))
    while running.is_alive(victim):
        clients.wait_for(1)
    assert running._processes[victim].returncode == DISK_FAILED
    words = running.log_tail(victim)
    assert f"peer {victim}: exits because {running.folder / f'peer-{victim}'} cannot be written: " in words
    assert "No acknowledged data is lost" in words
    clients.wait_for(10)
    running.start(victim)
    running.wait_for(range(3))
    clients.wait_for(10)


def test_acknowledged_writes_survive_kills_and_pauses(tmp_path, loaded):
    with processes(tmp_path, "--max-raft-state", "20000" if SOAK else "3000") as running:
        running.start_all()
        clients = Clients(running, loaded, clients=16 if SOAK else 3, keys=8, pause_s=0.0 if SOAK else 0.01)
        try:
            clients.wait_for(10)
            send_garbage(running, clients, frames=10_000 if SOAK else 100)
            kill_and_stop(running, clients, times=20 if SOAK else 2, more=100 if SOAK else 5)
            fill_disk(running, clients)
            kill_all(running, clients)
            clients.stop()
            assert clients.is_linearizable()
            assert [running.state(peer) for peer in range(3)] == [ProcessState.RUNNING] * 3
        finally:
            clients.close()


def test_restarted_peer_catches_up(tmp_path, loaded):
    """By a snapshot, because the log was trimmed; and the others log its absence once."""
    with processes(tmp_path, "--max-raft-state", "2000") as running:
        running.start_all()
        running.kill(0)
        lines = make_connections(running.addresses, Credentials())
        clerk = make_clerk(loaded, lines)
        for number in range(60):
            clerk.put(f"key {number}", f"value {number}")
        running.start(0)
        running.wait_for([0])
        clerk.append("key 0", ", and more")
        commit = max(running.status(peer).commit for peer in range(3))
        assert running.status(1).snapshot_bytes > 0
        while running.status(0).applied < commit:
            time.sleep(0.02)  # the test's time limit ends it
        assert clerk.get("key 0") == "value 0, and more"
        for peer in (1, 2):
            log = running.log(peer).read_text()
            assert log.count("peer 0 at") <= 4, log  # lost and back, perhaps also at the start
        for line in lines:
            line.close()
