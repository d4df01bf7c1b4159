"""Real processes, killed and stopped under load, hit with garbage, on disks that are full: nothing is lost."""

import random
import resource
import socket
import struct
import time
from contextlib import suppress

import pytest

from infra.labtools.cluster.running import Clients, processes, program
from infra.labtools.cluster.soaking import SOAK
from infra.students import ROOT
from labrpc import tcp
from labrpc.tcp import Credentials
from labtest.program import CLERK, PEER, SERVICE
from labtools.cluster.asking import make_clerk, make_lines
from labtools.cluster.processes import State
from labtools.cluster.serving import DISK_FAILED

pytestmark = [pytest.mark.usefixtures("raft_package_restored"), pytest.mark.timeout(900 if SOAK else 120)]


@pytest.fixture
def loaded(raft_package_restored):
    return program()


def test_both_worlds_run_the_same_files(loaded):
    """What `lab serve` makes its peer and service of: the very files that the lab's tests run."""
    files = {name: loaded.template.module(name).__file__ for name in (PEER, SERVICE, CLERK, "raft.persister")}
    here = {PEER: "raft/raft.py", SERVICE: "kv/server.py", CLERK: "kv/client.py", "raft.persister": "raft/persister.py"}
    assert files == {name: str(ROOT / path) for name, path in here.items()}


def test_every_acknowledged_write_survives_kills_and_stops(tmp_path, loaded):
    """A random process is killed or stopped under load, again and again, and comes back."""
    chance = random.Random()
    with processes(tmp_path, "--max-raft-state", "20000") as running:
        running.start_all()
        clients = Clients(running, loaded, clients=16 if SOAK else 4, keys=8)
        try:
            clients.wait_for(50)
            for number in range(20 if SOAK else 2):
                peer = chance.randrange(3)
                if number % 2:
                    running.pause(peer)
                    clients.wait_for(100 if SOAK else 20)
                    running.resume(peer)
                else:
                    running.kill(peer)
                    clients.wait_for(100 if SOAK else 20)
                    running.start(peer)
                    running.wait_for([peer], leader=False)
                clients.wait_for(20)
            # All at once: now only what is on the disks counts.
            for peer in range(3):
                running.kill(peer)
            running.start_all()
            clients.wait_for(20)
            clients.stop()
            assert clients.is_linearizable()
            assert [running.state(peer) for peer in range(3)] == [State.RUNNING] * 3
        finally:
            clients.close()


def test_a_peer_that_comes_back_has_what_the_others_did_meanwhile(tmp_path, loaded):
    """From a snapshot, where the log is gone; and the others say only once that it is away."""
    with processes(tmp_path, "--max-raft-state", "2000") as running:
        running.start_all()
        running.kill(0)
        lines = make_lines(running.addresses, Credentials())
        clerk = make_clerk(loaded, lines)
        for number in range(100):
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


def test_whatever_connects_the_cluster_goes_on(tmp_path, loaded):
    chance = random.Random(7)
    with processes(tmp_path) as running:
        running.start_all()
        clients = Clients(running, loaded, clients=2, keys=2)
        try:
            held = []
            for number in range(10_000 if SOAK else 200):
                sock = socket.create_connection(chance.choice(running.addresses))
                garbage = chance.randbytes(chance.randint(1, 300))
                greeting = [tcp.MAGIC, tcp._pack(tcp.Hello())]
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
            clients.wait_for(20)
            clients.stop()
            assert clients.is_linearizable()
            assert [running.state(peer) for peer in range(3)] == [State.RUNNING] * 3
            # Said once for each kind of trouble, not hundreds of times.
            assert max(len(running.log(peer).read_text().splitlines()) for peer in range(3)) < 20
            assert sum(running.status(peer).refused for peer in range(3)) > 100
            for sock in held:
                sock.close()
        finally:
            clients.close()


def test_a_peer_whose_disk_is_full_stops_with_a_word_and_loses_nothing(tmp_path, loaded):
    with processes(tmp_path) as running:
        running.start_all()
        clients = Clients(running, loaded, clients=2, keys=2)
        try:
            clients.wait_for(20)
            victim = next(peer for peer in range(3) if running.status(peer).leads)
            # What a full disk does to a write, short of one: it ends in an error.
            resource.prlimit(running.pid(victim), resource.RLIMIT_FSIZE, (6000, 6000))
            while running.is_alive(victim):
                clients.wait_for(1)
            assert running._processes[victim].returncode == DISK_FAILED
            words = running.last_words(victim)
            assert f"peer {victim}: stops, because {tmp_path / f'peer-{victim}'} cannot be written: " in words
            assert "Nothing that was acknowledged is lost" in words
            clients.wait_for(20)  # the other two go on
            running.start(victim)
            running.wait_for(range(3))
            clients.wait_for(20)
            clients.stop()
            assert clients.is_linearizable()
        finally:
            clients.close()
