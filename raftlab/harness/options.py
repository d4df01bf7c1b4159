"""The options that several commands share: one table for the parsers of `lab`, for pytest, for the Makefile, and for
the command lines that reports print.

Promise: an option has one name everywhere, `--raft` and RAFT, and a line that is printed repeats the run in any shell.
What a make variable becomes is in the Makefile, which a test compares with this. An option of one command is with that
command.

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

from raftlab.harness.loader import DEFAULT, DEFAULT_KV

# Values by the names of their options. One that is None, False or "" is not given.
Values = Mapping[str, Any]


# ---- types: each takes what was typed and says what is allowed where it does not fit ------------------------------


def path(text: str) -> Path:
    return Path(text).expanduser()  # within quotes no shell does it


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def jobs(text: str) -> int | None:
    """A number, or None for `auto`: one for each core."""
    return None if text == "auto" else positive(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 86_400:
        raise ArgumentTypeError(f"must be seconds, above 0 and at most 86400, got {text!r}")
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
    """A command whose help, type or default is another takes a copy by dataclasses.replace()."""

    name: str
    help: str
    metavar: str = ""  # "": it has no value
    type: Callable[[str], Any] = str
    default: Any = None
    repeated: bool = False
    required: bool = False
    dest: str | None = None  # where the parser puts it, if not under its name
    also: tuple[str, ...] = ()  # other spellings

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """Of make."""
        return self.name.upper()


RAFT = Option("raft", "the raft.py to run", "PATH", path, DEFAULT)
KV = Option("kv", "the server.py of the service above it", "PATH", path, DEFAULT_KV)
SEED = Option("seed", "the seed (default: a fresh one)", "N", int)
ISOLATED = Option("isolated", "every peer in a process of its own, as for grades")
RACE = Option("race", "preempt threads at any line and report data races (docs/student/race.md)")

RUNS = Option("runs", "how many runs", "N", positive)
JOBS = Option("jobs", "worker processes (default: one for each core)", "N", jobs)
FOR = Option("for", "how long: 90s, 10m, 1h30m", "TIME", duration, dest="for_s")
OUT = Option("out", "where results go", "DIR", path)
TIMELINE = Option("timeline", "print the run as a table: time down, a column per peer")

FILE = Option("file", "take the tests from this file instead", "F", path, repeated=True)
TRACE = Option("trace", "show this saved trace instead of running a test", "FILE", path)

# How a run is made. Every command that makes runs has these; one that runs no service has no KV.
RUN = (RAFT, KV, SEED, ISOLATED, RACE)
RUN_OF_PEER = tuple(option for option in RUN if option is not KV)
# These have a make variable of their name. (FILE is a scenario there.)
OF_MAKE = (*RUN, RUNS, JOBS, FOR, OUT, TIMELINE)

_OPTIONS = {option.name: option for option in (*OF_MAKE, FILE, TRACE)}


def add_options(add: Callable[..., object], *options: Option) -> None:
    """`add` is the add_argument() of a parser, or pytest's addoption(). Of two with one name the later one counts:
    `*RUN, replace(SEED, help="...")`."""
    for option in {option.name: option for option in options}.values():
        how: dict[str, Any] = {"help": option.help}
        if not option.metavar:
            how["action"] = "store_true"
        else:
            how |= {"type": option.type, "metavar": option.metavar, "default": option.default}
        if option.repeated:
            how |= {"action": "append", "default": []}
        elif option.default is not None and option.metavar:
            how["help"] += f" ({option.default})"
        if option.required:
            how["required"] = True
        if option.dest is not None:
            how["dest"] = option.dest
        add(option.flag, *option.also, **how)


# ---- command lines ------------------------------------------------------------------------------------------------


def given(args: Namespace, *, service: bool = True) -> dict[str, Any]:
    """How a run is made, but for its seed, as JSON can hold it. Without `service` it runs none."""
    options = [option for option in (RUN if service else RUN_OF_PEER) if option is not SEED]
    values = {option.name: getattr(args, option.name, None) for option in options}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items() if value}


def arguments(values: Values) -> list[str]:
    """As pytest and `lab` take them, without those that are as by default."""
    words = [(option.flag, text) for option, text in _texts(values)]
    return [word for flag, text in words for word in ((flag,) if text is None else (flag, text))]


def command_line(command: str, values: Values) -> str:
    """For a shell. What make is given are its variables."""
    if command.startswith("make "):
        words = [f"{option.variable}={'1' if text is None else quote(text)}" for option, text in _texts(values)]
    else:
        words = [quote(word) for word in arguments(values)]
    return " ".join([command, *words])


def run_line(does: str, test: str, seed: int, values: Values, *, file: str = "") -> str:
    """What replays a run of the test, or shrinks it, or draws it. `file`: where the test is, if make does not know."""
    if file:
        return command_line(f"lab {does} {test}", {SEED.name: seed, FILE.name: file, **values})
    return command_line(f"make {does} TEST={test}", {SEED.name: seed, **values})


def _texts(values: Values) -> Iterator[tuple[Option, str | None]]:
    """None for an option that has no value."""
    for name, value in values.items():
        option = _OPTIONS[name]
        if value is None or value is False or value == "":
            continue
        if not option.metavar:
            yield option, None
        elif option.default is None or option.type(str(value)) != option.default:
            yield option, str(value)
