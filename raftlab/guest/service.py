"""A service above its peer in one sandboxed process: reports to the supervisor what passes between the two.

These effects correspond to what raftlab/harness/interceptor.py observes in one process: messages taken from apply_ch,
its length, and calls of start() and snapshot(). The supervisor does not trust them. A false report gains nothing: a
service could also do what it claims.

Start at `InterceptedPeer`.
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
    """Reports what a service in this process takes from apply_ch."""

    def __init__(self, simulation: PeerSimulation, apply_ch: queue.Queue[Any]) -> None:
        self._apply_ch = apply_ch
        self._reported_length = 0
        get = apply_ch.get

        def intercepted_get(block: bool = True, timeout: float | None = None) -> Any:
            message = get(block, timeout)
            simulation.add_apply_message(message)
            return message

        intercepted_get.__name__ = get.__name__
        apply_ch.get = intercepted_get  # type: ignore[method-assign]  # a subclass would have another mutex, and so another schedule

    def length_effect(self) -> ApplyChLength | None:
        """The length of apply_ch, if it has changed since the last call."""
        # Not apply_ch.qsize(): no task of the peer makes this call.
        now = queue.Queue.qsize(self._apply_ch)
        if now == self._reported_length:
            return None
        self._reported_length = now
        return ApplyChLength(now)


class InterceptedPeer:
    """The Raft object that a service gets: the peer, with its start() and snapshot() calls reported."""

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
        """Any other attribute of the student's Raft."""
        return getattr(self._peer, name)
