"""Peers for the tests of `lab stress` and `lab replay`: the reference, with something put into its get_state()."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from raftlab.harness.loader import load_peer
from raftlab.tools import cli
from tests.mutants.tool.mutants import load_mutants

ROOT = Path(__file__).parents[3]
_STATE = '        """The current term, and whether this peer believes it leads."""\n'


def make_peer(folder: Path, in_get_state: str = "pass", in_module: str = "") -> Path:
    """A raft.py in its own folder. The code sees `seed`, and runs whenever the tester asks a peer for its state."""
    source = (ROOT / "raft" / "raft.py").read_text()
    assert _STATE in source
    lines = ["from labsim import current_simulation", "seed = current_simulation().seed", *in_get_state.splitlines()]
    source = source.replace(_STATE, _STATE + "".join(f"        {line}\n" for line in lines))
    folder.mkdir(exist_ok=True)
    path = folder / "raft.py"
    path.write_text(f"{source}\n\n{in_module}\n")
    return path


def mutant_peer(id_: str, folder: Path) -> Any:
    mutant = next(mutant for mutant in load_mutants() if mutant.id == id_)
    return load_peer(mutant.write(folder))


def lab(*arguments: Any) -> int:
    """The command, in this process. A campaign shrinks nothing, unless it is told to: that takes seconds."""
    try:
        return cli.main(_quick(arguments))
    except SystemExit as end:
        return int(end.code or 0)


def lab_command(*arguments: Any) -> list[str]:
    """The command, for another process."""
    return [sys.executable, "-m", "raftlab", *_quick(arguments)]


def _quick(arguments: tuple[Any, ...]) -> list[str]:
    given = [str(argument) for argument in arguments]
    return [*given, "--shrink", "0"] if given[:1] == ["stress"] and "--shrink" not in given else given
