"""A request and its reply as the trace keeps them: encoded, and decoded on demand."""

from __future__ import annotations

from typing import Any

import msgspec

from labgob import carrying_unknown, decode


# gc=False: a trace holds hundreds of thousands of these, and nothing they refer to can refer back to them.
class Message(msgspec.Struct, gc=False, eq=False):
    """A request and, once a handler has answered, its reply, whether or not it arrives.

    A duplicate of a request is a second Message with the same id, because its handler may give another answer.
    """

    id: int
    source: str
    target: str
    service_method: str
    request: bytes
    args_type: Any
    ordinal: int = 0  # among the requests of this method from this source to this target, starting at 1
    reply: bytes | None = None
    reply_type: Any = None
    carries_unknown: bool = False  # decode it within labgob.carrying_unknown()
    # The RPC that it is, if the peer's method has another name; otherwise the same as service_method.
    rpc: str = ""

    def __post_init__(self) -> None:
        if not self.rpc:
            self.rpc = self.service_method

    @property
    def method_name(self) -> str:
        """The method without its service: "request_vote" of "Raft.request_vote"."""
        return self.service_method.rpartition(".")[2]

    def duplicate(self) -> Message:
        return Message(
            self.id,
            self.source,
            self.target,
            self.service_method,
            self.request,
            self.args_type,
            self.ordinal,
            carries_unknown=self.carries_unknown,
            rpc=self.rpc,
        )

    def decode_args(self) -> Any:
        return self._decode(self.request, self.args_type)

    def decode_reply(self) -> Any:
        """The reply, or None if the handler has not answered."""
        return None if self.reply is None else self._decode(self.reply, self.reply_type)

    def _decode(self, data: bytes, as_type: Any) -> Any:
        if not self.carries_unknown:
            return decode(data, as_type)
        with carrying_unknown():
            return decode(data, as_type)

    def __repr__(self) -> str:
        return f"<Message {self.id} {self.service_method} {self.source}->{self.target}>"
