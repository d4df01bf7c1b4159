"""The trace: one list of small typed events, in the order they happened."""

from __future__ import annotations

from typing import Any

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
