"""Decodes each message once for all rules, and only as far as they need it.

Promise: a decoded message has the fields of Figures 2 and 13 that the rules read. Without them the result is None, and
`MessageDecoder.undecodable_notes` explains it. Callers must not change decoded values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

import labgob
from labrpc import Message
from raftlab.trace.rpcs import APPEND, RPCS, VOTE

# The fields that the rules read, of the arguments and of the reply.
_FIELDS = {
    method: [[(name, kind) for name, kind in fields.items() if kind is not None] for fields in rpc.fields]
    for method, rpc in RPCS.items()
}
_MAY_HOLD_ENTRIES = (list, tuple, dict, bytes)


@dataclass(slots=True)
class AppendHead:
    """An AppendEntries without its entries: enough for one that may never arrive.

    An isolated leader keeps sending a growing log. Decoding that would cost more than the test.
    """

    term: int
    prev_log_index: int
    prev_log_term: int
    leader_commit: int


# gc=False: every request that is delivered gets one, and nothing it refers to can refer back to it.
class DecodedRequest(msgspec.Struct, gc=False, eq=False):
    """The arguments of one request."""

    args: Any
    # Of an AppendEntries, its last entry, or prev_log_index and prev_log_term if it has none.
    last_index: int = 0
    last_term: int = 0
    may_bring_entries: bool = False  # in a field that the peer has added
    max_extra_field: int = 0  # the highest number in such a field: maybe a commit index


@lru_cache(maxsize=64)  # a peer that defines its own messages has new classes in every incarnation
def _added(cls: type, method: str, which: int) -> tuple[str, ...]:
    """The fields that a peer has added to the paper's arguments (0) or reply (1)."""
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    else:
        names = list(getattr(cls, "__struct_fields__", ()))
    return tuple(name for name in names if name not in RPCS[method].fields[which])


@lru_cache(maxsize=64)
def _defaults(cls: type) -> dict[str, Any]:
    if not dataclasses.is_dataclass(cls):
        return {}
    fields = dataclasses.fields(cls)
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def _flag(args: Any) -> str:
    """The added field that marks a RequestVote as something else, a pre-vote say; "" if a candidate sent it.

    A flag is set if it is True or a string, and not its default.
    """
    defaults = _defaults(args.__class__)
    return next(
        (
            name
            for name in _added(args.__class__, VOTE, 0)
            if ((value := getattr(args, name, None)) is True or (isinstance(value, str) and name in defaults))
            and value != defaults.get(name)
        ),
        "",
    )


def _highest(values: Sequence[Any]) -> int:
    return max((value for value in values if value.__class__ is int), default=0)


def _same_request(message: Message, other: Message) -> bool:
    return (
        message.request == other.request
        and message.args_type is other.args_type
        and message.service_method == other.service_method
    )


# A peer may have any number of methods, with names of any length.
_NOTES_MAX = 10
_NAME_MAX = 60

_NO_MESSAGE = Message(0, "", "", "", b"", None)


