"""Builds the timeline model from a trace: rows of events, messages and roles, with repetitions collapsed.

Roles and terms are derived from messages (raftlab/trace/cluster_view.py), so this works for any peer.

By default a call that returns within 10 ms is one row (the request in the caller's column, the reply in the other's),
a broadcast of equal requests is one row, and a call that repeats the last one to the same peer with the same outcome
is only counted. With `everything` each event is a row, in exact order.

Start at `build_model()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labsim import Event
from raftlab.tools.timeline import labels
from raftlab.tools.timeline.calls import FirstPass, TimelineCall
from raftlab.tools.timeline.labels import LabelTexts
from raftlab.tools.timeline.repetitions import Repetitions
from raftlab.tools.timeline.rows import Label, Mark, Row, RowFilter, TimelineModel, peer_order
from raftlab.trace.cluster_view import ClusterView, ObservedRole, PeerView
from raftlab.trace.events import (
    ACTS,
    ANSWER,
    APPLY,
    CLUSTER,
    CONNECT,
    DELIVER,
    DISCONNECT,
    DROP,
    DUPLICATE,
    FREEZE_CLOCK,
    INVOKE,
    LOG,
    MESSAGE_KINDS,
    PERSIST,
    PHASE,
    PREEMPT,
    REPAIRS,
    REPLY,
    RETURN,
    SAVING,
    SEND,
    SERVER_ACTS,
    SNAPSHOT,
    START,
    STARTED,
    STEP,
    UNFREEZE_CLOCK,
)


def build_model(events: Sequence[Event], row_filter: RowFilter | None = None) -> TimelineModel:
    """The rows of a run."""
    row_filter = row_filter or RowFilter()
    builder = _ModelBuilder(events, row_filter)
    builder.run()
    rows = [row for row in builder.rows if row.banner or row.cells]
    return TimelineModel(builder.columns, rows, len(events), builder.collapsed, builder.log_topics)


@dataclass(slots=True)
class _Broadcast:
    """Equal requests of one instant, which share a line in the caller's cell."""

    row: Row
    place: int
    texts: LabelTexts
    targets: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Starts:
    """Accepted commands that share a row."""

    row: Row
    command: Any
    index: int
    term: int
    count: int = 1


