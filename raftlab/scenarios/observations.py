"""What the messages of a scenario show: campaigns, votes, acknowledgements and logs.

Observed on the wire, so it works for any peer. Start at `WireObservations.handle()`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from labrpc.message import Message
from labsim import Event
from raftlab.trace import events
from raftlab.trace.decoding import MessageDecoder
from raftlab.trace.rpcs import APPEND, RPCS, VOTE


class VoteAnswer(NamedTuple):
    """The reply to a candidate."""

    asked_term: int
    granted: bool


class WireObservations:
    def __init__(self, peers: int) -> None:
        self._decoder = MessageDecoder()
        self.any_request = False
        self.campaigns = dict.fromkeys(range(peers), 0)  # the latest term in which each requested votes
        self.campaigning: set[int] = set()  # peers that have requested votes since their start
        self.other_calls: dict[int, set[str]] = defaultdict(set)  # by caller: RPCs that are not in the paper
        # The terms of each log after the messages that the peer has received and answered (Figure 2). Derived from
        # the paper's messages only: a peer may acknowledge in fields or RPCs of its own.
        self.logs: dict[int, list[int]] = {i: [] for i in range(peers)}
        self._appends: dict[tuple[int, int], bool] = {}  # by follower and leader: whether the latest succeeded
        self._open_appends: dict[tuple[int, int], set[int]] = defaultdict(set)  # arrived but not answered
        self.delivered: list[Message] = []  # requests, oldest first
        self._delivered_ids: set[int] = set()
        self.ignores_vote_requests = False  # a peer did not adopt the term of a RequestVote (§6)
        self.pre_vote_calls = ""  # RPCs that a peer called before, or instead of, RequestVote
        self.never_campaigns = False  # a peer did not request votes, although its other RPCs were answered
        self._following: set[tuple[int, int]] = set()  # (peer, term of the leader that it has answered)
        self._votes: dict[tuple[int, int], VoteAnswer] = {}
        # By voter and candidate: the term of the last RequestVote.
        self._last_asked_term: dict[tuple[int, int], int] = {}
        self._unanswered: dict[tuple[int, int], set[int]] = defaultdict(set)  # by server and caller: the requests

    def handle(self, event: Event) -> None:
        kind = event.kind
        if kind == events.SEND:
            self.any_request = True
            self._sent(int(event.node), event.detail)
        elif kind == events.DELIVER:
            self._arrived(event.detail)
        elif kind == events.ANSWER:
            self._answered(int(event.node), event.detail)
        elif kind == events.CRASH:
            self.campaigning.discard(int(event.node))
        elif kind == events.STARTED and event.detail.is_leader:
            log = self.logs[int(event.node)]
            log[event.detail.index - 1 :] = [event.detail.term]

    def _sent(self, caller: int, message: Message) -> None:
        method = message.rpc
        if self.is_other(message):
            self.other_calls[caller].add(f"{method} without candidate fields" if method == VOTE else method)
        elif method == VOTE:
            request = self._decoder.decode_request(message)
            if request is not None and request.args.term > self.campaigns[caller]:
                self.campaigns[caller] = request.args.term
                self.campaigning.add(caller)

    def _arrived(self, message: Message) -> None:
        source, target = int(message.source), int(message.target)
        self._unanswered[target, source].add(message.id)
        if message.id not in self._delivered_ids:
            self._delivered_ids.add(message.id)
            self.delivered.append(message)
        if message.rpc == APPEND:
            self._open_appends[target, source].add(message.id)
        if message.rpc == VOTE and (request := self._decoder.decode_request(message)) is not None:
            self._last_asked_term[target, source] = max(
                request.args.term, self._last_asked_term.get((target, source), 0)
            )

    def _answered(self, peer: int, message: Message) -> None:
        caller = int(message.source)
        self._unanswered[peer, caller].discard(message.id)
        method = message.rpc
        if method not in RPCS:
            return
        request, reply = self._decoder.decode_request(message), self._decoder.decode_reply(message)
        if request is None or reply is None:
            return
        term = request.args.term
        if method == VOTE:
            if reply.term < term:
                self.ignores_vote_requests = True
            known = self._votes.get((peer, caller))
            if known is None or term > known.asked_term or (term == known.asked_term and reply.vote_granted):
                self._votes[peer, caller] = VoteAnswer(term, reply.vote_granted)
        elif method == APPEND:
            self._appends[peer, caller] = reply.success
            self._open_appends[peer, caller].discard(message.id)
            if reply.term == term:
                self._following.add((peer, term))
                self._appended(self.logs[peer], self.logs[caller], request.args, success=reply.success)
        elif reply.term == term:
            args, log = request.args, self.logs[peer]
            if log[args.last_included_index - 1 : args.last_included_index] != [args.last_included_term]:
                log[:] = [
                    args.last_included_term
                ] * args.last_included_index  # entries before the last may have other terms

    @staticmethod
    def _appended(log: list[int], leaders: list[int], args: Any, *, success: bool) -> None:
        before = args.prev_log_index
        if success:
            log[:before] = leaders[:before]  # includes entries that it saved before a crash without answering
        elif before > len(log) or (before and log[before - 1] != args.prev_log_term):
            return
        terms = [entry.term for entry in args.entries]
        if log[before : before + len(terms)] != terms:  # only a conflict or new entries change the log
            log[before:] = terms

    # ---- queries ---------------------------------------------------------------------

    @property
    def election_difference(self) -> str:
        """How the observed elections differ from Figure 2; "" if they do not."""
        if self.pre_vote_calls:
            return f"a peer calls {self.pre_vote_calls} before it campaigns"
        return "a peer ignored a RequestVote of a higher term (§6)" if self.ignores_vote_requests else ""

    @property
    def hard_to_elect(self) -> bool:
        """Whether campaigns or votes cannot be forced, according to the observations."""
        return self.never_campaigns or self.ignores_vote_requests

    def is_other(self, message: Message) -> bool:
        """Whether it is not an RPC from the paper: it has another name, or is a RequestVote with other fields."""
        method = message.rpc
        return method not in RPCS or (method == VOTE and self._decoder.decode_request(message) is None)

    def vote(self, voter: int, candidate: int) -> VoteAnswer | None:
        """Its reply to this candidate's last RequestVote; None if it has not replied."""
        vote = self._votes.get((voter, candidate))
        return (
            vote if vote is not None and vote.asked_term >= self._last_asked_term.get((voter, candidate), 0) else None
        )

    def append(self, follower: int, leader: int) -> bool | None:
        """Whether it accepted this leader's last AppendEntries; None if it has not replied."""
        return None if self._open_appends[follower, leader] else self._appends.get((follower, leader))

    def voted_for(self, voter: int, term: int) -> int | None:
        """The candidate that it is known to have voted for in this term."""
        if term and self.campaigns[voter] == term:
            return voter
        votes = [peer for (by, peer), vote in self._votes.items() if by == voter and vote == (term, True)]
        return votes[0] if votes else None

    def follows(self, i: int, term: int) -> bool:
        """Whether it has answered a leader of this term, and so is no longer a candidate."""
        return (i, term) in self._following

    def acknowledged_index(self, message: Message) -> int:
        """The last index of the sender's own term that the reply to this AppendEntries acknowledges; 0 if none."""
        if message.rpc != APPEND:
            return 0
        request, reply = self._decoder.decode_request(message), self._decoder.decode_reply(message)
        if request is None or reply is None or not reply.success or request.last_term != request.args.term:
            return 0
        return int(request.last_index)

    def has_whole_log(self, follower: int, leader: int) -> bool:
        log = self.logs[leader]
        return self.logs[follower][: len(log)] == log

    def owes_reply(self, peer: int, caller: int) -> bool:
        return bool(self._unanswered[peer, caller])
