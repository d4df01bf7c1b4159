"""What the peers' own threads were at when the failure was noticed, for diagnoses that ask why nothing happens.

Only in virtual time, where somebody knows; elsewhere there are none to tell of.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from labsim import Wait, WaitKind
from raftlab.check.diagnosis.trace_analysis import S, TraceAnalysis, duration

_MAX_THREADS = 6
_MAX_PATH = 5
# Nobody sensible waits longer than this for an election to begin; the tests wait 5 s for one to succeed.
QUIET_NS = 2 * S
IN_SECONDS = "it waits too long: timeouts and sleep() take seconds, not milliseconds."


def own_threads(analysis: TraceAnalysis, peers: Iterable[str]) -> list[Wait]:
    """In the order of the peers, oldest thread first."""
    return [wait for peer in peers for wait in analysis.snapshot.threads if wait.node == peer]


def describe_threads(threads: list[Wait], whose: str = "Its") -> str:
    """ "Its own threads: Thread-1 (_ticker) sleeps, in _ticker (raft.py:230); ..." """
    callers = sum(wait.kind is WaitKind.REPLY for wait in threads)
    told = [f"{wait.task} {doing(wait)}{path(wait)}" for wait in threads if wait.kind is not WaitKind.REPLY]
    if len(told) > _MAX_THREADS:
        told[_MAX_THREADS:] = [f"{len(told) - _MAX_THREADS} more"]
    if callers:
        told.append(f"{callers} that wait{'s' if callers == 1 else ''} for the reply to a call")
    return f"{whose} own threads: {'; '.join(told) or 'none'}."


def whole_ns(wait: Wait) -> int:
    """How long a wait for a time is to last, from its begin; 0 for any other."""
    return 0 if wait.left_ns is None else wait.waited_ns + wait.left_ns


def sleeper_of(analysis: TraceAnalysis, peers: Iterable[str]) -> Wait | None:
    """A thread of one of these peers that was told to wait for longer than any election may take to begin."""
    for wait in own_threads(analysis, peers):
        # What can be woken by news may have all the time in the world.
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
    """ ", in _ticker > _tick (raft.py:241)": how the thread came where it is; "" if no line is the reader's."""
    if wait.where is None:
        return ""
    functions = " > ".join(place.function for place in reversed(wait.stack[:_MAX_PATH]))
    return f", in {functions} ({Path(wait.where.file).name}:{wait.where.line})"
