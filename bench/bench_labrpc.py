"""The cost of a reliable call, compared with a request to a real thread through two queue.Queues.

measure() returns the figures; run this file to print them. Ours is processor time, with tracing, as in a test. The
baseline is wall time, because it is mostly waiting for the other thread to wake; it passes objects by reference, while
ours encodes and decodes them twice. Rounds of both alternate, so that other load affects both alike, and the median
round of each counts: in the best round of the baseline both threads happen to share a core.
"""

from __future__ import annotations

import dataclasses
import queue
import statistics
import threading
import time
from typing import Any

from labrpc import ClientEnd, Network, Server, Service
from labsim import Simulation, current_simulation

_ROUNDS = 10


@dataclasses.dataclass(slots=True)
class VoteArgs:
    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int


@dataclasses.dataclass(slots=True)
class Entry:
    term: int
    command: Any


@dataclasses.dataclass(slots=True)
class AppendArgs:
    term: int
    leader_id: int
    prev_log_index: int
    prev_log_term: int
    entries: list[Entry]
    leader_commit: int


@dataclasses.dataclass(slots=True)
class Reply:
    term: int
    ok: bool


class Peer:
    def vote(self, args: VoteArgs) -> Reply:
        return Reply(args.term, True)

    def append(self, args: AppendArgs) -> Reply:
        return Reply(args.term, True)


def _end() -> ClientEnd:
    simulation = current_simulation()
    assert simulation is not None
    network = Network()
    server = Server(simulation.node("0"))
    server.add_service(Service(Peer()))
    network.add_server("0", server)
    end = network.make_end("1-0", "1")
    network.connect("1-0", "0")
    network.enable("1-0", True)
    return end


def _ours_us(method: str, args: Any, calls: int) -> float:
    """Processor time of one call, in a new simulation."""

    def main() -> None:
        call = _end().call
        for _ in range(calls):
            call(method, args)

    simulation = Simulation(1)
    began = time.process_time()
    simulation.run(main)
    return (time.process_time() - began) / calls * 1e6


def _queues_us(method: str, args: Any, calls: int) -> float:
    """Wall time of one request and response between two threads."""
    requests: queue.Queue[Any] = queue.Queue()
    responses: queue.Queue[Any] = queue.Queue()
    handler = getattr(Peer(), method.partition(".")[2])

    def serve() -> None:
        while (request := requests.get()) is not None:
            responses.put(handler(request))

    thread = threading.Thread(target=serve)
    thread.start()
    began = time.perf_counter()
    for _ in range(calls):
        requests.put(args)
        responses.get()
    took_s = time.perf_counter() - began
    requests.put(None)
    thread.join()
    return took_s / calls * 1e6


def measure(calls: int = 100_000) -> list[dict[str, Any]]:
    """One row per case: name, ours_us, baseline_us, baseline. The long message is sent a tenth as often."""
    entries = [Entry(7, i if i % 2 else f"cmd {i}") for i in range(50)]
    cases: list[tuple[str, str, Any, int]] = [
        ("labrpc call small", "Peer.vote", VoteArgs(7, 1, 120, 6), calls),
        ("labrpc call 50 entries", "Peer.append", AppendArgs(7, 1, 120, 6, entries, 119), calls // 10),
    ]
    rows = []
    for name, method, args, n in cases:
        part = max(1, n // _ROUNDS)
        ours, queues = [], []
        for _ in range(_ROUNDS):
            ours.append(_ours_us(method, args, part))
            queues.append(_queues_us(method, args, max(1, part // 5)))
        rows.append(
            {
                "name": name,
                "ours_us": statistics.median(ours),
                "baseline_us": statistics.median(queues),
                "baseline": "queue.Queue to a real thread and back (wall time)",
            }
        )
    return rows


if __name__ == "__main__":
    for row in measure():
        ratio = row["baseline_us"] / row["ours_us"]
        print(f"{row['name']:24} {row['ours_us']:8.2f} µs  {ratio:5.1f} times cheaper than {row['baseline']}")
