"""Elections: §5.1 and §5.2."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from labrpc import Message
from labsim import Event
from raftlab.check.rules.facts import Delivery, Facts, Seat, Unverified
from raftlab.check.rules.rule import Rule, Violated, half_is_none, peers_
from raftlab.trace.decoding import Reading
from raftlab.trace.events import Started
from raftlab.trace.rpcs import VOTE


class OneLeaderPerTerm(Rule):
    name = "one-leader"
    title = "Election safety"
    section = "§5.2, Figure 3"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._leaders: dict[int, tuple[str, int, Message]] = {}

    def on_send_append_term_news(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        leader = self._leaders.get(args.term)
        if leader is None:
            self._leaders[args.term] = (seat.name, event.at_ns, message)
        elif leader[0] != seat.name:
            self.violated(
                f"term {args.term} has two leaders, peers {leader[0]} and {seat.name}",
                (leader[1], leader[2], "sent"),
                (event.at_ns, message, "sent"),
            )

    on_send_snapshot_term_news = on_send_append_term_news


class Vote(NamedTuple):
    """One vote that a peer has given, as far as its messages tell."""

    candidate: str
    event: Event
    message: Message
    what: str  # "answered", or "sent": to campaign is to vote for oneself


class OneVotePerTerm(Rule):
    """A candidate may also send itself a RequestVote, and give itself its vote only when it answers that.

    Until then it may give it to another. So a peer of which nobody knows whether it does so is only suspected, while
    that request may still be on its way.
    """

    name = "one-vote"
    title = "One vote per term"
    section = "§5.2"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._votes: dict[tuple[str, int], Vote] = {}
        self._ask_themselves: set[str] = set()
        self._suspected: dict[tuple[str, int], tuple[Vote, Vote]] = {}

    def on_any_send(self, event: Event, seat: Seat, message: Message) -> None:
        if not self._suspected:
            return
        for key, votes in list(self._suspected.items()):
            if not self._may_ask_itself(self.facts.seats[key[0]], votes, event.at_ns):
                self._accuse(*key, *votes)

    def on_send_vote(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        if message.target == seat.name:
            self._ask_themselves.add(seat.name)
            key = (seat.name, args.term)
            suspected = self._suspected.pop(key, ())
            given = [vote for vote in suspected if vote.what == "answered"]
            if given:
                self._votes[key] = given[0]
            elif key in self._votes and self._votes[key].what == "sent":
                del self._votes[key]
        elif seat.name not in self._ask_themselves:
            self._vote(seat, args.term, Vote(seat.name, event, message, "sent"))

    def on_answer_vote(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        # A yes in a term that is over is wrong whoever had its vote: HigherTermWins looks at that.
        if reply.vote_granted and args.term >= delivery.term:
            self._vote(seat, args.term, Vote(message.source, event, message, "answered"))

    def on_crash(self, seat: Seat) -> None:
        self._suspected = {key: votes for key, votes in self._suspected.items() if key[0] != seat.name}

    def _vote(self, seat: Seat, term: int, vote: Vote) -> None:
        key = (seat.name, term)
        before = self._votes.setdefault(key, vote)
        if before.candidate == vote.candidate:
            return
        if self._may_ask_itself(seat, (before, vote), vote.event.at_ns):
            self._suspected.setdefault(key, (before, vote))
        else:
            self._accuse(*key, before, vote)

    def _may_ask_itself(self, seat: Seat, votes: tuple[Vote, Vote], now_ns: int) -> bool:
        """Whether one of these votes is none, but a campaign whose request to itself may still be on its way."""
        if votes[0].event.incarnation != votes[1].event.incarnation or seat.name in self._ask_themselves:
            return False
        return any(
            vote.what == "sent" and self.facts.own_ns(seat, vote.event.at_ns, now_ns) <= self.facts.slack_ns
            for vote in votes
        )

    def accuse_suspects(self) -> None:
        """Something else has gone wrong: nobody waits any longer."""
        for key, votes in self._suspected.items():
            self._accuse(*key, *votes)

    def _accuse(self, peer: str, term: int, before: Vote, vote: Vote) -> NoReturn:
        remark = ""
        if vote.what == "answered":
            reply = vote.message.decode_reply()
            if reply.term > term:
                remark = (
                    f". Its answer says that it is in term {reply.term}: a request of an earlier term is refused, "
                    "whatever else it says (Figure 2: receiver, 1)"
                )
        self.violated(
            f"peer {peer} voted twice in term {term}, for {before.candidate} and for {vote.candidate}{remark}",
            *((each.event.at_ns, each.message, each.what) for each in (before, vote)),
            peer=peer,
        )


class EarnedLeadership(Rule):
    name = "earned-leadership"
    title = "A leader needs votes from a majority"
    section = "§5.2"
    concludes_from_silence = True
    is_about_votes = True

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._proven: set[tuple[str, int]] = set()
        self._began: dict[tuple[str, int], int] = {}  # (candidate, term) -> sequence number of its first request

    def on_send_vote_term_news(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._began.setdefault((seat.name, args.term), self.facts.sequence)

    def on_send_append_term_news(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._judge(seat, args.term, (event.at_ns, message, "sent"))

    on_send_snapshot_term_news = on_send_append_term_news

    def on_started(self, event: Event, seat: Seat, started: Started, began: int) -> None:
        self._judge(seat, started.term, _claim(event.at_ns, seat, "start", f"term {started.term}, and takes a command"))

    def on_claim(self, at_ns: int, seat: Seat, term: int) -> None:
        self._judge(seat, term, _claim(at_ns, seat, "get_state", f"term {term}"))

    def _judge(self, seat: Seat, term: int, evidence: tuple[int, Message, str] | str) -> None:
        key = (seat.name, term)
        if key in self._proven:
            return
        facts = self.facts
        votes = facts.votes_for(seat, term)
        if 2 * len(votes) <= facts.servers:
            unread = {name for name, sequence in seat.unread_votes.items() if sequence > self._began.get(key, 0)}
            if 2 * len(votes | unread) <= facts.servers:
                self.violated(
                    f"peer {seat.name} leads term {term} with {len(votes)} of {facts.servers} votes, "
                    f"{_from(seat.name, votes)}{half_is_none(len(votes), facts.servers)}",
                    evidence,
                    peer=seat.name,
                )
            # Whom a leader has asked to campaign says so by a flag (dissertation 3.10).
            handed_over = any(earlier < term for _, earlier in self._proven)
            if not handed_over or 2 * len(votes | facts.flagged_votes_for(seat, term)) <= facts.servers:
                facts.unverified.add(Unverified.LEADERSHIP)
        self._proven.add(key)


def _claim(at_ns: int, seat: Seat, method: str, what: str) -> str:
    return f"  {at_ns / 1e9:.6f} s  {method}() of peer {seat.name} says that it leads {what}"


def _from(candidate: str, votes: set[str]) -> str:
    others = sorted(votes - {candidate})
    if candidate not in votes:
        whose = f"that of {peers_(others)}" if others else "nobody's"
        return f"{whose}; it has given its own to another"
    return f"its own and {peers_(others)}'s" if others else "its own"


class TermsNeverFall(Rule):
    name = "terms-never-fall"
    title = "A peer's term never falls, not even over a restart"
    section = "§5.1, Figure 2: persistent state"

    def on_answer_term_news(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        if reply.term < delivery.term:
            self.violated(
                f"peer {seat.name} was in term {delivery.term} at {seat.term_since_ns / 1e9:.6f} s "
                f"and answers in term {reply.term}",
                (event.at_ns, message, "answered"),
            )


class SpeaksInItsTerm(Rule):
    name = "speaks-in-its-term"
    title = "What a peer asks, it asks in its current term"
    section = "§5.1, Figure 2"

    def on_send_term_news(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        # A request that was made before may leave a little after the term has moved on. None outlives a crash.
        if args.term < seat.term and (
            event.incarnation != seat.term_life
            or self.facts.own_ns(seat, seat.term_since_ns, event.at_ns) > self.facts.slack_ns
        ):
            since = f"has been in term {seat.term} since {seat.term_since_ns / 1e9:.6f} s"
            if event.incarnation != seat.term_life:
                since = f"was in term {seat.term} before it crashed"
            self.violated(
                f"peer {seat.name} {since}, and sends a request of term {args.term}", (event.at_ns, message, "sent")
            )


class HigherTermWins(Rule):
    name = "higher-term-wins"
    title = "Whoever sees a higher term adopts it, and a lower one is refused"
    section = "§5.1, Figure 2: All Servers"

    def on_answer_term_news(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        if reply.term >= args.term:
            return
        # §6: who has heard its leader lately may disregard the request for a vote, its term included.
        vote = message.rpc == VOTE
        if vote and not reply.vote_granted and self.facts.may_disregard(seat, delivery.term, delivery.at_ns):
            return
        lately = ""
        if vote and seat.heard_leader_ns > 0:
            whom = "from no majority" if seat.leads == delivery.term else "no leader"
            lately = f", and had heard {whom} for a second (§6)"
        self.violated(
            f"peer {seat.name} was asked in term {args.term} and answers in term {reply.term}{lately}",
            (event.at_ns, message, "answered"),
        )

    def on_answer_vote_term_news(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        if reply.vote_granted and args.term < delivery.term:
            self._accepted_stale(event, seat, message, reading, delivery)

    def on_answer_append_term_news(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        if reply.success and args.term < delivery.term:
            self._accepted_stale(event, seat, message, reading, delivery)

    def _accepted_stale(self, event: Event, seat: Seat, message: Message, reading: Reading, delivery: Delivery) -> None:
        args = reading.args
        self.violated(
            f"peer {seat.name} was in term {delivery.term} and said yes to a request of term {args.term}, which is to "
            "be refused whatever else it says (Figure 2: receiver, 1)",
            (event.at_ns, message, "answered"),
        )

    def on_send_term_news(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        if args.term < seat.told_term and (
            self.facts.own_ns(seat, seat.told_since_ns, event.at_ns) > self.facts.slack_ns
        ):
            self.violated(
                f"peer {seat.name} was told of term {seat.told_term} at {seat.told_since_ns / 1e9:.6f} s "
                f"and still speaks in term {args.term}",
                (event.at_ns, message, "sent"),
            )


class FollowersFollow(Rule):
    name = "followers-follow"
    title = "Whoever has followed a leader of a term does not campaign in that term"
    section = "§5.2"

    def on_send_vote(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        followed = seat.followed.get(args.term)
        # A request that was made before may leave a little later.
        if followed is not None and self.facts.own_ns(seat, followed[0], event.at_ns) > self.facts.slack_ns:
            self.violated(
                f"peer {seat.name} followed {followed[1].source} in term {args.term} and campaigns in it",
                (followed[0], followed[1], "answered"),
                (event.at_ns, message, "sent"),
            )


class VotesForTheFirst(Rule):
    """While no log has an entry all are equally up to date, so the first candidate of a term must get the vote.

    A peer that refuses may be a candidate of that term itself, whose own requests are about to leave. So a refusal is
    held against it only after a while in which it asked nobody and heard nothing that could have stopped it.
    """

    name = "votes-for-the-first"
    title = "A peer that has not voted in a term votes for the first that asks with a log as good as its own"
    section = "§5.2, §5.4.1"
    concludes_from_silence = True
    is_about_votes = True
    is_omission = True

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._candidates: dict[tuple[str, int], str] = {}  # (voter, term) -> the only one so far, or ""
        self._refusals: dict[str, tuple[int, int, Message]] = {}  # voter -> when, term, the request
        self._crashes = False  # one could have swallowed a vote

    def on_crash(self, seat: Seat) -> None:
        self._crashes = True
        self._refusals.clear()

    def on_send_vote(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        self._judge(event)
        self._refusals.pop(seat.name, None)
        self._asked(seat, args.term, seat.name)

    def on_deliver_vote(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        self._judge(event)
        if seat.name in self._refusals and reading.args.term > self._refusals[seat.name][1]:
            del self._refusals[seat.name]
        self._asked(seat, reading.args.term, message.source)

    def _asked(self, voter: Seat, term: int, candidate: str) -> None:
        if self._candidates.setdefault((voter.name, term), candidate) != candidate:
            self._candidates[voter.name, term] = ""

    def on_answer_vote(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        term = reading.args.term
        if (
            not reply.vote_granted
            and message.source != seat.name  # which needs no answer of its own to vote for itself
            and not self._crashes
            and self.facts.no_entries
            and not self.facts.commands
            and reply.term == term
            and not seat.led  # a leader may have given itself an entry that nobody has seen yet
            and self._candidates.get((seat.name, term)) == message.source
            and not seat.unread_votes
            # §6: of a request that brings the term it takes no notice. Of one in a term that it has come to otherwise
            # it may take as little, as long as it has heard a leader lately.
            and not (delivery.told_term >= term and self.facts.may_disregard(seat, delivery.term, delivery.at_ns))
        ):
            self._refusals[seat.name] = (event.at_ns, term, message)

    def _judge(self, event: Event) -> None:
        for voter, (at_ns, term, message) in self._refusals.items():
            seat = self.facts.seats[voter]
            heard_a_leader = seat.floor_term >= term
            if self.facts.own_ns(seat, at_ns, event.at_ns) > self.facts.slack_ns and not heard_a_leader:
                self.violated(
                    f"peer {voter} was asked by nobody but {message.source} in term {term}, has an empty log "
                    "like everybody, and refused its vote. A new term begins with no vote given, and a log "
                    "equal to the voter's is up to date",
                    (at_ns, message, "answered"),
                )
