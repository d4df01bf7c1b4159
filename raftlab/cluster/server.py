"""One process of a cluster: a peer and its service, as in the lab, over TCP and on disk.

Promise: acknowledged data survives any end of this process. It exits with a message if it cannot save, or if a thread
of the peer or the service raises an exception. Not promised: that an incorrect raft.py works; the lab's tests find
mistakes more easily. Start at `serve()`, which `lab cluster serve` calls.
"""

from __future__ import annotations

import argparse
import errno
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from labrpc import Server, Service
from raftlab.cluster import lifetime, options
from raftlab.cluster.durable_store import DataOwner, DurableStore, StoreError, persister_on
from raftlab.cluster.options import UsageError
from raftlab.cluster.status import ApplyQueue, StatusCollector, StatusService
from raftlab.cluster.tcp import Address, Credentials, TcpClient, TcpEnd
from raftlab.cluster.tcp_server import TcpServer
from raftlab.guest.contract import PEER, SERVICE

# Exit codes.
FAILED, REFUSED, DISK_FAILED = 1, 2, 3

# Most threads only forward something, and should not wait longer for the interpreter.
_SWITCH_S = 0.0005
# The lab's apply_ch holds one message, to expose peers that apply while they hold a lock. Here a long log is applied
# without a thread switch for each entry.
_APPLY_QUEUE_MAX = 128
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ServerConfig(NamedTuple):
    me: int
    addresses: list[Address]
    folder: Path
    credentials: Credentials
    max_raft_state: int | None
    parent: int | None  # exit when this process ends


def add_command(commands: Any) -> None:
    """Add this command to `lab cluster`."""
    text = "run one peer"
    parser = commands.add_parser("serve", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(run=_serve)
    parser.add_argument("--me", type=int, required=True, metavar="N", help="number of this peer, from 0")
    options.add_peers(parser)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder for saved state (default: build/serve/peer-N)")
    options.add_max_raft_state(parser)
    options.add_program(parser)
    options.add_tls(parser)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)


def _serve(args: argparse.Namespace) -> int:
    addresses = options.parse_addresses(args.peers)
    if not 0 <= args.me < len(addresses):
        raise UsageError(f"--me must be 0..{len(addresses) - 1}, because --peers names {len(addresses)}; got {args.me}")
    credentials = options.credentials(args, addresses, args.me)
    folder = args.data or Path("build/serve") / f"peer-{args.me}"
    return serve(
        ServerConfig(args.me, addresses, folder, credentials, options.max_raft_state(args), args.parent),
        options.load(args),
    )


def logger_for(me: int) -> Callable[[str], None]:
    """A function that writes a log line: time, peer, text."""

    def log(text: str) -> None:
        now_s = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now_s))
        # One write, so that lines of several threads do not mix.
        sys.stderr.write(f"{clock}.{int(now_s * 1000) % 1000:03} peer {me}: {text}\n")
        sys.stderr.flush()

    return log


def _block_signals() -> None:
    """Leave stop signals to sigwait() in the main thread."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)


def _wait_for_signal() -> None:
    if hasattr(signal, "sigwait"):
        signal.sigwait(_STOP_SIGNALS)
        return
    stop = threading.Event()  # Windows
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    while not stop.wait(0.5):
        pass


def serve(config: ServerConfig, program: Any) -> int:
    """Serve until SIGTERM or SIGINT."""
    me, addresses, log = config.me, config.addresses, logger_for(config.me)
    lifetime.exit_with_parent(config.parent)
    _block_signals()
    sys.setswitchinterval(_SWITCH_S)

    def failed(error: BaseException) -> NoReturn:
        log(f"exits because of an exception in a thread:\n{''.join(traceback.format_exception(error)).rstrip()}")
        os._exit(FAILED)

    def thread_failed(args: Any) -> None:
        if args.exc_type is not SystemExit:
            failed(args.exc_value)

    threading.excepthook = thread_failed
    started_s = time.monotonic()
    try:
        disk = DurableStore(config.folder, DataOwner(me, len(addresses)))
    except (StoreError, OSError) as error:
        raise UsageError(str(error)) from None
    new_text = "" if disk.number else " (new)"
    log(
        f"data in {config.folder}{new_text}: save {disk.number}, {len(disk.raft_state):,} bytes of log, "
        f"{len(disk.snapshot):,} of snapshot, read in {time.monotonic() - started_s:.2f} s"
    )
    if disk.torn:
        log(f"the last save in {disk.torn} is incomplete and was never acknowledged; the save before it is used")
    persister = persister_on(disk)
    write = persister.on_save
    assert write is not None

    def save(number: int, raft_state: bytes, snapshot: bytes) -> None:
        try:
            write(number, raft_state, snapshot)
        except OSError as error:
            fix = (
                "free some space, then start this peer again"
                if error.errno == errno.ENOSPC
                else "repair the disk, then start this peer again"
            )
            log(
                f"exits because {config.folder} cannot be written: {error.strerror}. "
                f"No acknowledged data is lost; {fix}"
            )
            os._exit(DISK_FAILED)

    persister.on_save = save

    server = Server()
    collector = StatusCollector(me, len(addresses))
    clients = [
        TcpClient(address, config.credentials, log=log, name=f"peer {peer} at {address}")
        for peer, address in enumerate(addresses)
    ]
    try:
        network = TcpServer(
            server,
            addresses[me],
            config.credentials,
            log=log,
            failed=failed,
            served=collector.on_served,
            greeted=lambda hello: clients[hello.peer].retry_now() if 0 <= hello.peer < len(clients) else None,
        )
    except OSError as error:
        disk.close()
        fix = (
            "stop the process that uses it, or choose other ports"
            if error.errno == errno.EADDRINUSE
            else "choose an address of this machine"
        )
        raise UsageError(f"cannot listen on {addresses[me]}: {error.strerror}; {fix}") from None
    ends = [TcpEnd(client, server, collector.on_sent(peer)) for peer, client in enumerate(clients)]
    apply_ch = ApplyQueue(_APPLY_QUEUE_MAX)
    module = program.template.module
    raft = module(PEER).Raft(ends, me, persister, apply_ch)
    server.add_service(Service(raft, "Raft"))
    kv = module(SERVICE).KVServer(ends, me, raft, apply_ch, persister, config.max_raft_state)
    server.add_service(Service(kv, "KVServer"))
    server.add_service(Service(StatusService(collector, raft, apply_ch, disk, network, log), "Status"))
    gc.collect()
    gc.freeze()  # loaded code stays; collections skip it
    network.start()
    log(f"serving on {addresses[me]}, process {os.getpid()}")
    for client in clients[:me] + clients[me + 1 :]:
        # So that they learn at once that this peer is back.
        threading.Thread(target=client.connect, daemon=True).start()
    _wait_for_signal()
    network.close()
    kv.kill()
    raft.kill()
    log("stopped")
    sys.stderr.flush()
    # Not sys.exit(): threads may wait for replies for seconds, and have nothing left to save.
    os._exit(0)
