"""A worker process of `lab fuzz`: load the peer once, then make the runs of a sequence, some at a time.

Start at `prepare()`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from raftlab.harness.launcher import PeerLauncher
from raftlab.tools.workers.in_process import Answers, WorkerSetup, serve_peer


class FuzzSetup(WorkerSetup, kw_only=True):
    seed: int
    shorten_s: float


class FuzzRequest(msgspec.Struct):
    """The runs of a sequence after that one, up to this one."""

    sequence: int
    after: int
    up_to: int


def prepare(setup: FuzzSetup, launcher: PeerLauncher) -> Answers:
    from raftlab.harness.records import place_of_peer
    from raftlab.tools.fuzz.answers import Answering

    answering = Answering(setup, launcher, place_of_peer(setup.raft_path))
    requests, encoder = msgspec.json.Decoder(FuzzRequest), msgspec.json.Encoder()

    def answers_to(line: bytes) -> Iterator[bytes]:
        yield encoder.encode(answering.go_on(requests.decode(line)))

    return answers_to


if __name__ == "__main__":
    serve_peer(FuzzSetup, prepare)
