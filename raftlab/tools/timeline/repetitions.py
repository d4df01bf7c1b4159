"""Labels for collapsed calls: calls that only repeat the last one, on the timeline and on the page.

`FirstPass` decides which calls these are. Start at `Repetitions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raftlab.tools.timeline import labels
from raftlab.tools.timeline.calls import TimelineCall
from raftlab.tools.timeline.labels import LabelTexts
from raftlab.tools.timeline.rows import peer_order


@dataclass(slots=True)
class _RepeatedCalls:
    """Calls of one peer that repeat the same call."""

    instants: set[int] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)  # targets, once per lost call
    reached: list[str] = field(default_factory=list)

    @property
    def losses(self) -> str:
        if not self.lost:
            return ""
        if not self.reached:
            return ", lost"
        never = set(self.lost) - set(self.reached)
        return f", to {','.join(peer_order(never))} lost" if never else f", {len(self.lost)} lost"


class Repetitions:
    """Repetitions between two shown rows, by peer and by the call they repeat."""

    def __init__(self, at_ns: int) -> None:
        self.first_ns = self.last_ns = at_ns
        self._calls: dict[tuple[str, str], _RepeatedCalls] = {}
        self._refused: dict[str, int] = {}  # by peer: number of refused start() calls

    def add_call(self, call: TimelineCall) -> None:
        what = "heartbeat" if call.heartbeat else call.kind
        counted = self._calls.setdefault((call.source, what), _RepeatedCalls())
        counted.instants.add(call.sent_ns)
        (counted.lost if call.lost else counted.reached).append(call.target)

    def add_refused_start(self, peer: str) -> None:
        self._refused[peer] = self._refused.get(peer, 0) + 1

    def labels(self) -> list[tuple[str, LabelTexts]]:
        """Peers and their labels."""
        lasted_s = (self.last_ns - self.first_ns) / 1e9
        during = f" in {lasted_s:.1f} s" if lasted_s >= 0.1 else ""
        calls = [
            (peer, labels.repeated_calls(what, len(counted.instants), during, counted.losses))
            for (peer, what), counted in self._calls.items()
        ]
        return calls + [(peer, labels.refused_starts(count, during)) for peer, count in self._refused.items()]
