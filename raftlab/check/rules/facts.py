"""What the rules share: facts about each server over all its incarnations, and about the leader of each term."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any

import msgspec

import labgob
from labrpc import Message
from labsim import Event
from raftlab.check.rules.causality import Causality
from raftlab.trace.decoding import DecodedRequest, MessageDecoder
from raftlab.trace.rpcs import APPEND, INSTALL, VOTE

# §6: how recently a voter must have heard from a leader to disregard RequestVote.
_RECENT_NS = 1_000_000_000
_LONG_AGO_NS = 1 << 62
_GRACE_NS = 150_000_000
# From the arrival of a request to that of its reply: every caller still waits for one that is so quick.
_PROMPT_NS = 100_000_000
_SAVES_IN_A_ROW = 10


class Unverified(StrEnum):
    """What messages must prove, if those that would prove it cannot be decoded."""

    LEADERSHIP = "leadership"
    COMMITS = "commits"


class PeerFacts:
    """What is known of one server, over all its incarnations. All of it follows from the trace.

    Sequence numbers count the events that carry terms, entries or saves: see `Facts.sequence`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = False  # its service handles nothing
        # The highest term in its own answers and requests, when that was first seen, and in which incarnation.
        self.observed_term = 0
        self.observed_since_ns = 0
        self.observed_incarnation = 0
        # The highest term that a request or a reply has brought to it, and when.
        self.informed_term = 0
        self.informed_since_ns = 0
        # In the term of the latest AppendEntries that reached it, or in which it led, its last entry is at least
        # (term, index).
        self.lower_bound_term = 0
        self.log_lower_bound = (0, 0)
        self.earlier_lower_bounds: dict[int, tuple[int, int]] = {}  # by term
        # Without what start() has returned since the last save: after a crash only this is certain.
        self.durable_lower_bound = (0, 0)
        self.pending_starts: list[int] = []  # sequence numbers of start() calls that have not returned
        self.pending_calls: list[int] = []  # their numbers in its clock (Causality)
        self.pending_commands: list[Any] = []
        self.returned_call = 0  # the number of the call that has just returned, at the earliest
        self.unsaved: list[tuple[int, int]] = []  # (index, when start() began) of what was started and not yet saved
        self.saving: dict[int, int] = {}  # by number, the saves under way on a slow disk: when each began
        self.last_persist = 0  # sequence number of its latest save
        # When the latest of the completed saves began: none of them contains what the peer has learned since.
        self.persist_began = 0
        self.last_persist_ns = 0
        self.saved_command = False  # start() had passed it a command that was not saved before that
        self.last_answer = 0  # sequence number of its latest answer
        self.last_send = 0  # sequence number of its latest request, and when it left
        self.last_send_ns = 0
        # By term: when the latest request arrived that it answered in that term (a sequence number), and when it
        # answered. A later term came after that arrival, but maybe before the answer left.
        self.last_answers: dict[int, tuple[int, int]] = {}
        # When it last heard from the leader of its term, or became leader. §6: then it may disregard RequestVote. An
        # undecodable message may have been a heartbeat.
        self.heard_leader_ns = -_LONG_AGO_NS
        self.heard_from: dict[str, int] = {}  # who has last answered it in its own term, and when
        # The latest undecodable message from each peer, as a sequence number. `undecodable_votes` are all that may
        # carry a vote or a term; `undecodable` are those that may carry entries and commits too.
        self.undecodable: dict[str, int] = {}
        self.last_undecodable = 0
        self.undecodable_votes: dict[str, int] = {}
        self.sent_undecodable_campaign = False  # it may have begun a term that no decodable message shows
        # The highest index that it can know to be committed, from a leader or by counting, in any incarnation.
        self.known_committed = 0
        self.max_extra_field = 0  # the highest number in an added field that has reached it: maybe a commit index
        # What has reached it of each leader's log, by the leader's term: first and last index.
        self.received: dict[int, tuple[int, int]] = {}
        self.arrivals: list[tuple[int, int, int]] = []  # (leader's term, last index, sequence number), unacknowledged
        self.acked: dict[int, int] = {}  # how far it has acknowledged each leader's log, by term
        self.followed: dict[int, tuple[int, Message]] = {}  # by term: when it first accepted AppendEntries, and which
        self.followed_term = 0  # the term of the AppendEntries that it accepted last
        # By term: the highest leader_commit that it received, and the end of the log that was verified.
        self.leader_commits: dict[int, tuple[int, int]] = {}
        self.may_apply = 0  # up to here: from leader_commit, or as a leader by counting
        self.applied = 0  # in this incarnation
        self.led_terms: set[int] = set()
        self.last_append_term = 0  # the term of its latest AppendEntries
        self.elected_term = 0  # the latest term that it is known to have led, in this incarnation
        self.last_append: Any = None  # its latest AppendEntries, as MessageDecoder.decode_head() returns it
        # Intervals that it could not use (paused, or its clock frozen), and when the current one began.
        self.lost_time: list[tuple[int, int]] = []
        self.unavailable: set[str] = set()  # what the tester has done to it
        self.unavailable_since_ns = 0
        self.snapshot = b""  # on its disk
        self.snapshot_saved = 0  # the index of that snapshot: entries up to here may be gone from the log


