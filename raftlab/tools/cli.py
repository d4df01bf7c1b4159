"""The command `lab`. Each subcommand is a module with add_arguments(parser) and main(args) -> int, usually command.py
in the folder of that name.

The handout contains fewer tools, and so has fewer subcommands.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from raftlab.layout import ROOT, project_of

# Imported only when called: `lab replay` does not need the imports of `lab stress`.
COMMANDS = {
    "Run tests": {
        "next": "show the next milestone of your peer, and what to build for it",
        "watch": "run the tests whenever a file is saved, and print what changed",
        "stress": "run tests over many seeds and group the failures",
        "scenario": "play scenarios: runs written step by step",
        "fuzz": "search for failing runs at random",
    },
    "Look at a run": {
        "replay": "replay a run exactly",
        "shrink": "minimize a failing run",
        "timeline": "show a run as a table with a column per peer",
        "page": "show a run as one HTML page to step through",
        "live": "choose on a page what happens next",
    },
    "Run as real processes": {
        "cluster": "run peers as real processes, with a prompt",
    },
    "Teach": {
        "handout": "write the source tree that students start from",
        "grade": "grade submissions in a sandbox",
    },
    "Work on the lab": {
        "mutants": "write incorrect peers, or measure which the tests catch",
    },
}

# Commands that are not in a folder of raftlab/tools with a command.py.
_ELSEWHERE = {
    "cluster": "raftlab.cluster.command",
    "handout": "raftlab.tools.handout",
    "mutants": "tests.mutants.tool.command",
}


def main(argv: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # "§" on a terminal without Unicode
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
    here = {group: {name: text for name, text in those.items() if _module(name)} for group, those in COMMANDS.items()}
    parser = argparse.ArgumentParser(
        prog="lab",
        description="Tools around the Raft lab.",
        epilog="\n\n".join(
            "\n".join([f"{group}:", *(f"    {name:<8}  {text}" for name, text in those.items())])
            for group, those in here.items()
            if those
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, help="one of those below")
    for name, text in (command for those in here.values() for command in those.items()):
        subparser = subparsers.add_parser(name, description=f"{text[0].upper()}{text[1:]}.")
        if list(arguments[:1]) == [name]:
            importlib.import_module(str(_module(name))).add_arguments(subparser)
    args = parser.parse_args(arguments)
    _enter_project(args, subparsers.choices[args.command])
    args.typed = shlex.join([parser.prog, *arguments])  # the command line, for tools that record it
    return args


def _enter_project(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Work in the project, from any folder of it. Paths that were typed belong to the folder where they were typed."""
    here = Path.cwd()
    project = project_of(here)
    if project == here:
        return
    for name, value in vars(args).items():
        if isinstance(value, Path) and value != parser.get_default(name):
            setattr(args, name, value.absolute())
        elif isinstance(value, str) and Path(value).is_file():  # a TEST or a FILE
            setattr(args, name, str(Path(value).absolute()))
        elif isinstance(value, list):
            setattr(args, name, [one.absolute() if isinstance(one, Path) else one for one in value])
    os.chdir(project)


def _module(command: str) -> str | None:
    module = _ELSEWHERE.get(command, f"raftlab.tools.{command}.command")
    return module if (ROOT / f"{module.replace('.', '/')}.py").is_file() else None


if __name__ == "__main__":
    sys.exit(main())
