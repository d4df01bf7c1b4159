"""The events that a network emits about messages, and the reasons why a message is dropped.

The life of a call: send; deliver, and duplicate before a second deliver; answer (the handler has replied); then reply
(the caller has it), or drop with the reason in `note`. A deliver and an answer may still follow a drop. Changes of the
network's conditions are events too: conditions.py.
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
    """Why a request or a reply is dropped: the event's `note`."""

    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    LINK_CUT = "link cut"
    UNPLUGGED = "unplugged"  # the caller or its server, when the message was sent
    UNPLUGGED_ON_THE_WAY = "unplugged on the way"
    NO_SERVER = "no server"  # of that name, when the message was sent
    SERVER_GONE = "server gone"
    END_DELETED = "end deleted"
    NOBODY_WAITS = "nobody waits"  # the call has ended already, with None
    CALLER_GONE = "caller gone"
