"""The command `lab`. Each subcommand is a module with add_arguments(parser) and main(args) -> int, usually command.py
in the folder of that name.

The handout contains fewer tools, and so has fewer subcommands.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Sequence

from raftlab.layout import ROOT

# Imported only when called: `lab replay` does not need the imports of `lab stress`.
COMMANDS = {
    "next": "show the next milestone of your peer, and what to build for it",
    "watch": "run the tests whenever a file is saved, and print what changed",
    "stress": "run tests over many seeds and group the failures",
    "replay": "replay a run exactly",
    "shrink": "minimize a failing run",
    "timeline": "show a run as a table with a column per peer",
    "page": "show a run as one HTML page to step through",
    "live": "choose on a page what happens next",
    "scenario": "play scenarios: runs written step by step",
    "fuzz": "search for failing runs at random",
    "cluster": "run peers as real processes, with a prompt",
    "mutants": "write incorrect peers, or measure which the tests catch",
    "grade": "grade submissions in a sandbox",
    "handout": "write the source tree that students start from",
}

# Commands that are not in a folder of raftlab/tools with a command.py.
_ELSEWHERE = {
    "cluster": "raftlab.cluster.command",
    "handout": "raftlab.tools.handout",
    "mutants": "tests.mutants.tool.command",
}


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = _parsed(sys.argv[1:] if argv is None else argv)
        return int(importlib.import_module(str(_module(args.command))).main(args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe.
        sys.stderr.close()
        return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab", description="Tools around the Raft lab.")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_text in COMMANDS.items():
        if _module(name) is None:
            continue
        subparser = subparsers.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        if list(arguments[:1]) == [name]:
            importlib.import_module(str(_module(name))).add_arguments(subparser)
    args = parser.parse_args(arguments)
    args.typed = shlex.join([parser.prog, *arguments])  # the command line, for tools that record it
    return args


def _module(command: str) -> str | None:
    module = _ELSEWHERE.get(command, f"raftlab.tools.{command}.command")
    return module if (ROOT / f"{module.replace('.', '/')}.py").is_file() else None


if __name__ == "__main__":
    sys.exit(main())
