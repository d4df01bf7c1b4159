"""Joins the events of each call: when it was sent, delivered, answered and replied to, or why it was lost.

A reader of traces may subclass `JoinedCall` to add what it knows. Start at `CallJoin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from labrpc.events import ANSWER, DELIVER, DROP, REPLY, SEND
from labsim import Event
from raftlab.trace.rpcs import rpc_of


class JoinedCall:
    """One request and its outcome. A duplicate is another call, with the first as its `original`."""

    __slots__ = (
        "answered_ns",
        "delivered_ns",
        "dropped",
        "dropped_ns",
        "late",
        "message",
        "method",
        "original",
        "replied_ns",
        "sent_ns",
        "source",
        "target",
    )

    def __init__(self, message: Any, original: Any, sent_ns: int) -> None:
        self.message = message
        self.original = original  # None for the request itself
        self.method = rpc_of(message)  # VOTE, APPEND, INSTALL, or an RPC that is not from the paper
        self.source: str = message.source
        self.target: str = message.target
        self.sent_ns = sent_ns
        self.delivered_ns: int | None = None
        self.answered_ns: int | None = None
        self.replied_ns: int | None = None
        self.dropped_ns: int | None = None  # the request, or its reply if it was answered by then
        self.dropped = ""  # a DropReason
        self.late = False  # its reply arrived, or was lost, after the caller had stopped waiting

    def take(self, event: Event) -> None:
        if event.kind == DELIVER:
            self.delivered_ns = event.at_ns
        elif event.kind == ANSWER:
            self.answered_ns = event.at_ns
        elif event.kind == REPLY:
            self.replied_ns = event.at_ns
        elif event.kind == DROP:
            if self.dropped or self.original is not None:
                self.late = True
            else:
                self.dropped, self.dropped_ns = event.note, event.at_ns


C = TypeVar("C", bound=JoinedCall)


class CallJoin(Generic[C]):
    """Joins the events of each request in a call that `make(message, original, sent_ns)` creates."""

    def __init__(self, make: Callable[[Any, C | None, int], C]) -> None:
        self._make = make
        self.calls: dict[int, C] = {}  # by the id() of the message object, which the events keep alive
        self._originals: dict[int, C] = {}  # by the message's number

    def take(self, event: Event) -> C:
        """Record an event of one of MESSAGE_KINDS. Returns its call."""
        message = event.detail
        call = self.calls.get(id(message))
        if call is None:
            if event.kind == SEND:
                call = self._originals[event.message] = self._make(message, None, event.at_ns)
            else:
                # A duplicate, or a request that was sent before the trace begins.
                original = self._originals.get(event.message)
                call = self._make(message, original, event.at_ns if original is None else original.sent_ns)
            self.calls[id(message)] = call
        call.take(event)
        return call
