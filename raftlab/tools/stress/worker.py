"""A worker process of `lab stress`: load the peer and the tests once, then run seed after seed.

Start at `prepare()`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from raftlab.harness.launcher import LoadError, PeerLauncher
from raftlab.tools.workers.in_process import Answers, WorkerSetup, limit_memory, serve_peer
from raftlab.tools.workers.process import restore_paths
from raftlab.tools.workers.server import RETIRE

_ORPHAN_S = 30.0


class StressSetup(WorkerSetup, kw_only=True):
    tests: dict[str, str]  # the file of each test
    run_limit_s: float
    files_given: dict[str, str]  # the file of each test that is not the lab's, for the replay line


class StressRequest(msgspec.Struct):
    test: str
    seed: int


def prepare(setup: StressSetup, launcher: PeerLauncher) -> Answers:
    from raftlab.harness.options import KV, run_line
    from raftlab.harness.records import place_of_peer
    from raftlab.harness.run import Run, run_test
    from raftlab.tools.selection import SCENARIO, SelectionError, load_tests

    tests = {}
    for file in dict.fromkeys(setup.tests.values()):
        try:
            tests.update({test.name: test for test in load_tests(Path(file))})
        except SelectionError as error:
            raise LoadError(str(error)) from None
    peer_files = place_of_peer(setup.raft_path, setup.kv_path)
    requests, encoder = msgspec.json.Decoder(StressRequest), msgspec.json.Encoder()
    answered = False

    def outcome_of(run: Run) -> bytes:
        test = tests[run.test]
        file = setup.files_given.get(test.name, "")
        given = setup.given if test.wants_service else {**setup.given, KV.name: None}
        replay = run_line("replay", test.name, run.seed, given, file=file)
        shrink = "" if test.file.suffix == SCENARIO else run_line("shrink", test.name, run.seed, given, file=file)
        outcome = run.outcome(peer_files, test.file, replay=replay, shrink=shrink)
        outcome.rewrite(lambda text: restore_paths(text, setup.shown_as))
        return encoder.encode(outcome)

    def answers_to(line: bytes) -> Iterator[bytes]:
        nonlocal answered
        request = requests.decode(line)
        # Ends a run that hangs, should the process that asked be gone.
        signal.setitimer(signal.ITIMER_REAL, setup.run_limit_s + _ORPHAN_S)
        run = run_test(tests[request.test], launcher, request.seed)
        out_of_memory = any(isinstance(e, MemoryError) for e in (run.error, getattr(run.error, "__cause__", None)))
        if out_of_memory:
            limit_memory(None)  # the report needs some too
        outcome = outcome_of(run)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Earlier runs may have used it up, so a new process decides; it makes the next runs in any case.
        if not out_of_memory or not answered:
            yield outcome
        if out_of_memory:
            yield RETIRE
        answered = True

    return answers_to


if __name__ == "__main__":
    serve_peer(StressSetup, prepare)
