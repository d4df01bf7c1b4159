"""`lab cluster`: starts the processes on this machine, and a prompt. client.py and server.py have its sub-commands."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from labrpc.errors import RpcError
from raftlab.cluster import client, options, server
from raftlab.cluster.options import UsageError
from raftlab.cluster.processes import ClusterProcesses
from raftlab.cluster.prompt import Prompt
from raftlab.harness.options import arguments, given

FOLDER = Path("build/cluster")
_MARK = "raftlab-cluster"  # a file that marks a folder that --new may delete


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [options]\n       {parser.prog} COMMAND ..."
    parser.set_defaults(run=_start)
    commands = parser.add_subparsers(
        prog=parser.prog, dest="operation", metavar="COMMAND", title="commands, each with --help"
    )
    client.add_commands(commands)
    server.add_command(commands)
    parser.add_argument(
        "--data", type=Path, default=FOLDER, metavar="DIR", help="folder for saved state (default: %(default)s)"
    )
    parser.add_argument("--new", action="store_true", help="delete the saved state first")
    parser.add_argument(
        "--servers", type=int, default=options.PEERS, metavar="N", help="number of peers (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=options.PORT, help="port of peer 0; peer i uses PORT + i (default: %(default)s)"
    )
    options.add_max_raft_state(parser)
    options.add_program(parser)
    options.add_tls(parser)


def main(args: argparse.Namespace) -> int:
    name = "lab cluster"
    try:
        if args.operation is not None:
            # Options before the sub-command would be ignored.
            if shlex.split(args.typed)[2] != args.operation:
                raise UsageError(f"options go after {args.operation}, not before it")
            name += f" {args.operation}"
        code: int = args.run(args)
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return server.REFUSED
    except (client.NoAnswer, RpcError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return code


def _start(args: argparse.Namespace) -> int:
    if os.name == "nt":
        raise UsageError("processes cannot be paused on Windows; use WSL")
    if not 1 <= args.servers <= options.PEERS_MAX:
        raise UsageError(f"--servers must be 1..{options.PEERS_MAX}, got {args.servers}")
    options.max_raft_state(args)
    addresses = options.local_addresses(args.port, args.servers)
    credentials = options.credentials(args, addresses)
    program = options.load(args)  # report errors here, not in each process
    _prepare_folder(args.data, new=args.new)
    server_options = [*arguments(given(args)), "--max-raft-state", str(args.max_raft_state)]
    if credentials.tls is not None:
        server_options += ["--cert", args.cert, "--key", args.key, "--ca", args.ca]
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    began_s = time.monotonic()
    with ClusterProcesses(args.data, addresses, credentials, server_options) as processes:
        leader = processes.start_all()
        if interactive:
            where = f"{addresses[0]} to {addresses[-1].port}" if len(addresses) > 1 else str(addresses[0])
            print(
                f"{len(addresses)} processes at {where}, data and logs in {args.data}/. Peer {leader.leader} leads "
                f"term {leader.term} after {time.monotonic() - began_s:.1f} s.\n"
                "Try: put a 1, get a, status, load, kill 0, start 0. help lists all commands; Ctrl-D quits.",
                flush=True,
            )
        return Prompt(processes, program, credentials, interactive=interactive).run()


def _prepare_folder(folder: Path, *, new: bool) -> None:
    mark = folder / _MARK
    try:
        if folder.exists() and not mark.is_file() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} exists and has no cluster data; choose another folder with --data")
        if new and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; choose another folder with --data") from None
