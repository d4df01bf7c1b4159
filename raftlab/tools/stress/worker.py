"""What runs inside a worker process: load the peer and the tests once, then seed after seed.

What the peer prints goes nowhere; what C code says at its end goes to the file that workers/process.py reads.

Start at `begin()`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from raftlab.harness.launcher import LoadError
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.workers.process import restore_paths
from raftlab.tools.workers.server import RETIRE, Refusal, serve, show_stack_when_lost

_ORPHAN_S = 30.0


class StressSetup(msgspec.Struct):
    """The first line of the conversation. Paths are relative to the working directory."""

    raft: str
    tests: dict[str, str]  # the file of each test
    run_limit_s: float
    kv: str = ""  # the service, if some tests are of one
    memory_mb: int = 0
    given: dict[str, Any] = {}  # how runs are made, with paths as the reader typed them
    files_given: dict[str, str] = {}  # the file of each test that is not the lab's, for the replay line
    shown_as: dict[str, str] = {}  # paths here -> where these files really lie


class StressRequest(msgspec.Struct):
    test: str
    seed: int


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    # Thousands of runs of a peer that prints would fill the disk. A replay shows what it prints.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # for as long as the process lives
    setup = msgspec.json.decode(greeting, type=StressSetup)
    show_stack_when_lost()
    if setup.memory_mb:
        _limit_memory(setup.memory_mb)
    try:
        run_one = _prepare(setup)
    except LoadError as error:
        raise Refusal(restore_paths(str(error), setup.shown_as).encode(errors="replace").decode()) from None
    requests = msgspec.json.Decoder(StressRequest)
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


def _prepare(setup: StressSetup) -> Callable[[str, int], tuple[bytes, bool]]:
    """Load everything; the result runs one seed and gives its Outcome, and whether it ran out of memory."""
    raft = Path(setup.raft).resolve()
    kv = Path(setup.kv).resolve() if setup.kv else None
    launcher = launcher_for(
        raft, kv=kv, isolated=setup.given.get("isolated", False), race=setup.given.get("race", False)
    )
    # Only now: the tester must know the messages of the peer's own package, if it has one.
    from raftlab.harness.options import KV, run_line
    from raftlab.harness.records import place_of_peer
    from raftlab.harness.run import run_test
    from raftlab.tools.selection import SCENARIO, SelectionError, load_tests

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
        run = run_test(test, launcher, seed)
        out_of_memory = isinstance(run.error, MemoryError) or isinstance(
            getattr(run.error, "__cause__", None), MemoryError
        )
        if out_of_memory:
            _limit_memory(None)  # the report needs some too
        own_file = setup.files_given.get(name, "")
        given = setup.given if test.wants_service else {**setup.given, KV.name: None}
        replay = run_line("replay", name, seed, given, file=own_file)
        shrink = "" if test.file.suffix == SCENARIO else run_line("shrink", name, seed, given, file=own_file)
        outcome = run.outcome(peer_files, test.file, replay=replay, shrink=shrink)
        outcome.rewrite(lambda text: restore_paths(text, setup.shown_as))
        return encoder.encode(outcome), out_of_memory

    return run_one


if __name__ == "__main__":
    status = serve(begin)
    # Not sys.exit(): a peer's atexit functions and threads have no say in how this ends.
    os._exit(status)
