"""The messages between clerks and servers, and the commands in the log.

You may change these freely: the tester reads none of them. A message may be lost, arrive twice, or arrive out of order.
§8 describes what a request must carry so that it takes effect exactly once.
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
    value: str = ""  # "" if the key has no value


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
    """One command in the log: all that a server needs to execute it.

    Pass it to start() as bytes, labgob.encode(op), and decode it with labgob.decode(command, Op). An object works too,
    if you register its class with labgob, but it is ten times slower: your Raft saves its whole log at every change,
    and bytes need no further encoding.
    """

    op: str
    key: str
    value: str = ""
