"""A load generator: clients that put, and the latencies that they measure. Used by prompt, bench and tests.

Start at `LoadGenerator`.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from raftlab.cluster.client import make_clerk, make_connections
from raftlab.cluster.tcp import Address, Credentials

_KEYS = 10  # of each client


class LoadResult(NamedTuple):
    clients: int
    puts: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_s(self) -> float:
        return self.puts / self.seconds

    def __str__(self) -> str:
        return (
            f"{self.clients} client{'' if self.clients == 1 else 's'}: {self.per_s:,.0f} puts/s, "
            f"p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms ({self.puts:,} puts in {self.seconds:.1f} s)"
        )


def load_result(clients: int, latencies_s: list[float], seconds: float) -> LoadResult:
    ordered = sorted(latencies_s) or [0.0]
    p50, p99 = (1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return LoadResult(clients, len(latencies_s), seconds, p50, p99)


class LoadGenerator:
    """Starts clients, each with one put at a time. They share one connection to each peer."""

    def __init__(
        self, program: Any, addresses: list[Address], credentials: Credentials, *, clients: int, seconds: float
    ) -> None:
        self._connections = make_connections(addresses, credentials)
        self._clients = clients
        self._started_s = time.monotonic()
        self._until_s = self._started_s + seconds
        self._latencies_s: list[float] = []
        self._threads = [
            threading.Thread(target=self._put, args=(number, make_clerk(program, self._connections)), daemon=True)
            for number in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def _put(self, number: int, clerk: Any) -> None:
        count = 0
        while (started_s := time.monotonic()) < self._until_s:
            count += 1
            clerk.put(f"load-{number}-{count % _KEYS}", f"value {count}")
            self._latencies_s.append(time.monotonic() - started_s)

    def wait(self) -> LoadResult:
        """Wait for the end. Without a majority that may be never."""
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.close()
        return load_result(self._clients, self._latencies_s, time.monotonic() - self._started_s)