# gc=False: every request that is delivered gets one, and nothing it refers to can refer back to it.
class Delivery(msgspec.Struct, gc=False, eq=False):
    """A delivered request and what was known at its arrival. Handlers may overtake each other."""

    request: DecodedRequest
    sequence: int
    observed_term: int
    informed_term: int
    lower_bound_term: int
    log_lower_bound: tuple[int, int]
    acked: int
    at_ns: int
    reply: Any = None  # once it has been answered
    max_extra_field: int = 0  # the highest number in fields that the peer has added to the reply


class Leadership:
    """The leader of one term: what is known of its log, and who has acknowledged how much."""

    __slots__ = ("earned", "entry_terms", "known_range", "known_since", "match", "max_extra_fields")

    def __init__(self) -> None:
        self.entry_terms: dict[int, int] = {}  # by index
        self.known_since: dict[int, int] = {}  # by index: when start() or a message first showed it, sequence numbers
        self.known_range = (0, 0)  # of indexes, all of them in entry_terms
        self.match: dict[str, int] = {}  # by follower
        self.max_extra_fields: dict[str, int] = {}  # by follower: the highest number in an added field of a reply
        self.earned = 0  # how far its majorities of acknowledgements reach, by §5.4.2


class _PeerFactsByName(dict[str, PeerFacts]):
    # A dict and not a method: every event uses it.
    def __missing__(self, name: str) -> PeerFacts:
        peer = self[name] = PeerFacts(name)
        return peer


class _LeadershipsByTerm(dict[int, Leadership]):
    def __missing__(self, term: int) -> Leadership:
        leadership = self[term] = Leadership()
        return leadership


