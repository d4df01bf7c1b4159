"""The events of a run as steps of a scenario. The steps are only a suggestion: nothing here runs them.

Start at `steps_of()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from labgob import DecodeError
from labrpc.message import Message
from labrpc.network import QueuedMessage
from labsim import Event
from raftlab.scenarios.in_flight import commands_in, direction, kind_of, term_of
from raftlab.trace import events
from raftlab.trace.events import DropReason
from raftlab.trace.operations import RecordedSchedule, ScheduledOperation
from raftlab.trace.rpcs import APPEND, INSTALL, VOTE

_LOST_REQUESTS = (DropReason.LOST_REQUEST, DropReason.LINK_CUT, DropReason.UNPLUGGED)


class MessageStep(str):
    """A step that names a message. When the step is made, for_queue() can name the queued message with the same content
    exactly."""

    verb: str
    name: str
    term: str
    message: Message

    def __new__(cls, verb: str, name: str, more: str, message: Message) -> MessageStep:
        self = super().__new__(cls, f"{verb} {name}{more}")
        self.verb, self.name, self.message = verb, name, message
        self.term = "" if (term := term_of(message)) is None else f" term {term}"
        return self

    def for_queue(self, queued: Sequence[QueuedMessage]) -> str:
        """The step for the queued message with the same content."""
        same = next(
            (one.message for one in queued if request_content(one.message) == request_content(self.message)), None
        )
        if same is None:
            return str(self)
        number = "" if same is queued[0].message else f" {same.ordinal}"
        return f"{self.verb} {self.name}{number}{self.term}"


def request_content(message: Message) -> Any:
    """The content of a request, ignoring leader_commit."""
    if message.rpc == APPEND:
        try:
            args = message.decode_args()
            return args.term, args.prev_log_index, args.prev_log_term, repr(args.entries)
        except (DecodeError, AttributeError):
            pass
    return message.request


def last_cluster(trace: Sequence[Event]) -> Sequence[Event]:
    begins = [number for number, event in enumerate(trace) if event.kind == events.CLUSTER]
    return trace[begins[-1] :] if begins else []


def steps_of(trace: Sequence[Event], snapshot_every: int = 0, *, heartbeats: bool = False) -> list[str]:
    """`snapshot_every`: commands per snapshot, 0 for none. `heartbeats`: add a step for each unsolicited message of a
    leader, whose content may depend on the time."""
    return _StepWriter(trace, snapshot_every, heartbeats=heartbeats).steps


class _StepWriter:
    def __init__(self, trace: Sequence[Event], snapshot_every: int, *, heartbeats: bool) -> None:
        self._every = snapshot_every
        self._heartbeats = heartbeats
        self._active_ns: dict[str, int] = {}  # by peer: the last event at it or message from it
        self.steps: list[str] = []
        self._terms: dict[str, int] = {}  # of each peer's last campaign
        self._crash_points: dict[str, str] = {}
        self._down: set[str] = set()
        self._command_names: dict[Any, str] = {}
        self._arrived: set[int] = set()  # requests, by number
        self._answered: set[int] = set()
        self._given_up: set[int] = set()  # requests whose callers have given up
        self._copy: Any = None  # the latest second copy
        # In flight, by number, the oldest first.
        self._requests: dict[int, Message] = {}
        self._replies: dict[int, Message] = {}
        self._starting: dict[str, Any] = {}  # by peer: the command of a start() call that has not returned
        self._slow_ns: dict[str, int] = {}  # by peer: how long a snapshot takes
        self._snapshots_due: list[tuple[int, str, int]] = []  # snapshots in progress: end time, peer, index
        for event in trace:
            self._make_snapshots(event.at_ns)
            self._take(event)
        self._make_snapshots(None)
        # A call of start() that broke the rule never returned.
        self.steps += [f"start {node} {self._command_name(command)}" for node, command in self._starting.items()]

    def _take(self, event: Event) -> None:
        if event.kind in events.MESSAGE_KINDS:
            self._take_message(event)
            self._active_ns[event.node] = event.at_ns
        elif event.kind == events.START:
            self._active_ns[event.node] = event.at_ns
            self._starting[event.node] = event.detail
        elif event.kind == events.STARTED:
            self._starting.pop(event.node, None)
            if event.detail.is_leader:
                self.steps.append(f"start {event.node} {self._command_name(event.detail.command)}")
        elif event.kind == events.CRASH_AT:
            self._crash_points.pop(event.node, None)
            if event.detail.when is not None:
                self._crash_points[event.node] = event.detail.when
        elif event.kind == events.CRASH:
            self._down.add(event.node)
            self._terms.pop(event.node, None)  # it may have forgotten it
            self._starting.pop(event.node, None)
            self._slow_ns.pop(event.node, None)
            self._snapshots_due = [one for one in self._snapshots_due if one[1] != event.node]
            when = self._crash_points.pop(event.node, None)
            if when is None:
                self.steps.append(f"crash {event.node}")
            else:
                # It crashed while it was handling the last step for it.
                to_it = re.compile(rf"(start|snapshot|campaign) {event.node}\b|(deliver|duplicate) \d+->{event.node}\b")
                last = next((n for n in reversed(range(len(self.steps))) if to_it.match(self.steps[n])), 0)
                self.steps.insert(last, f"crash {event.node} {when}")
        elif event.kind in (events.RESTART, events.PAUSE, events.RESUME):
            self._down.discard(event.node)
            self.steps.append(f"{event.kind} {event.node}")
        elif event.kind == events.APPLY and event.detail.command_valid and self._is_due(event.detail.command_index):
            index, slow_ns = event.detail.command_index, self._slow_ns.get(event.node, 0)
            self.steps.append(f"busy {event.node}" if slow_ns else f"snapshot {event.node} {index}")
            if slow_ns:
                self._snapshots_due.append((event.at_ns + slow_ns, event.node, index))
        elif event.kind == events.SLOW_SNAPSHOTS:
            self._slow_ns[event.node] = int(event.detail * 1e6)

    def _make_snapshots(self, now_ns: int | None) -> None:
        """Add steps for snapshots finished by then; None: for all."""
        for one in sorted(self._snapshots_due):
            done_ns, node, index = one
            if now_ns is None or done_ns <= now_ns:
                self._snapshots_due.remove(one)
                self.steps += [f"snapshot {node} {index}", f"ready {node}"]

    def _is_due(self, index: int) -> bool:
        return self._every > 0 and index % self._every == self._every - 1

    def _take_message(self, event: Event) -> None:
        message, id_ = event.detail, event.message
        if message.source == message.target:
            return
        if event.kind == events.SEND:
            self._requests[id_] = message
            by_itself = self._active_ns.get(message.source) != event.at_ns
            if self._heartbeats and by_itself and message.rpc in (APPEND, INSTALL):
                self.steps.append(f"heartbeat {message.source}")
            term = term_of(message) or 0
            if message.rpc == VOTE and term > self._terms.get(message.source, 0):
                self._terms[message.source] = term
                self.steps.append(f"campaign {message.source}")
        elif event.kind == events.DUPLICATE:
            self._copy = message
            name, more = self._named(message, "", self._requests, carries=True)
            self.steps.append(f"deliver {name}{more} again" if id_ in self._arrived else f"duplicate {name}{more}")
        elif event.kind == events.DELIVER:
            if message is not self._copy:
                self._arrived.add(id_)
                self._add_request_step("deliver", message)
        elif event.kind == events.REPLY:
            self._add_reply_step("deliver", message)
        elif event.kind == events.DROP and event.note in _LOST_REQUESTS:
            if message.target in self._down:
                self._requests.pop(id_, None)  # no step is needed
            else:
                self._add_request_step("drop", message)
        elif event.kind == events.DROP and event.note == DropReason.LOST_REPLY:
            self._add_reply_step("drop", message)
        elif event.kind == events.DROP and event.note == DropReason.UNPLUGGED_ON_THE_WAY:
            if id_ in self._answered:
                self._add_reply_step("drop", message)
            else:
                self._given_up.add(id_)
        elif event.kind == events.ANSWER:
            self._answered.add(id_)
            self._replies.setdefault(id_, message)
            if id_ in self._given_up:
                self._add_reply_step("drop", message)

    def _add_request_step(self, verb: str, message: Message) -> None:
        self.steps.append(MessageStep(verb, *self._named(message, "", self._requests), message))
        self._requests.pop(message.id, None)

    def _add_reply_step(self, verb: str, message: Message) -> None:
        self.steps.append(MessageStep(verb, *self._named(message, " reply", self._replies), message))
        self._replies.pop(message.id, None)

    def _named(
        self, message: Message, reply: str, under_way: dict[int, Message], *, carries: bool = False
    ) -> tuple[str, str]:
        """The message's name in a step, and a qualifier: without one, a step takes the oldest of several in flight.
        `carries`: always name the command in the message."""
        source, target = direction(message, is_reply=bool(reply))
        name, number = f"{source}->{target} {kind_of(message.rpc)}{reply}", ""
        term = term_of(message)
        older = []
        for other in under_way.values():
            if other.id == message.id:
                break
            ends = (other.source, other.target, other.rpc, term_of(other))
            if ends == (message.source, message.target, message.rpc, term):
                older.append(other)
        elsewhere = [repr(command) for other in older for command in commands_in(other)]
        commands = commands_in(message)
        own = [command for command in commands if repr(command) not in elsewhere]
        command = ""
        if older and own:
            command = f" with {self._command_name(own[0])}"
        elif older:
            number = f" {message.ordinal}"
        elif carries and commands:
            command = f" with {self._command_name(commands[0])}"
        return name, f"{number}{'' if term is None else f' term {term}'}{command}"

    def _command_name(self, command: Any) -> str:
        text = str(command)
        if re.fullmatch(r"[A-Za-z0-9_]{1,12}", text):
            return text
        return self._command_names.setdefault(
            command if isinstance(command, str | int) else text, f"c{len(self._command_names) + 1}"
        )


def timed_steps(
    acts: Iterable[ScheduledOperation], play: RecordedSchedule | None, peers: int, shift: int
) -> Iterator[str]:
    """The acts as steps, with ordinary time between them. Another peer may lead, so each command goes to all peers."""
    now_ns = 0
    for act in acts:
        passed_ms = (act.at_ns - now_ns) // 1_000_000
        now_ns = act.at_ns
        if passed_ms:
            yield f"run {passed_ms}ms"
        if act.does == "start":
            for peer in range(peers):
                yield f"start {peer} {act.args[1] if type(act.args[1]) is int else 'x'}"
        elif act.does in ("crash1", "start1", "pause", "resume"):
            word = {"crash1": "crash", "start1": "restart"}.get(act.does, act.does)
            yield f"{word} {(act.args[0] + shift) % peers}"
        elif act.does == "network.partition":
            sides = " | ".join(" ".join(str((int(one) + shift) % peers) for one in side) for side in act.args if side)
            yield f"partition {sides}" if "|" in sides else "heal"
    if play is not None:
        yield f"run {max(1, (play.end_ns - now_ns) // 1_000_000)}ms"
