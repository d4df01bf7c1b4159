"""What runs inside a worker process of `lab fuzz`: load the peer once, then the runs of a lane, some at a time.

Start at `begin()`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from raftlab.harness.launcher import LoadError
from raftlab.sandbox.loader import launcher_for
from raftlab.tools.workers.process import restore_paths
from raftlab.tools.workers.server import Refusal, serve, show_stack_when_lost


class FuzzSetup(msgspec.Struct):
    """The first line of the conversation. Paths are relative to the working directory."""

    raft: str
    seed: int
    shorten_s: float
    isolated: bool = False
    race: bool = False
    shown_as: dict[str, str] = {}  # paths here -> where these files really lie


class FuzzRequest(msgspec.Struct):
    """The runs of a lane after that one, up to this one."""

    sequence: int
    after: int
    up_to: int


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    # What a peer prints in thousands of runs nobody reads.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # for as long as the process lives
    show_stack_when_lost()
    setup = msgspec.json.decode(greeting, type=FuzzSetup)
    raft = Path(setup.raft).resolve()
    try:
        launcher = launcher_for(raft, isolated=setup.isolated, race=setup.race)
    except LoadError as error:
        raise Refusal(restore_paths(str(error), setup.shown_as)) from None
    # Only now: the tester must know the messages of the peer's own package, if it has one.
    from raftlab.harness.records import place_of_peer
    from raftlab.tools.fuzz.answers import Answering

    answering = Answering(setup, launcher, place_of_peer(raft))
    requests, encoder = msgspec.json.Decoder(FuzzRequest), msgspec.json.Encoder()

    def answers_to(line: bytes) -> Iterator[bytes]:
        yield encoder.encode(answering.go_on(requests.decode(line)))

    return answers_to


if __name__ == "__main__":
    status = serve(begin)
    # Not sys.exit(): a peer's atexit functions and threads have no say in how this ends.
    os._exit(status)
