"""What runs inside a worker process: load the peer and the tests once, then seed after seed.

It speaks lines of JSON on the pipes it was started with, and takes those pipes away from everybody else: what the
peer prints goes nowhere, what C code says at its end goes to the file that workers/process.py reads.

Start at `main()`.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from labtest.loading import LoadError, load_peer_class

_ORPHAN_S = 30.0
_REPORT_CHARS_MAX = 20_000


class Setup(msgspec.Struct):
    """The first line of the conversation. Paths are relative to the working directory."""

    raft: str
    tests: dict[str, str]  # the file of each test
    raft_given: str  # as the reader typed it, for the replay line
    file_given: str
    run_limit_s: float
    memory_mb: int = 0
    shown_as: dict[str, str] = {}  # paths here -> where these files really lie


class Request(msgspec.Struct):
    test: str
    seeds: list[int]


def main() -> int:
    requests, answers = _take_the_pipes()
    setup = msgspec.json.decode(requests.readline(), type=Setup)
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    if setup.memory_mb:
        _limit_memory(setup.memory_mb)
    try:
        run_one = _prepare(setup)
    except LoadError as error:
        answers.write(msgspec.json.encode({"error": _really(str(error), setup.shown_as)}) + b"\n")
        return 1
    answers.write(b"ready\n")
    try:
        for number, (request, seed) in enumerate(_seeds(requests)):
            # If nobody is there any more to end a run that hangs.
            signal.setitimer(signal.ITIMER_REAL, setup.run_limit_s + _ORPHAN_S)
            outcome, out_of_memory = run_one(request.test, seed)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if out_of_memory:
                # Earlier runs may have used it up, so a fresh process decides; it makes the next runs in any case.
                answers.write(b"retire\n" if number else outcome + b"\nretire\n")
                return 0
            answers.write(outcome + b"\n")
    except BrokenPipeError:
        pass  # whoever started it is gone
    return 0


def _seeds(requests: IO[bytes]) -> Iterator[tuple[Request, int]]:
    for line in requests:
        request = msgspec.json.decode(line, type=Request)
        for seed in request.seeds:
            yield request, seed


def _take_the_pipes() -> tuple[IO[bytes], IO[bytes]]:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    # Thousands of runs of a peer that prints would fill the disk. A replay shows what it prints.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # for as long as the process lives
    return requests, answers


def _limit_memory(memory_mb: int | None) -> None:
    """None lifts the limit again."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard if memory_mb is None else memory_mb << 20, hard))
    except (ImportError, ValueError, OSError):
        pass  # not on this system, or more than it allows anyway


def _prepare(setup: Setup) -> Callable[[str, int], tuple[bytes, bool]]:
    """Load everything; the result runs one seed and gives its Outcome, and whether it ran out of memory."""
    raft = Path(setup.raft).resolve()
    peer_class = load_peer_class(raft)
    # Only now: the tester must know the messages of the peer's own package, if it has one.
    from labtest import report
    from labtest.running import run_test
    from labtools.selecting import SelectionError, load_tests
    from labtools.stress.kit import replay_line
    from labtools.stress.outcome import FAILED, Outcome, cause_of

    tests = {}
    for file in dict.fromkeys(setup.tests.values()):
        try:
            tests.update({test.name: test for test in load_tests(Path(file))})
        except SelectionError as error:
            raise LoadError(str(error)) from None
    peer_files = raft.parent if (raft.parent / "messages.py").exists() else raft
    encoder = msgspec.json.Encoder()

    def run_one(name: str, seed: int) -> tuple[bytes, bool]:
        test = tests[name]
        run = run_test(test.function, peer_class, seed)
        simulation = run.simulation
        assert simulation is not None
        events = simulation.switches if simulation.trace is None else len(simulation.trace)
        outcome = Outcome(name, seed, "passed", run.digest, run.virtual_s, run.real_s, events)
        outcome.checks_off = run.checks_off
        error = run.error
        if error is None or report.pytest_says(error, "Skipped"):
            return encoder.encode(outcome), False  # passed, or skipped itself
        out_of_memory = isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError)
        if out_of_memory:
            _limit_memory(None)  # the report needs some too
        outcome.kind = FAILED
        replay = replay_line(name, seed, setup.raft_given, setup.file_given)
        told = report.describe(error, name, seed, replay, causes=run.causes)[:_REPORT_CHARS_MAX]
        outcome.cause, outcome.where, outcome.said, outcome.report = (
            _really(text, setup.shown_as) for text in (*cause_of(error, peer_files, test.file), told)
        )
        return encoder.encode(outcome), out_of_memory

    return run_one


def _really(text: str, shown_as: dict[str, str]) -> str:
    for here, there in shown_as.items():
        # Not where it is part of a longer path, as in the replay line.
        text = re.sub(rf"(?<![\w/.]){re.escape(here)}", there.replace("\\", r"\\"), text)
    # What cannot be encoded must not cost the report.
    return text.encode(errors="replace").decode()


if __name__ == "__main__":
    status: Any = main()
    # Not sys.exit(): a peer's atexit functions and threads have no say in how this ends.
    os._exit(status)
