"""What a network puts into the trace about messages: the kinds of these events, and why a message is dropped.

A call's life: send; deliver, and duplicate before a second deliver; answer (the handler has replied); then reply (the
caller has it), or drop with the reason in `note`. After a drop there may still be a deliver, and an answer that nobody
waits for. Changes of the network's conditions are events too: conditions.py.
"""

from __future__ import annotations

from enum import StrEnum

SEND = "send"
DELIVER = "deliver"
DUPLICATE = "duplicate"
ANSWER = "answer"
REPLY = "reply"
DROP = "drop"
MESSAGE_KINDS = frozenset((SEND, DELIVER, DUPLICATE, ANSWER, REPLY, DROP))


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
