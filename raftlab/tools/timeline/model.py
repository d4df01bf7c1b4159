"""A trace as rows: who did what when, who led, and what was said; the uneventful parts folded.

Roles and terms are as messages show them (raftlab/trace/cluster_view.py), so they hold for any peer.

Told in short, a call that came back within 10 ms is one row (the request in the caller's column, the answer in the
other's), equal calls of one instant to several peers are one row, and a call that repeats the last one to the
same peer with the same outcome is only counted. Told in full (`everything`), each event is a row, in exact order.

Start at `tell()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labsim import Event
from raftlab.tools.timeline import labels
from raftlab.tools.timeline.calls import Call, FirstPass
from raftlab.tools.timeline.labels import Wordings
from raftlab.tools.timeline.repetitions import Repetitions
from raftlab.tools.timeline.rows import Mark, Row, Said, Show, Story, peer_order
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


def tell(events: Sequence[Event], show: Show | None = None) -> Story:
    """The rows of a run."""
    show = show or Show()
    teller = _Teller(events, show)
    teller.run()
    rows = [row for row in teller.rows if row.banner or row.cells]
    return Story(teller.columns, rows, len(events), teller.folded, teller.student_topics)


@dataclass(slots=True)
class _Broadcast:
    """Equal requests of one instant: they share a line of the caller's cell."""

    row: Row
    place: int
    texts: Wordings
    targets: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Starts:
    """Accepted commands that share a row."""

    row: Row
    command: Any
    index: int
    term: int
    count: int = 1


