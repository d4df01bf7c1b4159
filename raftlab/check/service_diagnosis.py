"""Explains failures of a service: a history that is not linearizable, or a client that gets no answer.

Start at `evidence()`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from labsim import Event, Wait, WaitKind
from raftlab.check.linearizability import Anomaly, ClientOperation, HistoryViolation, OperationKind, draw
from raftlab.trace import events

_WIDTH = 108
_TWICE = (
    "Likely: a retransmitted request was executed twice. Detect duplicates by client and request number when an "
    "entry is applied, not only when a request arrives. The table of seen requests must be part of the state, on "
    "every server and in every snapshot (§8)."
)
_LIKELY = {
    Anomaly.TWICE: _TWICE,
    Anomaly.STALE: (
        "Likely: a server answered a read from outdated state. A deposed leader may still believe that it leads: "
        "commit reads like writes, or let a majority confirm its leadership before each read (§8). Also check that "
        "all state is restored after a restart or from a snapshot."
    ),
    Anomaly.LOST: (
        "Likely: a server answered a write that was never committed, or mistook it for a duplicate. Answer only when "
        "this request has been applied at its index (another request may be there), and distinguish the requests of "
        "different clients (§8)."
    ),
    Anomaly.ORDER: (
        "Likely: servers apply entries in different orders, or one of them applied an uncommitted entry (§5.3)."
    ),
    Anomaly.UNKNOWN_VALUE: (
        "Likely: put, append or get stores or returns the wrong value. Check these operations themselves."
    ),
    Anomaly.OTHER: "",
}


def evidence(violation: HistoryViolation, trace: Sequence[Event]) -> list[str]:
    """The operations as a diagram, which server answered, and the likely cause, a line each."""
    lines = ["No single order explains these operations:", *draw(violation.operations)]
    for operation in violation.operations:
        if operation.kind is OperationKind.GET:
            lines += _answered(operation, trace)
    likely = _LIKELY[violation.anomaly]
    return [*lines, *textwrap.wrap(likely, _WIDTH)] if likely else lines


def explain_wait(waits: Sequence[Wait]) -> list[str]:
    """For a client that gets no answer: whether a server's own lock is the cause. `waits`: the blocked tasks."""
    locked = [wait for wait in waits if wait.kind is WaitKind.LOCK and wait.node is not None and wait.node.isdecimal()]
    if not locked:
        return []
    wait = max(locked, key=lambda wait: wait.waited_ns)
    likely = (
        f"Likely: server {wait.node} holds its lock while it waits. {wait.task} has waited {wait.waited_ns / 1e9:.1f} "
        "s for that lock. If that thread applies entries, both threads wait for ever. Release the lock before "
        "waiting, or wait on a Condition, which releases it."
    )
    return textwrap.wrap(likely, _WIDTH)


def _answered(get: ClientOperation, trace: Sequence[Event]) -> list[str]:
    """Which server answered that get, how much it had applied, and how much another one had applied."""
    ended_ns = round(get.returned_s * 1e9)
    began_ns = round(get.called_s * 1e9)
    reply = next(
        (
            event
            for event in reversed(trace)
            if event.kind == events.REPLY and event.node == get.client and began_ns <= event.at_ns <= ended_ns
        ),
        None,
    )
    if reply is None:
        return []
    server, applied = reply.detail.target, {}
    for event in trace:
        if event.detail is reply.detail and event.kind == events.ANSWER:
            break
        if event.kind == events.RESTORE:
            applied[event.node] = event.detail
        elif event.kind == events.APPLY:
            message = event.detail
            applied[event.node] = message.snapshot_index if message.snapshot_valid else message.command_index
    most = max(applied, key=lambda name: applied[name], default=server)
    had = applied.get(server, 0)
    others = f"; server {most} had applied up to {applied[most]}" if applied.get(most, 0) > had else ""
    return [f"  Server {server} answered the read of {get.client} when it had applied up to {had}{others}."]
