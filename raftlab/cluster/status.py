"""The status of one process, for `status` and its log lines.

Promise: it works for any raft.py, because it uses only messages (Figure 2's fields), get_state() and apply_ch; its
memory is bounded. Not promised: values that were not sent yet. A new leader does not know the lag of its followers.

Start at `StatusCollector`, then `status_table()`.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from raftapi import ApplyMsg
from raftlab.cluster.durable_store import DurableStore
from raftlab.cluster.tcp_server import TcpServer
from raftlab.trace.rpcs import APPEND

_RATE_S = 5.0
_POLL_S = 0.1


@dataclass
class StatusArgs:
    pass


@dataclass
class StatusReply:
    """The state of one process, as it reports it."""

    peer: int
    term: int
    leads: bool
    leader: int  # in that term; -1: unknown
    commit: int
    applied: int
    log_bytes: int
    snapshot_bytes: int
    saves: int
    save_ms: float  # median of recent saves, including fsync
    puts_per_s: float
    refused: int  # connections closed because of invalid data
    up_s: float
    lag: dict[int, int] = field(default_factory=dict)  # of a leader, by peer: entries not acknowledged


class ApplyQueue(queue.Queue[ApplyMsg]):
    """An apply_ch that keeps the index of the last message taken."""

    index = 0

    def _get(self) -> ApplyMsg:
        msg: ApplyMsg = super()._get()
        self.index = msg.snapshot_index if msg.snapshot_valid else msg.command_index
        return msg


class StatusCollector:
    """Collects status from RPCs, in both directions."""

    def __init__(self, me: int, peers: int) -> None:
        self.me = me
        self._mu = threading.Lock()
        self._peers = peers
        self._leader = (0, -1)  # (term, leader) of the latest known leader
        self._commit = 0
        self._last = 0  # the last index sent as leader in _sent_term
        self._sent_term = 0
        self._match: dict[int, int] = {}
        self._puts: deque[tuple[float, int]] = deque(maxlen=int(_RATE_S / _POLL_S) + 2)
        self._put_count = 0
        self._started_s = time.monotonic()

    # ---- RPCs ------------------------------------------------------------------------------------------------

    def on_sent(self, peer: int) -> Callable[[str, Any, Any], None]:
        """The callback for replies of that peer."""

        def on_reply(method: str, args: Any, reply: Any) -> None:
            if method != APPEND:
                return
            with self._mu:
                if args.term != self._sent_term:
                    self._sent_term, self._last, self._match = args.term, 0, {}
                last = args.prev_log_index + len(args.entries)
                self._last = max(self._last, last)
                self._commit = max(self._commit, args.leader_commit)
                if reply.success:
                    self._match[peer] = max(self._match.get(peer, 0), last)

        return on_reply

    def on_served(self, method: str, args: Any) -> None:
        if method == APPEND:
            with self._mu:
                self._leader = max(self._leader, (args.term, args.leader_id))
                self._commit = max(self._commit, min(args.leader_commit, args.prev_log_index + len(args.entries)))
        elif method == "KVServer.put_append":
            self._put_count += 1

    def tick(self) -> None:
        self._puts.append((time.monotonic(), self._put_count))

    # ---- Status ----------------------------------------------------------------------------------------------

    def report(self, state: tuple[int, bool], applied: int, disk: DurableStore, server: TcpServer) -> StatusReply:
        term, leads = state
        with self._mu:
            lag = {}
            if leads and self._sent_term == term:
                others = [peer for peer in range(self._peers) if peer != self.me]
                lag = {peer: self._last - self._match[peer] if peer in self._match else -1 for peer in others}
            leader = self.me if leads else self._leader[1] if self._leader[0] == term else -1
            return StatusReply(
                peer=self.me,
                term=term,
                leads=leads,
                leader=leader,
                commit=max(self._commit, applied),
                applied=applied,
                log_bytes=len(disk.raft_state),
                snapshot_bytes=len(disk.snapshot),
                saves=disk.number,
                save_ms=1000 * statistics.median(tuple(disk.saves_s) or (0.0,)),
                puts_per_s=self._rate() if leads else 0.0,
                refused=sum(server.refused.values()),
                up_s=time.monotonic() - self._started_s,
                lag=lag,
            )

    def _rate(self) -> float:
        puts = list(self._puts)
        if len(puts) < 2 or puts[-1][0] == puts[0][0]:
            return 0.0
        return (puts[-1][1] - puts[0][1]) / (puts[-1][0] - puts[0][0])


class StatusService:
    """The RPC service Status of one process, and a thread that logs changes of term and leader."""

    def __init__(
        self,
        collector: StatusCollector,
        peer: Any,
        apply_ch: ApplyQueue,
        disk: DurableStore,
        server: TcpServer,
        log: Callable[[str], None],
    ) -> None:
        self._collector = collector
        self._peer = peer
        self._apply_ch = apply_ch
        self._disk = disk
        self._server = server
        self._log = log
        threading.Thread(target=self._run, name="monitor", daemon=True).start()

    def report(self, args: StatusArgs) -> StatusReply:
        return self._collector.report(self._peer.get_state(), self._apply_ch.index, self._disk, self._server)

    def _run(self) -> None:
        reported: tuple[int, int] | None = None
        was_leader = False
        while True:
            self._collector.tick()
            now = self.report(StatusArgs())
            if (now.term, now.leader) != reported and now.leader >= 0:
                reported = (now.term, now.leader)
                self._log(f"term {now.term}: {'leader' if now.leads else f'follower of peer {now.leader}'}")
            elif was_leader and not now.leads:
                self._log(f"term {now.term}: no longer leader")
            was_leader = now.leads
            time.sleep(_POLL_S)


def status_table(rows: Sequence[tuple[int, str, StatusReply | None]]) -> list[str]:
    """The status as a table for humans, a line for each peer."""
    head = ("peer", "process", "role", "term", "commit", "applied", "lag", "log", "snapshot", "save", "puts/s")
    lags = next((reply.lag for _, _, reply in rows if reply is not None and reply.leads), {})
    lines: list[tuple[str, ...]] = [head]
    for peer, process, reply in rows:
        lag = "" if peer not in lags else "unknown" if lags[peer] < 0 else str(lags[peer])
        if reply is None:
            lines.append((str(peer), process, *[""] * 4, lag, *[""] * 4))
            continue
        lines.append(
            (
                str(peer),
                process,
                "leader" if reply.leads else "follower" if reply.leader >= 0 else "no leader",
                str(reply.term),
                str(reply.commit),
                str(reply.applied),
                lag,
                format_size(reply.log_bytes),
                format_size(reply.snapshot_bytes),
                f"{reply.save_ms:.2f} ms",
                f"{reply.puts_per_s:.0f}" if reply.leads else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left_aligned = ("peer", "process", "role")
    return [
        "  ".join(
            cell.ljust(width) if name in left_aligned else cell.rjust(width)
            for cell, width, name in zip(line, widths, head, strict=True)
        ).rstrip()
        for line in lines
    ]


def format_size(count: int) -> str:
    return (
        f"{count} B" if count < 10_000 else f"{count / 1000:.0f} kB" if count < 10_000_000 else f"{count / 1e6:.0f} MB"
    )
