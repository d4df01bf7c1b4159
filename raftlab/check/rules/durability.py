"""Durability: Figure 2 says "updated on stable storage before responding to RPCs"."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from raftlab.check.rules.facts import Delivery, Facts, PeerFacts
from raftlab.check.rules.rule import Reporter, Rule
from raftlab.trace.decoding import DecodedRequest
from raftlab.trace.events import PersistedState


class _DurabilityRule(Rule):
    """Says nothing while no peer has ever saved and none has crashed: what is missing may be the whole of part 2C.

    Parts 2A and 2B are written before persistence, and nobody crashes there. The first save shows that this peer
    means to save, the first crash that it should have: then what was seen before is told.
    """

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._due = False
        self._seen: tuple[str, str, str, tuple[int, Message, str] | str] | None = None  # peer, text, two lines

    def report_unsaved(self, peer: PeerFacts, text: str, evidence: tuple[int, Message, str] | str) -> None:
        if self._seen is None:
            saved = f"  {peer.last_persist_ns / 1e9:.6f} s  peer {peer.name} saved, for the last time before that"
            if not peer.last_persist:
                saved = f"  peer {peer.name} had never saved anything before that"
            self._seen = (peer.name, text, saved, evidence)
        if self._due:
            self._tell("")

    def on_first_save(self) -> None:
        self._now_due("the first save of all, which has just been made")

    def on_crash(self, peer: PeerFacts) -> None:
        self._now_due(f"the crash of peer {peer.name}, which has just happened")

    def _now_due(self, why: str) -> None:
        self._due = True
        if self._seen is not None:
            self._tell(f". This is told only now, because nobody need save anything before {why}")

    def _tell(self, why_now: str) -> None:
        assert self._seen is not None
        peer, text, saved, evidence = self._seen
        self.report(f"{text}{why_now}", saved, evidence, peer=peer)


class SavedBeforeReply(_DurabilityRule):
    """A reply that promises something new must come after a save that began after the news.

    What the save holds is the peer's own business, so this is the least that can be asked: a save in between.
    """

    name = "saved-before-reply"
    title = "What a reply promises was saved before it left"
    section = "Figure 2: persistent state"
    concludes_from_silence = True
    is_about_votes = True

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        # When each term above its own, and each request for a vote, first reached each server: sequence numbers.
        self._new_terms: dict[tuple[str, int], int] = {}
        self._requests: dict[tuple[str, int, str], int] = {}

    def on_deliver_vote(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        args = request.args
        self._requests.setdefault((peer.name, args.term, message.source), self.facts.sequence)

    def on_deliver_new_term(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        self._new_terms.setdefault((peer.name, request.args.term), self.facts.sequence)

    def on_reply_new_term(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any
    ) -> None:
        self._new_terms.setdefault((peer.name, reply.term), self.facts.sequence)

    def on_answer_new_term(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        # What it has sent in a term of its own making: SavedBeforeCampaign looks at that.
        if reply.term > peer.observed_term:
            news = self._new_terms.get((peer.name, reply.term))
            # A save after which it has said nothing may hold a campaign of its own, whose requests are about to leave,
            # or never will after a crash.
            unheard = peer.last_spoke < peer.last_persist
            # A pre-vote or its answer may have told it of that term before, or it has campaigned in words of its own.
            undecodable = peer.undecodable_votes or peer.sent_undecodable_campaign
            if news is not None and peer.persist_began < news and not unheard and not undecodable:
                self._report_unsaved(event, peer, message, f"its new term {reply.term}")

    def on_answer_vote(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        args = request.args
        # Its vote for itself is older than its request for it: SavedBeforeCampaign looks at that.
        if reply.vote_granted and message.source != peer.name:
            news = self._requests.get((peer.name, args.term, message.source), 0)
            # Who asked beforehand may have been promised it then.
            asked_beforehand = message.source in peer.undecodable_votes
            may_be_kept = asked_beforehand or self._may_be_kept(peer, args.term, message.source)
            if peer.persist_began < news and not may_be_kept:
                self._report_unsaved(event, peer, message, f"its vote for {message.source}")

    def _may_be_kept(self, peer: PeerFacts, term: int, candidate: str) -> bool:
        """Whether that vote may have been saved in that term before it was asked for, as one of an earlier term.

        Whoever learns of a term by its leader may keep the vote that it has: nobody else wins that term any more.
        """
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

    def _report_unsaved(self, event: Event, peer: PeerFacts, message: Message, words: str) -> None:
        if peer.last_undecodable:
            return  # it may have come that way before, and been saved
        self.report_unsaved(
            peer,
            f"peer {peer.name} answers without having saved {words}: a crash now would make it forget a promise",
            (event.at_ns, message, "answered"),
        )


class SavedBeforeCampaign(_DurabilityRule):
    name = "saved-before-campaign"
    title = "A candidate saves its new term and its own vote before it asks for others"
    section = "Figure 2: persistent state"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._campaigns: dict[str, tuple[int, int]] = {}  # server -> term and sequence number of its latest

    def on_send_vote(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        term, sequence = self._campaigns.get(peer.name, (0, 0))
        if args.term <= term:
            return
        self._campaigns[peer.name] = (args.term, self.facts.sequence)
        # What it has answered in a lower term, since the last campaign and not in this very instant, had reached it
        # before the new term came. The answer itself may have waited for the save of both.
        below = [answer for term, answer in peer.last_answers.items() if term < args.term]
        answered, answered_ns = max(below, default=(0, 0))
        since = answered if answered > sequence and answered_ns < event.at_ns else 0
        if peer.persist_began <= since:
            lately = f" (it has saved nothing since it last answered in a lower term, at {answered_ns / 1e9:.6f} s)"
            self.report_unsaved(
                peer,
                f"peer {peer.name} campaigns in term {args.term} without having saved it{lately if since else ''}: "
                "after a crash it could vote again in this term",
                (event.at_ns, message, "sent"),
            )


class SavesInOrder(Rule):
    """On a slow disk: an older state that lands on a newer one takes back what was promised in between."""

    name = "saves-in-order"
    title = "Saves take effect in the order in which they began"
    section = "Figure 2: persistent state"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._latest: dict[tuple[str, int], Event] = {}  # by server and life

    def on_persist(self, event: Event, peer: PeerFacts, saved: PersistedState) -> None:
        key = (peer.name, event.incarnation)
        latest = self._latest.get(key)
        if latest is None or saved.number >= latest.detail.number:
            self._latest[key] = event
        elif saved.raft_state != latest.detail.raft_state:
            self.report(
                f"peer {peer.name} began a save, began and ended another at {latest.at_ns / 1e9:.6f} s, and at "
                f"{event.at_ns / 1e9:.6f} s the first one lands on top of it: what was saved in between is gone. "
                "Keep the lock, or let one thread do all saving"
            )


class SnapshotStays(Rule):
    """save() without a snapshot keeps the one on the disk. With an empty one it does not, and the log's beginning is
    gone too."""

    name = "snapshot-stays"
    title = "A snapshot on the disk is replaced by a snapshot, not by nothing"
    section = "§7"

    def on_persist(self, event: Event, peer: PeerFacts, saved: PersistedState) -> None:
        if peer.snapshot and not saved.snapshot:
            self.report(
                f"peer {peer.name} had a snapshot of {len(peer.snapshot)} bytes on its disk"
                f"{f', which ends with entry {peer.snapshot_saved},' if peer.snapshot_saved else ''} and now saves an "
                "empty one (b'') in its place: what it holds is lost. Where there is no new snapshot, give save() "
                "none (None), and the old one stays",
                f"  {event.at_ns / 1e9:.6f} s  peer {peer.name} saved an empty snapshot",
            )


class SavedBeforeCounting(_DurabilityRule):
    """A leader may send an entry before it has saved it, but not count itself among those who have it.

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
            self._check(
                peer, peer.last_append_term, index, f"  {event.at_ns / 1e9:.6f} s  peer {peer.name} applied {index}"
            )

    def _check(self, peer: PeerFacts, term: int, index: int, evidence: tuple[int, Message, str] | str) -> None:
        first = peer.unsaved[0][0]
        # Whether the others alone are a majority; if one has the last of them, it has the first.
        if 2 * len(self.facts.holders(peer, term, first)) > self.facts.servers or peer.last_undecodable:
            return
        self.report_unsaved(
            peer,
            f"peer {peer.name}, leading term {term}, says that entry {index} is committed and counts itself, but has "
            f"saved nothing since start() gave entry {first}: a crash now would make it forget that entry",
            evidence,
        )
