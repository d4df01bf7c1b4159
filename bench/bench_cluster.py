"""Puts on three real processes and a real disk, compared with etcd and PySyncObj, where they are installed.

facts() returns the figures; run this file to print them. Figures are relative to the time of one fsync, because disks
differ by a factor of a hundred. The machine may be busy: rounds alternate, each system has a new cluster in each round,
and the better round counts. An fsync is measured just before and just after each client. The clients are threads of
this process, one or 64, with one put at a time each.

Differences: etcd is accessed over its HTTP gateway, because its own protocol needs another library. PySyncObj is
accessed through a node in this process; its journal is written without fsync, so it survives kill -9 but not a power
cut.

Apart from two fsyncs, a put waits for Python, which takes the same time on any disk. So one client is also measured
with each fsync _SLOW_MS slower, as on slower disks.
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import labgob
from raftlab.cluster.client import make_clerk, make_connections
from raftlab.cluster.durable_store import DataOwner, DurableStore
from raftlab.cluster.load_generator import LoadResult, load_result
from raftlab.cluster.processes import ClusterProcesses
from raftlab.cluster.tcp import Address, Credentials
from raftlab.harness.loader import load_program
from raftlab.harness.options import DEFAULT, DEFAULT_KV

_ROUNDS = 2
_CLIENTS = (1, 64)
_SECONDS = 4.0
_ENTRIES = 5_000
_SLOW_MS = 6.0
_BESIDE = Path("build")  # on the disk to measure: the one that `make cluster` uses

Put = Callable[[str, str], Any]


class System(NamedTuple):
    """A cluster that runs."""

    client: Callable[[], Put]  # connects a client
    save_ms: Callable[[], float] = lambda: 0.0  # the mean time of the peers' own saves, if known


def _ports(count: int) -> list[int]:
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return found


def fsync_ms(folder: Path, count: int = 200) -> float:
    """The time of one small write with fsync."""
    path = folder / "fsync"
    took_s = []
    with path.open("wb") as file:
        for _ in range(count):
            began_s = time.perf_counter()
            os.write(file.fileno(), b"x" * 100)
            os.fdatasync(file.fileno())
            took_s.append(time.perf_counter() - began_s)
    path.unlink()
    return 1000 * statistics.median(took_s)


# ---- The systems -------------------------------------------------------------------------------------------------


@contextmanager
def _ours(folder: Path) -> Iterator[System]:
    program = load_program(DEFAULT, kv=DEFAULT_KV)
    addresses = [Address("127.0.0.1", port) for port in _ports(3)]
    with ClusterProcesses(folder, addresses, Credentials(), []) as processes:
        processes.start_all()
        lines = make_connections(addresses, Credentials())

        def save_ms() -> float:
            statuses = [processes.status(peer) for peer in range(3)]
            return statistics.mean(status.save_ms for status in statuses if status is not None)

        yield System(lambda: make_clerk(program, lines).put, save_ms)
        for line in lines:
            line.close()


@contextmanager
def _slow_disk(folder: Path) -> Iterator[None]:
    """Slows fsync in our processes started meanwhile: Python executes sitecustomize.py when it starts."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SLOW_FSYNC.format(seconds=_SLOW_MS / 1000))
    with mock.patch.dict(os.environ, PYTHONPATH=str(folder.resolve())):
        yield


_SLOW_FSYNC = """
import os, time
fsync = os.fdatasync

def slow(fd):
    time.sleep({seconds})
    fsync(fd)

os.fdatasync = slow
"""


@contextmanager
def _etcd(folder: Path) -> Iterator[System]:
    ports = _ports(6)
    clients, peers = ports[:3], ports[3:]
    all_peers = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(peers))
    with ExitStack() as stack:
        for i in range(3):
            client, peer = f"http://127.0.0.1:{clients[i]}", f"http://127.0.0.1:{peers[i]}"
            command = ["etcd", "--name", f"m{i}", "--data-dir", str(folder / f"m{i}"), "--log-level", "error"]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--initial-cluster", all_peers, "--logger", "zap"]
            stack.enter_context(_process(command, folder / f"m{i}.log"))

        def make() -> Put:
            connection = http.client.HTTPConnection("127.0.0.1", leader, timeout=30)

            def put(key: str, value: str) -> None:
                body = {
                    "key": base64.b64encode(key.encode()).decode(),
                    "value": base64.b64encode(value.encode()).decode(),
                }
                _post(connection, "/v3/kv/put", body)

            return put

        leader = _etcd_leader(clients)
        yield System(make)


