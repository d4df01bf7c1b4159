"""The cluster according to its messages: which peers are up, connected, candidate or leader, and which links are cut.

A peer that sends RequestVote in term T is a candidate in T. One that sends AppendEntries or InstallSnapshot leads T.
One that answers with a newer term, or accepts what the leader of its term sends, is a follower. This holds for any
peer, whatever its fields are called. It is the latest observation, for people who read a run; rules need more.

Other modules draw other conclusions from the same messages, on purpose:

| module | concludes | differs because |
|---|---|---|
| check/rules/facts.py | bounds on terms, logs and votes | a rule reports only what no correct peer can do |
| check/diagnosis/trace_analysis.py | campaigns, votes, terms learned | a diagnosis cites the call that shows each |
| tools/page/wire.py | votes, logs, indexes: the latest value | only the page draws them |
| scenarios/observations.py | logs as in Figure 2, open requests | a step relies on them before a message shows them |
| tools/shrink/transcript.py | when a campaign begins | it writes steps, and needs no roles |
| cluster/status.py | leader and lag, of one real process | it has no trace, and asks get_state() |

Start at `ClusterView.take()`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from labsim import Event
from raftlab.trace.events import (
    ANSWER,
    BOOT,
    CLUSTER,
    CONDITION_KINDS,
    CONNECT,
    CRASH,
    DISCONNECT,
    FREEZE_CLOCK,
    LINK,
    PARTITION,
    PAUSE,
    REPLY,
    RESTART,
    RESUME,
    SEND,
    SERVER_ACTS,
    STARTED,
    UNFREEZE_CLOCK,
)
from raftlab.trace.rpcs import APPEND, INSTALL, VOTE

FOLLOWER = "follower"
CANDIDATE = "candidate"
LEADER = "leader"
_ROLE_OF_SENDER = {VOTE: CANDIDATE, APPEND: LEADER, INSTALL: LEADER}


class PeerView:
    """What was observed of one peer, and what the tester did to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.plugged = False  # connected to all that are plugged, too
        self.paused = False
        self.frozen = False  # its clock
        self.isolated = False  # every link to or from it is cut
        self.role = FOLLOWER
        self.term = 0

    @property
    def connected(self) -> bool:
        return self.up and self.plugged


class ObservedRole(NamedTuple):
    """The role in which a peer was just observed, and the one before."""

    peer: PeerView
    role: str
    term: int
    old_role: str
    old_term: int

    @property
    def is_new(self) -> bool:
        """A new term alone is not new for a follower, which may learn of many."""
        return self.role != self.old_role or (self.role != FOLLOWER and self.term != self.old_term)


class DecodedCall(Protocol):
    method: str
    source: str
    target: str
    args: Any
    reply: Any


class ClusterView:
    def __init__(self, names: Iterable[str]) -> None:
        self.peers = {name: PeerView(name) for name in names}
        self.cut: set[tuple[str, str]] = set()  # from whom to whom

    def take(self, event: Event, call: DecodedCall | None = None) -> ObservedRole | None:
        """Record an event. `call`: the call that a message belongs to."""
        kind = event.kind
        if call is not None:
            return self._take_message(kind, call)
        if kind in SERVER_ACTS:
            self._affect(kind, self.peers[event.node])
        elif kind in CONDITION_KINDS or kind == CLUSTER:
            self._change_links(event)
        elif kind == STARTED:
            return self._take_started(event)
        return None

    # ---- roles ------------------------------------------------------------------------------------------------------

    def _take_message(self, kind: str, call: DecodedCall) -> ObservedRole | None:
        source, target = self.peers.get(call.source), self.peers.get(call.target)
        if source is None or target is None:
            return None
        if kind == SEND:
            role, term = _ROLE_OF_SENDER.get(call.method), _term(call.args)
            # A thread of a leader may send a request that it prepared as a candidate.
            late = role == CANDIDATE and source.role == LEADER and term == source.term
            return None if role is None or late or term < source.term else self._observe(source, role, term)
        if kind == ANSWER:
            asked, term = _term(call.args), _term(call.reply)
            hears_leader = call.method in (APPEND, INSTALL) and term == target.term == asked
            if term > target.term or (hears_leader and target.role == CANDIDATE):
                return self._observe(target, FOLLOWER, term)
        elif kind == REPLY and (term := _term(call.reply)) > source.term:
            return self._observe(source, FOLLOWER, term)
        return None

    def _take_started(self, event: Event) -> ObservedRole | None:
        """start() returns whether the peer leads; None if that was known."""
        peer, term = self.peers.get(event.node), event.detail.term
        if peer is None or term < peer.term:
            return None
        role = LEADER if event.detail.is_leader else FOLLOWER
        if term == peer.term and (role == LEADER) == (peer.role == LEADER):
            return None
        return self._observe(peer, role, term)

    def _observe(self, peer: PeerView, role: str, term: int) -> ObservedRole:
        observed = ObservedRole(peer, role, term, peer.role, peer.term)
        peer.role, peer.term = role, term
        return observed

    # ---- connections ------------------------------------------------------------------------------------------------

    def _affect(self, act: str, peer: PeerView) -> None:
        if act in (BOOT, RESTART):
            peer.up, peer.role = True, FOLLOWER
            if act == BOOT:
                peer.term = 0
        elif act == CRASH:
            peer.up = peer.plugged = peer.paused = peer.frozen = False
        elif act in (CONNECT, DISCONNECT):
            peer.plugged = act == CONNECT
        elif act in (PAUSE, RESUME):
            peer.paused = act == PAUSE
        elif act in (FREEZE_CLOCK, UNFREEZE_CLOCK):
            peer.frozen = act == FREEZE_CLOCK

    def _change_links(self, event: Event) -> None:
        if event.kind == LINK:
            link = event.detail
            (self.cut.add if link.cut else self.cut.discard)((link.source, link.target))
        elif event.kind == PARTITION:
            sides = event.detail
            self.cut = {(a, b) for side in sides for a in side for other in sides if other is not side for b in other}
        elif event.kind == CLUSTER:
            self.cut.clear()
        for name, peer in self.peers.items():
            others = [other for other in self.peers if other != name]
            peer.isolated = bool(others) and all({(name, other), (other, name)} <= self.cut for other in others)

    def largest_group(self) -> set[str]:
        """The largest group of running, connected peers that can communicate, directly or through others."""
        groups: list[set[str]] = []
        for name in sorted(self.peers):
            peer = self.peers[name]
            if peer.connected and not peer.paused and not peer.frozen:
                near = [group for group in groups if any(self._talk(name, other) for other in group)]
                groups = [group for group in groups if group not in near]
                groups.append({name}.union(*near))
        return max(groups, key=len, default=set())

    def _talk(self, one: str, other: str) -> bool:
        return (one, other) not in self.cut and (other, one) not in self.cut


def _term(message: Any) -> int:
    value = getattr(message, "term", 0)
    return value if isinstance(value, int) else 0
