"""Messages in flight in a scenario, which wait for a step, and the selectors by which steps name them.

Start at `Selector`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from labgob import DecodeError
from labrpc.conditions import TRANSIT_KINDS, Transit
from labrpc.message import Message
from labrpc.network import QueuedMessage
from labsim import Task
from labsim.choices import ChoiceKind, ChoicePoint, ChoiceSource, Distribution
from raftlab.check.failure import short
from raftlab.check.rules.facts import same_command
from raftlab.trace.rpcs import APPEND, INSTALL, METHOD_OF, RPCS, VOTE

T = TypeVar("T")

# How long a call over a cut link takes to return None.
_NOTICE_CUT_NS = 50_000_000

_QUEUED: Any = Transit(queued=True)
_AT_ONCE: Any = Transit()


class QueueingChoiceSource:
    """Queues every message while `queues_messages` is set. Leaves all other choices to another source."""

    def __init__(self, inner: ChoiceSource) -> None:
        self._inner = inner
        self.queues_messages = True

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        return self._inner.pick(now_ns, tasks)

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        if self.queues_messages:
            if point[0] in TRANSIT_KINDS:
                # Messages from a peer to itself need no step.
                source, _, target = point[1].partition("->")
                return _AT_ONCE if source == target else _QUEUED  # type: ignore[no-any-return]  # a Transit, as from this distribution
            if point[0] == ChoiceKind.NO_REPLY:
                return _NOTICE_CUT_NS  # type: ignore[return-value]  # a time, as from this distribution
        return self._inner.choose(point, ordinal, distribution)


class SelectorError(ValueError):
    """An invalid selector. The text shows valid ones."""


_USAGE = "write 0->1 vote, 1->0 reply, 0->* append, 0->1 vote term 2, 0->1 append with x, or 0->1 append 3 (the third)"
_SELECTOR = re.compile(
    r"(?P<source>\d+|\*)\s*->\s*(?P<target>\d+|\*)"
    r"(?:\s+(?!with\b|reply\b|term\b)(?P<kind>[a-z_]+))?(?P<reply>\s+reply)?"
    r"(?:\s+(?P<ordinal>\d+))?(?:\s+term\s+(?P<term>\d+))?(?:\s+with\s+(?P<command>\S+))?"
)


class Selector(NamedTuple):
    """Selects messages by sender, receiver (None, written `*`: any) and contents."""

    source: int | None  # None: any
    target: int | None
    method: str | None = None
    reply: bool | None = None
    ordinal: int | None = None
    term: int | None = None  # of the request
    command: Any = None  # in the AppendEntries, or in the one that this is a reply to
    has_command: bool = False

    @classmethod
    def read(cls, text: str) -> Selector:
        found = _SELECTOR.fullmatch(text.strip())
        if found is None:
            raise SelectorError(f"{text.strip()!r} is not a message selector; {_USAGE}")
        kind, command = found["kind"], found["command"]
        if command is not None and kind != "append":
            raise SelectorError(f"only an append carries a command; {_USAGE}")
        method = None if kind is None else METHOD_OF.get(kind, f"Raft.{kind}")
        return cls(
            _peer(found["source"]),
            _peer(found["target"]),
            method,
            # Without a kind: requests and replies.
            True if found["reply"] else None if kind is None else False,
            None if found["ordinal"] is None else int(found["ordinal"]),
            None if found["term"] is None else int(found["term"]),
            None if command is None else read_command(command),
            command is not None,
        )

    def between(self, source: int, target: int) -> Selector:
        return self._replace(source=source, target=target)

    def matches(self, message: Message, *, is_reply: bool) -> bool:
        source, target = direction(message, is_reply=is_reply)
        return (
            self.source in (None, source)
            and self.target in (None, target)
            and self.method in (None, message.rpc)
            and self.reply in (None, is_reply)
            and self.ordinal in (None, message.ordinal)
            and (self.term is None or self.term == term_of(message))
            and (not self.has_command or any(same_command(self.command, each) for each in commands_in(message)))
        )

    def __str__(self) -> str:
        parts = [f"{'*' if self.source is None else self.source}->{'*' if self.target is None else self.target}"]
        if self.method is not None:
            parts.append(kind_of(self.method))
        if self.reply:
            parts.append("reply")
        if self.ordinal is not None:
            parts.append(str(self.ordinal))
        if self.term is not None:
            parts.append(f"term {self.term}")
        if self.has_command:
            parts.append(f"with {self.command}")
        return " ".join(parts)


def _peer(text: str) -> int | None:
    return None if text == "*" else int(text)


def read_command(text: str) -> Any:
    """The command in a step: a number or a word."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def kind_of(method: str) -> str:
    """The kind of a message in a step: the short name of an RPC from the paper, or else the name of the method."""
    return RPCS[method].short_name if method in RPCS else method.removeprefix("Raft.")


def direction(message: Message, *, is_reply: bool) -> tuple[int, int]:
    source, target = int(message.source), int(message.target)
    return (target, source) if is_reply else (source, target)


def term_of(message: Message) -> int | None:
    """The term of a request; None if it cannot be decoded."""
    try:
        term = getattr(message.decode_args(), "term", None)
    except DecodeError:
        return None
    return term if isinstance(term, int) else None


def commands_in(message: Message) -> list[Any]:
    """The commands in an AppendEntries; empty if it cannot be decoded."""
    if message.rpc != APPEND:
        return []
    try:
        return [entry.command for entry in message.decode_args().entries]
    except (DecodeError, AttributeError, TypeError):
        return []


def describe(queued: QueuedMessage) -> str:
    """A line of `show`: sender, receiver, kind, ordinal and contents."""
    message = queued.message
    source, target = direction(message, is_reply=queued.is_reply)
    reply = " reply" if queued.is_reply else ""
    content = _reply_content(message) if queued.is_reply else _request_content(message)
    return f"{source}->{target} {kind_of(message.rpc)}{reply} {message.ordinal}  {content}"


def _request_content(message: Message) -> str:
    args = message.decode_args()
    try:
        if message.rpc == VOTE:
            return f"term {args.term}, last entry {args.last_log_index} of term {args.last_log_term}"
        if message.rpc == APPEND:
            entries = " ".join(f"{short(entry.command)}@{entry.term}" for entry in args.entries) or "no entries"
            return (
                f"term {args.term}, after {args.prev_log_index} of term {args.prev_log_term}: {entries}; "
                f"commit {args.leader_commit}"
            )
        if message.rpc == INSTALL:
            return f"term {args.term}, snapshot up to {args.last_included_index} of term {args.last_included_term}"
    except (AttributeError, TypeError):
        pass  # it does not have the paper's fields
    return short(args)


def _reply_content(message: Message) -> str:
    reply = message.decode_reply()
    try:
        if message.rpc == VOTE:
            return f"term {reply.term}, {'granted' if reply.vote_granted else 'refused'}"
        if message.rpc == APPEND:
            return f"term {reply.term}, {'success' if reply.success else 'failure'}"
        if message.rpc == INSTALL:
            return f"term {reply.term}"
    except (AttributeError, TypeError):
        pass
    return short(reply)
