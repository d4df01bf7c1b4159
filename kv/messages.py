"""What a clerk and the servers say to each other, and what the servers put into the log.

Promise: plain dataclasses, each field of a plain type. You may change all of them: the tester reads none. Not
promised: that a message arrives, arrives once, or arrives in order.
"""

from dataclasses import dataclass

OK = "ok"
WRONG_LEADER = "wrong leader"  # or no leader any more: whether the request takes effect later is open


@dataclass(slots=True)
class GetArgs:
    """Read a key. client_id and seq name the request, so that a repetition of it is known for one (§8)."""

    client_id: int
    seq: int
    key: str


@dataclass(slots=True)
class GetReply:
    err: str
    value: str = ""  # of a key that nobody has written: ""


@dataclass(slots=True)
class PutAppendArgs:
    """Write a key: `op` is "put" or "append"."""

    client_id: int
    seq: int
    op: str
    key: str
    value: str


@dataclass(slots=True)
class PutAppendReply:
    err: str


@dataclass(slots=True)
class Op:
    """One request in the log. A command there is a list of them, and travels as bytes: labgob.encode(ops).

    Objects would do too, if their class is registered with labgob. But Raft saves its whole log at every change, and
    of bytes it need not ask what is in them.
    """

    client_id: int
    seq: int
    op: str  # "get", "put" or "append"
    key: str
    value: str = ""
