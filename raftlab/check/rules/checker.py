"""Passes each event to the rules that handle its kind, and keeps the first violation.

The caller ends the run and truncates its trace. Start at `RuleChecker.observe()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, NoReturn

from labrpc import Message
from labsim import Event
from raftlab.check.failure import Failure
from raftlab.check.rules.budgets import AnswersRequests, Budgets
from raftlab.check.rules.causality import Causality
from raftlab.check.rules.commits import (
    AppliesOnlyTheCommitted,
    AppliesWhatIsCommitted,
    ConsecutiveIndexes,
    EarnedCommit,
    OnlyStartedCommands,
    StartTellsTheIndex,
)
from raftlab.check.rules.durability import (
    AppliedOnMajority,
    SavedBeforeCampaign,
    SavedBeforeCounting,
    SavedBeforeReply,
    SavesInOrder,
    SnapshotStays,
)
from raftlab.check.rules.election import (
    EarnedLeadership,
    FollowersFollow,
    HigherTermWins,
    OneLeaderPerTerm,
    OneVotePerTerm,
    SpeaksInItsTerm,
    TermsNeverFall,
    VotesForTheFirst,
)
from raftlab.check.rules.facts import Facts, PeerFacts, Unverified, hashable
from raftlab.check.rules.logs import (
    AcknowledgedEntriesStay,
    EntryBeforeExists,
    EntryTerms,
    HonestCandidate,
    LeaderAppendOnly,
    LeaderCompleteness,
    LogMatching,
    SuccessMeansMatch,
    UpToDateVote,
)
from raftlab.check.rules.rule import NEW_TERM, Rule, describe_message
from raftlab.trace import events
from raftlab.trace.decoding import DecodedRequest, MessageDecoder
from raftlab.trace.rpcs import APPEND, RPCS, VOTE

# They check an event in this order. It is also their precedence: if several rules are broken in one instant, the first
# is reported, because causes precede their consequences. docs/student/rules.md has the same order.
RULES: tuple[type[Rule], ...] = (
    OneVotePerTerm,
    EarnedLeadership,
    OneLeaderPerTerm,
    TermsNeverFall,
    SpeaksInItsTerm,
    HigherTermWins,
    FollowersFollow,
    VotesForTheFirst,
    EntryBeforeExists,
    LogMatching,
    LeaderAppendOnly,
    EntryTerms,
    SuccessMeansMatch,
    AcknowledgedEntriesStay,
    HonestCandidate,
    UpToDateVote,
    EarnedCommit,
    LeaderCompleteness,
    AppliesOnlyTheCommitted,
    OnlyStartedCommands,
    ConsecutiveIndexes,
    AppliesWhatIsCommitted,
    StartTellsTheIndex,
    SavedBeforeReply,
    SavedBeforeCampaign,
    SavedBeforeCounting,
    SavesInOrder,
    SnapshotStays,
    AppliedOnMajority,
    AnswersRequests,
    Budgets,
)

_UNVERIFIED = {
    Unverified.LEADERSHIP: "Leadership cannot be verified: the votes of a majority for a leader cannot be decoded",
    Unverified.COMMITS: "Commits cannot be verified: the acknowledgements of a majority cannot be decoded",
}
# The RPC that proves it.
_PROOFS = {Unverified.LEADERSHIP: VOTE, Unverified.COMMITS: APPEND}

# Rules about something that must happen: blocked tasks are evidence.
LIVENESS_RULES = frozenset((AnswersRequests.name, AppliesWhatIsCommitted.name))

_Handlers = list[Callable[..., None]]


class _StepHandlers:
    """The rules' handlers for one step of one RPC, for messages with and without a new term (see rule.py)."""

    __slots__ = ("new_term", "same_term")

    def __init__(self, rules: list[Rule], step: str, rpc: str) -> None:
        names = (f"{step}_{rpc}", step)
        self.same_term: _Handlers = _named(rules, *names)
        self.new_term: _Handlers = _named(rules, *names, *(f"{name}{NEW_TERM}" for name in names))


def _named(rules: list[Rule], *names: str) -> _Handlers:
    """The methods of these names, in the order of RULES. `rules` are its first ones, or all."""
    return [getattr(rules[place], name) for place, name in _methods(*names) if place < len(rules)]


