"""Durability: Figure 2 says "updated on stable storage before responding to RPCs"."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from raftlab.check.failure import short
from raftlab.check.rules.facts import Delivery, Facts, PeerFacts, same_command
from raftlab.check.rules.rule import Reporter, Rule, peers_text
from raftlab.trace.decoding import DecodedRequest
from raftlab.trace.events import PersistedState, StartResult


class _DurabilityRule(Rule):
    """Reports nothing until a peer saves or crashes: students write parts 2A and 2B before persistence.

    The first save shows that this peer implements persistence, the first crash that it should. Then the first
    violation is reported, even if it was earlier.
    """

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._active = False
        self._first: tuple[str, str, str, tuple[int, Message, str] | str] | None = None  # peer, text, two lines

    def report_unsaved(self, peer: PeerFacts, text: str, evidence: tuple[int, Message, str] | str) -> None:
        if self._first is None:
            saved = f"  {peer.last_persist_ns / 1e9:.6f} s  peer {peer.name} saves (its last save before that)"
            if not peer.last_persist:
                saved = f"  peer {peer.name} had saved nothing before that"
            self._first = (peer.name, text, saved, evidence)
        if self._active:
            self._report_first("")

    def on_first_save(self) -> None:
        self._activate("a peer saves for the first time, which has just happened")

    def on_crash(self, peer: PeerFacts) -> None:
        self._activate(f"a peer crashes: peer {peer.name} has just crashed")

    def _activate(self, when: str) -> None:
        self._active = True
        if self._first is not None:
            self._report_first(f". It is reported only now because this rule is not checked until {when}")

    def _report_first(self, why_now: str) -> None:
        assert self._first is not None
        peer, text, saved, evidence = self._first
        self.report(f"{text}{why_now}", saved, evidence, peer=peer)


class SavedBeforeReply(_DurabilityRule):
    """A reply that promises something new must follow a save that began after the request arrived.

    The rule cannot read saved state, so it requires only that there is a save in between.
    """

    name = "saved-before-reply"
    title = "A peer saves what its reply promises before it replies"
    section = "Figure 2: persistent state"
    concludes_from_silence = True
    is_about_votes = True

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        # When each term above its own, and each RequestVote, first reached each server: sequence numbers.
        self._new_terms: dict[tuple[str, int], int] = {}
        self._requests: dict[tuple[str, int, str], int] = {}
        # By server and term: who first brought that term in a reply, and when.
        self._informants: dict[tuple[str, int], tuple[str, int]] = {}

    def on_deliver_vote(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        args = request.args
        self._requests.setdefault((peer.name, args.term, message.source), self.facts.sequence)

    def on_deliver_new_term(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        self._new_terms.setdefault((peer.name, request.args.term), self.facts.sequence)

    def on_reply_new_term(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any
    ) -> None:
        self._new_terms.setdefault((peer.name, reply.term), self.facts.sequence)
        self._informants.setdefault((peer.name, reply.term), (message.target, self.facts.sequence))

    def on_answer_new_term(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        # SavedBeforeCampaign checks requests in a term that the peer began itself.
        if reply.term > peer.observed_term:
            news = self._new_terms.get((peer.name, reply.term))
            # It has said nothing since its latest save, but for requests that it may have prepared before: that save
            # may be for a term of its own, whose requests are about to leave, or never will after a crash.
            since_ns = self.facts.available_ns(peer, peer.last_persist_ns, peer.last_send_ns)
            prepared = not peer.saved_command and since_ns <= self.facts.grace_ns
            unheard = peer.last_persist > peer.last_answer and (peer.last_persist > peer.last_send or prepared)
            # A pre-vote or its answer may have brought that term before, or its own campaign is undecodable.
            undecodable = peer.undecodable_votes or peer.sent_undecodable_campaign
            if news is not None and peer.persist_began < news and not unheard and not undecodable:
                self._report_unsaved(event, peer, message, f"its new term {reply.term}")

    def on_answer_vote(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        args = request.args
        # SavedBeforeCampaign checks its vote for itself, which is older than the request.
        if reply.vote_granted and message.source != peer.name:
            news = self._requests.get((peer.name, args.term, message.source), 0)
            # It may have promised that vote in a pre-vote.
            asked_beforehand = message.source in peer.undecodable_votes
            may_be_kept = asked_beforehand or self._may_be_kept(peer, args.term, message.source)
            if peer.persist_began < news and not may_be_kept:
                self._report_unsaved(event, peer, message, f"its vote for peer {message.source}")

    def _may_be_kept(self, peer: PeerFacts, term: int, candidate: str) -> bool:
        """Whether that vote may have been saved before the request came, as a vote of an earlier term.

        A peer that learns of a term from its leader may keep its earlier vote: no other peer can win that term. And one
        that learns of a term from a candidate's refusal may choose that candidate before it is asked.
        """
        informant, informed = self._informants.get((peer.name, term), ("", 0))
        if informant == candidate and peer.persist_began > informed:
            return True
        saved = peer.last_persist > self._new_terms.get((peer.name, term), self.facts.sequence)
        asked_earlier = any(
            (voter, by) == (peer.name, candidate) and asked < term for voter, asked, by in self._requests
        )
        return saved and peer.lower_bound_term >= term and asked_earlier

    def on_answer_append(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        if (
            reply.success
            and request.args.entries
            and peer.persist_began < delivery.sequence
            and request.last_index > peer.acked.get(request.args.term, 0)
            and request.last_index > peer.snapshot_saved
            and not self._saved_before(peer, request.last_index, request.last_term)
        ):
            self._report_unsaved(event, peer, message, f"entry {request.last_index} of term {request.last_term}")

    def _saved_before(self, peer: PeerFacts, index: int, term: int) -> bool:
        """Whether that entry, and so all before it, may have been saved by now.

        As a leader's own, as one acknowledged to an earlier leader, or as one that arrived before the latest save.
        """
        leaderships = self.facts.leaderships
        return (
            any(leaderships[of_term].entry_terms.get(index) == term for of_term in peer.led_terms)
            or any(
                acked >= index and leaderships[of_term].entry_terms.get(index) == term
                for of_term, acked in peer.acked.items()
            )
            or any(
                last >= index and sequence < peer.persist_began and leaderships[of_term].entry_terms.get(index) == term
                for of_term, last, sequence in peer.arrivals
            )
        )

    def _report_unsaved(self, event: Event, peer: PeerFacts, message: Message, what: str) -> None:
        if peer.last_undecodable:
            return  # it may have arrived in an undecodable message, and been saved
        self.report_unsaved(
            peer,
            f"Peer {peer.name} replied before it saved {what}, so a crash would lose it",
            (event.at_ns, message, "answered"),
        )


class SavedBeforeCampaign(_DurabilityRule):
    name = "saved-before-campaign"
    title = "A candidate saves its new term and its vote for itself before it requests votes"
    section = "Figure 2: persistent state"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._campaigns: dict[str, tuple[int, int]] = {}  # server -> term and sequence number of its latest

    def on_send_vote(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        term, sequence = self._campaigns.get(peer.name, (0, 0))
        if args.term <= term:
            return
        self._campaigns[peer.name] = (args.term, self.facts.sequence)
        # Requests answered in a lower term, after the last campaign and before this instant, had arrived before the new
        # term began. The answer itself may have waited for the save of both.
        below = [answer for term, answer in peer.last_answers.items() if term < args.term]
        answered, answered_ns = max(below, default=(0, 0))
        since = answered if answered > sequence and answered_ns < event.at_ns else 0
        if peer.persist_began <= since:
            lately = f" (it has saved nothing since its last answer in a lower term, at {answered_ns / 1e9:.6f} s)"
            self.report_unsaved(
                peer,
                f"Peer {peer.name} campaigns in term {args.term} before it has saved that "
                f"term{lately if since else ''}: after a crash it could vote again in this term",
                (event.at_ns, message, "sent"),
            )


class SavesInOrder(Rule):
    """On a slow disk: an older state that overwrites a newer one loses what was promised in between."""

    name = "saves-in-order"
    title = "Saves take effect in the order in which they began"
    section = "Figure 2: persistent state"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._latest: dict[tuple[str, int], Event] = {}  # by server and incarnation

    def on_persist(self, event: Event, peer: PeerFacts, saved: PersistedState) -> None:
        key = (peer.name, event.incarnation)
        latest = self._latest.get(key)
        if latest is None or saved.number >= latest.detail.number:
            self._latest[key] = event
        elif saved.raft_state != latest.detail.raft_state:
            self.report(
                f"Peer {peer.name} began two saves. The second one ended at {latest.at_ns / 1e9:.6f} s, and at "
                f"{event.at_ns / 1e9:.6f} s the first one overwrites it: the newer state is lost. Hold the lock during "
                "a save, or let one thread do all saves"
            )


class SnapshotStays(Rule):
    """save() without a snapshot keeps the one on the disk. An empty one replaces it, and the beginning of the log is
    already gone."""

    name = "snapshot-stays"
    title = "A saved snapshot is never replaced by an empty one"
    section = "§7"

    def on_persist(self, event: Event, peer: PeerFacts, saved: PersistedState) -> None:
        if peer.snapshot and not saved.snapshot:
            self.report(
                f"Peer {peer.name} had a snapshot of {len(peer.snapshot)} bytes on its "
                f"disk{f', which ends with entry {peer.snapshot_saved},' if peer.snapshot_saved else ''} and now "
                "saves an empty one (b'') in its place, so its content is lost. If there is no new snapshot, pass "
                "None to save(), which then keeps the old one",
                f"  {event.at_ns / 1e9:.6f} s  peer {peer.name} saves an empty snapshot",
            )


class SavedBeforeCounting(_DurabilityRule):
    """A leader may send an entry before it has saved it, but must not count itself for it.

    Dissertation §10.2.1: the leader may write to its own disk in parallel with replicating to the followers.
    """

    name = "saved-before-counting"
    title = "A leader counts itself only for entries that it has saved"
    section = "Figure 2: persistent state"
    concludes_from_silence = True

    def on_send_append(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        if peer.unsaved and args.leader_commit >= peer.unsaved[0][0]:
            self._check(peer, args.term, args.leader_commit, (event.at_ns, message, "sent"))

    def on_command(self, event: Event, peer: PeerFacts, index: int, command: Any) -> None:
        if peer.unsaved and index >= peer.unsaved[0][0] and peer.last_append_term == peer.lower_bound_term:
            evidence = f"  {event.at_ns / 1e9:.6f} s  peer {peer.name} applies entry {index}"
            self._check(peer, peer.last_append_term, index, evidence)

    def _check(self, peer: PeerFacts, term: int, index: int, evidence: tuple[int, Message, str] | str) -> None:
        first = peer.unsaved[0][0]
        # Are the others a majority without it? A peer that has the last of these entries has the first.
        if 2 * len(self.facts.holders(peer, term, first)) > self.facts.servers or peer.last_undecodable:
            return
        self.report_unsaved(
            peer,
            f"Peer {peer.name}, leader of term {term}, reports entry {index} as committed and counts itself, but has "
            f"saved nothing since its start() returned index {first}: it would lose entry {first} in a crash",
            evidence,
        )


class AppliedOnMajority(Rule):
    """Every correct peer obeys it, whatever its messages say: an entry is committed when it is on a majority's disks
    (§5.3), and a peer applies what it knows to be committed. So before the apply, a majority saved; each saved after it
    had the entry, and so after it could know of its start(); and the peer that applies could know of each save.

    It reports nothing until a peer saves or crashes: students write part 2B before persistence.
    """

    name = "applied-on-majority"
    title = "An applied entry is on the disks of a majority"
    section = "§5.3, Figure 2: persistent state"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._started: dict[int, list[tuple[Any, str, int, int]]] = {}  # by index: command, server, call, when
        self._active = False

    def on_first_save(self) -> None:
        self._active = True

    def on_crash(self, peer: PeerFacts) -> None:
        self._active = True

    def on_started(self, event: Event, peer: PeerFacts, started: StartResult, began: int) -> None:
        start = (started.command, peer.name, peer.returned_call, event.at_ns)
        self._started.setdefault(started.index, []).append(start)

    def on_command(self, event: Event, peer: PeerFacts, index: int, command: Any) -> None:
        if not self._active:
            return
        starts = [start for start in self._started.get(index, ()) if same_command(start[0], command)]
        if not starts:
            return
        causality = self.facts.causality
        savers = max((causality.may_have_saved(peer.name, by, call) for _, by, call, _ in starts), key=len)
        if 2 * len(savers) > self.facts.servers or self._is_being_started(command):
            return
        _, by, _, at_ns = starts[-1]
        saves = f"only of saves by {peers_text(savers)}" if savers else "of no save"
        self.report(
            f"Peer {peer.name} applied {short(command)} at index {index} without knowing that a majority of "
            f"{self.facts.servers} peers has saved that entry: it could know {saves}",
            f"  {at_ns / 1e9:.6f} s  start({short(command)}) returned index {index} on peer {by}",
            f"  {event.at_ns / 1e9:.6f} s  peer {peer.name} applied it, and since that start() no chain of messages "
            "has led here from a save by any other peer",
            peer=peer.name,
        )

    def _is_being_started(self, command: Any) -> bool:
        """By a call that has not returned, so that its index is unknown."""
        peers = self.facts.peers.values()
        return any(same_command(other, command) for peer in peers for other in peer.pending_commands)
