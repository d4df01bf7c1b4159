"""Helpers of the tests with real processes: free ports, processes, clients that record a history."""

import random
import socket
import threading
import time
from pathlib import Path

from raftlab.check.linearizability import CheckResult, History, OperationKind, check
from raftlab.cluster.client import make_clerk, make_connections
from raftlab.cluster.processes import ClusterProcesses
from raftlab.cluster.tcp import Address, Credentials
from raftlab.harness.loader import load_program
from raftlab.harness.workload import written
from unit.students import ROOT


def free_ports(count):
    """A port that is free, like those after it."""
    while True:
        first = random.SystemRandom().randrange(20_000, 32_000)
        try:
            for port in range(first, first + count):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def addresses():
    first = free_ports(3)
    return [Address("127.0.0.1", first + peer) for peer in range(3)]


def processes(folder, *more):
    files = ("--raft", str(ROOT / "raft/raft.py"), "--kv", str(ROOT / "kv/server.py"))
    return ClusterProcesses(Path(folder), addresses(), Credentials(), [*files, *more])


def program():
    return load_program(ROOT / "raft/raft.py", kv=ROOT / "kv/server.py")


class Clients:
    """Threads that put, append and get until stop(), and record a history."""

    def __init__(self, running, loaded, *, clients, keys, pause_s):
        self.history = History(time.monotonic)
        self._mu = threading.Lock()
        self._stop = threading.Event()
        self._keys = keys
        self._pause_s = pause_s
        self._loaded = loaded
        self._lines = make_connections(running.addresses, Credentials())
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def done(self):
        with self._mu:
            return sum(not operation.pending for operation in self.history.operations)

    def wait_for(self, more):
        """Wait until so many more operations have returned."""
        target, until_s = self.done() + more, time.monotonic() + 60
        while self.done() < target:
            assert time.monotonic() < until_s, f"{target - self.done()} of {more} operations did not return in a minute"
            time.sleep(0.01)

    def stop(self):
        """Stop, and read every key once more."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        clerk = make_clerk(self._loaded, self._lines)
        for key in range(self._keys):
            self._do("last", clerk, OperationKind.GET, str(key))

    def close(self):
        self._stop.set()
        for line in self._lines:
            line.close()

    def is_linearizable(self):
        verdict = check(self.history.operations)
        assert verdict.result is CheckResult.OK, verdict
        return True

    def _work(self, number):
        chance = random.Random(number)
        clerk = make_clerk(self._loaded, self._lines)
        count = 0
        while not self._stop.wait(self._pause_s):
            count += 1
            kind = chance.choices([OperationKind.APPEND, OperationKind.GET, OperationKind.PUT], [6, 3, 1])[0]
            value = "" if kind is OperationKind.GET else written(number, count)
            self._do(f"client {number}", clerk, kind, str(chance.randrange(self._keys)), value)

    def _do(self, client, clerk, kind, key, value=""):
        with self._mu:
            operation = self.history.call(client, kind, key, value)
        answer = clerk.get(key) if kind is OperationKind.GET else getattr(clerk, kind.value)(key, value)
        with self._mu:
            self.history.returns(operation, answer)
