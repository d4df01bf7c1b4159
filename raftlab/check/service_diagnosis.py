"""What is likely wrong with a service: a history that is no linearizable one, told, or a client that waits in vain.

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
    "Likely: a request that was sent again was done again. Its client and its number tell a repetition, and must be "
    "looked at when it is applied, not only when it comes in; which requests were seen is part of the state, on every "
    "server and in every snapshot (§8)."
)
_LIKELY = {
    Anomaly.TWICE: _TWICE,
    Anomaly.STALE: (
        "Likely: a server answered from what it had, and did not know what had been agreed on since. A leader that was "
        "deposed believes that it leads; a read must be agreed on like a write, or a majority must say that nobody "
        "else leads (§8). After a restart or a snapshot, look whether all of the state is there again."
    ),
    Anomaly.LOST: (
        "Likely: a write was answered that was never agreed on, or was taken for a repetition of another. Answer when "
        "the request itself was applied at its index, and not merely something; and tell the requests of different "
        "clients apart (§8)."
    ),
    Anomaly.ORDER: (
        "Likely: servers apply in different orders, or one of them has applied what was not agreed on (§5.3)."
    ),
    Anomaly.UNKNOWN_VALUE: (
        "Likely: what is stored or answered is not what was asked for: look at put, append and get themselves."
    ),
    Anomaly.OTHER: "",
}


def evidence(violation: HistoryViolation, trace: Sequence[Event]) -> list[str]:
    """A line each."""
    lines = ["These operations cannot be put in one order:", *draw(violation.operations)]
    for operation in violation.operations:
        if operation.kind is OperationKind.GET:
            lines += _answered(operation, trace)
    likely = _LIKELY[violation.anomaly]
    return [*lines, *textwrap.wrap(likely, _WIDTH)] if likely else lines


def explain_wait(waits: Sequence[Wait]) -> list[str]:
    """A client waits in vain: whether a server's own lock is why, a line each. `waits`: those that are blocked."""
    locked = [wait for wait in waits if wait.kind is WaitKind.LOCK and wait.node is not None and wait.node.isdecimal()]
    if not locked:
        return []
    wait = max(locked, key=lambda wait: wait.waited_ns)
    likely = (
        f"Likely: server {wait.node} keeps its lock while it waits. {wait.task} has waited "
        f"{wait.waited_ns / 1e9:.1f} s for that lock, and if it is the one that applies, what the keeper waits for "
        "cannot happen. Let go of the lock before you wait, or wait with a Condition, which lets go of it."
    )
    return textwrap.wrap(likely, _WIDTH)


def _answered(get: ClientOperation, trace: Sequence[Event]) -> list[str]:
    """Which server answered that get, and how much it had applied, beside who had applied most."""
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
    others = f"; server {most} had then applied up to {applied[most]}" if applied.get(most, 0) > had else ""
    return [f"  What {get.client} read, server {server} answered when it had applied up to {had}{others}."]
