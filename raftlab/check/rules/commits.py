"""Committing and applying: §5.3 and §5.4.2."""

from __future__ import annotations

from typing import Any

from labrpc import Message
from labsim import Event
from raftlab.check.rules.facts import Delivery, Facts, PeerFacts, Unverified, hashable, same_command
from raftlab.check.rules.rule import NewEntries, Reporter, Rule, majority_note, peers_text
from raftlab.trace.decoding import DecodedRequest
from raftlab.trace.events import DELIVER, START, STARTED, StartResult
from raftlab.trace.rpcs import APPEND


class EarnedCommit(Rule):
    name = "earned-commit"
    title = "A leader commits only what a majority has acknowledged in its own term"
    section = "§5.3, §5.4.2"
    concludes_from_silence = True

    def on_send_append(self, event: Event, peer: PeerFacts, message: Message, args: Any) -> None:
        if args.leader_commit > peer.known_committed:
            self._check(peer, args.term, args.leader_commit, (event.at_ns, message, "sent"))

    def on_command(self, event: Event, peer: PeerFacts, index: int, command: Any) -> None:
        # Many leaders apply before they next send anything, some after they have lost leadership.
        if index > peer.may_apply and self.facts.servers > 1 and _has_counted_it(self.facts, peer, index, event.at_ns):
            of_term = _of_term(self.facts.leaderships[peer.elected_term].entry_terms.get(index))
            evidence = f"  {event.at_ns / 1e9:.6f} s  peer {peer.name} applies entry {index}{of_term}"
            self._check(peer, peer.elected_term, index, evidence, applied=True)

    def _check(
        self, peer: PeerFacts, term: int, index: int, evidence: tuple[int, Message, str] | str, *, applied: bool = False
    ) -> None:
        facts = self.facts
        leadership = facts.leaderships[term]
        of_term = leadership.entry_terms.get(index)
        own_later = [later for later, of in leadership.entry_terms.items() if later > index and of == term]
        if any(self._is_held(peer, term, later) for later in own_later):
            # An entry of its own term commits the older ones with it.
            self._accept(peer, term, index, own_later if of_term not in (None, term) else [index, *own_later])
            return
        if facts.may_know_committed(peer, index):
            facts.record_commit(peer, index)
            return
        holders = facts.holders(peer, term, index)
        leader = f"Peer {peer.name}, leader of term {term},"
        if peer.informed_term > term:
            leader = f"Peer {peer.name}, which led term {term} and has just received term {peer.informed_term},"
        if self._is_held(peer, term, index):
            if of_term in (None, term):
                self._accept(peer, term, index, [index])  # acknowledged in some other way than Figure 2's
                return
            self.report(
                f"{leader} committed entry {index} of term {of_term} by counting replicas; a leader may commit only "
                "an entry of its own term that way, and older entries are committed with it (Figure 8)",
                evidence,
            )
        entry, count = f"entry {index}{_of_term(of_term)}", len(holders) + 1
        did = f"applied {entry}" if applied else f"reports {entry} as committed (leader_commit)"
        self.report(
            f"{leader} {did}, but {_acknowledged(holders)}: including the leader, that is {count} of {facts.servers} "
            f"peers{majority_note(count, facts.servers)}",
            evidence,
        )

    def _accept(self, peer: PeerFacts, term: int, index: int, enough: list[int]) -> None:
        """A majority may have acknowledged one of `enough`, and any of them is sufficient."""
        facts = self.facts
        if not any(facts.is_verified(peer, term, held) for held in enough) and not facts.may_know_committed(
            peer, index
        ):
            facts.unverified.add(Unverified.COMMITS)
        facts.record_commit(peer, index)

    def _is_held(self, peer: PeerFacts, term: int, index: int) -> bool:
        return 2 * (len(self.facts.holders(peer, term, index)) + 1) > self.facts.servers


