"""Real processes, killed and stopped under load, hit with garbage, on disks that are full: nothing is lost."""

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


def test_both_worlds_run_the_same_files(loaded):
    """What `lab cluster serve` makes its peer and service of: the very files that the lab's tests run."""
    files = {name: loaded.template.module(name).__file__ for name in (PEER, SERVICE, CLERK, "raft.persister")}
    here = {PEER: "raft/raft.py", SERVICE: "kv/server.py", CLERK: "kv/client.py", "raft.persister": "raft/persister.py"}
    assert files == {name: str(ROOT / path) for name, path in here.items()}


# ---- What is done to a cluster that has clients ----------------------------------------------------------------


def kill_and_stop(running, clients, *, times, more):
    """A random process is killed or stopped, again and again, and comes back."""
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
    """Now only what is on the disks counts."""
    for peer in range(3):
        running.kill(peer)
    running.start_all()
    clients.wait_for(10)


def send_garbage(running, clients, *, frames):
    """Of all kinds. Said once for each kind of trouble, and not hundreds of times."""
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
            garbage,  # no frame
            framed[2],  # a frame of garbage
            b"".join(framed),  # the same after a greeting
            b"".join(framed)[:-1],  # half a frame
            b"".join(framed[:2]) + b"\xff\xff\xff\xff" + garbage,  # too long a one
        ][number % 5]
        with suppress(ConnectionError):
            sock.sendall(first)
        # Most go at once, some stay and say nothing more.
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
    """Of whoever leads: it stops with a word, the others go on, and when there is room again it is back."""
    victim = next(peer for peer in range(3) if running.status(peer).leads)
    # What a full disk does to a write, short of one: it ends in an error.
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


def test_every_acknowledged_write_survives_whatever_is_done_to_the_processes(tmp_path, loaded):
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


def test_a_peer_that_comes_back_has_what_the_others_did_meanwhile(tmp_path, loaded):
    """From a snapshot, where the log is gone; and the others say only once that it is away."""
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
            assert log.count("peer 0 at") <= 4, log  # gone and back, perhaps also when all began
        for line in lines:
            line.close()
