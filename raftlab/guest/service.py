"""A service inside a guest, above its peer: the host is told what passes between the two.

The same as raftlab/harness/interceptor.py hears in one process, sent as effects: what the service takes from apply_ch,
what waits there, and its calls of start() and snapshot(). Not promised: that it is true, as for all that a guest
sends. Whatever a service could claim of these, it could also do, so a lie gains nothing.

Start at `ToldPeer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import labgob
from labsim import queue
from raftlab.guest.contract import check_snapshot_arguments
from raftlab.guest.protocol import ApplyChLength, InterceptedCall, InterceptedResult

if TYPE_CHECKING:
    from raftlab.guest.peer_process import PeerSimulation


class ApplyChInterceptor:
    """apply_ch, read by a service that is in here, too."""

    def __init__(self, guest: PeerSimulation, apply_ch: queue.Queue[Any]) -> None:
        self._apply_ch = apply_ch
        self._told = 0
        get = apply_ch.get

        def tapped_get(block: bool = True, timeout: float | None = None) -> Any:
            message = get(block, timeout)
            guest.tell_put(message)
            return message

        tapped_get.__name__ = get.__name__
        apply_ch.get = tapped_get  # type: ignore[method-assign]  # a subclass would have a mutex, and another schedule

    def news(self) -> ApplyChLength | None:
        """At the end of a turn: how much is in it, if that has changed."""
        # Plainly: whoever waits now, or has ended, has not looked.
        now = queue.Queue.qsize(self._apply_ch)
        if now == self._told:
            return None
        self._told = now
        return ApplyChLength(now)


class InterceptedPeer:
    """What the service gets as its Raft: the peer itself, but the host hears of start() and snapshot()."""

    def __init__(self, guest: PeerSimulation, peer: Any) -> None:
        self._guest = guest
        self._peer = peer
        self._calls = 0

    def start(self, command: Any) -> Any:
        self._calls = id_ = self._calls + 1
        self._guest.do(InterceptedCall(id_, "start", labgob.encode([command])))
        result = self._peer.start(command)
        self._guest.do(InterceptedResult(id_, *self._guest.encode_result(result)))
        return result

    def get_state(self) -> Any:
        return self._peer.get_state()

    def snapshot(self, index: int, snapshot: bytes) -> None:
        check_snapshot_arguments(index, snapshot)
        self._guest.do(InterceptedCall(0, "snapshot", labgob.encode([index, snapshot])))
        self._peer.snapshot(index, snapshot)

    def kill(self) -> None:
        self._peer.kill()

    def __getattr__(self, name: str) -> Any:
        """What else the student's Raft has."""
        return getattr(self._peer, name)
