"""What the peers' own threads were doing at the failure, for diagnoses of peers that do not act.

Known only in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from labsim import Wait, WaitKind
from raftlab.check.diagnosis.trace_analysis import S, TraceAnalysis, duration

_MAX_THREADS = 6
_MAX_PATH = 5
# No election timeout should be longer than this: the tests wait 5 s for an election to succeed.
QUIET_NS = 2 * S
IN_SECONDS = "it waits too long: timeouts and sleep() are in seconds, not milliseconds."


def own_threads(analysis: TraceAnalysis, peers: Iterable[str]) -> list[Wait]:
    """In the order of the peers, oldest thread first."""
    return [wait for peer in peers for wait in analysis.snapshot.threads if wait.node == peer]


def describe_threads(threads: list[Wait], whose: str = "Its") -> str:
    """ "Its own threads: Thread-1 (_ticker) sleeps, in _ticker (raft.py:230); ..." """
    callers = sum(wait.kind is WaitKind.REPLY for wait in threads)
    parts = [f"{wait.task} {doing(wait)}{path(wait)}" for wait in threads if wait.kind is not WaitKind.REPLY]
    if len(parts) > _MAX_THREADS:
        parts[_MAX_THREADS:] = [f"{len(parts) - _MAX_THREADS} more"]
    if callers:
        parts.append(f"{callers} that wait{'s' if callers == 1 else ''} for the reply to a call")
    return f"{whose} own threads: {'; '.join(parts) or 'none'}."


def whole_ns(wait: Wait) -> int:
    """The full duration of a timed wait; 0 for any other."""
    return 0 if wait.left_ns is None else wait.waited_ns + wait.left_ns


def sleeper_of(analysis: TraceAnalysis, peers: Iterable[str]) -> Wait | None:
    """A thread of one of these peers that waits longer than any election timeout may be."""
    for wait in own_threads(analysis, peers):
        # A wait that a notification ends may be long.
        if wait.kind in (WaitKind.SLEEP, WaitKind.EVENT) and whole_ns(wait) > QUIET_NS:
            return wait
    return None


def asleep(wait: Wait) -> str:
    return f"{wait.task} of peer {wait.node} {doing(wait)}{path(wait)}, for {duration(whole_ns(wait))} in all."


def doing(wait: Wait) -> str:
    if wait.kind is WaitKind.SLEEP:
        return "sleeps"
    return "is about to run" if wait.kind is WaitKind.NOTHING else f"waits for {wait.kind.value}"


def path(wait: Wait) -> str:
    """ ", in _ticker > _tick (raft.py:241)": the thread's user functions; "" if there is none."""
    if wait.where is None:
        return ""
    functions = " > ".join(place.function for place in reversed(wait.stack[:_MAX_PATH]))
    return f", in {functions} ({Path(wait.where.file).name}:{wait.where.line})"
