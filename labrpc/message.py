"""One call on its way: what the trace keeps, and what is decoded only when somebody looks."""

from __future__ import annotations

from typing import Any

import labgob


class Message:
    """A request and, once a handler has answered, its reply, whether that arrives or not.

    A duplicated request is a second Message with the same id, because its handler may answer otherwise.
    """

    __slots__ = (
        "answered_by",
        "args_type",
        "done",
        "id",
        "reply",
        "reply_type",
        "request",
        "service_method",
        "source",
        "target",
    )

    def __init__(
        self, id_: int, source: str, target: str, service_method: str, request: bytes, args_type: type
    ) -> None:
        self.id = id_
        self.source = source
        self.target = target
        self.service_method = service_method
        self.request = request
        self.args_type = args_type
        self.reply: bytes | None = None
        self.reply_type: Any = None
        # Of the first delivery only:
        self.done = False  # the caller has its answer, or has been told that there will be none
        self.answered_by: Message | None = None  # this message or its duplicate, whose reply came first

    def duplicate(self) -> Message:
        return Message(self.id, self.source, self.target, self.service_method, self.request, self.args_type)

    def decode_args(self) -> Any:
        return labgob.decode(self.request, self.args_type)

    def decode_reply(self) -> Any:
        """The reply, or None if none was given."""
        return None if self.reply is None else labgob.decode(self.reply, self.reply_type)

    def __repr__(self) -> str:
        return f"<Message {self.id} {self.service_method} {self.source}->{self.target}>"
