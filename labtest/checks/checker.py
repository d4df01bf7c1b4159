"""The trace that checks itself: every event goes past the rules that asked for its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from labrpc import Message
from labsim import Event, Simulation
from labtest.checks.budgets import Budgets
from labtest.checks.commits import AppliesOnlyTheCommitted, EarnedCommit, OnlyStartedCommands
from labtest.checks.durability import SavedBeforeCampaign, SavedBeforeReply
from labtest.checks.election import (
    EarnedLeadership,
    HigherTermWins,
    OneLeaderPerTerm,
    OneVotePerTerm,
    TermsNeverFall,
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
    SavedBeforeReply,
    SavedBeforeCampaign,
    Budgets,
)

_SHORT = {VOTE: "vote", APPEND: "append", INSTALL: "install"}


class CheckedTrace(list[Event]):
    """Put it in a simulation's `trace` before the run."""

    def __init__(self, simulation: Simulation, *, keep: bool = True) -> None:
        super().__init__()
        self._simulation = simulation
        self._keep = keep
        self.facts = Facts()
        self.rules = [rule(self.facts, self._violated) for rule in RULES]
        # ("send", "append") -> the methods on_send_append of the rules that have one.
        self._on: dict[tuple[str, str], list[Callable[..., None]]] = {}
        for rule in self.rules:
            for name in dir(rule):
                if name.startswith("on_"):
                    _, kind, *method = name.split("_")
                    self._on.setdefault((kind, method[0] if method else ""), []).append(getattr(rule, name))
        self._see = {
            "send": self._see_send,
            "deliver": self._see_deliver,
            "answer": self._see_answer,
            "reply": self._see_reply,
            "persist": self._see_persist,
            "started": self._see_started,
            "cluster": self._see_cluster,
            "apply": self._see_other,
            "start": self._see_other,
            "restore": self._see_other,
        }

    def append(self, event: Event) -> None:
        if self._keep:
            super().append(event)
        self.facts.sequence += 1
        see = self._see.get(event.kind)
        if see is not None:
            see(event)

    def _see_send(self, event: Event) -> None:
        message: Message = event.detail
        short = _SHORT.get(message.service_method)
        if short is None:
            return
        facts = self.facts
        args = facts.args(message)
        if args is None:
            return
        seat = facts.seat(event.node)
        for look in self._on.get(("send", short), ()):
            look(event, seat, message, args)
        for look in self._on.get(("send", ""), ()):
            look(event, seat, message, args)
        facts.sent(event, seat, args, message.service_method)

    def _see_deliver(self, event: Event) -> None:
        message: Message = event.detail
        short = _SHORT.get(message.service_method)
        if short is None:
            return
        facts = self.facts
        args = facts.args(message)
        if args is None:
            return
        seat = facts.seat(event.node)
        for look in self._on.get(("deliver", short), ()):
            look(event, seat, message, args)
        facts.delivered(event, seat, args, message.service_method, message)

    def _see_answer(self, event: Event) -> None:
        message: Message = event.detail
        short = _SHORT.get(message.service_method)
        if short is None:
            return
        facts = self.facts
        args, reply = facts.args(message), facts.reply(message)
        delivery = facts.deliveries.pop(id(message), None)
        if args is None or reply is None or delivery is None:
            return
        seat = facts.seat(event.node)
        for look in self._on.get(("answer", short), ()):
            look(event, seat, message, args, reply, delivery)
        for look in self._on.get(("answer", ""), ()):
            look(event, seat, message, args, reply, delivery)
        facts.answered(event, seat, args, reply, message.service_method)

    def _see_reply(self, event: Event) -> None:
        message: Message = event.detail
        short = _SHORT.get(message.service_method)
        if short is None:
            return
        facts = self.facts
        args, reply = facts.args(message), facts.reply(message)
        if args is None or reply is None:
            return
        seat = facts.seat(event.node)
        for look in self._on.get(("reply", short), ()):
            look(event, seat, message, args, reply)
        facts.tell_term(seat, reply.term, event.at_ns)
        facts.forget(message)

    def _see_persist(self, event: Event) -> None:
        seat = self.facts.seat(event.node)
        for look in self._on.get(("persist", ""), ()):
            look(event, seat)
        seat.last_persist = self.facts.sequence

    def _see_started(self, event: Event) -> None:
        _, index, term, is_leader = event.detail
        if is_leader:
            seat = self.facts.seat(event.node)
            for look in self._on.get(("started", ""), ()):
                look(event, seat, index, term)
            self.facts.started(seat, index, term)

    def _see_cluster(self, event: Event) -> None:
        self.facts.servers = event.detail

    def _see_other(self, event: Event) -> None:
        seat = self.facts.seat(event.node)
        for look in self._on.get((event.kind, ""), ()):
            look(event, seat)

    def _violated(self, rule: Rule, text: str, *evidence: tuple[int, Message, str] | str) -> NoReturn:
        lines = [e if isinstance(e, str) else describe_message(self.facts, *e) for e in evidence]
        self._simulation.fail(Failure(f"{rule.title} ({rule.section}): {text}", lines, rule=rule.name))


__all__ = ["RULES", "CheckedTrace"]
