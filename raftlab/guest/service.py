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

    def __init__(self, simulation: PeerSimulation, apply_ch: queue.Queue[Any]) -> None:
        self._apply_ch = apply_ch
        self._reported_length = 0
        get = apply_ch.get

        def intercepted_get(block: bool = True, timeout: float | None = None) -> Any:
            message = get(block, timeout)
            simulation.add_apply_message(message)
            return message

        intercepted_get.__name__ = get.__name__
        apply_ch.get = intercepted_get  # type: ignore[method-assign]  # a subclass would have a mutex, and another schedule

    def length_effect(self) -> ApplyChLength | None:
        """At the end of a turn: how much is in it, if that has changed."""
        # Plainly: whoever waits now, or has ended, has not looked.
        now = queue.Queue.qsize(self._apply_ch)
        if now == self._reported_length:
            return None
        self._reported_length = now
        return ApplyChLength(now)


class InterceptedPeer:
    """What the service gets as its Raft: the peer itself, but the host hears of start() and snapshot()."""

    def __init__(self, simulation: PeerSimulation, peer: Any) -> None:
        self._simulation = simulation
        self._peer = peer
        self._calls = 0

    def start(self, command: Any) -> Any:
        self._calls = id_ = self._calls + 1
        self._simulation.add_effect(InterceptedCall(id_, "start", labgob.encode([command])))
        result = self._peer.start(command)
        self._simulation.add_effect(InterceptedResult(id_, *self._simulation.encode_result(result)))
        return result

    def get_state(self) -> Any:
        return self._peer.get_state()

    def snapshot(self, index: int, snapshot: bytes) -> None:
        check_snapshot_arguments(index, snapshot)
        self._simulation.add_effect(InterceptedCall(0, "snapshot", labgob.encode([index, snapshot])))
        self._peer.snapshot(index, snapshot)

    def kill(self) -> None:
        self._peer.kill()

    def __getattr__(self, name: str) -> Any:
        """What else the student's Raft has."""
        return getattr(self._peer, name)
