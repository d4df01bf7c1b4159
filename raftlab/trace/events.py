"""The vocabulary of the trace: every kind of event, and the type of its detail.

Whoever writes or reads a trace (the tester, the checks, the diagnoses, the timeline, the trace file) takes the words
from here. docs/student/trace.md has the same list. An event of a kind that is not listed is nobody's business.

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

# The course of a test. Detail: how many servers; what begins; a step of a scenario; nothing.
CLUSTER = "cluster"
PHASE = "phase"
STEP = "step"
STOP = "stop"
# A server's life. Detail of restore: the index that its service begins with; of the others nothing.
BOOT = "boot"
RESTART = "restart"
RESTORE = "restore"
CRASH = "crash"
CONNECT = "connect"
DISCONNECT = "disconnect"
# It is stopped like a process with SIGSTOP, and continues; its clock is held, and goes on.
PAUSE = "pause"
RESUME = "resume"
FREEZE_CLOCK = "freeze_clock"
UNFREEZE_CLOCK = "unfreeze_clock"
# One of its threads loses its turn (raftlab/races); when no thread of it is late any more, it has caught up.
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

# Of a service of the student's own above the peers (3A, 3B). Detail of service: its name on the wire; of snapshot: what
# it gives to its peer; of invoke and return: what a client asks for, and what it was told.
SERVICE = "service"
SNAPSHOT = "snapshot"
INVOKE = "invoke"
RETURN = "return"

# What it does to the network: labrpc/conditions.py names them.
CONDITION_KINDS = frozenset(conditions.DETAILS)
# What the tester does to the servers themselves; each is about one of them.
SERVER_ACTS = frozenset((BOOT, RESTART, CRASH, CONNECT, DISCONNECT, PAUSE, RESUME, FREEZE_CLOCK, UNFREEZE_CLOCK))
# Of those, what ends a fault.
REPAIRS = frozenset((BOOT, RESTART, CONNECT, RESUME, UNFREEZE_CLOCK))
# Everything that the tester does to the world: since the last of these nothing has changed but by the peers' own doing.
ACTS = SERVER_ACTS | CONDITION_KINDS | {CRASH_AT, SLOW_DISKS, SLOW_SNAPSHOTS, BUSY}


class Started(msgspec.Struct, frozen=True, gc=False):
    """What start() returned."""

    command: Any
    index: int
    term: int
    is_leader: bool


class PersistedState(msgspec.Struct, frozen=True, gc=False):
    """What is on the disk now."""

    raft_state: bytes
    snapshot: bytes
    number: int = 0  # of the save, in the order in which they began


class ServiceSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A snapshot that a service has made, and the index that it ends with."""

    index: int
    snapshot: bytes


class Operation(msgspec.Struct, frozen=True, gc=False):
    """What a client does: `op` is get, put or append, `value` what is written, or what a get has returned."""

    op: str
    key: str
    value: str = ""


class Preempted(msgspec.Struct, frozen=True, gc=False):
    """Which thread lost its turn before which line, and how late it gets it back; 0: as soon as others had theirs."""

    task: str
    file: str
    line: int
    late_ns: int = 0


class CrashPoint(msgspec.Struct, frozen=True):
    """Where a server is to crash: at which of its next saves or replies. `when` is None: nowhere any more."""

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
    STARTED: Started,
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
    "Started",
]