class Facts:
    def __init__(self, trace: Sequence[Event], decoder: MessageDecoder, unverified: set[Unverified]) -> None:
        self.trace = trace
        self.decoder = decoder
        self.unverified = unverified
        self.servers = 0
        self.sequence = 0  # of the current event: messages with terms or logs, and saves, are numbered
        self.peers = _PeerFactsByName()
        self.causality = Causality(0)
        self.leaderships = _LeadershipsByTerm()
        self.commands: set[Any] = set()  # all that were passed to start(), made hashable()
        self.no_entries = True  # no message shows an entry in any log
        self.deliveries: dict[int, Delivery] = {}  # by id() of the Message; a duplicate is another Message
        # By candidate and term: the voters whose votes arrived, and the candidate.
        self.votes: dict[tuple[str, int], set[str]] = {}
        self.granted: dict[tuple[str, int], str] = {}  # by voter and term: the first candidate that got its vote
        # By candidate and term: the voters that granted a RequestVote with a flag set, and which flag.
        self.flagged_votes: dict[tuple[str, int], set[tuple[str, str]]] = {}
        self.acknowledge_in_fields: set[str] = set()  # peers that have acknowledged in an added field
        # With the student's service: every snapshot that it has made, and its latest index.
        self.own_snapshots: dict[bytes, int] | None = None
        self.snapshot_ns_max = 0  # how long a service may be busy with a snapshot
        self.save_ns_max = 0  # how long a save may take, on the slowest disks so far

    @property
    def grace_ns(self) -> int:
        """The grace period: how late a correct peer may act on what it knows, or send what it has prepared.

        Some peers poll for replies or work, and a save may have to wait for other saves.
        """
        return _GRACE_NS + _SAVES_IN_A_ROW * self.save_ns_max

    # ---- recording, after the rules have checked the event --------------------------------------------------

    def new_entries(self, request: DecodedRequest) -> list[tuple[int, Any]]:
        """Before the rules check: the entries that this leader had not sent before in its term, as (index, entry).

        A leader sends the same entries many times. Checking each only once keeps the rules cheap.
        """
        args = request.args
        entries = args.entries
        leadership = self.leaderships[args.term]
        known = leadership.entry_terms
        first, last = args.prev_log_index + 1, request.last_index
        low, high = leadership.known_range
        if low <= first and last <= high and known.get(last) == request.last_term:
            return []
        overlap = min(high, last)
        if (
            high
            and first - 1 <= high
            and last >= low - 1
            and (overlap < first or known.get(overlap) == entries[overlap - first].term)
        ):
            # Extend the known range at its ends. The entries inside it were checked before.
            before = list(enumerate(entries[: max(low - first, 0)], first)) if first < low else []
            after = list(enumerate(entries[high + 1 - first :], high + 1)) if last > high else []
            leadership.known_range = (min(low, first), max(high, last))
            return before + after
        leadership.known_range = (first, last)
        return list(enumerate(entries, first))

    def record_new_entries(self, term: int, new_entries: list[tuple[int, Any]]) -> None:
        leadership = self.leaderships[term]
        for index, entry in new_entries:
            leadership.entry_terms[index] = entry.term
            leadership.known_since.setdefault(index, self.sequence)
        self.decoder.forget_head()

    def record_received(self, peer: PeerFacts, request: DecodedRequest) -> None:
        """An AppendEntries with entries."""
        args = request.args
        term, first, last = args.term, args.prev_log_index + 1, request.last_index
        received = peer.received.get(term)
        peer.received[term] = (first, last) if received is None else (min(received[0], first), max(received[1], last))
        if last > peer.acked.get(term, 0):
            peer.arrivals.append((term, last, self.sequence))

    def record_send(self, event: Event, peer: PeerFacts, args: Any, method: str) -> None:
        term = args.term
        peer.last_send, peer.last_send_ns = self.sequence, event.at_ns
        if term > peer.observed_term:
            self.observe_term(peer, term, event)
        if method == VOTE:
            if args.last_log_index:
                self.no_entries = False
            return
        if term > peer.lower_bound_term:
            # It leads now, and keeps what it starts for as long as it leads.
            self._reset_lower_bound(peer, term)
        if method == APPEND:
            peer.last_append = args
            if term != peer.last_append_term:
                peer.last_append_term = peer.elected_term = term
                peer.led_terms.add(term)
            self.leaderships[term].entry_terms[args.prev_log_index] = args.prev_log_term

    def record_delivery(
        self, event: Event, peer: PeerFacts, request: DecodedRequest, method: str, message: Message
    ) -> None:
        args = request.args
        term = args.term
        acked = peer.acked.get(term, 0)
        self.deliveries[id(message)] = Delivery(
            request,
            self.sequence,
            peer.observed_term,
            peer.informed_term,
            peer.lower_bound_term,
            peer.log_lower_bound,
            acked,
            event.at_ns,
        )
        if method == VOTE:
            if term > peer.informed_term and not self.may_disregard(peer, peer.observed_term, event.at_ns):
                self.inform_of_term(peer, term, event.at_ns)
            return
        if term >= peer.observed_term:
            peer.heard_leader_ns = event.at_ns
        if term > peer.informed_term:
            self.inform_of_term(peer, term, event.at_ns)
        if term > peer.lower_bound_term:
            # A new leader may make it truncate its log, whatever it answers.
            self._reset_lower_bound(peer, term)
        if method == INSTALL:
            committed = args.last_included_index
            if committed > peer.may_apply:
                peer.may_apply = committed
        else:
            committed = args.leader_commit
            last_index = request.last_index
            # It may apply up to the lower of the two, so both must exceed may_apply sooner or later.
            if committed > peer.may_apply or last_index > peer.may_apply:
                self._learn_commit(peer, term, committed, last_index)
            if last_index:
                self.no_entries = False
        if committed > peer.known_committed:
            peer.known_committed = committed

    def _learn_commit(self, peer: PeerFacts, term: int, commit: int, verified: int) -> None:
        before = peer.leader_commits.get(term)
        if before is not None:
            commit, verified = max(commit, before[0]), max(verified, before[1])
        peer.leader_commits[term] = (commit, verified)
        # A later leader has what an earlier one committed (§5.4.3), so an earlier leader_commit counts as far as a
        # later leader has verified the log.
        for of_term in sorted(peer.leader_commits):
            if of_term <= term:
                commit = max(commit, peer.leader_commits[of_term][0])
            else:
                peer.may_apply = max(peer.may_apply, min(commit, peer.leader_commits[of_term][1]))
        peer.may_apply = max(peer.may_apply, min(commit, verified))

    def record_answer(
        self, event: Event, peer: PeerFacts, delivery: Delivery, reply: Any, method: str, message: Message
    ) -> None:
        request = delivery.request
        peer.last_answer = self.sequence
        latest = peer.last_answers.get(reply.term)
        if latest is None or delivery.sequence > latest[0]:
            peer.last_answers[reply.term] = (delivery.sequence, event.at_ns)
        if reply.term > peer.observed_term:
            self.observe_term(peer, reply.term, event)
        if method == VOTE and reply.vote_granted:
            self.granted.setdefault((peer.name, request.args.term), message.source)
        if method == APPEND and reply.success:
            term = request.args.term
            last_index = request.last_index
            if term != peer.followed_term and message.source != peer.name:
                peer.followed_term = term
                peer.followed.setdefault(term, (event.at_ns, message))
            if last_index > peer.acked.get(term, 0):
                peer.acked[term] = last_index
                if delivery.max_extra_field >= last_index:
                    self.acknowledge_in_fields.add(peer.name)
            self._raise_lower_bound(peer, term, (request.last_term, last_index))
        if method == INSTALL and peer.snapshot_saved >= request.args.last_included_index:
            args = request.args
            self._raise_lower_bound(peer, args.term, (args.last_included_term, args.last_included_index))

    def _raise_lower_bound(self, peer: PeerFacts, term: int, log_lower_bound: tuple[int, int]) -> None:
        """It has that entry, which the leader of that term sent."""
        if term == peer.lower_bound_term and log_lower_bound > peer.log_lower_bound:
            peer.log_lower_bound = peer.durable_lower_bound = log_lower_bound

    def record_reply(
        self,
        event: Event,
        peer: PeerFacts,
        delivery: Delivery,
        reply: Any,
        method: str,
        follower: str,
    ) -> None:
        request, max_extra_field = delivery.request, delivery.max_extra_field
        args = request.args
        # §5.5: a caller that has timed out, or cancelled the call, does not read the reply.
        if reply.term > peer.informed_term and event.at_ns - delivery.at_ns <= _PROMPT_NS:
            self.inform_of_term(peer, reply.term, event.at_ns)
        if reply.term == args.term and follower != peer.name:
            peer.heard_from[follower] = event.at_ns
            if max_extra_field:
                peer.max_extra_field = max(max_extra_field, peer.max_extra_field)
                max_extra_fields = self.leaderships[args.term].max_extra_fields
                max_extra_fields[follower] = max(max_extra_field, max_extra_fields.get(follower, 0))
        if method == VOTE:
            if reply.vote_granted:
                self.votes.setdefault((peer.name, args.term), {peer.name}).add(follower)
                elected = 2 * len(self.votes_for(peer, args.term)) > self.servers and args.term == peer.observed_term
                if elected and peer.elected_term != args.term:
                    peer.elected_term = args.term
                    peer.heard_leader_ns = event.at_ns  # itself
            return
        if method == APPEND and reply.success:
            index = request.last_index
        elif method == INSTALL and reply.term == args.term:
            index = args.last_included_index
        else:
            return
        if follower == peer.name:
            return  # it always counts, and once
        leadership = self.leaderships[args.term]
        if index > leadership.match.get(follower, 0):
            leadership.match[follower] = index
            self._count_matches(peer, leadership, args.term)

    def _count_matches(self, leader: PeerFacts, leadership: Leadership, term: int) -> None:
        # With the leader itself, this many followers make a majority.
        needed = self.servers // 2
        if len(leadership.match) >= needed > 0:
            majority = sorted(leadership.match.values(), reverse=True)[needed - 1]
            # §5.4.2. Terms never decrease along a log: if any entry up to there is of this term, the last one is.
            if majority > leadership.earned and leadership.entry_terms.get(majority) == term:
                leadership.earned = majority
                if majority > leader.known_committed:
                    leader.known_committed = majority
                if majority > leader.may_apply:
                    leader.may_apply = majority

    def record_start_call(self, peer: PeerFacts, command: Any) -> None:
        self.sequence += 1
        peer.pending_starts.append(self.sequence)
        peer.pending_calls.append(self.causality.record_start(peer.name))
        peer.pending_commands.append(command)

    def record_start_return(self, peer: PeerFacts, command: Any) -> int:
        """When the start() that returns now began, at the earliest."""
        if not peer.pending_starts:
            return 0
        began, peer.returned_call = peer.pending_starts[0], peer.pending_calls[0]
        peer.pending_calls.pop()
        for place, pending in enumerate(peer.pending_commands):
            if pending is command:  # the same object: a student's command may define ==
                del peer.pending_commands[place]
                break
        # The trace does not show which of several calls it was. Keeping the earliest reports none of them wrongly.
        peer.pending_starts.pop()
        return began

    def record_started(self, peer: PeerFacts, index: int, term: int, began: int) -> None:
        if term > peer.lower_bound_term:
            self._reset_lower_bound(peer, term)
        saved = peer.persist_began > began
        if not saved:
            peer.unsaved.append((index, began))
        if term == peer.lower_bound_term:
            log_lower_bound = (term, index)
            if log_lower_bound > peer.log_lower_bound:
                peer.log_lower_bound = log_lower_bound
            if saved and log_lower_bound > peer.durable_lower_bound:
                peer.durable_lower_bound = log_lower_bound
        leadership = self.leaderships[term]
        leadership.entry_terms[index] = term
        leadership.known_since.setdefault(index, self.sequence)
        peer.led_terms.add(term)
        peer.elected_term = max(peer.elected_term, term)
        self.decoder.forget_head()

    def _reset_lower_bound(self, peer: PeerFacts, term: int) -> None:
        # A crash may still lose what start() has returned and no save has followed.
        peer.earlier_lower_bounds[peer.lower_bound_term] = (
            peer.durable_lower_bound if peer.unsaved else peer.log_lower_bound
        )
        peer.unsaved.clear()
        peer.lower_bound_term, peer.log_lower_bound, peer.durable_lower_bound = term, (0, 0), (0, 0)

    def lower_bound_before(self, peer: PeerFacts, term: int) -> tuple[int, int]:
        """A lower bound for its log at the time when it left the terms below this one."""
        if peer.lower_bound_term < term:
            return peer.log_lower_bound
        return (
            peer.earlier_lower_bounds[max((known for known in peer.earlier_lower_bounds if known < term), default=0)]
            if peer.earlier_lower_bounds
            else (0, 0)
        )

    def record_saving(self, peer: PeerFacts, number: int) -> None:
        peer.saving[number] = self.sequence

    def record_save(self, peer: PeerFacts, number: int, snapshot: bytes, at_ns: int) -> None:
        peer.last_persist, peer.last_persist_ns = self.sequence, at_ns
        peer.saved_command = bool(peer.pending_starts or peer.unsaved)
        # It does not contain what was started after it began.
        peer.persist_began = max(peer.persist_began, peer.saving.pop(number, self.sequence))
        if peer.unsaved:
            peer.unsaved = [(index, began) for index, began in peer.unsaved if began >= peer.persist_began]
            if not peer.unsaved:
                peer.durable_lower_bound = peer.log_lower_bound
        if snapshot is not peer.snapshot:
            peer.snapshot = snapshot
            if self.own_snapshots is not None:
                peer.snapshot_saved = self.own_snapshots.get(snapshot, peer.snapshot_saved)
                return
            # A snapshot of the tester's service begins with its index. Anything else tells nothing.
            with suppress(labgob.DecodeError):
                peer.snapshot_saved = labgob.Decoder(snapshot).decode(int)

    def record_restore(self, peer: PeerFacts, index: int) -> None:
        peer.applied = index
        if index > peer.may_apply:
            peer.may_apply = index

    def record_crash(self, peer: PeerFacts) -> None:
        """It may have lost terms that it received and never sent, and commands from start()."""
        peer.busy = False
        peer.informed_term, peer.informed_since_ns = peer.observed_term, peer.observed_since_ns
        peer.log_lower_bound = peer.durable_lower_bound
        peer.elected_term = 0
        peer.pending_starts.clear()
        peer.pending_calls.clear()
        peer.pending_commands.clear()
        peer.unsaved.clear()
        peer.saving.clear()
        peer.heard_leader_ns = -_LONG_AGO_NS
        peer.heard_from.clear()
        peer.unavailable.clear()

    def record_unavailable(self, peer: PeerFacts, what: str, at_ns: int) -> None:
        """It is paused, or its clock is frozen."""
        if not peer.unavailable:
            peer.unavailable_since_ns = at_ns
        peer.unavailable.add(what)

    def record_available(self, peer: PeerFacts, what: str, at_ns: int) -> None:
        if what in peer.unavailable:
            peer.unavailable.remove(what)
            if not peer.unavailable:
                peer.lost_time.append((peer.unavailable_since_ns, at_ns))

    def available_ns(self, peer: PeerFacts, since_ns: int, at_ns: int) -> int:
        """How much of that interval the server could use. Rules about time count nothing else."""
        if not peer.lost_time and not peer.unavailable:
            return at_ns - since_ns
        lost_time = [*peer.lost_time, (peer.unavailable_since_ns, at_ns)] if peer.unavailable else peer.lost_time
        return at_ns - since_ns - sum(max(0, min(end, at_ns) - max(begin, since_ns)) for begin, end in lost_time)

    def observe_term(self, peer: PeerFacts, term: int, event: Event) -> None:
        peer.observed_term, peer.observed_since_ns, peer.observed_incarnation = term, event.at_ns, event.incarnation
        if term > peer.informed_term:
            self.inform_of_term(peer, term, event.at_ns)

    def inform_of_term(self, peer: PeerFacts, term: int, at_ns: int) -> None:
        peer.informed_term, peer.informed_since_ns = term, at_ns

    def record_commit(self, peer: PeerFacts, index: int) -> None:
        """It knows that this is committed."""
        peer.known_committed = max(peer.known_committed, index)
        peer.may_apply = max(peer.may_apply, index)

    # ---- undecodable messages ---------------------------------------------------------------------------------

    def record_undecodable(self, event: Event, peer: PeerFacts, source: str, *, resembles_vote: bool = False) -> None:
        """An undecodable message from `source` has reached this peer. It may have had any content.

        `resembles_vote`: it has only the fields of RequestVote (a pre-vote, say), so it carries no entry, commit or
        acknowledgement, and is no heartbeat.
        """
        self.sequence += 1
        peer.undecodable_votes[source] = self.sequence
        if not resembles_vote:
            peer.undecodable[source] = peer.last_undecodable = self.sequence
            peer.heard_leader_ns = event.at_ns
            peer.heard_from[source] = event.at_ns

    def record_undecodable_reply(self, event: Event, peer: PeerFacts, message: Message) -> None:
        """A reply has reached this peer, and it or its request is undecodable."""
        self.record_undecodable(event, peer, message.target, resembles_vote=self.decoder.resembles_vote(message))
        with suppress(labgob.DecodeError):
            vote = self.decoder.decode_flagged_vote(message)
            if vote is not None:
                term, flag = vote
                self.flagged_votes.setdefault((peer.name, term), set()).add((message.target, flag))

    def flagged_votes_for(self, candidate: PeerFacts, term: int) -> set[str]:
        """The peers that granted its flagged RequestVote, and granted no other candidate a vote with that flag or one
        of that term."""
        given = self.flagged_votes.get((candidate.name, term), ())
        others = [votes for (name, of), votes in self.flagged_votes.items() if of == term and name != candidate.name]
        return {
            voter
            for voter, flag in given
            if self.granted.get((voter, term), candidate.name) == candidate.name
            and not any((voter, flag) in votes for votes in others)
        }

    def may_know_committed(self, peer: PeerFacts, index: int) -> bool:
        """Whether it may have learned that this is committed, from an added field or an undecodable message.

        That requires another server that knows it. One with a busy service may know more than it has applied.
        """
        if index > peer.max_extra_field and not peer.last_undecodable:
            return False
        others = (other for other in self.peers.values() if other is not peer)
        return any(max(other.known_committed, other.applied) >= index or other.busy for other in others)

    # ---- queries for reports ---------------------------------------------------------------------------------

    def latest(self, before: Event, found: Callable[[Event], bool]) -> Event | None:
        """The latest event up to this one that `found` accepts."""
        looking = False
        for event in reversed(self.trace):
            looking = looking or event is before
            if looking and found(event):
                return event
        return None

    # ---- what a correct peer may have known, checked before a violation is reported ---------------------------

    def may_disregard(self, peer: PeerFacts, term: int, at_ns: int) -> bool:
        """§6: a peer that recently heard from its leader may disregard RequestVote, as may a leader that recently heard
        from a majority.

        `term`: its own at the arrival of the request. By the time of its answer it may know a later one.
        """
        if self.available_ns(peer, peer.heard_leader_ns, at_ns) <= _RECENT_NS:
            return True
        heard = sum(self.available_ns(peer, when, at_ns) <= _RECENT_NS for when in peer.heard_from.values())
        if 2 * (heard + 1) <= self.servers:
            return False
        # A candidate that has just received its last needed vote leads, though it has sent nothing as leader yet.
        return peer.last_append_term == term or 2 * len(self.votes_for(peer, term)) > self.servers

    def votes_for(self, candidate: PeerFacts, term: int) -> set[str]:
        """The voters whose votes have reached it, and itself unless it is known to have voted for another."""
        votes = self.votes.get((candidate.name, term), {candidate.name})
        own = self.granted.get((candidate.name, term), candidate.name)
        return votes if own == candidate.name else votes - {candidate.name}

    def had_from(self, peer: PeerFacts, leader_term: int, index: int, term: int) -> bool:
        """Whether the leader of that term has sent it that entry."""
        received = peer.received.get(leader_term)
        return (
            received is not None
            and received[0] <= index <= received[1]
            and self.leaderships[leader_term].entry_terms.get(index) == term
        )

    def ever_had(self, peer: PeerFacts, index: int, term: int) -> bool:
        """Whether that entry was ever in its log: as a leader's own, or received from one."""
        return any(self.had_from(peer, of_term, index, term) for of_term in reversed(peer.received)) or any(
            self.leaderships[of_term].entry_terms.get(index) == term for of_term in peer.led_terms
        )

    def holders(self, leader: PeerFacts, term: int, index: int) -> list[str]:
        """The followers that may have acknowledged it to that leader: as in Figure 2, in an added field, or in an
        undecodable message."""
        leadership = self.leaderships[term]
        since = leadership.known_since.get(index, 0)
        followers = [name for name in self.peers if name != leader.name]
        in_extra_fields = self._acknowledged_in_extra_fields(leader, term, index)
        # Peers may forward entries to each other, and acknowledge for each other.
        relayed = leader.last_undecodable > since
        return sorted(
            name
            for name in followers
            if leadership.match.get(name, 0) >= index
            or name in in_extra_fields
            or leader.undecodable.get(name, 0) > since
            or ((relayed or in_extra_fields) and self.peers[name].last_undecodable > since)
            or (relayed and self.peers[name].received.get(term, (0, 0))[1] >= index)
        )

    def _acknowledged_in_extra_fields(self, leader: PeerFacts, term: int, index: int) -> set[str]:
        """The followers that may have acknowledged it in an added field."""
        return {
            name
            for name, max_extra_field in self.leaderships[term].max_extra_fields.items()
            if name != leader.name and max_extra_field >= index and self._may_have_got(name, leader, term, index)
        }

    def is_verified(self, leader: PeerFacts, term: int, index: int) -> bool:
        """Whether decodable acknowledgements, in added fields or not, make a majority."""
        match = self.leaderships[term].match.items()
        holders = {name for name, known in match if known >= index} | self._acknowledged_in_extra_fields(
            leader, term, index
        )
        return 2 * (len(holders) + 1) > self.servers

    def _may_have_got(self, name: str, leader: PeerFacts, term: int, index: int) -> bool:
        """From that leader: by AppendEntries, or in an undecodable message."""
        peer = self.peers[name]
        return peer.received.get(term, (0, 0))[1] >= index or leader.name in peer.undecodable


def hashable(command: Any) -> Any:
    return command if command.__class__ in (int, str) else labgob.encode([command])


def same_command(one: Any, other: Any) -> bool:
    if one.__class__ is other.__class__:
        return bool(one == other)
    try:
        # Two peers may have copies of one class whose objects never compare equal, but encode alike.
        return labgob.encode([one]) == labgob.encode([other])
    except labgob.EncodeError:
        return False
