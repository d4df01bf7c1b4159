"""The trace that checks itself: every event goes past the rules that asked for its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from labrpc import Message
from labsim import Event, Simulation
from labtest.checks.budgets import Budgets
from labtest.checks.commits import (
    AppliesOnlyTheCommitted,
    AppliesWhatIsCommitted,
    EarnedCommit,
    OnlyStartedCommands,
    StartTellsTheIndex,
)
from labtest.checks.durability import SavedBeforeCampaign, SavedBeforeReply
from labtest.checks.election import (
    EarnedLeadership,
    FollowersFollow,
    HigherTermWins,
    OneLeaderPerTerm,
    OneVotePerTerm,
    TermsNeverFall,
    VotesForTheFirst,
)
from labtest.checks.facts import APPEND, INSTALL, VOTE, Facts
from labtest.checks.logs import (
    AcknowledgedEntriesStay,
    EntryTerms,
    HonestCandidate,
    LeaderAppendOnly,
    LeaderCompleteness,
    LogMatching,
    SuccessMeansMatch,
    UpToDateVote,
)
from labtest.checks.rule import Rule, describe_message
from labtest.failure import Failure

RULES: tuple[type[Rule], ...] = (
    OneLeaderPerTerm,
    OneVotePerTerm,
    EarnedLeadership,
    TermsNeverFall,
    HigherTermWins,
    FollowersFollow,
    VotesForTheFirst,
    LogMatching,
    LeaderAppendOnly,
    EntryTerms,
    SuccessMeansMatch,
    AcknowledgedEntriesStay,
    HonestCandidate,
    UpToDateVote,
    LeaderCompleteness,
    EarnedCommit,
    AppliesOnlyTheCommitted,
    OnlyStartedCommands,
    AppliesWhatIsCommitted,
    StartTellsTheIndex,
    SavedBeforeReply,
    SavedBeforeCampaign,
    Budgets,
)

_SHORT = {VOTE: "vote", APPEND: "append", INSTALL: "install"}


# Events that the rules see as they are, with the server they happened to.
_PLAIN = ("apply", "start", "restore", "crash")


class CheckedTrace(list[Event]):
    """Put it in a simulation's `trace` before the run."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation
        self._store = super().append
        self._see = {
            "send": self._see_send,
            "deliver": self._see_deliver,
            "answer": self._see_answer,
            "reply": self._see_reply,
            "persist": self._see_persist,
            "started": self._see_started,
            "cluster": self._see_cluster,
            "stop": self._see_stop,
            **dict.fromkeys(_PLAIN, self._see_plain),
        }
        self._begin()

    def _begin(self) -> None:
        """What the rules know is about one cluster; the next one in the same test begins with nothing."""
        self._stopped = False
        self.facts = Facts()
        self.rules = [rule(self.facts, self._violated) for rule in RULES]
        # What the rules want to see, by kind and then by RPC: on_send_append and on_send both see an AppendEntries go.
        self._on_send = self._lookers("send")
        self._on_deliver = self._lookers("deliver")
        self._on_answer = self._lookers("answer")
        self._on_reply = self._lookers("reply")
        self._on = {kind: self._named(f"on_{kind}") for kind in ("persist", "started", *_PLAIN)}

    def _lookers(self, kind: str) -> dict[str, list[Callable[..., None]]]:
        return {
            method: self._named(f"on_{kind}_{short}") + self._named(f"on_{kind}") for method, short in _SHORT.items()
        }

    def _named(self, name: str) -> list[Callable[..., None]]:
        return [getattr(rule, name) for rule in self.rules if hasattr(rule, name)]

    def append(self, event: Event) -> None:
        self._store(event)
        see = self._see.get(event.kind)
        if see is not None and (not self._stopped or event.kind == "cluster"):
            self.facts.sequence += 1
            see(event)

    def _see_send(self, event: Event) -> None:
        message: Message = event.detail
        method = message.service_method
        if method not in _SHORT:
            return
        facts = self.facts
        reading = facts.read_head(message)
        if reading is None:
            return
        seat = facts.seat(event.node)
        for look in self._on_send[method]:
            look(event, seat, message, reading)
        facts.sent(event, seat, reading, method)

    def _see_deliver(self, event: Event) -> None:
        message: Message = event.detail
        method = message.service_method
        if method not in _SHORT:
            return
        facts = self.facts
        reading = facts.read(message)
        if reading is None:
            return
        seat = facts.seat(event.node)
        if method == APPEND:
            facts.delivering(reading)
        for look in self._on_deliver[method]:
            look(event, seat, message, reading)
        facts.delivered(event, seat, reading, method, message)

    def _see_answer(self, event: Event) -> None:
        message: Message = event.detail
        method = message.service_method
        if method not in _SHORT:
            return
        facts = self.facts
        reading, reply = facts.read(message), facts.read_reply(message)
        delivery = facts.delivery(message)
        if reading is None or reply is None or delivery is None:
            return
        seat = facts.seat(event.node)
        for look in self._on_answer[method]:
            look(event, seat, message, reading, reply, delivery)
        facts.answered(event, seat, reading, reply, method)

    def _see_reply(self, event: Event) -> None:
        message: Message = event.detail
        method = message.service_method
        if method not in _SHORT:
            return
        facts = self.facts
        reading, reply = facts.read(message), facts.read_reply(message)
        if reading is None or reply is None:
            return
        seat = facts.seat(event.node)
        for look in self._on_reply[method]:
            look(event, seat, message, reading, reply)
        facts.replied(event, seat, reading, reply, method, message.target)
        facts.forget(message)

    def _see_persist(self, event: Event) -> None:
        seat = self.facts.seat(event.node)
        for look in self._on["persist"]:
            look(event, seat)
        self.facts.saved(seat, event.detail[1])

    def _see_started(self, event: Event) -> None:
        _, index, term, is_leader = event.detail
        if is_leader:
            seat = self.facts.seat(event.node)
            for look in self._on["started"]:
                look(event, seat, index, term)
            self.facts.started(seat, index, term)

    def _see_cluster(self, event: Event) -> None:
        self._begin()
        self.facts.servers = event.detail

    def _see_stop(self, event: Event) -> None:
        """Peers told to stop owe nobody anything: one may refuse what it had accepted."""
        self._stopped = True

    def _see_plain(self, event: Event) -> None:
        seat = self.facts.seat(event.node)
        for look in self._on[event.kind]:
            look(event, seat)
        if event.kind == "crash":
            self.facts.crashed(seat)

    def _violated(self, rule: Rule, text: str, *evidence: tuple[int, Message, str] | str) -> NoReturn:
        lines = [e if isinstance(e, str) else describe_message(self.facts, *e) for e in evidence]
        self._simulation.fail(Failure(f"{rule.title} ({rule.section}): {text}", lines, rule=rule.name))


__all__ = ["RULES", "CheckedTrace"]
