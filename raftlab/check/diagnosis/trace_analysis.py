"""A trace prepared for diagnoses: calls, campaigns, votes, leaders, and which peers are connected.

Promise: everything follows from the trace, so it holds for any peer. A message without Figure 2's fields is skipped.
Most of it is about the time since the last fault (`since_fault_ns`); nothing older is decoded unless a diagnosis needs
it. Times are virtual nanoseconds. Start at TraceAnalysis.__init__, then `campaigns`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import labgob
from labrpc import Message
from labsim import Event
from raftlab.check.cluster_snapshot import ClusterSnapshot
from raftlab.check.failure import Failure
from raftlab.trace.calls import CallJoin, JoinedCall
from raftlab.trace.cluster_view import ClusterView
from raftlab.trace.decoding import DecodedRequest, MessageDecoder
from raftlab.trace.events import (
    ACTS,
    ANSWER,
    APPLY,
    CLUSTER,
    DELIVER,
    DISCONNECT,
    MESSAGE_KINDS,
    PERSIST,
    REPLY,
    RESTART,
    RESTORE,
    SEND,
    SERVER_ACTS,
    STOP,
)
from raftlab.trace.rpcs import INSTALL, RPCS, VOTE

MS = 1_000_000
S = 1_000_000_000

# A test waits at most 10 s for one thing, so older events say little about the failure.
_LONGEST_STRETCH_NS = 20 * S

_NOT_DECODED = object()


class Rpc(JoinedCall):
    """One call, from its send to its end, as far as it got. Of a duplicated request, the copy that arrived first."""

    __slots__ = ("_answered", "_decoder", "_request", "answer")

    def __init__(self, decoder: MessageDecoder, message: Message, original: Rpc | None, sent_ns: int) -> None:
        super().__init__(message, original, sent_ns)
        self._decoder = decoder
        self._request: Any = _NOT_DECODED
        self._answered: tuple[Message | None, Any] = (None, None)  # the answer that was decoded, and its reply
        self.answer: Message | None = None  # the copy that was answered first

    def take(self, event: Event) -> None:
        call = self if self.original is None else self.original
        if event.kind == DELIVER and call.delivered_ns is None:
            call.delivered_ns = event.at_ns
        elif event.kind == ANSWER and call.answered_ns is None:
            call.answered_ns, call.answer = event.at_ns, event.detail
        elif event.kind == REPLY:
            call.replied_ns, call.answer = event.at_ns, event.detail

    @property
    def name(self) -> str:
        return RPCS[self.method].paper_name

    @property
    def request(self) -> DecodedRequest | None:
        if self._request is _NOT_DECODED:
            self._request = self._decoder.decode_request(self.message)
        return self._request  # type: ignore[no-any-return]

    @property
    def args(self) -> Any:
        """None if they lack Figure 2's fields."""
        request = self.request
        return None if request is None else request.args

    @property
    def answered(self) -> Any:
        """What the receiver answered, whether it arrived or not."""
        if self._answered[0] is not self.answer:
            self._answered = (self.answer, None if self.answer is None else self._decoder.decode_reply(self.answer))
        return self._answered[1]

    @property
    def reply(self) -> Any:
        """The answer, if it arrived."""
        return self.answered if self.replied_ns is not None else None


@dataclass
class Campaign:
    """The RequestVotes of one peer in one term."""

    peer: str
    term: int
    at_ns: int
    log: tuple[int, int]  # (last term, last index): compares as §5.4.1 does
    requests: list[Rpc] = field(default_factory=list)

    def granted_by(self) -> dict[str, int]:
        """The votes that arrived, and when; without its own."""
        arrived: dict[str, int] = {}
        for rpc in self.requests:
            reply = rpc.reply
            if reply is not None and reply.vote_granted and rpc.replied_ns is not None and rpc.target != self.peer:
                arrived.setdefault(rpc.target, rpc.replied_ns)
        return arrived


class CastVote(NamedTuple):
    at_ns: int
    voter: str
    term: int
    candidate: str
    rpc: Rpc | None = None  # what it answers; None for a candidate's own


class SnapshotOrigin(NamedTuple):
    """When and how a peer got its first snapshot."""

    since_ns: int
    how: str


