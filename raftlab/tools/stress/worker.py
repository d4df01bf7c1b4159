"""What runs inside a worker process: load the peer and the tests once, then seed after seed.

What the peer prints goes nowhere; what C code says at its end goes to the file that workers/process.py reads.

Start at `begin()`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from raftlab.harness.loader import LoadError
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.workers.process import really
from raftlab.tools.workers.server import RETIRE, Refusal, serve, show_stack_when_lost

_ORPHAN_S = 30.0
_REPORT_CHARS_MAX = 20_000


class Setup(msgspec.Struct):
    """The first line of the conversation. Paths are relative to the working directory."""

    raft: str
    tests: dict[str, str]  # the file of each test
    run_limit_s: float
    kv: str = ""  # the service, if some tests are of one
    memory_mb: int = 0
    given: dict[str, Any] = {}  # how runs are made, with paths as the reader typed them
    files_given: dict[str, str] = {}  # the file of each test that is not the lab's, for the replay line
    shown_as: dict[str, str] = {}  # paths here -> where these files really lie


class Request(msgspec.Struct):
    test: str
    seed: int


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    # Thousands of runs of a peer that prints would fill the disk. A replay shows what it prints.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # for as long as the process lives
    setup = msgspec.json.decode(greeting, type=Setup)
    show_stack_when_lost()
    if setup.memory_mb:
        _limit_memory(setup.memory_mb)
    try:
        run_one = _prepare(setup)
    except LoadError as error:
        raise Refusal(_encodable(really(str(error), setup.shown_as))) from None
    requests = msgspec.json.Decoder(Request)
    answered = False

    def answers_to(line: bytes) -> Iterator[bytes]:
        nonlocal answered
        request = requests.decode(line)
        # If nobody is there any more to end a run that hangs.
        signal.setitimer(signal.ITIMER_REAL, setup.run_limit_s + _ORPHAN_S)
        outcome, out_of_memory = run_one(request.test, request.seed)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Earlier runs may have used it up, so a fresh process decides; it makes the next runs in any case.
        if not out_of_memory or not answered:
            yield outcome
        if out_of_memory:
            yield RETIRE
        answered = True

    return answers_to


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
    kv = Path(setup.kv).resolve() if setup.kv else None
    launcher = launcher_for(
        raft, kv=kv, isolated=setup.given.get("isolated", False), race=setup.given.get("race", False)
    )
    # Only now: the tester must know the messages of the peer's own package, if it has one.
    from raftlab.check.task_errors import pytest_says
    from raftlab.harness import report
    from raftlab.harness.options import KV, run_line
    from raftlab.harness.records import place_of_peer
    from raftlab.harness.run import run_test
    from raftlab.harness.verdict import verdict_of
    from raftlab.tools.selection import SCENARIO, SelectionError, load_tests
    from raftlab.tools.stress.outcome import PASSED, UNVERIFIED, Outcome

    tests = {}
    for file in dict.fromkeys(setup.tests.values()):
        try:
            tests.update({test.name: test for test in load_tests(Path(file))})
        except SelectionError as error:
            raise LoadError(str(error)) from None
    peer_files = place_of_peer(raft, kv)
    encoder = msgspec.json.Encoder()

    def run_one(name: str, seed: int) -> tuple[bytes, bool]:
        test = tests[name]
        began_s = time.process_time()
        run = run_test(test, launcher, seed)
        cpu_s = time.process_time() - began_s
        simulation = run.simulation
        assert simulation is not None
        events = simulation.switches if simulation.trace is None else len(simulation.trace)
        outcome = Outcome(name, seed, "passed", run.digest, run.virtual_s, run.real_s, events)
        outcome.checks_off, outcome.unverified, outcome.cpu_s = run.checks_off, run.unverified, cpu_s
        error = run.error
        outcome.skipped = error is not None and pytest_says(error, "Skipped")
        if error is None or outcome.skipped:
            outcome.kind = UNVERIFIED if run.unverified else PASSED
            return encoder.encode(outcome), False
        out_of_memory = isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError)
        if out_of_memory:
            _limit_memory(None)  # the report needs some too
        outcome.take(verdict_of(error, peer_files, test.file))
        own_file = setup.files_given.get(name, "")
        given = setup.given if test.wants_service else {**setup.given, KV.name: None}
        replay = run_line("replay", name, seed, given, file=own_file)
        shrink = "" if test.file.suffix == SCENARIO else run_line("shrink", name, seed, given, file=own_file)
        told = report.describe(error, name, seed, replay, causes=run.causes, shrink=shrink)
        outcome.report = told[:_REPORT_CHARS_MAX]
        for field in ("mistake", "cause", "where", "said", "report"):
            setattr(outcome, field, _encodable(really(getattr(outcome, field), setup.shown_as)))
        return encoder.encode(outcome), out_of_memory

    return run_one


def _encodable(text: str) -> str:
    """What cannot be encoded must not cost the report."""
    return text.encode(errors="replace").decode()


if __name__ == "__main__":
    status = serve(begin)
    # Not sys.exit(): a peer's atexit functions and threads have no say in how this ends.
    os._exit(status)
