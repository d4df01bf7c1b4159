"""What came of one run, as a value that pytest, stress, fuzz, mutants, validation and grades share and keep.

Code groups, counts and compares these values; report.py makes the text for people. Start at `Outcome`; `Run.outcome()`
makes it of a run, `outcome_of()` of an error alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType

import msgspec

from labsim import NoProgress, RealWorldError, SimulationError, TaskFailed, Unresponsive
from labsim.stacks import CodeLocation, location_of, short_path
from raftlab.check.failure import Failure, PeerProcessFailed
from raftlab.check.task_errors import first_line, pytest_says

_LINE_CHARS_MAX = 1000  # far above what we write ourselves; an exception's text may be of any length
_LIST_CHARS_MAX = 2000  # of a line of `checks_off` or `unverified`
_REPORT_CHARS_MAX = 20_000


class Ending(StrEnum):
    PASSED = "passed"
    UNVERIFIED = "unverified"  # not failed, but it rests on messages that cannot be decoded
    SKIPPED = "skipped"  # by the test itself
    # The run failed:
    RULE = "rule"  # of the protocol, violated
    EXPECTATION = "expectation"  # of the test, not met
    EXCEPTION = "exception"  # in a thread or a method of the peer
    SIMULATION = "simulation"  # could not go on: a deadlock, the real clock, ...
    TEST = "test"  # the test itself failed, with an exception
    # Of the process that made the run, or of one peer's:
    DIED = "died"  # it ended
    LATE = "late"  # it took longer than the limit and was ended
    # Of a submission:
    FORCED = "forced"  # a peer exceeded a limit, or never waited, and was ended
    UNLOADABLE = "unloadable"  # its files cannot be imported
    MISBEHAVED = "misbehaved"  # a peer violated the sandbox protocol


_NOT_FAILED = (Ending.PASSED, Ending.UNVERIFIED, Ending.SKIPPED)
_FAILED = (Ending.RULE, Ending.EXPECTATION, Ending.EXCEPTION, Ending.SIMULATION, Ending.TEST)
FAILED = "failed"


class Outcome(msgspec.Struct, omit_defaults=True, kw_only=True):
    """How one run ended, and why."""

    test: str = ""
    seed: int = 0
    ending: Ending = Ending.PASSED
    name: str = ""  # of the rule, of the exception's class, of the simulation's error
    text: str = ""  # what was wrong, in one line
    where: str = ""  # the peer's line or, if none is known, the test's: "raft/raft.py:12 in start"
    mistake: str = ""  # equal for failures with one cause, whatever the test. Not for people
    headline: str = ""  # the first line of the explanation
    report: str = ""  # the explanation, with evidence and likely causes
    replay: str = ""  # the command that replays it
    skipped: bool = False  # by the test itself, also if it is unverified
    checks_off: list[str] = []  # which checks the peer's messages disable, and why
    unverified: list[str] = []  # what cannot be verified, why, and what to change
    alone: bool = False  # a single server, whose peer sends nothing
    output: str = ""  # the beginning of what the peers printed, where it is kept
    dropped: int = 0  # characters that they printed beyond that
    digest: str = ""
    events: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    cpu_s: float = 0.0  # of this process

    @property
    def failed(self) -> bool:
        return self.ending not in _NOT_FAILED

    @property
    def passed(self) -> bool:
        return self.ending is Ending.PASSED

    @property
    def kind(self) -> str:
        """The ending; "failed" for all that a test or a rule reports."""
        return FAILED if self.ending in _FAILED else str(self.ending)

    @property
    def rule(self) -> str:
        """The rule that was violated, or ""."""
        return self.name if self.ending is Ending.RULE else ""

    @property
    def cause(self) -> str:
        """`text` as similar failures share it. The simulation's errors quote the fix, and stay as they are."""
        as_it_is = self.ending is Ending.SIMULATION or self.ending not in _FAILED
        return self.text if as_it_is else without_numbers(self.text)

    @property
    def cause_key(self) -> tuple[str, ...]:
        """Failures with equal ones are reported as one."""
        return (self.mistake,) if self.mistake else (self.kind, self.rule, self.cause, self.where)

    @property
    def caught_by(self) -> str:
        """The rule or error that reported it; "" if a test did, which waited in vain or did not find something."""
        if self.ending is Ending.EXCEPTION:
            return f"{TaskFailed.__name__}: {self.name}"
        return self.name if self.ending in (Ending.RULE, Ending.SIMULATION) else ""

    def rewrite(self, change: Callable[[str], str]) -> None:
        """Change every text of it, say to the paths that its reader knows. Long ones are cut, so that it can travel."""

        def cut(text: str, chars_max: int) -> str:
            return change(text).encode(errors="replace").decode()[:chars_max]

        for field in ("text", "where", "mistake", "headline"):
            setattr(self, field, cut(getattr(self, field), _LINE_CHARS_MAX))
        self.report = cut(self.report, _REPORT_CHARS_MAX)
        self.checks_off = [cut(line, _LIST_CHARS_MAX) for line in self.checks_off]
        self.unverified = [cut(line, _LIST_CHARS_MAX) for line in self.unverified]


def outcome_of(
    error: BaseException | None,
    peer_files: Path | Sequence[Path] = (),
    test_file: Path | None = None,
    unverified: Sequence[str] = (),
) -> Outcome:
    """What the error alone says. `unverified`: of the run; a failure stays one, whatever it rests on.

    `peer_files`: the files of the peer and its service, or their folders; with none, `where` names no line of theirs.
    """
    peer_files = (peer_files,) if isinstance(peer_files, Path) else peer_files
    if error is None or pytest_says(error, "Skipped"):
        skipped, unread = error is not None, list(unverified)
        if unread:
            return Outcome(ending=Ending.UNVERIFIED, text=unread[0], skipped=skipped, unverified=unread)
        return Outcome(ending=Ending.SKIPPED, text=str(error), skipped=True) if skipped else Outcome()
    if isinstance(error, PeerProcessFailed):
        ending = Ending.EXCEPTION if error.is_exception else Ending.SIMULATION
        text = str(error).partition("\n")[0]
        name = error.name if error.is_exception else error.kind
        where = _line(error.where[0]) if peer_files and error.where else ""
        mistake = _mistake(ending, name, text, where, "")
        return Outcome(ending=ending, name=name, text=text, where=where, mistake=mistake)
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
    mistake = _mistake(ending, name, text, peers, tests, variety)
    return Outcome(ending=ending, name=name, text=text, where=peers or tests, mistake=mistake)


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
    return text if len(text) <= _LINE_CHARS_MAX else f"{text[: _LINE_CHARS_MAX - 3]}..."


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
