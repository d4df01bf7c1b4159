"""What came of a run, as values: for whoever counts, groups or compares failures. report.py makes the words.

Start at `verdict_of()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from labsim import NoProgress, RealWorldError, SimulationError, TaskFailed, Unresponsive
from labsim.stacks import CodeLocation, location_of, short_path
from raftlab.check.failure import Failure, PeerProcessFailed
from raftlab.check.task_errors import first_line, pytest_says

_CHARS_MAX = 1000  # far above what we write ourselves; an exception's text may be of any length


class Ending(StrEnum):
    PASSED = "passed"
    UNVERIFIED = "unverified"  # not failed, and what it rests on cannot be decoded
    SKIPPED = "skipped"  # the test said so itself
    RULE = "rule"  # of the protocol, broken
    EXPECTATION = "expectation"  # of the test, not met
    EXCEPTION = "exception"  # in a thread or a method of the peer
    SIMULATION = "simulation"  # it could not go on: a deadlock, the real clock, ...
    TEST = "test"  # the test itself failed, with an exception of its own


class Verdict(NamedTuple):
    ending: Ending
    name: str = ""  # of the rule, of the exception's class, of the simulation's error
    text: str = ""  # what was wrong, its first line
    where: str = ""  # the peer's line or, where none is known, the test's: "raft/raft.py:12 in start"
    mistake: str = ""  # what is wrong, whatever the test: failures with equal ones are told as one. Not for people

    @property
    def failed(self) -> bool:
        return self.ending not in (Ending.PASSED, Ending.UNVERIFIED, Ending.SKIPPED)

    @property
    def caught_by(self) -> str:
        """What noticed, if it is more than a test that waited in vain or looked and did not find."""
        if self.ending is Ending.EXCEPTION:
            return f"{TaskFailed.__name__}: {self.name}"
        return self.name if self.ending in (Ending.RULE, Ending.SIMULATION) else ""


def verdict_of(
    error: BaseException | None,
    peer_files: Path | Sequence[Path] = (),
    test_file: Path | None = None,
    unverified: Sequence[str] = (),
) -> Verdict:
    """`peer_files`: the files of the peer and its service, or their folders; with none at all, `where` stays empty.

    `unverified`: of the run (Run.unverified). What fails has failed whatever it rests on.
    """
    peer_files = (peer_files,) if isinstance(peer_files, Path) else peer_files
    if error is None or pytest_says(error, "Skipped"):
        if unverified:
            return Verdict(Ending.UNVERIFIED, text=unverified[0])
        return Verdict(Ending.PASSED) if error is None else Verdict(Ending.SKIPPED, text=str(error))
    if isinstance(error, PeerProcessFailed):
        ending = Ending.EXCEPTION if error.is_exception else Ending.SIMULATION
        text = str(error).partition("\n")[0]
        name = error.name if error.is_exception else error.kind
        where = _line(error.where[0]) if peer_files and error.where else ""
        return Verdict(ending, name, text, where, _mistake(ending, name, text, where, ""))
    origin, variety = error, ""
    if isinstance(error, TaskFailed) and error.__cause__ is not None:
        origin = error.__cause__
    if isinstance(origin, Failure):
        ending = Ending.EXPECTATION if origin.rule is None else Ending.RULE
        name, text, variety = origin.rule or "", origin.text, origin.variety
    elif isinstance(error, TaskFailed):
        ending, name, text = Ending.EXCEPTION, type(origin).__name__, first_line(origin)
    elif isinstance(error, SimulationError):
        ending, name, text = Ending.SIMULATION, type(error).__name__, str(error)
    else:
        ending, name, text = Ending.TEST, type(error).__name__, first_line(error)
    text = text.partition("\n")[0]
    peers, tests = _where(error, origin, peer_files, test_file)
    return Verdict(ending, name, text, peers or tests, _mistake(ending, name, text, peers, tests, variety))


def _mistake(ending: Ending, name: str, text: str, peers: str, tests: str, variety: str = "") -> str:
    # Where a peer's threads were when a rule was broken, or when a test gave up, differs from one run to the next.
    if ending is Ending.RULE:
        what = f"{name}, {variety}" if variety else name
    elif ending is Ending.EXPECTATION:
        what = without_numbers(text)
    elif ending is Ending.TEST:
        what = f"{name} | {peers or tests}"
    else:
        what = f"{name} | {peers or without_numbers(text)}"
    return f"{ending} | {what}"


def without_numbers(text: str) -> str:
    """The sentence that two failures of one kind share: numbers and quoted values become `#` and `'...'`."""
    text = re.sub(r"'[^']*('|\.\.\.)|\"[^\"]*(\"|\.\.\.)", "'...'", text)
    text = re.sub(r"(§[\d.]*\d|Figure \d+)|0x[0-9a-fA-F]+|(?<![A-Za-z])\d+(\.\d+)?", lambda m: m.group(1) or "#", text)
    text = re.sub(r"#(, ?#)+", "#, ...", text)
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 3]}..."


def _where(
    error: BaseException, origin: BaseException, peer_files: Sequence[Path], test_file: Path | None
) -> tuple[str, str]:
    """The peer's line and the test's, "" where none is known."""
    places = list(_places(origin.__traceback__))[::-1]  # innermost first
    named: list[CodeLocation] = []
    if isinstance(error, NoProgress):
        named = [wait.where for wait in error.waits if wait.where is not None]
    elif isinstance(error, (RealWorldError, Unresponsive)) and error.where is not None:
        named = [error.where]
    elif isinstance(origin, Failure):
        named = [*origin.places]
    return _first_in(peer_files, [*places, *named]), _first_in(() if test_file is None else (test_file,), places)


def _first_in(files: Sequence[Path], places: Iterable[CodeLocation]) -> str:
    place = next((place for place in places if any(_is_in(place, file) for file in files)), None)
    if place is None:
        return ""
    return _line(place)


def _line(place: CodeLocation) -> str:
    return f"{short_path(place.file)}:{place.line}{f' in {place.function}' if place.function else ''}"


def _is_in(place: CodeLocation, files: Path) -> bool:
    return files == Path(place.file) or files in Path(place.file).parents


def _places(tb: TracebackType | None) -> Iterator[CodeLocation]:
    while tb is not None:
        yield location_of(tb.tb_frame, tb.tb_lineno)
        tb = tb.tb_next