class TraceAnalysis:
    def __init__(self, events: Sequence[Event], error: BaseException, end_ns: int | None = None) -> None:
        self.error = error
        self.snapshot = error.snapshot if isinstance(error, Failure) else ClusterSnapshot()
        clusters = [i for i, event in enumerate(events) if event.kind == CLUSTER]
        # A test may make one cluster after another; only the last one failed.
        self.events = events[clusters[-1] :] if clusters else events
        self.servers: int = events[clusters[-1]].detail if clusters else 0
        self.quorum = self.servers // 2 + 1
        stops = [i for i, event in enumerate(self.events) if event.kind == STOP]
        if stops:
            # The test is over and stops its peers: from here on they need not act.
            self.events = self.events[: stops[0] + 1]
            end_ns = None
        # The run may end later than its last event.
        self.end_ns = max(self.events[-1].at_ns if self.events else 0, end_ns or 0)
        self._decoder = MessageDecoder()
        # At the end: the running peers, and the largest group of them that can communicate.
        self.up: set[str] = set()
        self.connected: set[str] = set()
        self.last_fault_ns = 0
        self.all_rpcs: list[Rpc] = []
        self.own_calls: list[Event] = []  # sends of RPCs that are not from the paper
        self.other: dict[str, list[Event]] = {}  # events other than messages, by kind
        self._take_in()
        self.since_fault_ns = max(self.last_fault_ns, self.end_ns - _LONGEST_STRETCH_NS)
        self.rpcs = self.since(self.since_fault_ns)

    def _take_in(self) -> None:
        join = CallJoin(lambda message, original, sent_ns: Rpc(self._decoder, message, original, sent_ns))
        view = ClusterView({event.node for event in self.events if event.kind in SERVER_ACTS})
        for event in self.events:
            kind = event.kind
            if kind in MESSAGE_KINDS:
                if event.detail.rpc in RPCS:
                    rpc = join.take(event)
                    if kind == SEND:
                        self.all_rpcs.append(rpc)
                elif kind == SEND:
                    self.own_calls.append(event)
                continue
            self.other.setdefault(kind, []).append(event)
            if kind in ACTS:
                if kind != DISCONNECT or view.peers[event.node].connected:
                    self.last_fault_ns = event.at_ns
                view.take(event)
        self.up = {name for name, peer in view.peers.items() if peer.up}
        self.connected = view.largest_group()

    def since(self, at_ns: int) -> list[Rpc]:
        """The calls made since then, in order, by peers that were and are connected."""
        first = bisect_left(self.all_rpcs, at_ns, key=lambda rpc: rpc.sent_ns)
        return [rpc for rpc in self.all_rpcs[first:] if rpc.source in self.connected]

    @cached_property
    def decodable(self) -> bool:
        """Whether the peers use Figure 2's fields, according to the first call of each kind."""
        first: dict[str, Rpc] = {}
        for rpc in self.all_rpcs:
            if rpc.answer is not None:
                first.setdefault(rpc.method, rpc)
            if len(first) == 3:
                break
        return all(rpc.args is not None and rpc.answered is not None for rpc in first.values())

    # ---- elections -------------------------------------------------------------------------------------------

    @cached_property
    def campaigns(self) -> list[Campaign]:
        """Since the last fault, by connected peers, in order."""
        return self._campaigns_of(self.rpcs)

    @cached_property
    def all_campaigns(self) -> list[Campaign]:
        """In the whole run, by all peers."""
        return self._campaigns_of(self.all_rpcs)

    def _campaigns_of(self, rpcs: Iterable[Rpc]) -> list[Campaign]:
        found: dict[tuple[str, int], Campaign] = {}
        for rpc in rpcs:
            if rpc.method == VOTE and (args := rpc.args) is not None:
                campaign = found.get((rpc.source, args.term))
                if campaign is None:
                    log = (args.last_log_term, args.last_log_index)
                    campaign = found[rpc.source, args.term] = Campaign(rpc.source, args.term, rpc.sent_ns, log)
                campaign.requests.append(rpc)
        return list(found.values())

    @cached_property
    def votes(self) -> list[CastVote]:
        """Every vote in the whole run, in order. A candidate votes for itself."""
        found = []
        for campaign in self.all_campaigns:
            found.append(CastVote(campaign.at_ns, campaign.peer, campaign.term, campaign.peer))
            for rpc in campaign.requests:
                answer = rpc.answered
                if answer is not None and answer.vote_granted and rpc.answered_ns is not None:
                    found.append(CastVote(rpc.answered_ns, rpc.target, campaign.term, campaign.peer, rpc))
        return sorted(found, key=lambda vote: vote[:4])

    def restarts_between(self, peer: str, from_ns: int, to_ns: int) -> list[int]:
        return [e.at_ns for e in self.other.get(RESTART, ()) if e.node == peer and from_ns <= e.at_ns <= to_ns]

    @cached_property
    def led(self) -> list[Rpc]:
        """What leaders have sent since the last fault: AppendEntries and InstallSnapshot."""
        return [rpc for rpc in self.rpcs if rpc.method != VOTE]

    @cached_property
    def leaderless_ns(self) -> int:
        """Since when no connected peer has sent anything as leader."""
        return max(self.led[-1].sent_ns if self.led else 0, self.since_fault_ns)

    @cached_property
    def learned_terms(self) -> dict[str, list[tuple[int, int, Rpc, str]]]:
        """For each peer, each higher term that it learned of since the last fault: (time, term, call, how).

        How: "campaign" (its own), "request" or "reply".
        """
        messages: list[tuple[int, str, int, Rpc, str]] = []
        for rpc in self.rpcs:
            args = rpc.args
            if args is None:
                continue
            if rpc.method == VOTE:
                messages.append((rpc.sent_ns, rpc.source, args.term, rpc, "campaign"))
            if rpc.delivered_ns is not None:
                messages.append((rpc.delivered_ns, rpc.target, args.term, rpc, "request"))
            if rpc.replied_ns is not None and (reply := rpc.reply) is not None:
                messages.append((rpc.replied_ns, rpc.source, reply.term, rpc, "reply"))
        messages.sort(key=lambda item: item[0])
        learned: dict[str, list[tuple[int, int, Rpc, str]]] = {}
        for at_ns, peer, term, rpc, how in messages:
            known = learned.setdefault(peer, [])
            if not known or term > known[-1][1]:
                known.append((at_ns, term, rpc, how))
        return learned

    def term_at(self, peer: str, at_ns: int) -> int:
        """The highest term that peer had learned of by then, since the last fault."""
        return max((term for when, term, _, _ in self.learned_terms.get(peer, ()) if when <= at_ns), default=0)

    def calls_between(self, source: str, target: str) -> list[Rpc]:
        return [rpc for rpc in self.led if rpc.source == source and rpc.target == target]

    # ---- snapshots -------------------------------------------------------------------------------------------

    def snapshot_of(self, peer: str) -> SnapshotOrigin | None:
        """When that peer got its first snapshot, and how."""
        found: list[SnapshotOrigin] = []
        for event in self.other.get(PERSIST, ()):
            if event.node == peer and len(event.detail.snapshot):
                found.append(SnapshotOrigin(event.at_ns, "saved by its persister"))
                break
        restored = [e.at_ns for e in self.other.get(RESTORE, ()) if e.node == peer and e.detail]
        found += [SnapshotOrigin(at_ns, "read from disk") for at_ns in restored[:1]]
        for rpc in self.all_rpcs:
            if rpc.method == INSTALL and rpc.target == peer and rpc.delivered_ns is not None:
                found.append(SnapshotOrigin(rpc.delivered_ns, f"sent by peer {rpc.source}, InstallSnapshot"))
                break
        return min(found, default=None)

    def snapshot_index(self, peer: str) -> int:
        """The last index in the latest snapshot on that peer's disk; 0 if there is none, or not from the service."""
        for event in reversed(self.other.get(PERSIST, ())):
            if event.node == peer:
                with suppress(labgob.DecodeError):
                    return labgob.Decoder(event.detail.snapshot).decode(int) if event.detail.snapshot else 0
                break
        return 0

    # ---- the service's side ----------------------------------------------------------------------------------

    @cached_property
    def applied(self) -> dict[str, int]:
        """How far each peer has applied, in its current incarnation."""
        applied: dict[str, int] = {}
        for event in sorted((*self.other.get(RESTORE, ()), *self.other.get(APPLY, ())), key=lambda event: event.at_ns):
            if event.kind == RESTORE:
                applied[event.node] = event.detail
            else:
                index = event.detail.snapshot_index if event.detail.snapshot_valid else event.detail.command_index
                applied[event.node] = index
        return applied

    @cached_property
    def progress_ns(self) -> int:
        """When an index was last applied for the first time, but not before the last fault."""
        highest, at_ns = 0, 0
        for event in self.other.get(APPLY, ()):
            message = event.detail
            index = message.snapshot_index if message.snapshot_valid else message.command_index
            if index > highest:
                highest, at_ns = index, event.at_ns
        return max(at_ns, self.since_fault_ns)


# ---- text ----------------------------------------------------------------------------------------------------


def at(ns: int) -> str:
    return f"{ns / S:.3f} s"


def duration(ns: int | float) -> str:
    if ns >= 10 * S:
        return f"{ns / S:.0f} s"
    if ns >= S:
        return f"{ns / S:.1f} s"
    if ns >= 10 * MS or ns == 0:
        return f"{ns / MS:.0f} ms"
    return f"{ns / MS:.1f} ms"


def peers(names: Iterable[str]) -> str:
    """ "peer 1", "peers 0 and 2", "peers 0, 1 and 2"."""
    known = sorted(names)
    if len(known) < 2:
        return f"peer {''.join(known)}"
    return f"peers {', '.join(known[:-1])} and {known[-1]}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def terms(found: Iterable[int]) -> str:
    known = sorted(set(found))
    return f"term {known[0]}" if len(known) == 1 else f"terms {known[0]}–{known[-1]}"


def log_end(log: tuple[int, int]) -> str:
    return "is empty" if log == (0, 0) else f"ends with entry {log[1]} of term {log[0]}"
