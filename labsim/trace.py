"""The trace: one list of small typed events, in the order they happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import pack
from typing import Any
from zlib import crc32

import msgspec

LOG = "log"  # the one kind of event that a program makes itself, with labsim.log()


class Event(msgspec.Struct, gc=False):
    """Something that happened at one instant of virtual time.

    `message` ties the events of one message together (0: not about a message). `detail` is the emitter's
    own object; for messages it decodes arguments only when asked, so that whoever does not read pays nothing.
    """

    at_ns: int
    kind: str
    node: str  # "" for the tester and the network
    incarnation: int
    message: int
    detail: Any
    note: str = ""  # a few words: why a message was dropped, say


class LogLine(msgspec.Struct, gc=False):
    """The detail of a `log` event."""

    topic: str
    text: str


Listener = Callable[[Sequence[Event]], None]


class Subscription:
    """A listener, and what it has not had yet."""

    __slots__ = ("begin", "chunk", "due", "listener")

    def __init__(self, listener: Listener, chunk: int, begin: int, due: int) -> None:
        self.listener = listener
        self.chunk = chunk
        self.begin = begin  # the place in the trace of the first event that is new to it
        self.due = due  # how many events there must be for a chunk, without the peers' own lines

    def deliver(self, trace: list[Event], emitted: int) -> None:
        """`emitted`: how many events there are, without the peers' own lines."""
        begin, self.begin = self.begin, len(trace)
        self.due = emitted + self.chunk
        if begin < self.begin:
            self.listener(trace[begin:])


def fingerprint_of(*parts: float | str) -> int:
    """32 bits of what an event says, for the digest: numbers, and strings that a peer, a client or a test has chosen.

    Never of a repr(), the name of a class or a text of ours: those may change while the run stays as it is.
    """
    sum_ = 0
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else pack("<d", part)
        sum_ = crc32(data, crc32(pack("<q", len(data)), sum_))
    return sum_