class MessageDecoder:
    def __init__(self) -> None:
        self._notes: dict[str, str] = {}  # by method: why no rule checks it
        # A leader sends all followers the same, again and again, and they accept. So the latest of each is cached with
        # its message: usually the next message is equal, and need not be decoded.
        self._request = self._head_of = self._reply_of = _NO_MESSAGE
        self._decoded: DecodedRequest | None = None
        self.max_extra_field = 0  # of the latest reply: the highest number in an added field
        self._head: Any = None
        self._reply: Any = None

    def decode_request(self, message: Message) -> DecodedRequest | None:
        """None if the arguments lack Figure 2's fields."""
        if not _same_request(message, self._request):
            self._decoded = self._decode_request(message)
            self._request = message
        return self._decoded

    def _decode_request(self, message: Message) -> DecodedRequest | None:
        method = message.rpc
        args = message.decode_args()
        if not self._is_complete(method, 0, args):
            return None
        if method == VOTE and (flag := _flag(args)):
            self._notes.setdefault(f"{VOTE} {flag}", f"{VOTE} with {flag!r} set is not checked")
            return None
        added = [getattr(args, name, None) for name in _added(args.__class__, method, 0)]
        more = any(value and isinstance(value, _MAY_HOLD_ENTRIES) for value in added)
        max_extra_field = _highest(added)
        if method != APPEND:
            return DecodedRequest(args, may_bring_entries=more, max_extra_field=max_extra_field)
        entries = args.entries
        if entries:
            return DecodedRequest(args, args.prev_log_index + len(entries), entries[-1].term, more, max_extra_field)
        return DecodedRequest(args, args.prev_log_index, args.prev_log_term, more, max_extra_field)

    def decode_head(self, message: Message) -> Any:
        """The arguments only, and of an AppendEntries only the AppendHead."""
        if not _same_request(message, self._head_of):
            self._head = self._decode_head(message)
            self._head_of = message
        return self._head

    def forget_head(self) -> None:
        """Make the next decode_head() return a new object, even if it is equal."""
        self._head_of = _NO_MESSAGE

    def _decode_head(self, message: Message) -> Any:
        if message.rpc == APPEND:
            try:
                return labgob.decode(message.request, AppendHead)
            except labgob.DecodeError:
                pass  # decode_request() notes what is missing
        reading = self.decode_request(message)
        return None if reading is None else reading.args

    def decode_reply(self, message: Message) -> Any:
        """None if the reply lacks Figure 2's fields."""
        latest = self._reply_of
        if message.reply != latest.reply or message.reply_type is not latest.reply_type or message.rpc != latest.rpc:
            reply = message.decode_reply()
            self._reply = reply if self._is_complete(message.rpc, 1, reply) else None
            self._reply_of = message
            added = [getattr(reply, name, 0) for name in _added(reply.__class__, message.rpc, 1)]
            self.max_extra_field = _highest(added)
        return self._reply

    def decode_flagged_vote(self, message: Message) -> tuple[int, str] | None:
        """The term and the flag of a vote that was granted to a flagged RequestVote."""
        if message.rpc != VOTE:
            return None
        args, reply = message.decode_args(), message.decode_reply()
        if not self._is_complete(VOTE, 0, args) or not self._is_complete(VOTE, 1, reply) or not reply.vote_granted:
            return None
        flag = _flag(args)
        return (args.term, flag) if flag else None

    def resembles_vote(self, message: Message) -> bool:
        """Whether it has RequestVote's fields, its reply has a term, and all other fields are booleans."""
        try:
            args, reply = message.decode_args(), message.decode_reply()
        except labgob.DecodeError:
            return False
        papers, _ = RPCS[VOTE].fields
        parts = [(args, papers)] if reply is None else [(args, papers), (reply, {"term"})]
        return all(
            dataclasses.is_dataclass(value)
            and all(isinstance(getattr(value, name, None), int) for name in numbers)
            and all(
                isinstance(getattr(value, field.name), bool | None)
                for field in dataclasses.fields(value)
                if field.name not in numbers
            )
            for value, numbers in parts
        )

    def _is_complete(self, method: str, which: int, value: Any) -> bool:
        for field, kind in _FIELDS[method][which]:
            if not isinstance(getattr(value, field, None), kind):
                return self._note_missing(method, "replies" if which else field, value, field, kind)
        if method == APPEND and which == 0:
            for entry in value.entries:
                if not isinstance(getattr(entry, "term", None), int):
                    return self._note_missing(method, "entries", entry, "term", int)
                if not hasattr(entry, "command"):
                    return self._note_missing(method, "entries", entry, "command", object)
        return True

    def _note_missing(self, method: str, part: str, value: Any, field: str, kind: Any) -> Literal[False]:
        """`part`: what cannot be decoded. The rest of the call is checked."""
        kind_name = getattr(kind, "__name__", "list")
        what = f"no {kind_name} in {field!r}" if hasattr(value, field) else f"no field {field!r}"
        if part == "replies":
            text = f"Replies to {method} are not checked: they have {what} (its requests are checked)"
        elif part == "entries":
            whose = "its arguments have" if field == part else "they have"
            text = f"The entries of {method} are not checked: {whose} {what} (its other fields are checked when sent)"
        else:
            text = f"{method} is not checked: its arguments have {what}"
        self._notes.setdefault(method, text)
        return False

    def note_unknown_rpc(self, method: str) -> None:
        if method not in self._notes and len(self._notes) < _NOTES_MAX:
            name = method if len(method) <= _NAME_MAX else f"{method[: _NAME_MAX - 3]}..."
            self._notes[method] = f"{name} is not checked: it is not an RPC from the paper"

    def explain(self, what: str, rpc: str) -> str:
        """Why that cannot be verified, and what to change; `rpc` would prove it."""
        paper = RPCS[rpc]
        args, reply = (", ".join(fields) for fields in paper.fields)
        declared = f"{paper.method_name}({paper.args_type}: {args}) -> {paper.reply_type}: {reply}"
        why = "; ".join(line for method, line in self._notes.items() if " " not in method)
        return (
            f"{what}. {why}. The lab decodes {declared}, by the type of the arguments and the fields that "
            "raft/messages.py declares. Send exactly these fields; you may add others"
        )

    @property
    def undecodable_methods(self) -> list[str]:
        """The methods whose requests or replies cannot be decoded, without flagged RequestVotes."""
        return sorted(method for method in self._notes if " " not in method)

    @property
    def undecodable_notes(self) -> list[str]:
        """What is not checked, and why, a line each."""
        return list(self._notes.values())
