"""`lab serve`: one process of a cluster, started by hand. See labtools/cluster/serving.py."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labtools.cluster import options
from labtools.cluster.options import UsageError
from labtools.cluster.serving import REFUSED, Options, serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--me", type=int, required=True, metavar="N", help="which of the peers this is, from 0")
    parser.add_argument(
        "--peers",
        required=True,
        metavar="HOST:PORT,...",
        help="all peers, this one too; for each the same, in one order",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where it saves (default: build/serve/peer-N)")
    options.add_max_raft_state(parser)
    options.add_program(parser)
    options.add_tls(parser)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    try:
        addresses = options.parse_addresses(args.peers, "--peers")
        if not 0 <= args.me < len(addresses):
            raise UsageError(
                f"--me must be 0..{len(addresses) - 1}, because --peers names {len(addresses)}; got {args.me}"
            )
        if args.max_raft_state < 0:
            raise UsageError(f"--max-raft-state must be 0 or more, got {args.max_raft_state}")
        ours = options.credentials(args, addresses, args.me)
        folder = args.data or Path("build/serve") / f"peer-{args.me}"
        chosen = Options(args.me, addresses, folder, ours, args.max_raft_state or None, args.parent)
        return serve(chosen, options.load(args))
    except UsageError as error:
        print(f"lab serve: {error}", file=sys.stderr)
        return REFUSED