def _has_counted_it(facts: Facts, peer: PeerFacts, index: int, at_ns: int) -> bool:
    """Whether it counted the acknowledgements itself: it leads, or led until recently and no leader_commit that reached
    it covers that entry."""
    if not peer.elected_term:
        return False
    lately = facts.available_ns(
        peer, peer.informed_since_ns, at_ns
    ) <= facts.grace_ns and index > _highest_leader_commit(peer)
    return peer.elected_term >= peer.informed_term or lately


def _highest_leader_commit(peer: PeerFacts) -> int:
    """The highest leader_commit that reached it."""
    return max((commit for commit, _ in peer.leader_commits.values()), default=0)


def _of_term(term: int | None) -> str:
    return "" if term is None else f" of term {term}"


def _acknowledged(holders: list[str]) -> str:
    if not holders:
        return "no follower has acknowledged it"
    return f"only {peers_text(holders)} {'has' if len(holders) == 1 else 'have'} acknowledged it"


class AppliesOnlyTheCommitted(Rule):
    name = "applies-only-committed"
    title = "A peer applies only entries that it knows to be committed"
    section = "Figure 2: AppendEntries 5, All Servers"
    concludes_from_silence = True

    def on_command(self, event: Event, peer: PeerFacts, index: int, command: Any) -> None:
        if (
            index > peer.may_apply
            and self.facts.servers > 1
            and not _has_counted_it(self.facts, peer, index, event.at_ns)
        ):
            self._too_early(event, peer, index)

    def _too_early(self, event: Event, peer: PeerFacts, index: int) -> None:
        if self.facts.may_know_committed(peer, index):
            self.facts.record_commit(peer, index)
            return
        if peer.last_undecodable:
            self.facts.unverified.add(Unverified.COMMITS)
            self.facts.record_commit(peer, index)
            return
        highest = _highest_leader_commit(peer)
        evidence: list[tuple[int, Message, str] | str] = [
            f"  {event.at_ns / 1e9:.6f} s  peer {peer.name} applies entry {index}"
        ]
        heard = self.facts.latest(event, lambda e: e.kind == DELIVER and e.node == peer.name and e.detail.rpc == APPEND)
        if heard is not None:
            evidence.insert(0, (heard.at_ns, heard.detail, "delivered"))
        if highest >= index:
            self.report(
                f"Peer {peer.name} applied entry {index}. leader_commit covers that index, but no AppendEntries has "
                f"shown that the peer's log matches the leader's beyond entry {peer.may_apply}: commit_index must not "
                "exceed the index of the last new entry",
                *evidence,
            )
        self.report(
            f"Peer {peer.name} applied entry {index}, but the highest leader_commit that reached it is {highest}: a "
            "follower learns of commits from leader_commit",
            *evidence,
        )


class OnlyStartedCommands(Rule):
    name = "only-started"
    title = "Every applied command was passed to start()"
    section = "§5.3"

    def on_command(self, event: Event, peer: PeerFacts, index: int, command: Any) -> None:
        if hashable(command) not in self.facts.commands:
            self.report(f"Peer {peer.name} applied {command!r} at index {index}, which was never passed to start()")


class ConsecutiveIndexes(Rule):
    """Overlapping calls may return in any order: a call is compared only with calls that returned before it began."""

    name = "starts-in-order"
    title = "A leader assigns consecutive indexes to commands"
    section = "§5.3"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        # By server, incarnation and term: (when start() returned, the highest index by then, how many by then).
        self._returned: dict[tuple[str, int, int], list[tuple[int, int, int]]] = {}

    def on_started(self, event: Event, peer: PeerFacts, started: StartResult, began: int) -> None:
        returned = self._returned.setdefault((peer.name, event.incarnation, started.term), [])
        before = next((one for one in reversed(returned) if one[0] < began), None)
        if before is not None and started.index <= before[1]:
            self.report(
                f"start() on peer {peer.name} returned index {started.index} in term {started.term}, but an earlier "
                f"call had already returned {before[1]}"
            )
        highest, count = max(started.index, returned[-1][1] if returned else 0), len(returned) + 1
        alone = before is not None and before is returned[-1] and not peer.pending_starts
        if (
            alone
            and before is not None
            and started.index != before[1] + 1
            and before[1] - returned[0][1] == before[2] - 1
        ):
            self.report(
                f"start() on peer {peer.name} returned index {started.index} in term {started.term}, but the call "
                f"before it had returned {before[1]}"
            )
        returned.append((self.facts.sequence, highest, count))


