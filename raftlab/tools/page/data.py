"""The page's data: columns of numbers, and tables of the texts and values that the numbers refer to.

All texts are made here, with the timeline's functions, and all conclusions (roles, logs, causes, collapsed groups) are
drawn here; the page only displays them. The columns are described where they are filled; web/data.js reads them. Start
at `page_data()`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any

from labsim import Event
from raftlab.check.linearizability import CheckResult, History, OperationKind, check
from raftlab.tools.page.causes import NONE, Causes
from raftlab.tools.page.collapsed import MERGED, SHOWN, CollapsedEvents
from raftlab.tools.page.fields import FieldWatcher
from raftlab.tools.page.tables import Tables, ranges
from raftlab.tools.page.wire import ROLES, WireView
from raftlab.tools.timeline import labels
from raftlab.tools.timeline.calls import FirstPass, TimelineCall
from raftlab.tools.timeline.labels import LabelTexts
from raftlab.tools.timeline.rows import RowFilter, peer_order
from raftlab.trace.cluster_view import ClusterView
from raftlab.trace.events import (
    ACTS,
    ANSWER,
    APPLY,
    BOOT,
    DELIVER,
    DROP,
    DUPLICATE,
    INVOKE,
    LOG,
    MESSAGE_KINDS,
    PERSIST,
    PHASE,
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
    Operation,
)

FORMAT = 1
# Names of a call's columns, by the kind of event whose index they contain.
_STEPS = {SEND: "sent", DELIVER: "delivered", ANSWER: "answered", REPLY: "replied"}
TESTER = "tester"


def page_data(events: Sequence[Event], run: dict[str, Any], watcher: FieldWatcher | None = None) -> dict[str, Any]:
    """The data written into the page. `run`: data about the run as a whole, copied unchanged."""
    collecting = gc.isenabled()
    gc.disable()  # nothing made here becomes garbage, and collecting takes long
    try:
        builder = PageDataBuilder(events)
        builder.read()
        return {"format": FORMAT, "run": run, **builder.columns(watcher)}
    finally:
        if collecting:
            gc.enable()


class _Calls:
    """A column for each property of a call: the index of an event, or -1."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {
            name: []
            for name in (
                *("id", "from", "to", "kind", "args", "reply", "original", "heartbeat", "term"),
                *("sent", "delivered", "answered", "replied", "lost_request", "lost_reply"),
            )
        }
        self.numbers: dict[int, int] = {}  # by id() of the message object
        self._by_message: dict[int, int] = {}

    def number(self, event: Event, call: TimelineCall, tables: Tables, lanes: dict[str, int]) -> int:
        known = self.numbers.get(id(event.detail))
        if known is not None:
            return known
        message = event.detail
        number = self.numbers[id(message)] = len(self.columns["id"])
        packed = (message.request, message.service_method) if hasattr(message, "request") else None
        given = {
            "id": call.id,
            "from": lanes.get(call.source, -1),
            "to": lanes.get(call.target, -1),
            "kind": tables.text(call.kind),
            "args": tables.message(call.args, packed),
            "original": self._by_message.get(call.id, NONE),
            "heartbeat": int(call.heartbeat),
            "term": labels.number(call.args, "term"),
        }
        self._by_message.setdefault(call.id, number)
        for name, column in self.columns.items():
            column.append(given.get(name, NONE))
        return number


