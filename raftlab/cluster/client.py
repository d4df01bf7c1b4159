"""Clients of a cluster: `lab cluster put`, `append` and `get` use the clerk over TCP; `status` queries the processes.

Start at `add_commands()`.
"""

from __future__ import annotations

import argparse
import threading
from typing import Any

from labrpc import RpcError, Server, Service
from raftlab.cluster import options
from raftlab.cluster.options import UsageError, join_addresses
from raftlab.cluster.status import StatusArgs, StatusReply, StatusService, status_table
from raftlab.cluster.tcp import Address, Credentials, TcpClient, TcpEnd
from raftlab.guest.contract import CLERK, SERVICE

_STATUS_S = 1.0
# A little longer than a server holds a request. Then the clerk tries another server.
_CALL_S = 1.5


_OPERATIONS = {
    "put": ("set a value", ("KEY", "VALUE")),
    "append": ("append to a value", ("KEY", "VALUE")),
    "get": ("print a value", ("KEY",)),
    "status": ("print the state of each peer", ()),
}


def add_commands(commands: Any) -> None:
    """Add these commands to `lab cluster`."""
    for operation, (text, parameters) in _OPERATIONS.items():
        parser = commands.add_parser(operation, help=text, description=f"{text.capitalize()}, on a running cluster.")
        parser.set_defaults(run=_status if operation == "status" else _run_operation, parameters=parameters)
        for word in parameters:
            parser.add_argument(word)
        options.add_peers(parser, default=join_addresses(options.local_addresses(options.PORT, options.PEERS)))
        if parameters:
            parser.add_argument(
                "--within", type=float, default=10.0, metavar="S", help="give up after S seconds (default: %(default)g)"
            )
            options.add_program(parser)
        options.add_tls(parser)


def _run_operation(args: argparse.Namespace) -> int:
    if args.within <= 0:
        raise UsageError(f"--within must be more than 0 s, got {args.within:g}")
    addresses = options.parse_addresses(args.peers)
    connections = make_connections(addresses, options.credentials(args, addresses))
    clerk = make_clerk(options.load(args), connections)
    value = call_with_timeout(
        args.within, addresses, getattr(clerk, args.operation), *(getattr(args, word) for word in args.parameters)
    )
    if args.operation == "get":
        print(value)
    return 0


def _status(args: argparse.Namespace) -> int:
    addresses = options.parse_addresses(args.peers)
    statuses = StatusClient(addresses, options.credentials(args, addresses))
    replies = [statuses.query(peer) for peer in range(len(addresses))]
    rows = [(peer, "up" if reply else "no answer", reply) for peer, reply in enumerate(replies)]
    print("\n".join(status_table(rows)))
    return 0 if any(replies) else 1


class NoAnswer(Exception):
    """No peer answered in time."""


def service_types(program: Any) -> Server:
    """A Server that is never called: its methods give the types of the service's replies."""
    server = Server()
    service = program.template.module(SERVICE).KVServer
    server.add_service(Service(object.__new__(service), "KVServer"))
    return server


def make_clerk(program: Any, connections: list[TcpClient]) -> Any:
    """A clerk: its get(), put() and append() block until they are done."""
    types_server = service_types(program)
    return program.template.module(CLERK).Clerk([TcpEnd(connection, types_server) for connection in connections])


def make_connections(addresses: list[Address], credentials: Credentials) -> list[TcpClient]:
    return [TcpClient(address, credentials, timeout_s=_CALL_S) for address in addresses]


def call_with_timeout(limit_s: float, addresses: list[Address], method: Any, *args: str) -> Any:
    """Call a method of the clerk. Raises NoAnswer; then a put or append may still take effect."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def query() -> None:
        try:
            results.append(method(*args))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=query, daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise NoAnswer(
            f"no answer from {join_addresses(addresses)} within {limit_s:g} s: "
            "a majority of the peers must be running. A put or append may still take effect"
        )
    return results[0]


class StatusClient:
    """Queries the status of each process, over separate connections with a short timeout."""

    def __init__(self, addresses: list[Address], credentials: Credentials) -> None:
        types_server = Server()
        types_server.add_service(Service(object.__new__(StatusService), "Status"))
        connections = [TcpClient(address, credentials, timeout_s=_STATUS_S) for address in addresses]
        self._connections = connections
        self._ends = [TcpEnd(connection, types_server) for connection in connections]

    def query(self, peer: int) -> StatusReply | None:
        self._connections[peer].retry_now()
        try:
            status: StatusReply | None = self._ends[peer].call("Status.report", StatusArgs())
        except RpcError:
            return None  # another program uses that port
        return status

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
