"""The trace: a list of small typed events, in the order in which they happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import pack
from typing import Any
from zlib import crc32

import msgspec

LOG = "log"  # the one kind of event that a program makes itself, with labsim.log()


class Event(msgspec.Struct, gc=False):
    """Something that happened at one instant of virtual time.

    `message` is the same for all events of one message (0: not about a message). `detail` is an object of the
    emitter's; for messages it decodes arguments on demand.
    """

    at_ns: int
    kind: str
    node: str  # "" for the tester and the network
    incarnation: int
    message: int
    detail: Any
    note: str = ""  # a short text, such as the reason why a message was dropped


class LogLine(msgspec.Struct, gc=False):
    """The detail of a `log` event."""

    topic: str
    text: str


Listener = Callable[[Sequence[Event]], None]


class Subscription:
    """A listener, and the position of its next event."""

    __slots__ = ("begin", "chunk", "due", "listener")

    def __init__(self, listener: Listener, chunk: int, begin: int, due: int) -> None:
        self.listener = listener
        self.chunk = chunk
        self.begin = begin  # the index in the trace of its next event
        self.due = due  # the number of events that completes its chunk, without log lines

    def deliver(self, trace: list[Event], emitted: int) -> None:
        """`emitted`: the number of events, without log lines."""
        begin, self.begin = self.begin, len(trace)
        self.due = emitted + self.chunk
        if begin < self.begin:
            self.listener(trace[begin:])


def fingerprint_of(*parts: float | str) -> int:
    """A 32-bit hash for the digest: of numbers, and of strings that a peer, a client or a test has chosen.

    Never of a repr(), the name of a class or a text of the lab: those may change while the run stays the same.
    """
    sum_ = 0
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else pack("<d", part)
        sum_ = crc32(data, crc32(pack("<q", len(data)), sum_))
    return sum_