def _etcd_leader(ports: list[int]) -> int:
    """The client port of the leader, once there is one."""
    until_s = time.monotonic() + 30
    while True:
        for port in ports:
            try:
                answer = _post(http.client.HTTPConnection("127.0.0.1", port, timeout=5), "/v3/maintenance/status", {})
            except (OSError, http.client.HTTPException, ValueError):
                continue
            if answer.get("leader", "0") == answer["header"]["member_id"] != "0":
                return port
        if time.monotonic() > until_s:
            raise RuntimeError("etcd has no leader after 30 s")
        time.sleep(0.1)


def _post(connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise ValueError(f"etcd returned {response.status}: {content!r}")
    return json.loads(content)


_NODE = """
import sys, time
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.batteries import ReplDict
me, others, journal = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
SyncObj(me, others, SyncObjConf(journalFile=journal), consumers=[ReplDict()])
while True:
    time.sleep(60)
"""


@contextmanager
def _pysyncobj(folder: Path) -> Iterator[System]:
    from pysyncobj import SyncObj  # type: ignore[import-not-found]  # where it is installed
    from pysyncobj.batteries import ReplDict  # type: ignore[import-not-found]  # the same

    addresses = [f"127.0.0.1:{port}" for port in _ports(3)]
    with ExitStack() as stack:
        for i, address in enumerate(addresses):
            others = ",".join(other for other in addresses if other != address)
            command = [sys.executable, "-c", _NODE, address, others, str(folder / f"journal-{i}")]
            stack.enter_context(_process(command, folder / f"node-{i}.log"))
        values = ReplDict()
        node = SyncObj(None, addresses, consumers=[values])
        until_s = time.monotonic() + 30
        while not node.isReady():
            if time.monotonic() > until_s:
                raise RuntimeError("PySyncObj is not ready after 30 s")
            time.sleep(0.1)
        yield System(lambda: lambda key, value: values.set(key, value, sync=True, timeout=30))
        node.destroy()


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


# ---- Measuring ---------------------------------------------------------------------------------------------------


def _measured(system: System, clients: int) -> LoadResult:
    took_s: list[float] = []
    puts = [system.client() for _ in range(clients)]
    puts[0]("warm", "up")
    began_s = time.monotonic()

    def work(number: int, put: Put) -> None:
        count = 0
        while (now_s := time.monotonic()) < began_s + _SECONDS:
            count += 1
            put(f"key-{number}-{count % 10}", f"value {count}")
            took_s.append(time.monotonic() - now_s)

    threads = [threading.Thread(target=work, args=(number, put)) for number, put in enumerate(puts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load_result(clients, took_s, time.monotonic() - began_s)


def _restart_s(folder: Path) -> float:
    """Restart time of a process with 5,000 entries in its log and no snapshot, until it has applied all of them."""
    program = load_program(DEFAULT, kv=DEFAULT_KV)
    ops, entries = program.template.module("kv.messages"), program.template.module("raft.messages")
    commands = [labgob.encode([ops.Op(1, n, "put", f"key {n % 100}", f"value {n}")]) for n in range(1, _ENTRIES + 1)]
    state = labgob.Encoder()
    for value in (1, None, 0, [entries.LogEntry(0, None), *(entries.LogEntry(1, command) for command in commands)]):
        state.encode(value)
    for peer in range(3):
        disk = DurableStore(folder / f"peer-{peer}", DataOwner(peer, 3))
        disk.write(state.bytes(), b"")
        disk.close()
    addresses = [Address("127.0.0.1", port) for port in _ports(3)]
    with ClusterProcesses(folder, addresses, Credentials(), ["--max-raft-state", "0"]) as processes:
        processes.start_all()
        lines = make_connections(addresses, Credentials())
        make_clerk(program, lines).put("one", "more")  # of a new term: it commits the others (§5.4.2)
        processes.kill(0)
        began_s = time.monotonic()
        processes.start(0)
        while (status := processes.status(0)) is None or status.applied <= _ENTRIES:
            time.sleep(0.005)
        took_s = time.monotonic() - began_s
        for line in lines:
            line.close()
        return took_s


def _stores(folder: Path) -> Iterator[str]:
    """The time to save one more entry to a log of 1,000: ours, SQLite, and a whole file each time."""
    import sqlite3

    states = [bytes([n % 251]) * 8 + b"an entry of some length;" * (1000 + n) for n in range(200)]
    disk = DurableStore(folder / "store", DataOwner(0, 1))
    database = sqlite3.connect(folder / "sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE blocks (number INTEGER PRIMARY KEY, block BLOB)")

    def blocks(state: bytes) -> dict[int, bytes]:
        return {at: state[at : at + 1024] for at in range(0, len(state), 1024)}

    before: dict[int, bytes] = {}

    def sqlite(state: bytes) -> None:
        nonlocal before
        after = blocks(state)
        database.execute("BEGIN")
        news = [(at, block) for at, block in after.items() if before.get(at) != block]
        database.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?)", news)
        database.execute("COMMIT")
        before = after

    def whole(state: bytes) -> None:
        path = folder / "whole"
        with path.open("wb") as file:
            file.write(state)
            file.flush()
            os.fdatasync(file.fileno())
        path.replace(folder / "whole-saved")
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    ways: dict[str, Callable[[bytes], None]] = {
        "ours": lambda state: disk.write(state, b""),
        "SQLite (WAL, synchronous=FULL)": sqlite,
        "a whole file, renamed": whole,
    }
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    for state in states:
        for name, save in ways.items():
            began_s = time.perf_counter()
            save(state)
            took_s[name].append(time.perf_counter() - began_s)
    disk.close()
    database.close()
    medians = {name: 1000 * statistics.median(took) for name, took in took_s.items()}
    times = ", ".join(f"{name} {ms:.2f} ms" for name, ms in medians.items())
    yield f"saving one more entry to a log of 1,000 entries takes: {times}"


def facts() -> Iterator[str]:
    _BESIDE.mkdir(exist_ok=True)
    here = Path(tempfile.mkdtemp(prefix="bench-cluster-", dir=_BESIDE))
    systems: dict[str, Any] = {"ours": _ours}
    if shutil.which("etcd"):
        systems["etcd"] = _etcd
    if importlib.util.find_spec("pysyncobj"):
        systems["PySyncObj"] = _pysyncobj
    sys.setswitchinterval(0.0005)
    best: dict[tuple[str, int], LoadResult] = {}
    fsyncs_ms: dict[tuple[str, int], float] = {}
    saves_ms: dict[tuple[str, int], float] = {}
    try:
        yield from _stores(here)
        for number in range(_ROUNDS):
            for name, run in systems.items():
                folder = here / f"{name}-{number}"
                folder.mkdir()
                with run(folder) as system:
                    for clients in _CLIENTS:
                        before_ms = fsync_ms(here)
                        found = _measured(system, clients)
                        if (name, clients) not in best or found.per_s > best[name, clients].per_s:
                            best[name, clients] = found
                            saves_ms[name, clients] = system.save_ms()
                            fsyncs_ms[name, clients] = statistics.mean((before_ms, fsync_ms(here)))
        for name in systems:
            for clients in _CLIENTS:
                found, fsync = best[name, clients], fsyncs_ms[name, clients]
                beside = f"; ours has {best['ours', clients].per_s / found.per_s:.2f} times its rate"
                if name == "ours":
                    save = saves_ms[name, clients]
                    beside = f", or {found.p50_ms / save:.1f} of the peers' own saves, which take {save:.2f} ms"
                fsyncs = f"{found.p50_ms / fsync:.1f} fsyncs of {fsync:.2f} ms"
                yield f"{name:<9} {found}; p50 is as long as {fsyncs}{beside}"
        with _slow_disk(here / "slow"), _ours(here / "ours-slow") as system:
            found = _measured(system, 1)
            save = system.save_ms()
            yield (
                f"ours, if each fsync takes {_SLOW_MS:g} ms longer: {found}; p50 is as long as "
                f"{found.p50_ms / save:.1f} saves of {save:.2f} ms"
            )
        yield f"the load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        yield f"restarting with {_ENTRIES:,} entries in the log takes {_restart_s(here / 'restart'):.2f} s"
    finally:
        shutil.rmtree(here, ignore_errors=True)


if __name__ == "__main__":
    for line in facts():
        print(line, flush=True)