@cache
def _methods(*names: str) -> list[tuple[int, str]]:
    """Which rules have a method of one of these names, as positions in RULES. Cached: many tests are short."""
    return [(place, name) for place, rule in enumerate(RULES) for name in names if hasattr(rule, name)]


# Checking one event at a time costs half as much again, because the code that runs in between evicts the rules from the
# processor's caches. Larger chunks gain little.
CHUNK = 256


class RuleViolation(NamedTuple):
    """A broken rule, and the length of the trace up to the event that breaks it."""

    failure: Failure
    events: int


class RuleChecker:
    """Call observe() with a trace's events in chunks of any size, and finish() when the run is over.

    Chunks are cheaper than single events, so a run continues for a moment after a rule is broken.
    """

    def __init__(self, trace: Sequence[Event]) -> None:
        self.violation: RuleViolation | None = None
        self._trace = trace
        self._observed = 0  # how many events
        self._handlers: dict[str, Callable[[Event], None]] = {}
        self._decoder = MessageDecoder()
        self._unverified: set[Unverified] = set()
        self._claimed: set[tuple[str, int]] = set()
        self._claims: list[tuple[int, str, int]] = []  # when, who, the term: not checked yet
        self._begin()

    def _begin(self) -> None:
        """Start with empty facts: they are about one cluster, and a test may make several."""
        self._handlers |= {
            events.SEND: self._handle_send,
            events.DELIVER: self._handle_deliver,
            events.ANSWER: self._handle_answer,
            events.REPLY: self._handle_reply,
            events.PERSIST: self._handle_persist,
            events.SAVING: self._handle_saving,
            events.SLOW_DISKS: self._handle_slow_disks,
            events.SLOW_SNAPSHOTS: self._handle_slow_snapshots,
            events.BUSY: self._handle_busy,
            events.APPLY: self._handle_apply,
            events.START: self._handle_start,
            events.STARTED: self._handle_started,
            events.RESTORE: self._handle_restore,
            events.CRASH: self._handle_crash,
            events.PAUSE: self._handle_leave,
            events.FREEZE_CLOCK: self._handle_leave,
            events.PREEMPT: self._handle_preempt,
            events.CAUGHT_UP: self._handle_caught_up,
            events.RESUME: self._handle_return,
            events.UNFREEZE_CLOCK: self._handle_return,
            events.CLUSTER: self._handle_cluster,
            events.SERVICE: self._handle_service,
            events.SNAPSHOT: self._handle_snapshot,
            events.STOP: self._handle_stop,
        }
        self._service = ""  # the prefix of the methods of a service, which no rule checks
        self.facts = Facts(self._trace, self._decoder, self._unverified)
        self._claimed.clear()
        self._claims.clear()
        self._rules: list[Rule] = [rule(self.facts, self._report) for rule in RULES]
        self._find_handlers()

    def _find_handlers(self) -> None:
        self._on_send = self._step_handlers("on_send")
        self._on_any_send = _named(self._rules, "on_any_send")
        self._on_any_answer = _named(self._rules, "on_any_answer")
        self._on_deliver = self._step_handlers("on_deliver")
        self._on_answer = self._step_handlers("on_answer")
        self._on_reply = self._step_handlers("on_reply")
        self._on_new_entries = _named(self._rules, "on_new_entries")
        self._on_refuse = _named(self._rules, "on_refuse")
        self._on_command = _named(self._rules, "on_command")
        self._on_started = _named(self._rules, "on_started")
        self._on_claim = _named(self._rules, "on_claim")
        self._on_restore = _named(self._rules, "on_restore")
        self._on_crash = _named(self._rules, "on_crash")
        self._on_persist = _named(self._rules, "on_persist")
        self._on_first_save = _named(self._rules, "on_first_save")

    def _step_handlers(self, step: str) -> dict[str, _StepHandlers]:
        return {method: _StepHandlers(self._rules, step, rpc.short_name) for method, rpc in RPCS.items()}

    @property
    def undecodable_methods(self) -> list[str]:
        """The methods whose messages cannot be decoded; empty if these are only pre-votes."""
        methods = self._decoder.undecodable_methods
        return methods if self._has_undecodable or any(method in RPCS for method in methods) else []

    @property
    def _has_undecodable(self) -> bool:
        """Whether a peer has received an undecodable message that may have had any content."""
        return any(peer.last_undecodable for peer in self.facts.peers.values())

    @property
    def undecodable_notes(self) -> list[str]:
        """Which messages cannot be decoded, and what follows from that, a line each."""
        notes = self._decoder.undecodable_notes
        if not notes:
            return []
        about_all = self._has_undecodable
        rules = [rule for rule in RULES if rule.concludes_from_silence and (rule.is_about_votes or about_all)]
        names = [rule.name for rule in rules]
        return [
            *notes,
            "Such a message may contain anything, so these rules assume the best for its receiver: " + ", ".join(names),
        ]

    @property
    def unverified(self) -> list[str]:
        """What cannot be verified in this run, why, and what to change, a line each."""
        return [self._decoder.explain(_UNVERIFIED[what], _PROOFS[what]) for what in sorted(self._unverified)]

    def claim(self, peer: str, term: int, at_ns: int) -> bool:
        """Note that get_state() on a peer reported leadership of that term. Returns whether that is new.

        It is not an event, because calls of get_state() are not part of the run's digest. It is checked after the next
        chunk, which contains everything that happened before.
        """
        if (peer, term) in self._claimed:
            return False
        self._claimed.add((peer, term))
        self._claims.append((at_ns, peer, term))
        return True

    def observe(self, chunk: Sequence[Event]) -> None:
        """Check the next events of the trace, up to the first violation."""
        if self.violation is not None:
            return
        handler_of = self._handlers.get
        number = self._observed
        self._observed += len(chunk)
        try:
            for event in chunk:
                number += 1
                handler = handler_of(event.kind)
                if handler is not None:
                    handler(event)
        except Failure as failure:
            failure, number = self._highest_precedence(self._pending_failure() or failure, number)
            self.violation = RuleViolation(failure.extended(peer=self._trace[number - 1].node), number)
        else:
            if self._claims:
                self._check_claims()

    def _check_claims(self) -> None:
        claims = self._claims.copy()
        self._claims.clear()
        try:
            for at_ns, peer, term in claims:
                for handle in self._on_claim:
                    handle(at_ns, self.facts.peers[peer], term)
        except Failure as failure:
            self.violation = RuleViolation(self._pending_failure() or failure, self._observed)

    def finish(self) -> None:
        """Check the remaining events when the run is over."""
        self.observe(self._trace[self._observed :])

    def _pending_failure(self) -> Failure | None:
        """A violation that a rule has noticed earlier and not yet reported."""
        try:
            for rule in self._rules:
                rule.report_pending()
        except Failure as earlier:
            return earlier
        return None

    def _highest_precedence(self, failure: Failure, number: int) -> tuple[Failure, int]:
        """The violation of the first rule in RULES that is broken in the same instant.

        `number`: of the event that broke the rule. The rules before it in RULES have checked that event.
        """
        places = {rule.name: place for place, rule in enumerate(RULES)}
        trace, rules, at_ns = self._trace, self._rules, self._trace[number - 1].at_ns
        self._rules = []
        self._find_handlers()
        self._handle(trace[number - 1])  # without rules: facts record it
        found, found_number = failure, number
        for later in range(number, len(trace)):
            if trace[later].at_ns > at_ns:
                break
            self._rules = rules[: places[found.rule or ""]]
            self._find_handlers()
            try:
                self._handle(trace[later])
            except Failure as earlier:
                found, found_number = earlier, later + 1
        return found, found_number

    def _handle(self, event: Event) -> None:
        handler = self._handlers.get(event.kind)
        if handler is not None:
            handler(event)

    # Most events carry no new term. So each of these four first checks whether this one does, and calls only the rules
    # that then have something to check. That keeps checking cheap.

    def _handle_send(self, event: Event) -> None:
        message: Message = event.detail
        self.facts.causality.record_send(event)
        method = message.rpc
        if self._service and method.startswith(self._service):
            return
        facts = self.facts
        peer = facts.peers[event.node]
        for handle in self._on_any_send:
            handle(event, peer, message)
        handlers = self._on_send.get(method)
        if handlers is None:
            facts.decoder.note_unknown_rpc(method)
            peer.sent_undecodable_campaign = peer.sent_undecodable_campaign or facts.decoder.resembles_vote(message)
            return
        args = facts.decoder.decode_head(message)
        if args is None:
            peer.sent_undecodable_campaign = peer.sent_undecodable_campaign or method == VOTE
            return
        facts.sequence += 1
        term = args.term
        nothing_new = term == peer.observed_term == peer.informed_term and (
            term == peer.last_append_term or method == VOTE
        )
        if nothing_new and args is peer.last_append:
            peer.last_send, peer.last_send_ns = facts.sequence, event.at_ns  # a repetition: nothing else is new
            return
        for handle in handlers.same_term if nothing_new else handlers.new_term:
            handle(event, peer, message, args)
        facts.record_send(event, peer, args, method)

    def _handle_deliver(self, event: Event) -> None:
        message: Message = event.detail
        self.facts.causality.record_delivery(event)
        method = message.rpc
        if self._service and method.startswith(self._service):
            return
        handlers = self._on_deliver.get(method)
        facts = self.facts
        peer = facts.peers[event.node]
        request = None if handlers is None else facts.decoder.decode_request(message)
        if request is None or handlers is None:
            facts.record_undecodable(event, peer, message.source, resembles_vote=facts.decoder.resembles_vote(message))
            return
        facts.sequence += 1
        args = request.args
        if method == APPEND and args.entries:
            self._handle_entries(event, peer, message, request)
        for handle in handlers.same_term if args.term == peer.observed_term else handlers.new_term:
            handle(event, peer, message, request)
        facts.record_delivery(event, peer, request, method, message)
        if request.max_extra_field > peer.max_extra_field:
            peer.max_extra_field = request.max_extra_field
        if request.may_bring_entries:
            facts.record_undecodable(event, peer, message.source)

    def _handle_entries(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        new_entries = self.facts.new_entries(request)
        if new_entries:
            for handle in self._on_new_entries:
                handle(event, message, request, new_entries)
            self.facts.record_new_entries(request.args.term, new_entries)
        self.facts.record_received(peer, request)

    def _handle_answer(self, event: Event) -> None:
        message: Message = event.detail
        self.facts.causality.record_answer(event)
        facts = self.facts
        delivery = facts.deliveries.get(id(message))
        if delivery is None:
            return
        for handle in self._on_any_answer:
            handle(event, facts.peers[event.node], message)
        reply = delivery.reply = facts.decoder.decode_reply(message)
        delivery.max_extra_field = facts.decoder.max_extra_field
        if reply is None:
            return
        facts.sequence += 1
        method = message.rpc
        handlers = self._on_answer[method]
        peer = facts.peers[event.node]
        request = delivery.request
        if method == APPEND and not reply.success:
            for handle in self._on_refuse:
                handle(event, peer, message, request, reply, delivery)
        nothing_new = reply.term == request.args.term == peer.observed_term
        for handle in handlers.same_term if nothing_new else handlers.new_term:
            handle(event, peer, message, request, reply, delivery)
        facts.record_answer(event, peer, delivery, reply, method, message)

    def _handle_reply(self, event: Event) -> None:
        message: Message = event.detail
        self.facts.causality.record_reply(event)
        if self._service and message.service_method.startswith(self._service):
            return
        facts = self.facts
        peer = facts.peers[event.node]
        delivery = facts.deliveries.pop(id(message), None)
        if delivery is None or delivery.reply is None:
            facts.record_undecodable_reply(event, peer, message)
            return
        facts.sequence += 1
        method = message.rpc
        handlers = self._on_reply[method]
        request, reply = delivery.request, delivery.reply
        for handle in handlers.same_term if reply.term == peer.observed_term else handlers.new_term:
            handle(event, peer, message, request, reply)
        facts.record_reply(event, peer, delivery, reply, method, message.target)

    def _handle_persist(self, event: Event) -> None:
        if self._on_first_save:
            handlers, self._on_first_save = self._on_first_save, []
            for handle in handlers:
                handle()
        facts = self.facts
        facts.sequence += 1
        peer = facts.peers[event.node]
        for handle in self._on_persist:
            handle(event, peer, event.detail)
        facts.causality.record_save(peer.name)
        facts.record_save(peer, event.detail.number, event.detail.snapshot, event.at_ns)

    def _handle_saving(self, event: Event) -> None:
        self.facts.sequence += 1
        self.facts.record_saving(self.facts.peers[event.node], event.detail)

    def _handle_slow_disks(self, event: Event) -> None:
        self.facts.save_ns_max = max(self.facts.save_ns_max, int(event.detail.max_ms * 1e6))

    def _handle_slow_snapshots(self, event: Event) -> None:
        self.facts.snapshot_ns_max = max(self.facts.snapshot_ns_max, int(event.detail * 1e6))

    def _handle_busy(self, event: Event) -> None:
        self.facts.peers[event.node].busy = event.detail

    def _handle_apply(self, event: Event) -> None:
        peer = self.facts.peers[event.node]
        message = event.detail
        if getattr(message, "command_valid", False):
            for handle in self._on_command:
                handle(event, peer, message.command_index, message.command)
        peer.applied = message.snapshot_index if getattr(message, "snapshot_valid", False) else message.command_index

    def _handle_start(self, event: Event) -> None:
        command = event.detail
        self.facts.record_start_call(self.facts.peers[event.node], command)
        self.facts.commands.add(command if command.__class__ is int else hashable(command))

    def _handle_started(self, event: Event) -> None:
        started = event.detail
        peer = self.facts.peers[event.node]
        began = self.facts.record_start_return(peer, started.command)
        self.facts.sequence += 1
        if started.is_leader:
            for handle in self._on_started:
                handle(event, peer, started, began)
            self.facts.record_started(peer, started.index, started.term, began)

    def _handle_restore(self, event: Event) -> None:
        peer = self.facts.peers[event.node]
        for handle in self._on_restore:
            handle(peer)
        self.facts.record_restore(peer, event.detail)

    def _handle_crash(self, event: Event) -> None:
        peer = self.facts.peers[event.node]
        for handle in self._on_crash:
            handle(peer)
        self.facts.record_crash(peer)
        self.facts.causality.record_crash(peer.name)

    def _handle_leave(self, event: Event) -> None:
        self.facts.record_unavailable(self.facts.peers[event.node], event.kind, event.at_ns)

    def _handle_return(self, event: Event) -> None:
        left = events.PAUSE if event.kind == events.RESUME else events.FREEZE_CLOCK
        self.facts.record_available(self.facts.peers[event.node], left, event.at_ns)

    def _handle_preempt(self, event: Event) -> None:
        # Clients are nodes too, but not servers.
        if event.detail.late_ns and event.node in self.facts.peers:
            self.facts.record_unavailable(self.facts.peers[event.node], event.kind, event.at_ns)

    def _handle_caught_up(self, event: Event) -> None:
        if event.node in self.facts.peers:
            self.facts.record_available(self.facts.peers[event.node], events.PREEMPT, event.at_ns)

    def _handle_cluster(self, event: Event) -> None:
        if self.facts.servers:
            self._begin()
        self.facts.servers = event.detail
        self.facts.causality = Causality(event.detail)

    def _handle_service(self, event: Event) -> None:
        self._service = f"{event.detail}."
        self.facts.own_snapshots = {}

    def _handle_snapshot(self, event: Event) -> None:
        if self.facts.own_snapshots is not None:
            self.facts.own_snapshots[event.detail.snapshot] = event.detail.index

    def _handle_stop(self, event: Event) -> None:
        """No rule checks peers that are being stopped."""
        self._handlers.clear()
        self._handlers[events.CLUSTER] = self._handle_cluster

    def _report(
        self, rule: Rule, text: str, *evidence: tuple[int, Message, str] | str, peer: str | None = None
    ) -> NoReturn:
        lines = [e if isinstance(e, str) else describe_message(*e) for e in evidence]
        messages = [(e[0], e[1]) for e in evidence if not isinstance(e, str)]
        raise Failure(text, lines, rule=rule.name, peer=peer or _sender(evidence), messages=messages)


def _sender(evidence: tuple[tuple[int, Message, str] | str, ...]) -> str | None:
    """The peer that sent or answered the last message among the evidence."""
    for _, message, what in reversed([piece for piece in evidence if not isinstance(piece, str)]):
        return {"sent": message.source, "answered": message.target}.get(what)
    return None


__all__ = ["CHUNK", "LIVENESS_RULES", "RULES", "RuleChecker", "RuleViolation"]