class PageDataBuilder:
    """Reads a trace that may grow: read() takes in what has been added since."""

    def __init__(self, events: Sequence[Event], *, has_steps: bool = False) -> None:
        """`has_steps`: the run is or will be that of a scenario."""
        self._events = events
        self._tables = Tables()
        self._first_pass = FirstPass(events, RowFilter())
        names = self._first_pass.nodes
        servers = {event.node for event in events if event.kind == BOOT} or names
        self._names = [*peer_order(servers), *peer_order(names - servers)]
        self._lanes = {name: number for number, name in enumerate(self._names)}
        view = ClusterView(name for name in self._names if name in servers)
        self._peers = view.peers
        self._wire = WireView(self._lanes, view, self._tables)
        self._collapsed = CollapsedEvents(events, self._first_pass, has_steps=has_steps)
        self._causes = Causes()
        self._calls = _Calls()
        self._kinds: dict[str, int] = {}
        self._topics: dict[str, int] = {}
        self._columns: dict[str, list[int]] = {
            name: [] for name in ("time", "kind", "lane", "call", "words", "topic", "term", "cause", "shown", "fold")
        }
        self._faults: list[int] = []
        self._saved_before: set[int] = set()  # events at which a peer changed its role and had just saved
        self._snapshots: dict[str, Any] = {}
        self._new_snapshots: set[int] = set()  # saves of a new snapshot
        self._operations: list[list[int]] = []  # swimlane, index of the call, of the return, text, 1 for a violation

    def read(self) -> None:
        columns = self._columns
        time, kinds, lanes, calls = columns["time"], columns["kind"], columns["lane"], columns["call"]
        texts, topics, terms = columns["words"], columns["topic"], columns["term"]
        causes, shown, folds = columns["cause"], columns["shown"], columns["fold"]
        first = len(time)
        if first:
            self._first_pass.extend()
        before_ns = self._events[first - 1].at_ns if first else 0
        calls_by_id = self._first_pass.calls
        for place in range(first, len(self._events)):
            event = self._events[place]
            kind = event.kind
            call = calls_by_id[id(event.detail)] if kind in MESSAGE_KINDS else None
            self._wire.take(place, event, call)
            time.append(event.at_ns - before_ns)
            before_ns = event.at_ns
            kinds.append(self._kinds.setdefault(kind, len(self._kinds)))
            lanes.append(self._lanes.get(event.node, -1))
            peer = self._peers.get(event.node)
            if call is not None:
                calls.append(self._message(place, event, call))
                term = self._calls.columns["term"][calls[-1]]
            else:
                calls.append(-1)
                term = 0 if peer is None else peer.term
            terms.append(term)
            topic, text = self._label(place, event, call)
            topics.append(self._topics.setdefault(topic, len(self._topics)))
            texts.append(self._tables.text(*text))
            cause = self._causes.take(place, event, call)
            causes.append(place - cause if cause != NONE else 0)
            how, fold = self._collapsed.take(place, event, call, is_change=place in self._wire.link_changes)
            shown.append(how)
            folds.append(fold)
            if how == SHOWN:
                self._join(place, event)
            if kind in ACTS and kind != BOOT and not how:
                self._faults.append(place)
        self._read_operations()

    def _join(self, place: int, event: Event) -> None:
        """Merge an earlier event of the same instant into this one."""
        texts, shown = self._columns["words"], self._columns["shown"]
        if event.kind in SERVER_ACTS:
            before, affected = self._collapsed.merged_fault(place, event)
            if before >= 0:
                shown[before] = MERGED
                texts[place] = self._tables.text(labels.server_fault(event.kind, affected))
            return
        saved = self._collapsed.absorbed_save(place, event)
        if saved >= 0 and saved not in self._new_snapshots:
            shown[saved] = MERGED
            if self._wire.role_changes and self._wire.role_changes[-1][0] == place:
                self._saved_before.add(place)
            else:
                text = self._label(place, event, self._first_pass.calls[id(event.detail)])[1]
                texts[place] = self._tables.text(*_with_saved(text))

    def _message(self, place: int, event: Event, call: TimelineCall) -> int:
        number = self._calls.number(event, call, self._tables, self._lanes)
        columns = self._calls.columns
        kind = event.kind
        step = _STEPS.get(kind)
        if step is not None:
            columns[step][number] = place
        elif kind == DROP:
            columns["lost_request" if columns["answered"][number] == NONE else "lost_reply"][number] = place
        if kind == ANSWER:
            message = event.detail
            packed = (message.reply, message.service_method, 1) if hasattr(message, "request") else None
            columns["reply"][number] = self._tables.message(call.reply, packed)
        return number

    def _label(self, place: int, event: Event, call: TimelineCall | None) -> tuple[str, LabelTexts]:
        """The event's topic and label."""
        kind, detail = event.kind, event.detail
        if call is not None:
            return call.topics[0], self._message_label(event, call)
        if kind == PERSIST:
            known = self._snapshots.get(event.node)
            self._snapshots[event.node] = detail.snapshot
            is_new = len(detail.snapshot) and detail.snapshot != known and (known is not None or event.incarnation == 1)
            if is_new:
                self._new_snapshots.add(place)
            return ("snapshot" if is_new else "persist"), labels.saved(detail, new_snapshot=bool(is_new))
        if kind == SAVING:
            return "persist", labels.SAVING
        if kind == APPLY:
            return "apply", labels.applied(detail)
        if kind == START:
            end = self._first_pass.results.get(place)
            if end is not None and self._events[end].at_ns == event.at_ns:
                tail = " · saved" if place in self._first_pass.saved else ""
                return "log", labels.started(self._events[end].detail, tail)
            return "log", (f"start({labels.value(detail)})",)
        if kind == STARTED:
            return "log", labels.started(detail)
        if kind == LOG:
            return str(detail.topic), labels.log_line(detail)
        if kind in (INVOKE, RETURN):
            return "client", labels.operation(detail, returned=kind == RETURN)
        if kind == SNAPSHOT:
            return "snapshot", labels.snapshot_made(detail)
        if kind in (PHASE, STEP):
            return TESTER, (labels.clean(str(detail)),)
        if kind in SERVER_ACTS:
            return TESTER, (labels.server_fault(kind, [event.node]),)
        if kind in ACTS:
            return TESTER, labels.fault_setting(event)[:1]
        return TESTER, (f"{kind}{'' if detail is None else f' {labels.value(detail, 60)}'}",)

    def _message_label(self, event: Event, call: TimelineCall) -> LabelTexts:
        kind = event.kind
        if kind in (SEND, DELIVER):
            return call.texts
        if kind == DUPLICATE:
            return (f"duplicate of {call.texts[0]}",)
        if kind == DROP:
            return (labels.drop_reason(event.note),)
        texts = call.answer.texts if call.answer is not None else ("answered",)
        return _with_saved(texts) if kind == ANSWER and call.saved else texts

    # ---- clients ------------------------------------------------------------------------------------------------

    def _read_operations(self) -> None:
        self._operations.clear()
        history = History()
        open_: dict[str, tuple[Any, int]] = {}
        of: dict[int, int] = {}  # by id() of the operation
        for place, event in enumerate(self._events):
            if event.kind == INVOKE and isinstance(event.detail, Operation):
                detail = event.detail
                value = "" if detail.op == OperationKind.GET else detail.value
                operation = history.call(event.node, OperationKind(detail.op), detail.key, value)
                open_[event.node] = (operation, len(self._operations))
                of[id(operation)] = len(self._operations)
                text = self._tables.text(*labels.operation(detail, returned=False))
                self._operations.append([self._lanes[event.node], place, -1, text, 0])
            elif event.kind == RETURN and event.node in open_:
                operation, number = open_.pop(event.node)
                history.returns(operation, event.detail.value if event.detail.op == OperationKind.GET else None)
                text = self._tables.text(*labels.operation(event.detail, returned=True))
                self._operations[number][2:4] = [place, text]
        if not history.operations:
            return
        verdict = check(history.operations)
        if verdict.result is CheckResult.VIOLATION and verdict.violation is not None:
            for operation in verdict.violation.operations:
                self._operations[of[id(operation)]][4] = 1

    # ---- written ------------------------------------------------------------------------------------------------

    def columns(self, watcher: FieldWatcher | None) -> dict[str, Any]:
        wire, tables = self._wire, self._tables
        became = [
            [
                place,
                self._lanes[name],
                tables.text(*(_with_saved if place in self._saved_before else tuple)(labels.role(role, term))),
                ROLES.index(role),
            ]
            for place, name, role, term in wire.role_changes
        ]
        folds = [
            [fold.first, fold.last, [[self._lanes.get(peer, -1), tables.text(*text)] for peer, text in fold.labels()]]
            for fold in self._collapsed.groups
        ]
        return {
            "lanes": [{"name": name, "peer": name in self._peers} for name in self._names],
            "kinds": list(self._kinds),
            "topics": list(self._topics),
            "heals": [kind for kind in self._kinds if kind in REPAIRS],
            "events": self._columns,
            "calls": self._calls.columns,
            "states": [None if name not in wire.changes else _state_of(wire.changes[name]) for name in self._names],
            "became": became,
            "folds": folds,
            "jumps": {
                "election": sorted({place for place, _, role, _ in wire.role_changes if role != "follower"}),
                "commit": sorted(set(wire.commits)),
                "fault": [place for place in self._faults if self._columns["shown"][place] == SHOWN],
            },
            "operations": self._operations,
            "fields": [] if watcher is None else watcher.columns(self._names, tables),
            "entries": {"term": tables.entry_terms, "text": tables.entry_texts},
            "values": tables.values,
            "texts": tables.texts,
        }


def _with_saved(texts: LabelTexts) -> LabelTexts:
    """The label with the note that the peer saved, and last without it, for narrow columns."""
    return (*(f"{text} · saved" for text in texts), texts[-1])


def _state_of(changes: Any) -> dict[str, Any]:
    log = [[place, base, term, keep, ranges(numbers)] for place, base, term, keep, numbers in changes.log]
    return {**changes.fields, "log": log, "indexes": changes.indexes}


def find_events(events: Sequence[Event], wanted: Iterable[tuple[int, Any]]) -> list[int]:
    """The indexes of these messages' events, each given by its time and its message."""
    by_key = {(at_ns, id(message)) for at_ns, message in wanted}
    return [place for place, event in enumerate(events) if (event.at_ns, id(event.detail)) in by_key]