class AppliesWhatIsCommitted(Rule):
    name = "committed-gets-applied"
    title = "A peer applies the entries that it knows to be committed"
    section = "Figure 2: AppendEntries 5, All Servers"
    is_omission = True

    _PATIENCE_NS = 1_000_000_000

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        # server -> incarnation, index it must apply, when it accepted that message, the message
        self._owed: dict[str, tuple[int, int, int, Message]] = {}

    def on_restore(self, peer: PeerFacts) -> None:
        self._owed.pop(peer.name, None)

    def on_answer_append(
        self, event: Event, peer: PeerFacts, message: Message, request: DecodedRequest, reply: Any, delivery: Delivery
    ) -> None:
        if peer.busy:
            self._owed.pop(peer.name, None)
            return
        if message.source == peer.name:
            return  # from its own message, perhaps from before a crash, it learns nothing
        owed = self._owed.get(peer.name)
        if owed is not None and peer.applied >= owed[1]:
            owed = None
            del self._owed[peer.name]
        if owed is not None:
            patience_ns = self._PATIENCE_NS + self.facts.grace_ns + self.facts.snapshot_ns_max
            if owed[0] == event.incarnation and self.facts.available_ns(peer, owed[2], event.at_ns) > patience_ns:
                self.report(
                    f"Peer {peer.name} accepted an AppendEntries that commits entry {owed[1]}, but "
                    f"{(event.at_ns - owed[2]) / 1e9:.1f} s later the peer has applied only up to entry {peer.applied}",
                    (owed[2], owed[3], "answered"),
                )
        elif reply.success:
            index = min(request.args.leader_commit, request.last_index)
            if index > peer.applied:
                self._owed[peer.name] = (event.incarnation, index, event.at_ns, message)


class StartTellsTheIndex(Rule):
    name = "start-tells-index"
    title = "start() returns the index at which the command will appear"
    section = "§5.3"

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        super().__init__(facts, reporter)
        self._started: dict[tuple[int, int], tuple[Any, str]] = {}

    def on_started(self, event: Event, peer: PeerFacts, started: StartResult, began: int) -> None:
        self._started[started.term, started.index] = (started.command, peer.name)

    def on_new_entries(self, event: Event, message: Message, request: DecodedRequest, new_entries: NewEntries) -> None:
        for index, entry in new_entries:
            started = self._started.get((entry.term, index))
            # A command that was never started may be the started one, wrapped by the peer.
            if (
                started is not None
                and started[0] != entry.command
                and hashable(entry.command) in self.facts.commands
                and not same_command(started[0], entry.command)
            ):
                self.report(
                    f"start({started[0]!r}) on peer {started[1]} returned index {index} in term {entry.term}, "
                    f"but the entry sent at that index is {entry.command!r}"
                    f"{self._explain_overlap(started[1], started[0], entry.command)}",
                    (event.at_ns, message, "delivered"),
                )

    def _explain_overlap(self, peer: str, one: Any, other: Any) -> str:
        """Whether the two calls of start() overlapped, as text."""
        began: dict[Any, int] = {}
        ended: dict[Any, int] = {}
        trace = self.facts.trace
        for place, event in enumerate(trace):
            if event.node == peer and event.kind == START:
                began.setdefault(hashable(event.detail), place)
            elif event.node == peer and event.kind == STARTED:
                ended.setdefault(hashable(event.detail.command), place)
        (a, b), late = (hashable(one), hashable(other)), len(trace)
        if a not in began or b not in began or max(began[a], began[b]) > min(ended.get(a, late), ended.get(b, late)):
            return ""
        return (
            f". start({other!r}) was called before start({one!r}) had returned: the calls overlap and share state. "
            "Use local variables, and hold the lock"
        )
