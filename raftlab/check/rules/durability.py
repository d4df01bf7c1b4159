"""Durability: Figure 2 says "updated on stable storage before responding to RPCs"."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from raftlab.check.rules.facts import Delivery, Facts, Seat
from raftlab.check.rules.rule import Rule, Violated
from raftlab.trace.decoding import Reading
from raftlab.trace.events import Saved


class _AboutSaving(Rule):
    """Says nothing while no peer has ever saved and none has crashed: what is missing may be the whole of part 2C.

    Parts 2A and 2B are written before persistence, and nobody crashes there. The first save shows that this peer
    means to save, the first crash that it should have: then what was seen before is told.
    """

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._due = False
        self._seen: tuple[str, str, str, tuple[int, Message, str] | str] | None = None  # peer, text, two lines

    def not_saved(self, seat: Seat, text: str, evidence: tuple[int, Message, str] | str) -> None:
        if self._seen is None:
            saved = f"  {seat.last_persist_ns / 1e9:.6f} s  peer {seat.name} saved, for the last time before that"
            if not seat.last_persist:
                saved = f"  peer {seat.name} had never saved anything before that"
            self._seen = (seat.name, text, saved, evidence)
        if self._due:
            self._tell("")

    def on_first_save(self) -> None:
        self._now_due("the first save of all, which has just been made")

    def on_crash(self, seat: Seat) -> None:
        self._now_due(f"the crash of peer {seat.name}, which has just happened")

    def _now_due(self, why: str) -> None:
        self._due = True
        if self._seen is not None:
            self._tell(f". This is told only now, because nobody need save anything before {why}")

    def _tell(self, why_now: str) -> None:
        assert self._seen is not None
        peer, text, saved, evidence = self._seen
        self.violated(f"{text}{why_now}", saved, evidence, peer=peer)


class SavedBeforeReply(_AboutSaving):
    """A reply that promises something new must come after a save that began after the news.

    What the save holds is the peer's own business, so this is the least that can be asked: a save in between.
    """

    name = "saved-before-reply"
    title = "What a reply promises was saved before it left"
    section = "Figure 2: persistent state"
    concludes_from_silence = True
    is_about_votes = True

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        # When each term above its own, and each request for a vote, first reached each server: sequence numbers.
        self._new_terms: dict[tuple[str, int], int] = {}
        self._requests: dict[tuple[str, int, str], int] = {}

    def on_deliver_vote(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        args = reading.args
        self._requests.setdefault((seat.name, args.term, message.source), self.facts.sequence)

    def on_deliver_term_news(self, event: Event, seat: Seat, message: Message, reading: Reading) -> None:
        self._new_terms.setdefault((seat.name, reading.args.term), self.facts.sequence)

    def on_reply_term_news(self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any) -> None:
        self._new_terms.setdefault((seat.name, reply.term), self.facts.sequence)

    def on_answer_term_news(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        # What it has sent in a term of its own making: SavedBeforeCampaign looks at that.
        if reply.term > seat.term:
            news = self._new_terms.get((seat.name, reply.term))
            # A save after which it has said nothing may hold a campaign of its own, whose requests are about to leave,
            # or never will after a crash.
            unheard = seat.last_spoke < seat.last_persist
            # A pre-vote or its answer may have told it of that term before, or it has campaigned in words of its own.
            unread = seat.unread_votes or seat.asked_unread
            if news is not None and seat.persist_began < news and not unheard and not unread:
                self._not_saved(event, seat, message, f"its new term {reply.term}")

    def on_answer_vote(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        args = reading.args
        # Its vote for itself is older than its request for it: SavedBeforeCampaign looks at that.
        if reply.vote_granted and message.source != seat.name:
            news = self._requests.get((seat.name, args.term, message.source), 0)
            # Who asked beforehand may have been promised it then.
            asked_beforehand = message.source in seat.unread_votes
            may_be_kept = asked_beforehand or self._may_be_kept(seat, args.term, message.source)
            if seat.persist_began < news and not may_be_kept:
                self._not_saved(event, seat, message, f"its vote for {message.source}")

    def _may_be_kept(self, seat: Seat, term: int, candidate: str) -> bool:
        """Whether that vote may have been saved in that term before it was asked for, as one of an earlier term.

        Whoever learns of a term by its leader may keep the vote that it has: nobody else wins that term any more.
        """
        saved = seat.last_persist > self._new_terms.get((seat.name, term), self.facts.sequence)
        asked_earlier = any(
            (voter, by) == (seat.name, candidate) and asked < term for voter, asked, by in self._requests
        )
        return saved and seat.floor_term >= term and asked_earlier

    def on_answer_append(
        self, event: Event, seat: Seat, message: Message, reading: Reading, reply: Any, delivery: Delivery
    ) -> None:
        if (
            reply.success
            and reading.args.entries
            and seat.persist_began < delivery.sequence
            and reading.last_index > seat.acked.get(reading.args.term, 0)
            and reading.last_index > seat.snapshot_saved
            and not self._saved_before(seat, reading.last_index, reading.last_term)
        ):
            self._not_saved(event, seat, message, f"entry {reading.last_index} of term {reading.last_term}")

    def _saved_before(self, seat: Seat, index: int, term: int) -> bool:
        """Whether that entry, and so all before it, may have been saved by now.

        As a leader's own, as one acknowledged to an earlier leader, or as one that arrived before the latest save.
        """
        offices = self.facts.offices
        return (
            any(offices[of_term].entry_terms.get(index) == term for of_term in seat.led)
            or any(
                acked >= index and offices[of_term].entry_terms.get(index) == term
                for of_term, acked in seat.acked.items()
            )
            or any(
                last >= index and sequence < seat.persist_began and offices[of_term].entry_terms.get(index) == term
                for of_term, last, sequence in seat.arrivals
            )
        )

    def _not_saved(self, event: Event, seat: Seat, message: Message, words: str) -> None:
        if seat.last_unread:
            return  # it may have come that way before, and been saved
        self.not_saved(
            seat,
            f"peer {seat.name} answers without having saved {words}: a crash now would make it forget a promise",
            (event.at_ns, message, "answered"),
        )


class SavedBeforeCampaign(_AboutSaving):
    name = "saved-before-campaign"
    title = "A candidate saves its new term and its own vote before it asks for others"
    section = "Figure 2: persistent state"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._campaigns: dict[str, tuple[int, int]] = {}  # server -> term and sequence number of its latest

    def on_send_vote(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        term, sequence = self._campaigns.get(seat.name, (0, 0))
        if args.term <= term:
            return
        self._campaigns[seat.name] = (args.term, self.facts.sequence)
        # What it has answered in a lower term, since the last campaign and not in this very instant, had reached it
        # before the new term came. The answer itself may have waited for the save of both.
        below = [answer for term, answer in seat.last_answers.items() if term < args.term]
        answered, answered_ns = max(below, default=(0, 0))
        since = answered if answered > sequence and answered_ns < event.at_ns else 0
        if seat.persist_began <= since:
            lately = f" (it has saved nothing since it last answered in a lower term, at {answered_ns / 1e9:.6f} s)"
            self.not_saved(
                seat,
                f"peer {seat.name} campaigns in term {args.term} without having saved it{lately if since else ''}: "
                "after a crash it could vote again in this term",
                (event.at_ns, message, "sent"),
            )


class SavesInOrder(Rule):
    """On a slow disk: an older state that lands on a newer one takes back what was promised in between."""

    name = "saves-in-order"
    title = "Saves take effect in the order in which they began"
    section = "Figure 2: persistent state"

    def __init__(self, facts: Facts, violated: Violated) -> None:
        super().__init__(facts, violated)
        self._latest: dict[tuple[str, int], Event] = {}  # by server and life

    def on_persist(self, event: Event, seat: Seat, saved: Saved) -> None:
        key = (seat.name, event.incarnation)
        latest = self._latest.get(key)
        if latest is None or saved.number >= latest.detail.number:
            self._latest[key] = event
        elif saved.raft_state != latest.detail.raft_state:
            self.violated(
                f"peer {seat.name} began a save, began and ended another at {latest.at_ns / 1e9:.6f} s, and at "
                f"{event.at_ns / 1e9:.6f} s the first one lands on top of it: what was saved in between is gone. "
                "Keep the lock, or let one thread do all saving"
            )


class SnapshotStays(Rule):
    """save() without a snapshot keeps the one on the disk. With an empty one it does not, and the log's beginning is
    gone too."""

    name = "snapshot-stays"
    title = "A snapshot on the disk is replaced by a snapshot, not by nothing"
    section = "§7"

    def on_persist(self, event: Event, seat: Seat, saved: Saved) -> None:
        if seat.snapshot and not saved.snapshot:
            self.violated(
                f"peer {seat.name} had a snapshot of {len(seat.snapshot)} bytes on its disk"
                f"{f', which ends with entry {seat.snapshot_saved},' if seat.snapshot_saved else ''} and now saves an "
                "empty one (b'') in its place: what it holds is lost. Where there is no new snapshot, give save() "
                "none (None), and the old one stays",
                f"  {event.at_ns / 1e9:.6f} s  peer {seat.name} saved an empty snapshot",
            )


class SavedBeforeCounting(_AboutSaving):
    """A leader may send an entry before it has saved it, but not count itself among those who have it.

    Dissertation §10.2.1: the leader may write to its own disk in parallel with replicating to the followers.
    """

    name = "saved-before-counting"
    title = "A leader counts itself only for entries that it has saved"
    section = "Figure 2: persistent state"
    concludes_from_silence = True

    def on_send_append(self, event: Event, seat: Seat, message: Message, args: Any) -> None:
        if seat.unsaved and args.leader_commit >= seat.unsaved[0][0]:
            self._judge(seat, args.term, args.leader_commit, (event.at_ns, message, "sent"))

    def on_command(self, event: Event, seat: Seat, index: int, command: Any) -> None:
        if seat.unsaved and index >= seat.unsaved[0][0] and seat.leads == seat.floor_term:
            self._judge(seat, seat.leads, index, f"  {event.at_ns / 1e9:.6f} s  peer {seat.name} applied {index}")

    def _judge(self, seat: Seat, term: int, index: int, evidence: tuple[int, Message, str] | str) -> None:
        first = seat.unsaved[0][0]
        # Whether the others alone are a majority; if one has the last of them, it has the first.
        if 2 * len(self.facts.holders(seat, term, first)) > self.facts.servers or seat.last_unread:
            return
        self.not_saved(
            seat,
            f"peer {seat.name}, leading term {term}, says that entry {index} is committed and counts itself, but has "
            f"saved nothing since start() gave entry {first}: a crash now would make it forget that entry",
            evidence,
        )