class _Teller:
    def __init__(self, events: Sequence[Event], show: Show) -> None:
        self.events = events
        self.show = show
        self.rows: list[Row] = []
        self.folded = 0
        self.student_topics: list[str] = []
        self._known = FirstPass(events, show)
        self._has_steps = any(event.kind == STEP for event in events)
        self._repetitions: Repetitions | None = None  # since the last row, in a row of their own
        self._broadcasts: dict[tuple[str, Wordings], _Broadcast] = {}  # of one instant
        self._broadcasts_ns = -1
        self._last_of: dict[str, Row] = {}
        self._applying: dict[str, tuple[Row, int, list[Any]]] = {}
        self._starting: dict[str, _Starts] = {}
        self._snapshots: dict[str, Any] = {}  # as last saved
        self._seen_ns: tuple[int, int] | None = None
        self._view = ClusterView(peer_order(self._known.nodes))
        self.peers = self._view.peers
        self._everyone = frozenset(self.peers)
        self.columns = [name for name in self.peers if not show.peers or name in show.peers]
        self._visible = frozenset(self.columns)
        self._marks = {name: Mark.of(peer) for name, peer in self.peers.items()}

    def run(self) -> None:
        if self.show.follow is not None:
            times = [event.at_ns for event in self.events if event.message == self.show.follow]
            self._seen_ns = (times[0], times[-1]) if times else (-1, -1)
        told_already: set[int] = set()
        if not self.show.everything:
            ends = self._known.results.items()
            told_already = {end for begun, end in ends if self.events[begun].at_ns == self.events[end].at_ns}
        for place, event in enumerate(self.events):
            kind = event.kind
            if kind == CLUSTER:
                self._change_links(event)  # no link of another cluster is cut
            if kind in MESSAGE_KINDS:
                self._message(event)
            elif kind in SERVER_ACTS:
                if not (kind in _CLOCKS and self._has_steps):
                    self._fault(event, place)
            elif kind == PERSIST:
                if place not in self._known.skip:
                    self._persist(event)
            elif kind == SAVING:
                self._local(event, "persist", Said("saving", labels.SAVING))
            elif kind == APPLY:
                self._apply(event)
            elif kind == START:
                self._start(event, place)
            elif kind == STARTED:
                if place not in told_already:
                    self._started(event, place)
            elif kind == LOG:
                self._student(event)
            elif kind in (INVOKE, RETURN):
                self._local(event, "client", Said("start", labels.operation(event.detail, returned=kind == RETURN)))
            elif kind == SNAPSHOT:
                self._local(event, "snapshot", Said("snapshot", labels.taken(event.detail)))
            elif kind == PREEMPT:
                # In most of them nobody else was ready, and nothing came of it.
                if event.detail.late_ns or self.show.everything:
                    self._local(event, "preemption", Said("quiet", labels.preempted(event.detail)))
            elif kind in (PHASE, STEP):
                self._phase(event)
            elif kind in ACTS:
                self._act(event)
            elif self.show.everything:
                text = "" if event.detail is None else f" {labels.value(event.detail, 60)}"
                self._local(event, kind, Said("quiet", (f"{kind}{text}",)))
        self._close_repetitions()

    def _wanted(self, at_ns: int, topics: Iterable[str], term: int, message: int = 0) -> bool:
        show = self.show
        if at_ns < show.from_ns or (show.to_ns is not None and at_ns > show.to_ns):
            return False
        if show.follow is not None and message != show.follow:
            return False
        if show.term is not None and term != show.term:
            return False
        return not show.topics or not show.topics.isdisjoint(topics)

    def _row(self, at_ns: int) -> Row:
        self._close_repetitions()
        row = Row(at_ns, self._marks)
        self.rows.append(row)
        return row

    def _say(self, row: Row, peer: str, said: Said) -> None:
        if peer in self._visible:
            row.cells.setdefault(peer, []).append(said)
            self._last_of[peer] = row

    # Roles.

    def _becomes(self, observed: ObservedRole, at_ns: int, row: Row | None = None) -> None:
        """`row`: where the cause stands, when the change belongs there and not into a row of its own."""
        name, role, term = observed.peer.name, observed.role, observed.term
        if role != observed.old_role:
            self._remark(observed.peer, row)
        if not observed.is_new or name not in self._visible or not self._wanted(at_ns, ("election",), term, -1):
            return
        said = Said(role, labels.role(role, term))
        if row is not None and not row.banner:
            self._say(row, name, said)
            return
        saved = self._take_back_save(name, at_ns)
        if saved:
            said = Said(said.tone, tuple(f"{text} · saved" for text in said.wordings))
        self._say(self._row(at_ns), name, said)

    def _remark(self, peer: PeerView, since: Row | None = None) -> None:
        mark = Mark.of(peer)
        self._marks = {**self._marks, peer.name: mark}
        if since is not None:
            for row in reversed(self.rows):
                row.marks = {**row.marks, peer.name: mark}
                if row is since:
                    break

    def _take_back_save(self, name: str, at_ns: int) -> bool:
        """Whether the peer's last row is a bare "saved" of this instant; it then goes into the next one."""
        row = self._last_of.get(name)
        if self.show.everything or "persist" in self.show.topics or row is None or row.at_ns != at_ns:
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
            self._becomes(observed, at_ns)  # first: the row that makes a leader is the leader's
        if self._wanted(at_ns, call.topics, term, call.id) and (
            call.source in self._visible or call.target in self._visible
        ):
            if self.show.everything:
                self._in_full(event, call)
            elif call.counted:
                if kind == SEND:
                    self._count(call)
            else:
                self._in_short(kind, at_ns, call)
        if kind != SEND and observed is not None:
            beside = kind == ANSWER and call.row is not None and (call.row.at_ns == at_ns or call.at_once)
            self._becomes(observed, at_ns, call.row if beside else None)

    def _in_full(self, event: Event, call: Call) -> None:
        kind = event.kind
        there, back = (call.source, call.target), (call.target, call.source)
        request = list(call.wordings)
        said = call.answer or Said("quiet", ("answered",))
        if kind == SEND:
            who, other, sign, tone, texts = *there, "→", call.kind, request
        elif kind == DELIVER:
            who, other, sign, tone, texts = *back, "←", call.kind, request
        elif kind == DUPLICATE:
            who, other, sign, tone, texts = *back, "←", "network", [f"duplicate of {text}" for text in request]
        elif kind == ANSWER:
            who, other, sign, tone, texts = *back, "→", said.tone, list(said.wordings)
        elif kind == REPLY:
            who, other, sign, tone, texts = *there, "←", said.tone, list(said.wordings)
        else:
            who, other, sign, tone, texts = *there, "✗", "lost", [event.note]
        if who in self._visible:
            row = self._row(event.at_ns)
            self._say(row, who, Said(tone, tuple(f"{sign}{other} {text} #{call.id}" for text in texts)))

    def _in_short(self, kind: str, at_ns: int, call: Call) -> None:
        both = call.source in self._visible and call.target in self._visible
        if kind == SEND:
            if call.source in self._visible:
                self._ask(at_ns, call)
            if both and call.at_once:
                assert call.row is not None
                if len(call.row.cells[call.source]) > 1 and call.target not in call.row.cells:
                    self._say(call.row, call.target, Said("", ("",)))  # beside the request, not beside the new role
                self._say(call.row, call.target, self._outcome(call))
        elif kind == DELIVER:
            if not (both and call.at_once) or call.again:
                self._take(at_ns, call)
        elif kind == ANSWER:
            if call.answered_ns != call.delivered_ns and not (both and call.at_once and not call.again):
                said = self._outcome(call)
                self._tell_alone(
                    at_ns, call.target, Said(said.tone, tuple(f"→{call.source} {text}" for text in said.wordings))
                )
        elif kind == REPLY:
            if not both or call.again or not call.back_at_once:
                said = call.answer or Said("quiet", ("answered",))
                said = Said(said.tone, tuple(f"←{call.target} {text}" for text in said.wordings))
                row = call.row
                if row is not None and row.at_ns == at_ns and call.source in self._visible and len(row.cells) == 1:
                    row.cells.setdefault(call.source, []).append(said)
                    self._last_of[call.source] = row
                else:
                    self._tell_alone(at_ns, call.source, said)
        elif kind == DROP and call.dropped_ns == at_ns and not (both and call.at_once) and not call.again:
            told_there = call.answered_ns == at_ns and call.target in self._visible
            if not told_there:
                self._tell_alone(at_ns, call.source, Said("lost", (f"✗{call.target} {call.lost}",)))

    def _tell_alone(self, at_ns: int, peer: str, said: Said) -> None:
        if peer in self._visible:
            self._say(self._row(at_ns), peer, said)

    def _ask(self, at_ns: int, call: Call) -> None:
        """The request, in the caller's column; equal ones of the same instant share a row."""
        if at_ns != self._broadcasts_ns:
            self._broadcasts.clear()
            self._broadcasts_ns = at_ns
        key = (call.source, call.wordings)
        known = self._broadcasts.get(key)
        if known is None or call.target in known.row.cells or call.target in known.targets:
            saved = self._take_back_save(call.source, at_ns)
            last = self._last_of.get(call.source)
            # Under the line that says it became leader or candidate, if that is all its row says.
            if last is not None and last is self.rows[-1] and last.at_ns == at_ns and self._only_a_role(last, call):
                row = last
            else:
                row = self._row(at_ns)
            tail = " · saved" if saved else ""
            known = _Broadcast(row, 0, tuple(f"{text}{tail}" for text in call.wordings))
            self._say(row, call.source, Said(call.kind, known.texts))
            known.place = len(row.cells[call.source]) - 1
            self._broadcasts[key] = known
        call.row = known.row
        known.targets.append(call.target)
        told = self._to_whom(call.source, known.targets)
        texts = [f"→{told} {text}" for text in known.texts]
        if len(known.targets) > 2:
            texts.append(f"→ {known.texts[-1]}")  # the answers stand in their columns
        known.row.cells[call.source][known.place] = Said(call.kind, tuple(texts))

    def _only_a_role(self, row: Row, call: Call) -> bool:
        cell = row.cells.get(call.source, [])
        return len(row.cells) == 1 and len(cell) == 1 and cell[0].tone in ("leader", "candidate")

    def _to_whom(self, source: str, targets: list[str]) -> str:
        if len(targets) > 2 and frozenset(targets) | {source} == self._everyone:
            return "all"
        return ",".join(peer_order(targets))

    def _take(self, at_ns: int, call: Call) -> None:
        """The request arrives later than it was sent, or where its sender has no column."""
        if call.target not in self._visible:
            return
        again = "again " if call.again else ""
        texts = [f"←{call.source} {again}{text}" for text in call.wordings]
        tone = call.kind
        if call.answered_ns == at_ns:
            said = self._outcome(call)
            tone = said.tone if said.tone != "quiet" else call.kind
            texts = [f"{asked} ⇒ {said.wordings[0]}" for asked in texts] + [
                f"{texts[-1]} ⇒ {text}" for text in said.wordings[1:]
            ]
        row = self._row(at_ns)
        self._say(row, call.target, Said(tone, tuple(texts)))
        call.row = row

    def _outcome(self, call: Call) -> Said:
        if call.answer is None or call.lost_on_the_way:
            return Said("lost", (f"✗ {call.lost or 'no answer'}", f"✗ {(call.lost or 'none').split()[0]}"))
        tail = " · saved" if call.saved else ""
        if call.dropped and call.dropped_ns == call.answered_ns:
            return Said("lost", tuple(f"{text}{tail} ✗ {call.lost}" for text in call.answer.wordings))
        if call.late and not call.again:  # of a duplicate nothing else is expected
            tail += ", too late"
        return Said(call.answer.tone, tuple(f"{text}{tail}" for text in call.answer.wordings))

    # Repetitions.

    def _count(self, call: Call) -> None:
        self._repeated(call.sent_ns).add_call(call)

    def _repeated(self, at_ns: int) -> Repetitions:
        if self._repetitions is None:
            self.rows.append(Row(at_ns, self._marks))
            self._repetitions = Repetitions(at_ns)
        self._repetitions.last_ns = at_ns
        self.folded += 1
        return self._repetitions

    def _close_repetitions(self) -> None:
        repetitions, self._repetitions = self._repetitions, None
        if repetitions is not None:
            for peer, texts in repetitions.labels():
                self._say(self.rows[-1], peer, Said("folded", texts))

    # What peers do by themselves.

    def _local(self, event: Event, topic: str, said: Said) -> Row | None:
        """Things that different peers did in one instant share a row."""
        peer = self.peers.get(event.node)
        term = peer.term if peer is not None else 0
        if event.node not in self._visible or not self._wanted(event.at_ns, (topic,), term):
            return None
        row = self.rows[-1] if self.rows and self._repetitions is None else None
        if self.show.everything or row is None or not row.local or row.at_ns != event.at_ns or event.node in row.cells:
            row = self._row(event.at_ns)
            row.local = True
        self._say(row, event.node, said)
        return row

    def _persist(self, event: Event) -> None:
        snapshot = event.detail.snapshot
        known = self._snapshots.get(event.node)
        self._snapshots[event.node] = snapshot
        if len(snapshot) and snapshot != known and (known is not None or event.incarnation == 1):
            texts = labels.saved(event.detail, new_snapshot=True)
            self._local(event, "snapshot" if "snapshot" in self.show.topics else "persist", Said("snapshot", texts))
            return
        row = self._last_of.get(event.node)
        if row is not None and row.at_ns == event.at_ns and "persist" not in self.show.topics:
            cell = row.cells.get(event.node)
            if cell and cell[-1].tone == "follower" and not self.show.everything:
                # The term it has just learned.
                cell[-1] = Said("follower", tuple(f"{wording} · saved" for wording in cell[-1].wordings))
                return
        self._local(event, "persist", Said("persist", labels.saved(event.detail)))

    def _apply(self, event: Event) -> None:
        message = event.detail
        if labels.field(message, "snapshot_valid"):
            topic = "snapshot" if self.show.topics and "apply" not in self.show.topics else "apply"
            self._local(event, topic, Said("apply", labels.applied(message)))
            return
        index, command = labels.number(message, "command_index"), labels.field(message, "command")
        known = self._applying.get(event.node)
        if known is not None and not self.show.everything:
            row, first, commands = known
            if row.at_ns == event.at_ns and self._last_of.get(event.node) is row and index == first + len(commands):
                commands.append(command)
                span = f"applied {first}–{index}"
                values = f"{labels.value(commands[0], 12)} … {labels.value(command, 12)}"
                row.cells[event.node][-1] = Said("apply", (f"{span} = {values}", span))
                return
        new = self._local(event, "apply", Said("apply", labels.applied(message)))
        if new is not None:
            self._applying[event.node] = (new, index, [command])

    def _start(self, event: Event, place: int) -> None:
        result = self._known.results.get(place)
        if self.show.everything or result is None:
            pending = "" if self.show.everything else " does not return"
            self._local(event, "log", Said("start", (f"start({labels.value(event.detail)}){pending}",)))
        elif self.events[result].at_ns == event.at_ns:
            # In short, a result stands where the call was made: before what the peer sent because of it.
            self._started(self.events[result], result, saved=place in self._known.saved)

    def _started(self, event: Event, place: int, *, saved: bool = False) -> None:
        index, term, is_leader = event.detail.index, event.detail.term, event.detail.is_leader
        observed = self._view.take(event)
        if observed is not None:
            self._becomes(observed, event.at_ns)
        if place in self._known.skip:
            return
        if self.show.everything:
            told = f"⇒ index {index} t{term}" if is_leader else f"⇒ not leader, t{term}"
            self._local(event, "log", Said("start" if is_leader else "quiet", (f"start() {told}", told)))
        elif is_leader:
            self._accept(event, saved)
        elif event.node in self._visible and self._wanted(event.at_ns, ("log",), term):
            self._repeated(event.at_ns).add_refused_start(event.node)

    def _accept(self, event: Event, saved: bool) -> None:
        """A command goes into the log. Several with nothing between them are told at once."""
        command, index, term = event.detail.command, event.detail.index, event.detail.term
        tail = " · saved" if saved else ""
        known = self._starting.get(event.node)
        if known is not None and self._goes_on(known, event):
            known.count += 1
            span = f"{known.index}–{index}"
            values = f"{labels.value(known.command, 12)} … {labels.value(command, 12)}"
            known.row.cells[event.node][-1] = Said(
                "start",
                (
                    f"{known.count}× start({values}) ⇒ {span} t{term}{tail}",
                    f"{known.count}× start() ⇒ {span} t{term}{tail}",
                    f"{known.count}× start() ⇒ {span}",
                ),
            )
            return
        row = self._local(event, "log", Said("start", labels.started(event.detail, tail)))
        if row is not None:
            self._starting[event.node] = _Starts(row, command, index, term)

    def _goes_on(self, known: _Starts, event: Event) -> bool:
        index, term = event.detail.index, event.detail.term
        alone = self.rows[-1] is known.row and self._repetitions is None and list(known.row.cells) == [event.node]
        return alone and index == known.index + known.count and term == known.term

    def _student(self, event: Event) -> None:
        topic = event.detail.topic
        if topic not in self.student_topics:
            self.student_topics.append(topic)
        said = Said("student", labels.student(event.detail))
        if event.node:
            self._local(event, topic, said)
        elif self._wanted(event.at_ns, (topic,), 0):
            self._banner(event.at_ns, said.wordings[0], "student")

    # The tester.

    def _phase(self, event: Event) -> None:
        if self._within(event.at_ns):
            self._banner(event.at_ns, labels.clean(str(event.detail)), "phase")

    def _act(self, event: Event) -> None:
        """What is done to the network, the disks and the services."""
        self._change_links(event)
        if self._within(event.at_ns):
            text, heals = labels.act(event)
            self._banner(event.at_ns, text, "heal" if heals else "fault")

    def _change_links(self, event: Event) -> None:
        self._view.take(event)
        for name, peer in self.peers.items():
            if Mark.of(peer) != self._marks[name]:
                self._remark(peer)

    def _within(self, at_ns: int) -> bool:
        show = self.show
        if self._seen_ns is not None and not self._seen_ns[0] <= at_ns <= self._seen_ns[1]:
            return False
        return at_ns >= show.from_ns and (show.to_ns is None or at_ns <= show.to_ns)

    def _banner(self, at_ns: int, text: str, tone: str) -> Row:
        row = self._row(at_ns)
        row.banner, row.tone = text, tone
        return row

    def _fault(self, event: Event, place: int) -> None:
        peer = self.peers[event.node]
        before = Mark.of(peer)
        self._view.take(event)
        shown = place not in self._known.skip and self._within(event.at_ns)
        if shown and event.kind in (CONNECT, DISCONNECT) and before == Mark.of(peer) and not self.show.everything:
            shown = False  # it was so already
        self._remark(peer, self.rows[-1] if self.rows and self.rows[-1].at_ns == event.at_ns else None)
        if not shown:
            return
        row = self.rows[-1] if self.rows else None
        if row is None or row.at_ns != event.at_ns or row.fault != event.kind:
            row = self._banner(event.at_ns, "", "heal" if event.kind in REPAIRS else "fault")
            row.fault = event.kind
        row.struck.append(event.node)
        row.banner = labels.struck(event.kind, row.struck)
        row.marks = self._marks


# In a scenario every clock is held but while a step lets it run; saying so each time would bury the steps.
_CLOCKS = (FREEZE_CLOCK, UNFREEZE_CLOCK)
