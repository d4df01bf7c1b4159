"""`lab kv`: put, get and append from any shell, on a cluster that runs. See labtools/cluster/asking.py."""

from __future__ import annotations

import argparse
import sys

from labrpc.errors import RpcError
from labtools.cluster import options
from labtools.cluster.asking import NoAnswer, Statuses, make_clerk, make_lines, within
from labtools.cluster.options import UsageError
from labtools.cluster.watching import table

_WANTED = {"put": ("KEY", "VALUE"), "append": ("KEY", "VALUE"), "get": ("KEY",), "status": ()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lab kv (put KEY VALUE | append KEY VALUE | get KEY | status) [--cluster HOST:PORT,...] [options]"
    parser.add_argument("operation", choices=list(_WANTED), help="what to do")
    parser.add_argument("words", nargs="*", metavar="KEY [VALUE]", help="with what")
    parser.add_argument(
        "--cluster",
        default=options.joined(options.local_addresses(options.PORT, options.PEERS)),
        metavar="HOST:PORT,...",
        help="its peers (default: those of `lab cluster`, %(default)s)",
    )
    parser.add_argument(
        "--within", type=float, default=10.0, metavar="S", help="give up after (default: %(default)g s)"
    )
    options.add_program(parser)
    options.add_tls(parser)


def main(args: argparse.Namespace) -> int:
    wanted = _WANTED[args.operation]
    try:
        if len(args.words) != len(wanted):
            raise UsageError(f"{args.operation} wants {' '.join(wanted) or 'nothing'}, got {len(args.words)} words")
        if args.within <= 0:
            raise UsageError(f"--within must be more than 0 s, got {args.within:g}")
        addresses = options.parse_addresses(args.cluster, "--cluster")
        ours = options.credentials(args, addresses)
        if args.operation == "status":
            asked = Statuses(addresses, ours)
            replies = [asked.ask(peer) for peer in range(len(addresses))]
            rows = [(peer, "answers" if reply else "silent", reply) for peer, reply in enumerate(replies)]
            print("\n".join(table(rows)))
            return 0 if any(replies) else 1
        clerk = make_clerk(options.load(args), make_lines(addresses, ours))
        value = within(args.within, addresses, getattr(clerk, args.operation), *args.words)
    except UsageError as error:
        print(f"lab kv: {error}", file=sys.stderr)
        return 2
    except (NoAnswer, RpcError) as error:
        print(f"lab kv: {error}", file=sys.stderr)
        return 1
    if args.operation == "get":
        print(value)
    return 0