class _ModelBuilder:
    def __init__(self, events: Sequence[Event], row_filter: RowFilter) -> None:
        self.events = events
        self.row_filter = row_filter
        self.rows: list[Row] = []
        self.collapsed = 0
        self.log_topics: list[str] = []
        self._known = FirstPass(events, row_filter)
        self._has_steps = any(event.kind == STEP for event in events)
        self._repetitions: Repetitions | None = None  # since the last row, in a row of their own
        self._broadcasts: dict[tuple[str, LabelTexts], _Broadcast] = {}  # of one instant
        self._broadcasts_ns = -1
        self._last_of: dict[str, Row] = {}
        self._applying: dict[str, tuple[Row, int, list[Any]]] = {}
        self._starting: dict[str, _Starts] = {}
        self._snapshots: dict[str, Any] = {}  # as last saved
        self._followed_ns: tuple[int, int] | None = None
        self._view = ClusterView(peer_order(self._known.nodes))
        self.peers = self._view.peers
        self._all_peers = frozenset(self.peers)
        self.columns = [name for name in self.peers if not row_filter.peers or name in row_filter.peers]
        self._visible = frozenset(self.columns)
        self._marks = {name: Mark.of(peer) for name, peer in self.peers.items()}

    def run(self) -> None:
        if self.row_filter.follow is not None:
            times = [event.at_ns for event in self.events if event.message == self.row_filter.follow]
            self._followed_ns = (times[0], times[-1]) if times else (-1, -1)
        already_shown: set[int] = set()
        if not self.row_filter.everything:
            ends = self._known.results.items()
            already_shown = {end for begun, end in ends if self.events[begun].at_ns == self.events[end].at_ns}
        for place, event in enumerate(self.events):
            kind = event.kind
            if kind == CLUSTER:
                self._change_links(event)  # a new cluster starts with all links
            if kind in MESSAGE_KINDS:
                self._message(event)
            elif kind in SERVER_ACTS:
                if not (kind in _CLOCKS and self._has_steps):
                    self._server_fault(event, place)
            elif kind == PERSIST:
                if place not in self._known.skip:
                    self._persist(event)
            elif kind == SAVING:
                self._add_peer_label(event, "persist", Label("saving", labels.SAVING))
            elif kind == APPLY:
                self._apply(event)
            elif kind == START:
                self._start(event, place)
            elif kind == STARTED:
                if place not in already_shown:
                    self._started(event, place)
            elif kind == LOG:
                self._log_line(event)
            elif kind in (INVOKE, RETURN):
                self._add_peer_label(
                    event, "client", Label("start", labels.operation(event.detail, returned=kind == RETURN))
                )
            elif kind == SNAPSHOT:
                self._add_peer_label(event, "snapshot", Label("snapshot", labels.snapshot_made(event.detail)))
            elif kind == PREEMPT:
                # In most preemptions no other thread was ready, so they had no effect.
                if event.detail.late_ns or self.row_filter.everything:
                    self._add_peer_label(event, "preemption", Label("quiet", labels.preempted(event.detail)))
            elif kind in (PHASE, STEP):
                self._phase(event)
            elif kind in ACTS:
                self._fault_setting(event)
            elif self.row_filter.everything:
                text = "" if event.detail is None else f" {labels.value(event.detail, 60)}"
                self._add_peer_label(event, kind, Label("quiet", (f"{kind}{text}",)))
        self._close_repetitions()

    def _matches_filter(self, at_ns: int, topics: Iterable[str], term: int, message: int = 0) -> bool:
        row_filter = self.row_filter
        if at_ns < row_filter.from_ns or (row_filter.to_ns is not None and at_ns > row_filter.to_ns):
            return False
        if row_filter.follow is not None and message != row_filter.follow:
            return False
        if row_filter.term is not None and term != row_filter.term:
            return False
        return not row_filter.topics or not row_filter.topics.isdisjoint(topics)

    def _row(self, at_ns: int) -> Row:
        self._close_repetitions()
        row = Row(at_ns, self._marks)
        self.rows.append(row)
        return row

    def _add_label(self, row: Row, peer: str, label: Label) -> None:
        if peer in self._visible:
            row.cells.setdefault(peer, []).append(label)
            self._last_of[peer] = row

    # Roles.

    def _show_role(self, observed: ObservedRole, at_ns: int, row: Row | None = None) -> None:
        """`row`: the row of the cause, if the change belongs in that row."""
        name, role, term = observed.peer.name, observed.role, observed.term
        if role != observed.old_role:
            self._update_mark(observed.peer, row)
        if not observed.is_new or name not in self._visible or not self._matches_filter(at_ns, ("election",), term, -1):
            return
        label = Label(role, labels.role(role, term))
        if row is not None and not row.banner:
            self._add_label(row, name, label)
            return
        saved = self._absorb_save_row(name, at_ns)
        if saved:
            label = Label(label.tone, tuple(f"{text} · saved" for text in label.texts))
        self._add_label(self._row(at_ns), name, label)

    def _update_mark(self, peer: PeerView, since: Row | None = None) -> None:
        mark = Mark.of(peer)
        self._marks = {**self._marks, peer.name: mark}
        if since is not None:
            for row in reversed(self.rows):
                row.marks = {**row.marks, peer.name: mark}
                if row is since:
                    break

    def _absorb_save_row(self, name: str, at_ns: int) -> bool:
        """Whether the peer's last row was only "saved" at this instant; it is removed, for the next row to show it."""
        row = self._last_of.get(name)
        if self.row_filter.everything or "persist" in self.row_filter.topics or row is None or row.at_ns != at_ns:
            return False
        cell = row.cells.get(name)
        if cell is None or len(cell) != 1 or cell[0].tone != "persist":
            return False
        del row.cells[name]
        return True

    # Messages.

    def _message(self, event: Event) -> None:
        call = self._known.calls[id(event.detail)]
        kind, at_ns = event.kind, event.at_ns
        term = labels.number(call.args, "term")
        observed = self._view.take(event, call)
        if kind == SEND and observed is not None:
            self._show_role(observed, at_ns)  # first: the row that makes a leader is the leader's
        if self._matches_filter(at_ns, call.topics, term, call.id) and (
            call.source in self._visible or call.target in self._visible
        ):
            if self.row_filter.everything:
                self._show_message_event(event, call)
            elif call.collapsed:
                if kind == SEND:
                    self._count_repetition(call)
            else:
                self._show_call_event(kind, at_ns, call)
        if kind != SEND and observed is not None:
            beside = kind == ANSWER and call.row is not None and (call.row.at_ns == at_ns or call.answered_quickly)
            self._show_role(observed, at_ns, call.row if beside else None)

    def _show_message_event(self, event: Event, call: TimelineCall) -> None:
        kind = event.kind
        there, back = (call.source, call.target), (call.target, call.source)
        request = list(call.texts)
        label = call.answer or Label("quiet", ("answered",))
        if kind == SEND:
            who, other, sign, tone, texts = *there, "→", call.kind, request
        elif kind == DELIVER:
            who, other, sign, tone, texts = *back, "←", call.kind, request
        elif kind == DUPLICATE:
            who, other, sign, tone, texts = *back, "←", "network", [f"duplicate of {text}" for text in request]
        elif kind == ANSWER:
            who, other, sign, tone, texts = *back, "→", label.tone, list(label.texts)
        elif kind == REPLY:
            who, other, sign, tone, texts = *there, "←", label.tone, list(label.texts)
        else:
            who, other, sign, tone, texts = *there, "✗", "lost", [event.note]
        if who in self._visible:
            row = self._row(event.at_ns)
            self._add_label(row, who, Label(tone, tuple(f"{sign}{other} {text} #{call.id}" for text in texts)))

    def _show_call_event(self, kind: str, at_ns: int, call: TimelineCall) -> None:
        both = call.source in self._visible and call.target in self._visible
        if kind == SEND:
            if call.source in self._visible:
                self._show_request(at_ns, call)
            if both and call.answered_quickly:
                assert call.row is not None
                if len(call.row.cells[call.source]) > 1 and call.target not in call.row.cells:
                    self._add_label(
                        call.row, call.target, Label("", ("",))
                    )  # beside the request, not beside the new role
                self._add_label(call.row, call.target, self._outcome_label(call))
        elif kind == DELIVER:
            if not (both and call.answered_quickly) or call.is_duplicate:
                self._show_late_request(at_ns, call)
        elif kind == ANSWER:
            if call.answered_ns != call.delivered_ns and not (both and call.answered_quickly and not call.is_duplicate):
                label = self._outcome_label(call)
                self._add_row_with(
                    at_ns, call.target, Label(label.tone, tuple(f"→{call.source} {text}" for text in label.texts))
                )
        elif kind == REPLY:
            if not both or call.is_duplicate or not call.returned_quickly:
                label = call.answer or Label("quiet", ("answered",))
                label = Label(label.tone, tuple(f"←{call.target} {text}" for text in label.texts))
                row = call.row
                if row is not None and row.at_ns == at_ns and call.source in self._visible and len(row.cells) == 1:
                    row.cells.setdefault(call.source, []).append(label)
                    self._last_of[call.source] = row
                else:
                    self._add_row_with(at_ns, call.source, label)
        elif kind == DROP and call.dropped_ns == at_ns and not ((both and call.answered_quickly) or call.is_duplicate):
            shown_there = call.answered_ns == at_ns and call.target in self._visible
            if not shown_there:
                self._add_row_with(at_ns, call.source, Label("lost", (f"✗{call.target} {call.lost}",)))

    def _add_row_with(self, at_ns: int, peer: str, label: Label) -> None:
        if peer in self._visible:
            self._add_label(self._row(at_ns), peer, label)

    def _show_request(self, at_ns: int, call: TimelineCall) -> None:
        """Show the request in the caller's column; equal requests of one instant share a row."""
        if at_ns != self._broadcasts_ns:
            self._broadcasts.clear()
            self._broadcasts_ns = at_ns
        key = (call.source, call.texts)
        known = self._broadcasts.get(key)
        if known is None or call.target in known.row.cells or call.target in known.targets:
            saved = self._absorb_save_row(call.source, at_ns)
            last = self._last_of.get(call.source)
            # Under the line that says it became leader or candidate, if that is all its row says.
            if last is not None and last is self.rows[-1] and last.at_ns == at_ns and self._only_a_role(last, call):
                row = last
            else:
                row = self._row(at_ns)
            tail = " · saved" if saved else ""
            known = _Broadcast(row, 0, tuple(f"{text}{tail}" for text in call.texts))
            self._add_label(row, call.source, Label(call.kind, known.texts))
            known.place = len(row.cells[call.source]) - 1
            self._broadcasts[key] = known
        call.row = known.row
        known.targets.append(call.target)
        told = self._targets_text(call.source, known.targets)
        texts = [f"→{told} {text}" for text in known.texts]
        if len(known.targets) > 2:
            texts.append(f"→ {known.texts[-1]}")  # the replies in the columns show the targets
        known.row.cells[call.source][known.place] = Label(call.kind, tuple(texts))

    def _only_a_role(self, row: Row, call: TimelineCall) -> bool:
        cell = row.cells.get(call.source, [])
        return len(row.cells) == 1 and len(cell) == 1 and cell[0].tone in ("leader", "candidate")

    def _targets_text(self, source: str, targets: list[str]) -> str:
        if len(targets) > 2 and frozenset(targets) | {source} == self._all_peers:
            return "all"
        return ",".join(peer_order(targets))

    def _show_late_request(self, at_ns: int, call: TimelineCall) -> None:
        """Show the request where it arrives: it was delayed, or its sender has no column."""
        if call.target not in self._visible:
            return
        again = "again " if call.is_duplicate else ""
        texts = [f"←{call.source} {again}{text}" for text in call.texts]
        tone = call.kind
        if call.answered_ns == at_ns:
            label = self._outcome_label(call)
            tone = label.tone if label.tone != "quiet" else call.kind
            texts = [f"{request} ⇒ {label.texts[0]}" for request in texts] + [
                f"{texts[-1]} ⇒ {text}" for text in label.texts[1:]
            ]
        row = self._row(at_ns)
        self._add_label(row, call.target, Label(tone, tuple(texts)))
        call.row = row

    def _outcome_label(self, call: TimelineCall) -> Label:
        if call.answer is None or call.request_lost:
            return Label("lost", (f"✗ {call.lost or 'no answer'}", f"✗ {(call.lost or 'none').split()[0]}"))
        tail = " · saved" if call.saved else ""
        if call.dropped and call.dropped_ns == call.answered_ns:
            return Label("lost", tuple(f"{text}{tail} ✗ {call.lost}" for text in call.answer.texts))
        if call.late and not call.is_duplicate:  # a duplicate's reply is always too late
            tail += ", too late"
        return Label(call.answer.tone, tuple(f"{text}{tail}" for text in call.answer.texts))

    # Repetitions.

    def _count_repetition(self, call: TimelineCall) -> None:
        self._repetitions_at(call.sent_ns).add_call(call)

    def _repetitions_at(self, at_ns: int) -> Repetitions:
        if self._repetitions is None:
            self.rows.append(Row(at_ns, self._marks))
            self._repetitions = Repetitions(at_ns)
        self._repetitions.last_ns = at_ns
        self.collapsed += 1
        return self._repetitions

    def _close_repetitions(self) -> None:
        repetitions, self._repetitions = self._repetitions, None
        if repetitions is not None:
            for peer, texts in repetitions.labels():
                self._add_label(self.rows[-1], peer, Label("folded", texts))

    # What peers do by themselves.

    def _add_peer_label(self, event: Event, topic: str, label: Label) -> Row | None:
        """Add a local event of a peer. Those of different peers at one instant share a row."""
        peer = self.peers.get(event.node)
        term = peer.term if peer is not None else 0
        if event.node not in self._visible or not self._matches_filter(event.at_ns, (topic,), term):
            return None
        row = self.rows[-1] if self.rows and self._repetitions is None else None
        if (
            self.row_filter.everything
            or row is None
            or not row.local
            or row.at_ns != event.at_ns
            or event.node in row.cells
        ):
            row = self._row(event.at_ns)
            row.local = True
        self._add_label(row, event.node, label)
        return row

    def _persist(self, event: Event) -> None:
        snapshot = event.detail.snapshot
        known = self._snapshots.get(event.node)
        self._snapshots[event.node] = snapshot
        if len(snapshot) and snapshot != known and (known is not None or event.incarnation == 1):
            texts = labels.saved(event.detail, new_snapshot=True)
            self._add_peer_label(
                event, "snapshot" if "snapshot" in self.row_filter.topics else "persist", Label("snapshot", texts)
            )
            return
        row = self._last_of.get(event.node)
        if row is not None and row.at_ns == event.at_ns and "persist" not in self.row_filter.topics:
            cell = row.cells.get(event.node)
            if cell and cell[-1].tone == "follower" and not self.row_filter.everything:
                # It saved the term it has just learned.
                cell[-1] = Label("follower", tuple(f"{wording} · saved" for wording in cell[-1].texts))
                return
        self._add_peer_label(event, "persist", Label("persist", labels.saved(event.detail)))

    def _apply(self, event: Event) -> None:
        message = event.detail
        if labels.field(message, "snapshot_valid"):
            topic = "snapshot" if self.row_filter.topics and "apply" not in self.row_filter.topics else "apply"
            self._add_peer_label(event, topic, Label("apply", labels.applied(message)))
            return
        index, command = labels.number(message, "command_index"), labels.field(message, "command")
        known = self._applying.get(event.node)
        if known is not None and not self.row_filter.everything:
            row, first, commands = known
            if row.at_ns == event.at_ns and self._last_of.get(event.node) is row and index == first + len(commands):
                commands.append(command)
                span = f"applied {first}–{index}"
                values = f"{labels.value(commands[0], 12)} … {labels.value(command, 12)}"
                row.cells[event.node][-1] = Label("apply", (f"{span} = {values}", span))
                return
        new = self._add_peer_label(event, "apply", Label("apply", labels.applied(message)))
        if new is not None:
            self._applying[event.node] = (new, index, [command])

    def _start(self, event: Event, place: int) -> None:
        result = self._known.results.get(place)
        if self.row_filter.everything or result is None:
            pending = "" if self.row_filter.everything else " does not return"
            self._add_peer_label(event, "log", Label("start", (f"start({labels.value(event.detail)}){pending}",)))
        elif self.events[result].at_ns == event.at_ns:
            # The result is shown at the call, before the messages it caused.
            self._started(self.events[result], result, saved=place in self._known.saved)

    def _started(self, event: Event, place: int, *, saved: bool = False) -> None:
        index, term, is_leader = event.detail.index, event.detail.term, event.detail.is_leader
        observed = self._view.take(event)
        if observed is not None:
            self._show_role(observed, event.at_ns)
        if place in self._known.skip:
            return
        if self.row_filter.everything:
            told = f"⇒ index {index} t{term}" if is_leader else f"⇒ not leader, t{term}"
            self._add_peer_label(event, "log", Label("start" if is_leader else "quiet", (f"start() {told}", told)))
        elif is_leader:
            self._accept(event, saved)
        elif event.node in self._visible and self._matches_filter(event.at_ns, ("log",), term):
            self._repetitions_at(event.at_ns).add_refused_start(event.node)

    def _accept(self, event: Event, saved: bool) -> None:
        """Show a command that enters the log. Consecutive ones share a row."""
        command, index, term = event.detail.command, event.detail.index, event.detail.term
        tail = " · saved" if saved else ""
        known = self._starting.get(event.node)
        if known is not None and self._continues(known, event):
            known.count += 1
            span = f"{known.index}–{index}"
            values = f"{labels.value(known.command, 12)} … {labels.value(command, 12)}"
            known.row.cells[event.node][-1] = Label(
                "start",
                (
                    f"{known.count}× start({values}) ⇒ {span} t{term}{tail}",
                    f"{known.count}× start() ⇒ {span} t{term}{tail}",
                    f"{known.count}× start() ⇒ {span}",
                ),
            )
            return
        row = self._add_peer_label(event, "log", Label("start", labels.started(event.detail, tail)))
        if row is not None:
            self._starting[event.node] = _Starts(row, command, index, term)

    def _continues(self, known: _Starts, event: Event) -> bool:
        index, term = event.detail.index, event.detail.term
        alone = self.rows[-1] is known.row and self._repetitions is None and list(known.row.cells) == [event.node]
        return alone and index == known.index + known.count and term == known.term

    def _log_line(self, event: Event) -> None:
        topic = event.detail.topic
        if topic not in self.log_topics:
            self.log_topics.append(topic)
        label = Label("student", labels.log_line(event.detail))
        if event.node:
            self._add_peer_label(event, topic, label)
        elif self._matches_filter(event.at_ns, (topic,), 0):
            self._banner(event.at_ns, label.texts[0], "student")

    # The tester.

    def _phase(self, event: Event) -> None:
        if self._in_time_range(event.at_ns):
            self._banner(event.at_ns, labels.clean(str(event.detail)), "phase")

    def _fault_setting(self, event: Event) -> None:
        """Show a fault of the network, the disks or a service."""
        self._change_links(event)
        if self._in_time_range(event.at_ns):
            text, heals = labels.fault_setting(event)
            self._banner(event.at_ns, text, "heal" if heals else "fault")

    def _change_links(self, event: Event) -> None:
        self._view.take(event)
        for name, peer in self.peers.items():
            if Mark.of(peer) != self._marks[name]:
                self._update_mark(peer)

    def _in_time_range(self, at_ns: int) -> bool:
        row_filter = self.row_filter
        if self._followed_ns is not None and not self._followed_ns[0] <= at_ns <= self._followed_ns[1]:
            return False
        return at_ns >= row_filter.from_ns and (row_filter.to_ns is None or at_ns <= row_filter.to_ns)

    def _banner(self, at_ns: int, text: str, tone: str) -> Row:
        row = self._row(at_ns)
        row.banner, row.tone = text, tone
        return row

    def _server_fault(self, event: Event, place: int) -> None:
        peer = self.peers[event.node]
        before = Mark.of(peer)
        self._view.take(event)
        shown = place not in self._known.skip and self._in_time_range(event.at_ns)
        if shown and event.kind in (CONNECT, DISCONNECT) and before == Mark.of(peer) and not self.row_filter.everything:
            shown = False  # it changed nothing
        self._update_mark(peer, self.rows[-1] if self.rows and self.rows[-1].at_ns == event.at_ns else None)
        if not shown:
            return
        row = self.rows[-1] if self.rows else None
        if row is None or row.at_ns != event.at_ns or row.fault != event.kind:
            row = self._banner(event.at_ns, "", "heal" if event.kind in REPAIRS else "fault")
            row.fault = event.kind
        row.affected.append(event.node)
        row.banner = labels.server_fault(event.kind, row.affected)
        row.marks = self._marks


# In a scenario every clock is frozen except while a step lets it run; showing each change would bury the steps.
_CLOCKS = (FREEZE_CLOCK, UNFREEZE_CLOCK)
