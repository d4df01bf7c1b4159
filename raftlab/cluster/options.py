"""Options that the commands of `lab cluster` share: addresses, certificates, which peer and service to load.

Errors are UsageErrors: one sentence with the fix. Start at `parse_addresses()`.
"""

from __future__ import annotations

import argparse
import hashlib

from labrpc.errors import RpcError
from raftlab.cluster.streams import Tls
from raftlab.cluster.tcp import CLIENT, Address, Credentials, Hello
from raftlab.harness.launcher import LoadError
from raftlab.harness.loader import load_program
from raftlab.harness.options import KV, RAFT, add_options
from raftlab.harness.program import Program

HOST = "127.0.0.1"
PORT = 7101  # default of peer 0; the others use the next ports
PEERS = 3
PEERS_MAX = 9
MAX_RAFT_STATE = 256 << 10


class UsageError(Exception):
    """The command line is invalid; the text has the reason and the fix."""


def local_addresses(port: int, peers: int) -> list[Address]:
    if not 1 <= port <= 65535 - peers + 1:
        raise UsageError(f"--port must be 1..{65535 - peers + 1}, got {port}")
    return [Address(HOST, port + peer) for peer in range(peers)]


def join_addresses(addresses: list[Address]) -> str:
    return ",".join(map(str, addresses))


def parse_addresses(text: str) -> list[Address]:
    """The value of --peers."""
    addresses = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
            raise UsageError(f"--peers must be HOST:PORT,HOST:PORT,... with ports 1..65535, got {part!r}")
        addresses.append(Address(host, int(port)))
    if len(set(addresses)) < len(addresses):
        raise UsageError(f"--peers names an address twice: {text}")
    if len(addresses) > PEERS_MAX:
        raise UsageError(f"--peers names {len(addresses)} peers; at most {PEERS_MAX} are allowed")
    return addresses


def cluster_name(addresses: list[Address]) -> str:
    """A digest of the list of peers. Peers with different lists refuse each other."""
    return hashlib.blake2b(join_addresses(addresses).encode(), digest_size=6).hexdigest()


def add_peers(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    text = "addresses of all peers, in the same order everywhere"
    if default is not None:
        text += " (default: those of `lab cluster`, %(default)s)"
    parser.add_argument("--peers", default=default, required=default is None, metavar="HOST:PORT,...", help=text)


def add_tls(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("TLS, required for addresses of other machines (give all three)")
    group.add_argument("--cert", metavar="PEM", help="certificate of this process")
    group.add_argument("--key", metavar="PEM", help="private key of that certificate")
    group.add_argument("--ca", metavar="PEM", help="authority that signed all certificates")


def add_max_raft_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-raft-state",
        type=int,
        default=MAX_RAFT_STATE,
        metavar="BYTES",
        help="log size above which peers take a snapshot (default: %(default)s; 0: never)",
    )


def max_raft_state(args: argparse.Namespace) -> int | None:
    if args.max_raft_state < 0:
        raise UsageError(f"--max-raft-state must be 0 or more, got {args.max_raft_state}")
    return args.max_raft_state or None


def add_program(parser: argparse.ArgumentParser) -> None:
    add_options(parser.add_argument, RAFT, KV)


def credentials(args: argparse.Namespace, addresses: list[Address], me: int = CLIENT) -> Credentials:
    """The credentials. Raises UsageError if they do not allow one of the addresses."""
    given = [args.cert, args.key, args.ca]
    tls = None
    if any(given):
        if not all(given):
            raise UsageError("--cert, --key and --ca must be given together")
        tls = Tls(*given)
        try:
            tls.context(server_side=False)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(f"--cert {args.cert}, --key {args.key}, --ca {args.ca}: {error}") from None
    result = Credentials(Hello(cluster_name(addresses) if me != CLIENT else "", me), tls)
    for address in addresses:
        try:
            result.check(address)
        except RpcError as error:
            raise UsageError(f"{error} (--cert, --key and --ca)") from None
    return result


def load(args: argparse.Namespace) -> Program:
    """The peer, the service and the clerk, loaded as the lab's tests load them."""
    try:
        return load_program(args.raft, kv=args.kv)
    except LoadError as error:
        raise UsageError(str(error)) from None
