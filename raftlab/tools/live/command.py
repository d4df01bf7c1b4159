"""`lab live`: a page on which a person chooses what happens next.

    lab live                        a cluster of three in which nothing happens by itself
    lab live --peers 5 --raft my/raft.py
    lab live tests/scenarios/2c/figure_8_d.scenario
    lab live test_backup_2b --seed 7

Start at `main()`; server.py serves the page, session.py has the branches, run.py makes a run.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

from raftlab.harness.launcher import LoadError, resolve_file
from raftlab.harness.options import FILE, ISOLATED, PEERS, PORT, RACE, RAFT, SEED, add_options
from raftlab.scenarios.text import PEERS_MAX, ScriptError, read_script
from raftlab.tools.live.run import Setup, TestRun, header_lines
from raftlab.tools.live.server import LiveServer, PortInUse
from raftlab.tools.live.session import Session, SessionError, peer_files
from raftlab.tools.selection import SCENARIO

_SEED = replace(SEED, help="seed of the run (default: 1; of a test, a new one)")
_ISOLATED = replace(ISOLATED, help="not supported: the page shows fields of peers")
_STEPPED_WITH = 1  # as lab scenario
_PEERS = replace(PEERS, default=3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The page is for this machine only. Ctrl-C ends it, and so does closing the page for a minute."
    parser.add_argument("start", metavar="START", nargs="?", help="a file of steps, or a test, to start from")
    add_options(parser.add_argument, RAFT, _SEED, _ISOLATED, RACE, _PEERS, PORT, FILE)


def main(args: argparse.Namespace) -> int:
    if args.isolated:
        return _cannot("--isolated is not supported: the page shows fields of peers, and those are in other processes")
    if not 1 <= args.peers <= PEERS_MAX:
        return _cannot(f"--peers must be 1..{PEERS_MAX}, got {args.peers}")
    try:
        raft = resolve_file(args.raft, "raft.py", "RAFT")
        setup, steps = _start(args, raft)
        session = Session()
        server = LiveServer(session, port=args.port or 0, files=lambda: peer_files(raft))
    except (LoadError, ScriptError) as error:
        return _cannot(str(error))
    except PortInUse as error:
        return _cannot(f"port {args.port}: {error}; leave PORT out, or name another: make live PORT={args.port + 1}")
    try:
        branch = session.open(
            setup, steps, name="main" if setup.test is None else f"{setup.test.name}, seed {setup.seed}"
        )
        if branch.note:
            print(f"Not all steps could be made. {branch.note}")
        print(f"Open this page: {server.url}\nCtrl-C ends it.", flush=True)
        server.serve()
        print("The page is closed; ended.")
    except SessionError as error:
        return _cannot(str(error))
    except KeyboardInterrupt:
        print("\nended")
    finally:
        session.close()
    return 0


def _start(args: argparse.Namespace, raft: Path) -> tuple[Setup, list[str]]:
    if args.start is not None and not args.start.endswith(SCENARIO):
        seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
        return Setup(raft, args.start, "", seed, args.race, TestRun(args.start, args.file)), []
    seed = _STEPPED_WITH if args.seed is None else args.seed
    if args.start is None:
        return Setup(raft, "live.scenario", f"peers {args.peers}\nsnapshots", seed, args.race), []
    path = Path(args.start)
    script = read_script(path)
    header = "\n".join(header_lines(path.read_text(encoding="utf-8-sig")))
    # What ends the run cannot be followed by another step, and `logs` is part of the header.
    steps = [step.text for step in script.steps if not step.text.startswith(("logs", "expect rule"))]
    return Setup(raft, str(path.resolve()), header, seed, args.race), steps


def _cannot(text: str) -> int:
    print(f"lab live: {text}", file=sys.stderr)
    return 2
