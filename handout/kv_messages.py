"""What a clerk and the servers say to each other, and what the servers put into the log.

These are yours: add fields, rename them, add messages. The tester reads none of them. Not promised: that a message
arrives, arrives once, or arrives in order. §8 says what a request must carry so that it takes effect once.
"""

from dataclasses import dataclass

OK = "ok"
WRONG_LEADER = "wrong leader"


@dataclass(slots=True)
class GetArgs:
    """Read a key."""

    key: str


@dataclass(slots=True)
class GetReply:
    err: str
    value: str = ""  # of a key that nobody has written: ""


@dataclass(slots=True)
class PutAppendArgs:
    """Write a key: `op` is "put" or "append"."""

    op: str
    key: str
    value: str


@dataclass(slots=True)
class PutAppendReply:
    err: str


@dataclass(slots=True)
class Op:
    """One command of the log, and so what each server needs to know to do it.

    Give it to start() as bytes, labgob.encode(op), and get it back with labgob.decode(command, Op). An object would
    do too, if you register its class with labgob, but your Raft saves its whole log at every change, and of bytes it
    need not ask what is in them: ten times as quick.
    """

    op: str
    key: str
    value: str = ""
