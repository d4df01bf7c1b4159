"""The options that several commands share: one table for `lab`, pytest, the Makefile, and the command lines in reports.

Promise: an option has the same name everywhere (`--raft` and RAFT), and a printed command line repeats the run in any
shell. The Makefile turns its variables into options; a test compares it with this table. Options of a single command
are in that command's module.

Start at `RUN` and `add_options()`.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

# Values by option name. None, False and "" mean "not given".
Values = Mapping[str, Any]


# ---- types: each converts what was typed, or raises an error that names the legal range ---------------------------


def path(text: str) -> Path:
    return Path(text).expanduser()  # the shell does not expand a quoted ~


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise ArgumentTypeError(f"must be a port, 1..65535, got {text!r}")
    return int(text)


def jobs(text: str) -> int | None:
    """A number, or None for `auto`: one per core."""
    return None if text == "auto" else positive(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 86_400:
        raise ArgumentTypeError(f"must be a number of seconds, above 0 and at most 86400, got {text!r}")
    return value


def duration(text: str) -> float:
    """In seconds."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text)
    value = sum(int(n or 0) * unit for n, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0
    if not value:
        raise ArgumentTypeError(f"must be a time like 90s, 10m or 1h30m, got {text!r}")
    return float(value)


# ---- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """A command that needs another help text, type or default makes a copy with dataclasses.replace()."""

    name: str
    help: str
    metavar: str = ""  # "": a flag without a value
    type: Callable[[str], Any] = str
    default: Any = None
    repeated: bool = False
    required: bool = False
    dest: str | None = None  # the attribute of the parsed arguments, if not the name
    also: tuple[str, ...] = ()  # other spellings

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """The make variable."""
        return self.name.upper()


DEFAULT = Path("raft/raft.py")
DEFAULT_KV = Path("kv/server.py")

RAFT = Option("raft", "raft.py to test", "PATH", path, DEFAULT)
KV = Option("kv", "server.py to test, with the client.py beside it", "PATH", path, DEFAULT_KV)
SEED = Option("seed", "seed of the run (default: a new one)", "N", int)
ISOLATED = Option("isolated", "run each peer in a sandboxed process")
RACE = Option("race", "preempt threads at any line and report data races (docs/student/races.md)")

RUNS = Option("runs", "number of runs", "N", positive)
JOBS = Option("jobs", "number of worker processes (default: one per core)", "N", jobs)
FOR = Option("for", "stop after this time: 90s, 10m, 1h30m", "TIME", duration, dest="for_s")
OUT = Option("out", "folder for the results", "DIR", path)
TIMELINE = Option("timeline", "also print the run as a table with a column per peer")
PEERS = Option("peers", "number of peers", "N", positive)
PORT = Option("port", "port of the page (default: a free one)", "N", port)

FILE = Option("file", "load tests from this file (repeatable)", "F", path, repeated=True)
TRACE = Option("trace", "show this saved trace instead of running a test", "FILE", path)

# Every command that makes runs has these options, but KV only if it can run a service.
RUN = (RAFT, KV, SEED, ISOLATED, RACE)
RUN_OF_PEER = tuple(option for option in RUN if option is not KV)
# These have a make variable of the same name. (FILE in make is a scenario.)
OF_MAKE = (*RUN, RUNS, JOBS, FOR, OUT, TIMELINE, PEERS, PORT)

_OPTIONS = {option.name: option for option in (*OF_MAKE, FILE, TRACE)}


def add_options(add: Callable[..., object], *options: Option) -> None:
    """`add` is add_argument() of a parser, or pytest's addoption(). Of two options with the same name the later one
    counts: `*RUN, replace(SEED, help="...")`."""
    for option in {option.name: option for option in options}.values():
        how: dict[str, Any] = {"help": option.help}
        if not option.metavar:
            how["action"] = "store_true"
        else:
            how |= {"type": option.type, "metavar": option.metavar, "default": option.default}
        if option.repeated:
            how |= {"action": "append", "default": []}
        elif option.default is not None and option.metavar:
            how["help"] += f" (default: {option.default})"
        if option.required:
            how["required"] = True
        if option.dest is not None:
            how["dest"] = option.dest
        add(option.flag, *option.also, **how)


# ---- command lines ------------------------------------------------------------------------------------------------


def given(args: Namespace, *, service: bool = True) -> dict[str, Any]:
    """The options of a run except its seed, as JSON values; without `service`, also without KV."""
    options = [option for option in (RUN if service else RUN_OF_PEER) if option is not SEED]
    values = {option.name: getattr(args, option.name, None) for option in options}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items() if value}


def arguments(values: Values) -> list[str]:
    """Arguments for pytest and `lab`, without default values."""
    words = [(option.flag, text) for option, text in _texts(values)]
    return [word for flag, text in words for word in ((flag,) if text is None else (flag, text))]


def command_line(command: str, values: Values) -> str:
    """A line for the shell. For make, options become variables."""
    if command.startswith("make "):
        words = [f"{option.variable}={'1' if text is None else quote(text)}" for option, text in _texts(values)]
    else:
        words = [quote(word) for word in arguments(values)]
    return " ".join([command, *words])


def run_line(does: str, test: str, seed: int, values: Values, *, file: str = "") -> str:
    """The command that replays, shrinks or draws a run. `file`: the test's file, if make does not know it."""
    if file:
        return command_line(f"lab {does} {test}", {SEED.name: seed, FILE.name: file, **values})
    return command_line(f"make {does} TEST={test}", {SEED.name: seed, **values})


def _texts(values: Values) -> Iterator[tuple[Option, str | None]]:
    """None for a flag."""
    for name, value in values.items():
        option = _OPTIONS[name]
        if value is None or value is False or value == "":
            continue
        if not option.metavar:
            yield option, None
        elif option.default is None or option.type(str(value)) != option.default:
            yield option, str(value)
