"""Each peer's state as derived from messages, event by event: vote, log, commit, applied, a leader's next and match.

Role, term and links come from the ClusterView. A follower's log is known when it replies, a leader's commit index when
it sends it. State lost in a crash is noticed when a later message contradicts it.

The result is a list of changes, each with the index of its event. A log change has: the base (the last entry in the
snapshot) and its term, the index up to which the log is unchanged, and the entries after that. Start at
`WireView.take()`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import labgob
from labsim import Event
from raftlab.tools.page.tables import Tables
from raftlab.tools.timeline import labels
from raftlab.tools.timeline.calls import TimelineCall
from raftlab.trace.cluster_view import CANDIDATE, FOLLOWER, LEADER, ClusterView, ObservedRole
from raftlab.trace.events import (
    ANSWER,
    APPLY,
    CLUSTER,
    CONDITION_KINDS,
    CRASH,
    PERSIST,
    REPLY,
    RESTORE,
    SEND,
    SERVER_ACTS,
    SNAPSHOT,
    STARTED,
)
from raftlab.trace.rpcs import APPEND, INSTALL, VOTE

ROLES = (FOLLOWER, CANDIDATE, LEADER)
UP, PAUSED, DISCONNECTED, FROZEN = 1, 2, 4, 8
_UNKNOWN = -1  # an entry that no message has shown


class PeerChanges:
    """The changes of one peer, by field: event, value, event, value ..."""

    def __init__(self) -> None:
        self.fields: dict[str, list[Any]] = {}
        self._now: dict[str, Any] = {}
        self.log: list[tuple[int, int, int, int, list[int]]] = []
        self.indexes: list[int] = []  # event, follower, next, match; follower -1: forget all

    def set(self, place: int, name: str, value: Any) -> bool:
        if self._now.get(name) == value:
            return False
        self._now[name] = value
        changes = self.fields.setdefault(name, [])
        if changes and changes[-2] == place:
            changes[-1] = value
        else:
            changes += (place, value)
        return True

    def get(self, name: str, default: Any = 0) -> Any:
        return self._now.get(name, default)


class KnownEntries:
    """The known entries of a log after `base`, by number."""

    def __init__(self) -> None:
        self.base = 0
        self.base_term = 0
        self.entries: list[int] = []

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    def entry(self, index: int) -> int:
        at = index - self.base - 1
        return self.entries[at] if 0 <= at < len(self.entries) else _UNKNOWN

    def up_to(self, index: int) -> list[int]:
        """The entries after the base up to this index; unknown ones are _UNKNOWN."""
        known = self.entries[: max(index - self.base, 0)]
        return known + [_UNKNOWN] * (index - self.base - len(known))


class WireView:
    def __init__(self, lanes: dict[str, int], view: ClusterView, tables: Tables) -> None:
        self._lanes = lanes
        self._view = view
        self._peers = view.peers
        self._tables = tables
        self._snapshots: dict[str, Any] = {}
        self._indexes: dict[str, dict[str, tuple[int, int]]] = {}
        self._votes: dict[str, list[str]] = {}
        self._service_snapshots: dict[str, int] = {}
        self.changes = {name: PeerChanges() for name in view.peers}
        self.logs = {name: KnownEntries() for name in view.peers}
        self.role_changes: list[tuple[int, str, str, int]] = []  # event, peer, role, term
        self.commits: list[int] = []  # events at which the highest known commit index rises
        self.link_changes: set[int] = set()  # events that change a connection
        self._committed = 0

    def take(self, place: int, event: Event, call: TimelineCall | None) -> None:
        kind, node = event.kind, event.node
        if call is not None:
            if call.source not in self._peers or call.target not in self._peers:
                return
            observed = self._view.take(event, call)
            if observed is not None:
                self._role_change(place, observed)
            if kind == SEND:
                self._sent(place, call, campaigns=observed is not None and observed.role == CANDIDATE)
            elif kind == ANSWER:
                self._answered(place, call)
            elif kind == REPLY and observed is None:
                self._replied(place, call)
        elif kind in SERVER_ACTS:
            self._server_fault(place, event)
        elif kind in CONDITION_KINDS or kind == CLUSTER:
            self._view.take(event)
            if kind == CLUSTER:
                self._begin(place)
            for name in self._peers:
                self._mark(place, name)
        elif node not in self._peers:
            return
        elif kind == STARTED:
            self._started(place, event)
        elif kind == APPLY:
            changes = event.detail
            snapshot = labels.field(changes, "snapshot_valid")
            index = labels.number(changes, "snapshot_index" if snapshot else "command_index")
            self.changes[node].set(place, "applied", index)
            self._commit(place, node, index)
        elif kind == RESTORE and isinstance(event.detail, int):
            self.changes[node].set(place, "applied", event.detail)
        elif kind == SNAPSHOT:
            self._service_snapshots[node] = labels.number(event.detail, "index")
        elif kind == PERSIST:
            self._saved(place, event)

    # ---- a peer's life ------------------------------------------------------------------------------------------

    def _begin(self, place: int) -> None:
        """A new cluster: forget everything."""
        self._committed = 0
        self._snapshots.clear()
        for name, changes in self.changes.items():
            for field, value in (("role", 0), ("term", 0), ("vote", -1), ("commit", 0), ("applied", 0), ("votes", "")):
                changes.set(place, field, value)
            self._forget_indexes(place, name)
            if self.logs[name].last:
                self.logs[name] = KnownEntries()
                changes.log.append((place, 0, 0, 0, []))

    def _server_fault(self, place: int, event: Event) -> None:
        name = event.node
        peer = self._peers[name]
        before = self._condition(name)
        self._view.take(event)
        if event.kind == CRASH:
            self.changes[name].set(place, "commit", 0)
            self.changes[name].set(place, "applied", 0)
            self._forget_indexes(place, name)
        if self._condition(name) != before:
            self.link_changes.add(place)
        self._mark(place, name)
        self.changes[name].set(place, "role", ROLES.index(peer.role))
        self.changes[name].set(place, "term", peer.term)

    def _condition(self, name: str) -> int:
        peer = self._peers[name]
        disconnected = not peer.plugged or peer.isolated
        return UP * peer.up | PAUSED * peer.paused | DISCONNECTED * (peer.up and disconnected) | FROZEN * peer.frozen

    def _mark(self, place: int, name: str) -> None:
        self.changes[name].set(place, "condition", self._condition(name))

    def _role_change(self, place: int, observed: ObservedRole) -> None:
        name, role, term = observed.peer.name, observed.role, observed.term
        changes = self.changes[name]
        if observed.is_new:
            self.role_changes.append((place, name, role, term))
        if term != observed.old_term:
            changes.set(place, "vote", -1)
            self._votes[name] = []
            changes.set(place, "votes", "")
        if role != LEADER or observed.is_new:
            self._forget_indexes(place, name)
        changes.set(place, "role", ROLES.index(role))
        changes.set(place, "term", term)

    # ---- messages -----------------------------------------------------------------------------------------------

    def _sent(self, place: int, call: TimelineCall, *, campaigns: bool) -> None:
        name, args = call.source, call.args
        if campaigns:
            self._votes_for_itself(place, name)
        if call.method == APPEND:
            self._leader_sends(place, name, args)
            self._commit(place, name, labels.number(args, "leader_commit"))
            self._set_indexes(place, name, call.target, following=labels.number(args, "prev_log_index") + 1)
        elif call.method == INSTALL:
            self._set_indexes(place, name, call.target, following=labels.number(args, "last_included_index") + 1)

    def _votes_for_itself(self, place: int, name: str) -> None:
        self.changes[name].set(place, "vote", self._lanes[name])
        votes = self._votes.setdefault(name, [])
        if name not in votes:
            votes.append(name)
            self.changes[name].set(place, "votes", " ".join(votes))

    def _answered(self, place: int, call: TimelineCall) -> None:
        name, args, reply = call.target, call.args, call.reply
        peer = self._peers[name]
        asked, term = labels.number(args, "term"), labels.number(reply, "term")
        if call.method == VOTE and labels.field(reply, "vote_granted") and asked == peer.term:
            self.changes[name].set(place, "vote", self._lanes[call.source])
        elif call.method == APPEND and labels.field(reply, "success"):
            entries = self._tables.entries(labels.field(args, "entries"))
            before = labels.number(args, "prev_log_index")
            self._appends(place, name, self.logs[call.source], before, entries)
            self._commit(place, name, min(labels.number(args, "leader_commit"), before + len(entries)))
        elif call.method == INSTALL and term == asked:
            self._compacts(
                place, name, labels.number(args, "last_included_index"), labels.number(args, "last_included_term")
            )

    def _replied(self, place: int, call: TimelineCall) -> None:
        name, args, reply = call.source, call.args, call.reply
        peer = self._peers[name]
        asked, term = labels.number(args, "term"), labels.number(reply, "term")
        if call.method == VOTE and labels.field(reply, "vote_granted") and asked == peer.term:
            votes = self._votes.setdefault(name, [])
            if call.target not in votes:
                votes.append(call.target)
                self.changes[name].set(place, "votes", " ".join(votes))
        elif peer.role == LEADER and asked == peer.term:
            if call.method == APPEND and labels.field(reply, "success"):
                entries = labels.field(args, "entries")
                count = len(entries) if isinstance(entries, (list, tuple)) else 0
                self._set_indexes(place, name, call.target, match=labels.number(args, "prev_log_index") + count)
            elif call.method == INSTALL and term == asked:
                self._set_indexes(place, name, call.target, match=labels.number(args, "last_included_index"))

    def _set_indexes(self, place: int, leader: str, follower: str, *, following: int = 0, match: int = 0) -> None:
        known = self._indexes.setdefault(leader, {})
        before = known.get(follower, (0, 0))
        match = max(match, before[1])
        after = (following or max(before[0], match + 1), match)
        if after != before:
            known[follower] = after
            self.changes[leader].indexes += (place, self._lanes[follower], *after)

    def _forget_indexes(self, place: int, name: str) -> None:
        if self._indexes.pop(name, None):
            self.changes[name].indexes += (place, -1, 0, 0)

    def _commit(self, place: int, name: str, index: int) -> None:
        changes = self.changes[name]
        if index > changes.get("commit"):
            changes.set(place, "commit", index)
            if index > self._committed:
                self._committed = index
                self.commits.append(place)

    # ---- logs ---------------------------------------------------------------------------------------------------

    def _started(self, place: int, event: Event) -> None:
        result, name = event.detail, event.node
        observed = self._view.take(event)
        if observed is not None:
            self._role_change(place, observed)
        if result.is_leader:
            entry = self._tables.entry(result)
            log = self.logs[name]
            at = result.index - log.base - 1
            if at >= 0 and (at >= len(log.entries) or log.entries[at] != entry):
                self._set_entries(place, name, result.index - 1, [entry])

    def _leader_sends(self, place: int, leader: str, args: Any) -> None:
        """A leader has the entries it sends. It may have later ones, because the message may be old."""
        entries = labels.field(args, "entries")
        if not entries:
            return
        log = self.logs[leader]
        numbers = self._tables.entries(entries)
        before = labels.number(args, "prev_log_index")
        if before < log.base:
            numbers, before = numbers[log.base - before :], log.base
        at = before - log.base
        known_part = log.entries[at : at + len(numbers)]
        if known_part != numbers and numbers:
            after = (
                log.entries[at + len(numbers) :]
                if known_part == numbers[: len(known_part)] or _UNKNOWN in known_part
                else []
            )
            self._set_entries(place, leader, before, numbers + after)

    def _appends(self, place: int, name: str, leader: KnownEntries, before: int, numbers: list[int]) -> None:
        log = self.logs[name]
        if before < log.base:
            numbers, before = numbers[log.base - before :], log.base
        at = before - log.base
        if at == 0 or (at <= len(log.entries) and log.entries[at - 1] == leader.entry(before) != _UNKNOWN):
            # Log Matching: equal entries there mean equal entries before (§5.3).
            known_part = log.entries[at : at + len(numbers)]
            if known_part != numbers:
                self._set_entries(place, name, before, numbers)
            return
        # The follower has the leader's log up to there.
        prefix = log.up_to(before)
        for index in range(max(log.base, leader.base) + 1, min(before, leader.last) + 1):
            prefix[index - log.base - 1] = leader.entries[index - leader.base - 1]
        known_part = log.entries[len(prefix) : len(prefix) + len(numbers)]
        if known_part == numbers and log.entries[: len(prefix)] == prefix:
            return
        same = next((i for i, (a, b) in enumerate(zip(log.entries, prefix, strict=False)) if a != b), len(prefix))
        same = min(same, len(log.entries), len(prefix))
        after = log.entries[len(prefix) + len(numbers) :] if known_part == numbers else []
        self._set_entries(place, name, log.base + same, prefix[same:] + numbers + after)

    def _set_entries(self, place: int, name: str, keep: int, numbers: list[int]) -> None:
        """Keep the log up to index `keep`, followed by these entries."""
        log = self.logs[name]
        log.entries = log.up_to(keep) + numbers
        self.changes[name].log.append((place, log.base, log.base_term, keep, numbers))

    def _compacts(self, place: int, name: str, index: int, term: int) -> None:
        log = self.logs[name]
        if index <= log.base:
            return
        at = index - log.base - 1
        stays = at < len(log.entries) and (log.entries[at] == _UNKNOWN or self._term_of(log.entries[at]) == term)
        log.entries = log.entries[at + 1 :] if stays else []
        log.base, log.base_term = index, term
        self.changes[name].log.append((place, index, term, log.last if stays else index, []))

    def _term_of(self, entry: int) -> int:
        return 0 if entry == _UNKNOWN else self._tables.entry_terms[entry]

    def _saved(self, place: int, event: Event) -> None:
        """A saved snapshot replaces the entries up to its index, which is its first value."""
        name, snapshot = event.node, event.detail.snapshot
        known = self._snapshots.get(name)
        if not len(snapshot) or snapshot == known:
            return
        self._snapshots[name] = snapshot
        log = self.logs[name]
        index = self._service_snapshots.get(name, 0)
        if not self._service_snapshots:
            with suppress(labgob.DecodeError, ValueError, TypeError):
                index = labgob.Decoder(getattr(snapshot, "start", snapshot)).decode(int)
        if log.base < index <= log.last:
            self._compacts(place, name, index, self._term_of(log.entries[index - log.base - 1]))
