"""Logs: §5.3 and §5.4.1."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from labrpc import Message
from labsim import Event
from raftlab.check.rules.facts import Delivery, Facts, PeerFacts, same_command
from raftlab.check.rules.rule import NewEntries, Reporter, Rule
from raftlab.trace.decoding import DecodedRequest
from raftlab.trace.events import ANSWER, DROP
from raftlab.trace.rpcs import APPEND, INSTALL


class EntryBeforeExists(Rule):
    """Indexes begin at 1. Index 0 with term 0 is the place before the first entry."""

    name = "entry-before-exists"
    title = "prev_log_index is the index of a possible entry, or 0 for none"
    section = "§5.3, Figure 2: AppendEntries"

    def on_send_append(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        index, term = args.prev_log_index, args.prev_log_term
        if index < 0 or (index == 0 and term > 0):
            unanswered = self.facts.latest(
                event, lambda e: e.kind == DROP and e.detail.source == peer.name and e.detail.target == message.target
            )
            hint = "" if unanswered is None else ". A call without an answer (None) is not a rejection"
            wrong = f"no log has such an entry: next_index must not be less than 1{hint}"
            if index == 0:
                wrong = (
                    "index 0 comes before all entries, and has term 0. prev_log_term is the term of the entry at "
                    "prev_log_index, not that of the last entry, nor current_term"
                )
            self.report(
                f"Peer {peer.name}, leader of term {args.term}, sends peer {message.target} the entries after entry "
                f"{index} of term {term} (prev_log_index, prev_log_term), but {wrong}",
                (event.at_ns, message, "sent"),
            )


class LogMatching(Rule):
    name = "log-matching"
    title = "Entries with the same index and term hold the same command and follow the same entry"
    section = "§5.3, Figure 3: Log Matching"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        # (index, term) -> the command, the term before it, and the message that showed it first.
        self._entries: dict[tuple[int, int], tuple[Any, int, int, Message]] = {}

    def on_new_entries(self, event: Event, message: Message, request: DecodedRequest, new_entries: NewEntries) -> None:
        args = request.args
        known_entries = self._entries
        for index, entry in new_entries:
            position = index - args.prev_log_index - 2
            before = args.entries[position].term if position >= 0 else args.prev_log_term
            key = (index, entry.term)
            known = known_entries.get(key)
            if known is None:
                known_entries[key] = (entry.command, before, event.at_ns, message)
            elif known[0] != entry.command and not same_command(known[0], entry.command):
                self._report_difference(
                    event, message, key, known, "with a different command than when it was first sent"
                )
            elif known[1] != before:
                how = f"after an entry of term {before}; when it was first sent, it followed one of term {known[1]}"
                self._report_difference(event, message, key, known, how)

    def _report_difference(self, event: Event, message: Message, key: tuple[int, int], known: Any, how: str) -> None:
        self.report(
            f"Peer {message.source} sends entry {key[0]} of term {key[1]} {how}",
            (known[2], known[3], "delivered"),
            (event.at_ns, message, "delivered"),
        )


class LeaderAppendOnly(Rule):
    name = "leader-append-only"
    title = "A leader never overwrites or deletes entries in its log"
    section = "§5.3, Figure 3: Leader Append-Only"

    def on_send_append(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        was = self.facts.leaderships[args.term].entry_terms.get(args.prev_log_index, args.prev_log_term)
        if was != args.prev_log_term:
            self._report_overwrite(event, message, args.prev_log_index, was, args.prev_log_term)

    def on_send_snapshot(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        was = self.facts.leaderships[args.term].entry_terms.get(args.last_included_index, args.last_included_term)
        if was != args.last_included_term:
            self._report_overwrite(event, message, args.last_included_index, was, args.last_included_term)

    def on_new_entries(self, event: Event, message: Message, request: DecodedRequest, new_entries: NewEntries) -> None:
        log = self.facts.leaderships[request.args.term].entry_terms
        for index, entry in new_entries:
            was = log.get(index, entry.term)
            # EntryTerms checks a term that no entry can have.
            if was != entry.term and 0 < entry.term <= request.args.term:
                self._report_overwrite(event, message, index, was, entry.term)

    def _report_overwrite(self, event: Event, message: Message, index: int, was: int, now: int) -> None:
        at_its_end = ""
        if index and index == self.facts.peers[message.source].snapshot_saved:
            at_its_end = (
                f". The leader's snapshot ends with entry {index}: that entry is gone from the log, but its term is "
                "still needed as prev_log_term of the next entry (§7)"
            )
        self.report(
            f"Peer {message.source} sends entry {index} with term {now}; earlier in the same leadership it had term "
            f"{was}{at_its_end}",
            (event.at_ns, message, "sent"),
        )


class EntryTerms(Rule):
    name = "entry-terms"
    title = "Terms never decrease along a log or exceed the leader's term"
    section = "§5.3"

    def on_new_entries(self, event: Event, message: Message, request: DecodedRequest, new_entries: NewEntries) -> None:
        args = request.args
        before, index = args.prev_log_term, args.prev_log_index
        for entry in args.entries:
            index += 1
            if entry.term < max(before, 1) or entry.term > args.term:
                self.report(
                    f"Peer {message.source}, leader of term {args.term}, sends entry {index} of term {entry.term} "
                    f"after an entry of term {before}{self._explain(args.term, entry)}",
                    (event.at_ns, message, "delivered"),
                )
            before = entry.term

    def _explain(self, leader_term: int, entry: Any) -> str:
        if entry.term == 0:
            return (
                ". Terms of entries begin with 1: the entry with term 0 is the placeholder before the first entry, "
                "so the slice sent begins too early. The slice must begin at next_index, right after prev_log_index"
            )
        if entry.command == leader_term and entry.term in self.facts.commands:
            return (
                f". Its command is {entry.command}, and {entry.term} is a command passed to start(): term and command "
                "are swapped"
            )
        return ""


class SuccessMeansMatch(Rule):
    name = "success-means-match"
    title = "AppendEntries succeeds only if the log matches at prev_log_index"
    section = "Figure 2: AppendEntries 2"
    concludes_from_silence = True

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        # Where it correctly accepted AppendEntries: server -> index -> the term of the latest.
        self._matched: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._snapshots: dict[str, int] = {}

    def on_deliver_snapshot(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        self._snapshots[peer.name] = max(self._snapshots.get(peer.name, 0), request.args.last_included_index)

    def on_answer_append(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        if not reply.success:
            return
        args = request.args
        index, term = args.prev_log_index, args.prev_log_term
        matched = self._matched[peer.name]
        if matched.get(index) == term:
            return
        if (
            # Nearly always it received the entry from this leader.
            not self.facts.had_from(peer, args.term, index, term)
            and index > self._snapshots.get(peer.name, 0)
            and not self.facts.ever_had(peer, index, term)
            and not peer.last_undecodable
        ):
            self.report(
                f"Peer {peer.name} accepted AppendEntries after entry {index} of term {term}, an entry that it never "
                "had",
                (event.at_ns, message, "answered"),
            )
        matched[index] = term


class AcknowledgedEntriesStay(Rule):
    name = "acknowledged-stay"
    title = "A follower keeps the entries that it acknowledged to the current leader"
    section = "§5.3, Figure 2: AppendEntries 3"

    def on_refuse(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        args = request.args
        # A peer that acknowledges in an added field may use success=False for entries that are not saved yet.
        in_fields = peer.name in self.facts.acknowledge_in_fields
        if reply.term == args.term and peer.snapshot_saved < args.prev_log_index <= delivery.acked and not in_fields:
            evidence = [(event.at_ns, message, "answered")]
            yes = self.facts.latest(event, lambda e: self._is_yes(e, peer, args.term, args.prev_log_index))
            snapshot = self.facts.latest(
                event, lambda e: e.kind == ANSWER and e.node == peer.name and e.detail.rpc == INSTALL
            )
            after = ""
            if yes is not None and snapshot is not None and snapshot.at_ns >= yes.at_ns:
                evidence.insert(0, (snapshot.at_ns, snapshot.detail, "answered"))
                after = (
                    ". Between the two answers it received a snapshot. A peer must keep the entries after "
                    "last_included_index (Figure 13, 6), and ignore a snapshot that ends before its commit_index"
                )
                if snapshot.at_ns == yes.at_ns:
                    # The trace does not show their order.
                    after += (
                        ". If AppendEntries begins before the snapshot's end, append only the entries after the "
                        "snapshot"
                    )
            if yes is not None:
                evidence.insert(0, (yes.at_ns, yes.detail, "answered"))
            self.report(
                f"Peer {peer.name} had acknowledged entries up to {delivery.acked} to the leader of term {args.term}, "
                f"and now rejects AppendEntries after entry {args.prev_log_index}{after}",
                *evidence,
            )

    def _is_yes(self, event: Event, peer: PeerFacts, term: int, index: int) -> bool:
        """Whether that peer acknowledged entries to the leader of that term, at least up to that index."""
        if event.kind != ANSWER or event.node != peer.name or event.detail.rpc != APPEND:
            return False
        request, reply = self.facts.decoder.decode_request(event.detail), self.facts.decoder.decode_reply(event.detail)
        return (
            request is not None
            and reply is not None
            and bool(reply.success)
            and request.args.term == term
            and request.last_index >= index
        )


class HonestCandidate(Rule):
    name = "honest-candidate"
    title = "A candidate reports the actual last entry of its log"
    section = "§5.4.1"
    concludes_from_silence = True

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._campaigned: set[tuple[str, int]] = set()  # (peer, term)
        self._snapshots: set[tuple[str, int, int]] = set()  # that reached it: (peer, last index, last term)

    def on_deliver_snapshot(self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest) -> None:
        self._snapshots.add((peer.name, request.args.last_included_index, request.args.last_included_term))

    def _may_have(self, peer: PeerFacts, index: int, term: int) -> bool:
        """Whether that entry may ever have been the last of its log.

        A leader or candidate of that term may have started a command that no message shows.
        """
        return (
            index == 0
            or term in peer.led_terms
            or (peer.name, term) in self._campaigned
            or (peer.name, index, term) in self._snapshots
            or self.facts.ever_had(peer, index, term)
        )

    def on_send_vote(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        claimed = (args.last_log_term, args.last_log_index)
        if not self._may_have(peer, args.last_log_index, args.last_log_term) and not peer.last_undecodable:
            self.report(
                f"Peer {peer.name} claims that its log ends with entry {claimed[1]} of term {claimed[0]}, an entry "
                "that it never had",
                (event.at_ns, message, "sent"),
            )
        self._campaigned.add((peer.name, args.term))
        # News of this term or later may have come after the request was prepared and before it was sent.
        log_lower_bound = self.facts.lower_bound_before(peer, args.term)
        if claimed < log_lower_bound and not peer.last_undecodable:
            self.report(
                f"Peer {peer.name} claims that its log ends with entry {claimed[1]} of term {claimed[0]}, but it has "
                f"acknowledged or started entry {log_lower_bound[1]} of term {log_lower_bound[0]}",
                (event.at_ns, message, "sent"),
            )
        if args.last_log_term >= args.term:
            self.report(
                f"Peer {peer.name} campaigns in term {args.term} with a last entry of term {args.last_log_term}",
                (event.at_ns, message, "sent"),
            )


class UpToDateVote(Rule):
    name = "up-to-date-vote"
    title = "A peer votes only for a log at least as up to date as its own"
    section = "§5.4.1"
    concludes_from_silence = True

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._granted: dict[tuple[str, int], str] = {}  # (voter, term) -> the candidate

    def on_answer_vote(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        args = request.args
        if not reply.vote_granted or message.source == peer.name:
            return
        # A duplicate of a granted request may be granted again, even if the log has grown since.
        again = (peer.name, args.term) in self._granted
        self._granted.setdefault((peer.name, args.term), message.source)
        # The lower bound holds only if no new leader has spoken since: it may have truncated the voter's log.
        if (
            not again
            and peer.lower_bound_term == delivery.lower_bound_term
            and (args.last_log_term, args.last_log_index) < min(delivery.log_lower_bound, peer.log_lower_bound)
            and not peer.last_undecodable
        ):
            self.report(
                f"Peer {peer.name} has entry {delivery.log_lower_bound[1]} of term {delivery.log_lower_bound[0]} and "
                f"voted for a log that ends with entry {args.last_log_index} of term {args.last_log_term}",
                (event.at_ns, message, "answered"),
            )


class LeaderCompleteness(Rule):
    name = "leader-completeness"
    title = "A leader's log contains every committed entry"
    section = "§5.4.3, Figure 3: Leader Completeness"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._committed: dict[int, tuple[int, int]] = {}  # index -> entry's term, and the term that committed it
        self._through: dict[int, int] = {}  # leader's term -> its highest leader_commit

    def on_send_append(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        index = args.prev_log_index
        if index in self._committed:
            self._compare(event, message, args.term, index, args.prev_log_term)
        # EarnedCommit has checked leader_commit.
        through = self._through.get(args.term, 0)
        if args.leader_commit > through:
            entry_terms = self.facts.leaderships[args.term].entry_terms
            while through < args.leader_commit and through + 1 in entry_terms:
                through += 1
                self._committed.setdefault(through, (entry_terms[through], args.term))
            self._through[args.term] = through

    def on_send_snapshot(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        if args.last_included_index in self._committed:
            self._compare(event, message, args.term, args.last_included_index, args.last_included_term)

    def on_new_entries(self, event: Event, message: Message, request: DecodedRequest, new_entries: NewEntries) -> None:
        for index, entry in new_entries:
            if index in self._committed:
                self._compare(event, message, request.args.term, index, entry.term)

    def _compare(self, event: Event, message: Message, leader_term: int, index: int, term: int) -> None:
        committed = self._committed[index]
        if committed[0] != term and leader_term > committed[1]:
            self.report(
                f"Entry {index} of term {committed[0]} was committed in term {committed[1]}, but peer "
                f"{message.source}, leader of term {leader_term}, has an entry of term {term} at that index",
                (event.at_ns, message, "sent"),
            )
