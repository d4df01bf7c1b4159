"""Elections: §5.1 and §5.2."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from labrpc import Message
from labsim import Event
from raftlab.check.rules.facts import Delivery, Facts, PeerFacts, Unverified
from raftlab.check.rules.rule import Reporter, Rule, majority_note, peers_text
from raftlab.trace.decoding import DecodedRequest
from raftlab.trace.events import StartResult
from raftlab.trace.rpcs import VOTE


class OneLeaderPerTerm(Rule):
    name = "one-leader"
    title = "At most one leader per term"
    section = "§5.2, Figure 3: Election Safety"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._leaders: dict[int, tuple[str, int, Message]] = {}

    def on_send_append_new_term(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        leader = self._leaders.get(args.term)
        if leader is None:
            self._leaders[args.term] = (peer.name, event.at_ns, message)
        elif leader[0] != peer.name:
            self.report(
                f"Term {args.term} has two leaders, peers {leader[0]} and {peer.name}",
                (leader[1], leader[2], "sent"),
                (event.at_ns, message, "sent"),
            )

    on_send_snapshot_new_term = on_send_append_new_term


class GivenVote(NamedTuple):
    """One vote that a peer gave, according to its messages."""

    candidate: str
    event: Event
    message: Message
    what: str  # "answered", or "sent": a candidate votes for itself


class OneVotePerTerm(Rule):
    """A candidate may also send itself a RequestVote and vote for itself only when it answers.

    Until then it may vote for another. So two votes stay pending while such a request may still be on its way.
    """

    name = "one-vote"
    title = "A peer votes for at most one candidate per term"
    section = "§5.2"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._votes: dict[tuple[str, int], GivenVote] = {}
        self._ask_themselves: set[str] = set()
        self._pending: dict[tuple[str, int], tuple[GivenVote, GivenVote]] = {}

    def on_any_send(self, event: Event, peer: PeerFacts, message: Message) -> None:
        if not self._pending:
            return
        for key, votes in list(self._pending.items()):
            if not self._may_ask_itself(self.facts.peers[key[0]], votes, event.at_ns):
                self._report_double_vote(*key, *votes)

    def on_send_vote(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        if message.target == peer.name:
            self._ask_themselves.add(peer.name)
            key = (peer.name, args.term)
            pending = self._pending.pop(key, ())
            given = [vote for vote in pending if vote.what == "answered"]
            if given:
                self._votes[key] = given[0]
            elif key in self._votes and self._votes[key].what == "sent":
                del self._votes[key]
        elif peer.name not in self._ask_themselves:
            self._vote(peer, args.term, GivenVote(peer.name, event, message, "sent"))

    def on_answer_vote(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        args = request.args
        # HigherTermWins checks a vote granted in an old term.
        if reply.vote_granted and args.term >= delivery.observed_term:
            self._vote(peer, args.term, GivenVote(message.source, event, message, "answered"))

    def on_crash(self, peer: PeerFacts) -> None:
        self._pending = {key: votes for key, votes in self._pending.items() if key[0] != peer.name}

    def _vote(self, peer: PeerFacts, term: int, vote: GivenVote) -> None:
        key = (peer.name, term)
        before = self._votes.setdefault(key, vote)
        if before.candidate == vote.candidate:
            return
        if self._may_ask_itself(peer, (before, vote), vote.event.at_ns):
            self._pending.setdefault(key, (before, vote))
        else:
            self._report_double_vote(*key, before, vote)

    def _may_ask_itself(self, peer: PeerFacts, votes: tuple[GivenVote, GivenVote], now_ns: int) -> bool:
        """Whether one of them is only a campaign whose request to itself may still be on its way."""
        if votes[0].event.incarnation != votes[1].event.incarnation or peer.name in self._ask_themselves:
            return False
        return any(
            vote.what == "sent" and self.facts.available_ns(peer, vote.event.at_ns, now_ns) <= self.facts.grace_ns
            for vote in votes
        )

    def report_pending(self) -> None:
        """Another rule is broken: report now."""
        for key, votes in self._pending.items():
            self._report_double_vote(*key, *votes)

    def _report_double_vote(self, peer: str, term: int, before: GivenVote, vote: GivenVote) -> NoReturn:
        remark = ""
        if vote.what == "answered":
            reply = vote.message.decode_reply()
            if reply.term > term:
                remark = (
                    f". Its answer is in term {reply.term}: a peer must reject any request of an earlier term "
                    "(Figure 2: receiver, 1)"
                )
        self.report(
            f"Peer {peer} voted twice in term {term}, for peers {before.candidate} and {vote.candidate}{remark}",
            *((each.event.at_ns, each.message, each.what) for each in (before, vote)),
            peer=peer,
        )


class EarnedLeadership(Rule):
    name = "earned-leadership"
    title = "A leader needs votes from a majority"
    section = "§5.2"
    concludes_from_silence = True
    is_about_votes = True

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._proven: set[tuple[str, int]] = set()
        self._began: dict[tuple[str, int], int] = {}  # (candidate, term) -> sequence number of its first request

    def on_send_vote_new_term(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        self._began.setdefault((peer.name, args.term), self.facts.sequence)

    def on_send_append_new_term(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        self._check(peer, args.term, (event.at_ns, message, "sent"))

    on_send_snapshot_new_term = on_send_append_new_term

    def on_started(self, event: Event, peer: PeerFacts, started: StartResult, began: int) -> None:
        self._check(peer, started.term, _claim(event.at_ns, peer, "start", f"term {started.term}"))

    def on_claim(self, at_ns: int, peer: PeerFacts, term: int) -> None:
        self._check(peer, term, _claim(at_ns, peer, "get_state", f"term {term}"))

    def _check(self, peer: PeerFacts, term: int, evidence: tuple[int, Message, str] | str) -> None:
        key = (peer.name, term)
        if key in self._proven:
            return
        facts = self.facts
        votes = facts.votes_for(peer, term)
        if 2 * len(votes) <= facts.servers:
            undecodable = {
                name for name, sequence in peer.undecodable_votes.items() if sequence > self._began.get(key, 0)
            }
            if 2 * len(votes | undecodable) <= facts.servers:
                self.report(
                    f"Peer {peer.name} leads term {term} with {len(votes)} of {facts.servers} votes"
                    f"{_from(peer.name, votes)}{majority_note(len(votes), facts.servers)}",
                    evidence,
                    peer=peer.name,
                )
            # Leadership transfer (dissertation §3.10): the campaign that a leader asked for has a flag.
            handed_over = any(earlier < term for _, earlier in self._proven)
            if not handed_over or 2 * len(votes | facts.flagged_votes_for(peer, term)) <= facts.servers:
                facts.unverified.add(Unverified.LEADERSHIP)
        self._proven.add(key)


def _claim(at_ns: int, peer: PeerFacts, method: str, what: str) -> str:
    return f"  {at_ns / 1e9:.6f} s  {method}() on peer {peer.name} reports that it leads {what}"


def _from(candidate: str, votes: set[str]) -> str:
    others = sorted(votes - {candidate})
    if candidate not in votes:
        whose = f": that of {peers_text(others)}" if others else ""
        return f"{whose}; it gave its own to another peer"
    return f": its own and {peers_text(others)}'s" if others else ": its own"


class TermsNeverFall(Rule):
    name = "terms-never-fall"
    title = "A peer's term never decreases, not even across a restart"
    section = "§5.1, Figure 2: persistent state"

    def on_answer_new_term(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        if reply.term < delivery.observed_term:
            self.report(
                f"Peer {peer.name} was in term {delivery.observed_term} at {peer.observed_since_ns / 1e9:.6f} s "
                f"and answers in term {reply.term}",
                (event.at_ns, message, "answered"),
            )


class SpeaksInItsTerm(Rule):
    name = "speaks-in-its-term"
    title = "A peer sends requests in its current term"
    section = "§5.1, Figure 2"

    def on_send_new_term(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        # A request that was prepared earlier may leave shortly after the term has changed. None survives a crash.
        if args.term < peer.observed_term and (
            event.incarnation != peer.observed_incarnation
            or self.facts.available_ns(peer, peer.observed_since_ns, event.at_ns) > self.facts.grace_ns
        ):
            since = f"has been in term {peer.observed_term} since {peer.observed_since_ns / 1e9:.6f} s"
            if event.incarnation != peer.observed_incarnation:
                since = f"was in term {peer.observed_term} before it crashed"
            self.report(
                f"Peer {peer.name} {since} and sends a request of term {args.term}", (event.at_ns, message, "sent")
            )


class HigherTermWins(Rule):
    name = "higher-term-wins"
    title = "A peer adopts a higher term and rejects requests of a lower one"
    section = "§5.1, Figure 2: All Servers"

    def on_answer_new_term(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        args = request.args
        if reply.term >= args.term:
            return
        # §6: a peer that recently heard from its leader may disregard RequestVote, including its term.
        vote = message.rpc == VOTE
        if vote and not reply.vote_granted and self.facts.may_disregard(peer, delivery.observed_term, delivery.at_ns):
            return
        lately = ""
        if vote and peer.heard_leader_ns > 0:
            whom = "a majority" if peer.last_append_term == delivery.observed_term else "a leader"
            lately = f". It had not heard from {whom} for a second (§6)"
        self.report(
            f"Peer {peer.name} received a request of term {args.term} and answers in term {reply.term}{lately}",
            (event.at_ns, message, "answered"),
        )

    def on_answer_vote_new_term(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        args = request.args
        if reply.vote_granted and args.term < delivery.observed_term:
            self._accepted_stale(event, peer, message, request, delivery)

    def on_answer_append_new_term(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        args = request.args
        if reply.success and args.term < delivery.observed_term:
            self._accepted_stale(event, peer, message, request, delivery)

    def _accepted_stale(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, delivery: Delivery
    ) -> None:
        args = request.args
        self.report(
            f"Peer {peer.name} was in term {delivery.observed_term} and accepted a request of term {args.term}: a peer "
            "must reject any request of an earlier term (Figure 2: receiver, 1)",
            (event.at_ns, message, "answered"),
        )

    def on_send_new_term(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        if args.term < peer.informed_term and (
            self.facts.available_ns(peer, peer.informed_since_ns, event.at_ns) > self.facts.grace_ns
        ):
            self.report(
                f"Peer {peer.name} received term {peer.informed_term} at {peer.informed_since_ns / 1e9:.6f} s "
                f"and still sends requests of term {args.term}",
                (event.at_ns, message, "sent"),
            )


class FollowersFollow(Rule):
    name = "followers-follow"
    title = "A peer that follows a leader does not campaign in the same term"
    section = "§5.2"

    def on_send_vote(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        followed = peer.followed.get(args.term)
        # A request that was prepared earlier may leave a little later.
        if followed is not None and self.facts.available_ns(peer, followed[0], event.at_ns) > self.facts.grace_ns:
            self.report(
                f"Peer {peer.name} followed peer {followed[1].source} in term {args.term} and campaigns in that term",
                (followed[0], followed[1], "answered"),
                (event.at_ns, message, "sent"),
            )


class VotesForTheFirst(Rule):
    """While all logs are empty, they are equally up to date, so the first candidate of a term must get the vote.

    A peer that refuses may be a candidate of that term whose own requests are about to leave. So a refusal is reported
    only after the grace period, in which the peer has neither sent a RequestVote nor received a later term. One that
    had saved something when it was asked, and had said nothing since, may hold its requests back for longer.
    """

    name = "votes-for-the-first"
    title = "A peer grants its vote to the first candidate of a term whose log is as up to date as its own"
    section = "§5.2, §5.4.1"
    concludes_from_silence = True
    is_about_votes = True
    is_omission = True

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._candidates: dict[tuple[str, int], str] = {}  # (voter, term) -> the only one so far, or ""
        self._refusals: dict[str, tuple[int, int, Message]] = {}  # voter -> when, term, the request
        self._silent: set[tuple[str, int]] = set()  # (voter, term): it may have voted for itself before it was asked
        self._crashes = False  # a crash could have prevented an answer

    def on_crash(self, peer: PeerFacts) -> None:
        self._crashes = True
        self._refusals.clear()

    def on_send_vote(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        self._check(event)
        self._refusals.pop(peer.name, None)
        self._asked(peer, args.term, peer.name)

    def on_deliver_vote(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        self._check(event)
        if peer.name in self._refusals and request.args.term > self._refusals[peer.name][1]:
            del self._refusals[peer.name]
        if peer.last_persist > max(peer.last_answer, peer.last_send):
            self._silent.add((peer.name, request.args.term))
        self._asked(peer, request.args.term, message.source)

    def _asked(self, voter: PeerFacts, term: int, candidate: str) -> None:
        if self._candidates.setdefault((voter.name, term), candidate) != candidate:
            self._candidates[voter.name, term] = ""

    def on_answer_vote(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        term = request.args.term
        if (
            not reply.vote_granted
            and message.source != peer.name  # a candidate may vote for itself without answering itself
            and not self._crashes
            and self.facts.no_entries
            and not self.facts.commands
            and reply.term == term
            and not peer.led_terms  # a leader may have appended an entry that no message shows yet
            and self._candidates.get((peer.name, term)) == message.source
            and (peer.name, term) not in self._silent
            and not peer.undecodable_votes
            # §6: it may disregard a request that brings a new term, and one of a term that it learned otherwise, as
            # long as it recently heard from a leader.
            and not (
                delivery.informed_term >= term
                and self.facts.may_disregard(peer, delivery.observed_term, delivery.at_ns)
            )
        ):
            self._refusals[peer.name] = (event.at_ns, term, message)

    def _check(self, event: Event) -> None:
        for voter, (at_ns, term, message) in self._refusals.items():
            peer = self.facts.peers[voter]
            heard_a_leader = peer.lower_bound_term >= term
            if self.facts.available_ns(peer, at_ns, event.at_ns) > self.facts.grace_ns and not heard_a_leader:
                self.report(
                    f"Peer {voter} denied its vote to peer {message.source}, the only candidate of term {term}, "
                    "though all logs are empty. In a new term a peer has not voted yet, and a log that equals its "
                    "own is up to date",
                    (at_ns, message, "answered"),
                )
