"""What a network puts into the trace: the kinds of its events, why a message is dropped, what the tester changes.

A call's life: send; deliver, and duplicate before a second deliver; answer (the handler has replied); then reply (the
caller has it), or drop with the reason in `note`. After a drop there may still be a deliver, and an answer that nobody
waits for. Every change of the network's conditions is an event of its own, with the new value as its detail.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

SEND = "send"
DELIVER = "deliver"
DUPLICATE = "duplicate"
ANSWER = "answer"
REPLY = "reply"
DROP = "drop"
MESSAGE_KINDS = frozenset((SEND, DELIVER, DUPLICATE, ANSWER, REPLY, DROP))

RELIABLE = "reliable"
LONG_REORDERING = "long_reordering"
LONG_DELAYS = "long_delays"
DUPLICATES = "duplicates"
LATENCY = "latency"
LINK = "link"
PARTITION = "partition"
CONDITION_KINDS = frozenset((RELIABLE, LONG_REORDERING, LONG_DELAYS, DUPLICATES, LATENCY, LINK, PARTITION))


class DropReason(StrEnum):
    """Why a request or a reply goes no further; stands in the event's `note`."""

    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    LINK_CUT = "link cut"
    UNPLUGGED = "unplugged"  # the caller or its server, when it was sent
    UNPLUGGED_ON_THE_WAY = "unplugged on the way"
    NO_SERVER = "no server"  # of that name, when it was sent
    SERVER_GONE = "server gone"
    END_DELETED = "end deleted"
    NOBODY_WAITS = "nobody waits"  # the caller has been told already that there will be no reply
    CALLER_GONE = "caller gone"


class Latency(msgspec.Struct, frozen=True):
    """How long every message takes, each way."""

    min_ms: float
    max_ms: float


class LinkChange(msgspec.Struct, frozen=True):
    """What one direction between two servers is like from now on, beside what holds for all."""

    source: str
    target: str
    latency: Latency
    loss: float
    cut: bool
