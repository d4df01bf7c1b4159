"""Every kind of event in a trace, and the type of its detail.

All code that writes or reads a trace takes the names from here. docs/student/trace.md has the same list. Readers ignore
events of other kinds.

| who emits | kinds |
|---|---|
| the network | send, deliver, duplicate, answer, reply, drop, and those in labrpc/conditions.py |
| the program under test | log |
| the tester | all others |

Start at the table of kinds, then `DETAILS`; calls.py joins the events of a call.
"""

from __future__ import annotations

from typing import Any

import msgspec

from labrpc import conditions
from labrpc.conditions import LINK, PARTITION
from labrpc.events import ANSWER, DELIVER, DROP, DUPLICATE, MESSAGE_KINDS, REPLY, SEND, DropReason
from labsim import LOG, LogLine
from raftapi import ApplyMsg

# The course of a test. Detail: the number of servers; the title of a phase; a step of a scenario; nothing.
CLUSTER = "cluster"
PHASE = "phase"
STEP = "step"
STOP = "stop"
# What happens to a server. Detail of restore: the index that its service begins with; of the others nothing.
BOOT = "boot"
RESTART = "restart"
RESTORE = "restore"
CRASH = "crash"
CONNECT = "connect"
DISCONNECT = "disconnect"
# Paused as by SIGSTOP, and resumed; its clock frozen, and unfrozen.
PAUSE = "pause"
RESUME = "resume"
FREEZE_CLOCK = "freeze_clock"
UNFREEZE_CLOCK = "unfreeze_clock"
# One of its threads is preempted (raftlab/races); it has caught up when no thread of it is delayed any more.
PREEMPT = "preempt"
CAUGHT_UP = "caught_up"
# What the tester does to disks and services.
CRASH_AT = "crash_at"
SLOW_DISKS = "slow_disks"
SLOW_SNAPSHOTS = "slow_snapshots"
BUSY = "busy"
# Between a peer, its disk and its service.
START = "start"
STARTED = "started"
SAVING = "saving"
PERSIST = "persist"
APPLY = "apply"

# Of the student's service above the peers (3A, 3B). Detail of service: the prefix of its RPCs; of snapshot: what it
# passes to its peer; of invoke and return: the operation of a client, without and with its result.
SERVICE = "service"
SNAPSHOT = "snapshot"
INVOKE = "invoke"
RETURN = "return"

# What the tester does to the network: labrpc/conditions.py names them.
CONDITION_KINDS = frozenset(conditions.DETAILS)
# What the tester does to the servers themselves; each is about one of them.
SERVER_ACTS = frozenset((BOOT, RESTART, CRASH, CONNECT, DISCONNECT, PAUSE, RESUME, FREEZE_CLOCK, UNFREEZE_CLOCK))
# Of those, what ends a fault.
REPAIRS = frozenset((BOOT, RESTART, CONNECT, RESUME, UNFREEZE_CLOCK))
# Everything that the tester does to the cluster: after the last of these, only the peers act.
ACTS = SERVER_ACTS | CONDITION_KINDS | {CRASH_AT, SLOW_DISKS, SLOW_SNAPSHOTS, BUSY}


class StartResult(msgspec.Struct, frozen=True, gc=False):
    """What start() returned."""

    command: Any
    index: int
    term: int
    is_leader: bool


class PersistedState(msgspec.Struct, frozen=True, gc=False):
    """The content of the disk after a save."""

    raft_state: bytes
    snapshot: bytes
    number: int = 0  # of the save, in the order in which saves began


class ServiceSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A snapshot that a service has taken, and its last index."""

    index: int
    snapshot: bytes


class Operation(msgspec.Struct, frozen=True, gc=False):
    """An operation of a client: `op` is get, put or append, `value` is what is written, or what a get returned."""

    op: str
    key: str
    value: str = ""


class Preempted(msgspec.Struct, frozen=True, gc=False):
    """Which thread was preempted before which line, and for how long; 0: until other threads have run."""

    task: str
    file: str
    line: int
    late_ns: int = 0


class CrashPoint(msgspec.Struct, frozen=True):
    """At which of its next saves or replies a server crashes. `when` is None: not any more."""

    when: str | None
    nth: int


class SaveTime(msgspec.Struct, frozen=True):
    """How long every save takes."""

    min_ms: float
    max_ms: float


# The detail of each kind, where it has one; for messages it is the Message.
DETAILS: dict[str, Any] = {
    CLUSTER: int,
    PHASE: str,
    STEP: str,
    RESTORE: int,
    START: object,  # the command
    STARTED: StartResult,
    SAVING: int,  # the save's number
    PERSIST: PersistedState,
    APPLY: ApplyMsg,
    PREEMPT: Preempted,
    SERVICE: str,
    SNAPSHOT: ServiceSnapshot,
    INVOKE: Operation,
    RETURN: Operation,
    LOG: LogLine,
    CRASH_AT: CrashPoint,
    SLOW_DISKS: SaveTime,
    SLOW_SNAPSHOTS: float,
    BUSY: bool,
    **conditions.DETAILS,
}


__all__ = [
    "ACTS",
    "ANSWER",
    "APPLY",
    "BOOT",
    "BUSY",
    "CAUGHT_UP",
    "CLUSTER",
    "CONDITION_KINDS",
    "CONNECT",
    "CRASH",
    "CRASH_AT",
    "DELIVER",
    "DETAILS",
    "DISCONNECT",
    "DROP",
    "DUPLICATE",
    "FREEZE_CLOCK",
    "INVOKE",
    "LINK",
    "LOG",
    "MESSAGE_KINDS",
    "PARTITION",
    "PAUSE",
    "PERSIST",
    "PHASE",
    "PREEMPT",
    "REPAIRS",
    "REPLY",
    "RESTART",
    "RESTORE",
    "RESUME",
    "RETURN",
    "SAVING",
    "SEND",
    "SERVER_ACTS",
    "SERVICE",
    "SLOW_DISKS",
    "SLOW_SNAPSHOTS",
    "SNAPSHOT",
    "START",
    "STARTED",
    "STEP",
    "STOP",
    "UNFREEZE_CLOCK",
    "CrashPoint",
    "DropReason",
    "LogLine",
    "Operation",
    "PersistedState",
    "Preempted",
    "SaveTime",
    "ServiceSnapshot",
    "StartResult",
]
