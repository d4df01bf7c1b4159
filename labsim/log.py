"""The student's own lines in the trace: log("vote", "granted to %d in term %d", candidate, term).

Promise: a line changes nothing about the run. It takes no virtual time, draws no chance, and is not part of the
digest, so lines may be added to a failing seed and the failure stays where it was. Where no trace is kept, and
outside a simulation, a line costs a function call and its arguments are not even formatted.

Not promised: that an argument whose own __str__ waits or draws random numbers leaves the run alone.
"""

from __future__ import annotations

from typing import Any

from labsim.current import run_context
from labsim.trace import LOG, Event, LogLine


def log(topic: str, text: object, *args: Any) -> None:
    """Write a line under a topic, for the timeline. `text % args` as in logging; text alone is taken as it is.

    Formatted now and not when it is read: what the arguments refer to may change by then.
    """
    simulation = run_context.simulation
    if simulation is None or simulation.trace is None:
        return
    # Not emit(): that would put the line into the digest.
    node = simulation.current.node
    event = Event(simulation.now_ns, LOG, "", 0, 0, LogLine(str(topic), _format(text, args)))
    if node is not None:
        event.node, event.incarnation = node.name, node.incarnation
    simulation.record(event)


def _format(text: object, args: tuple[Any, ...]) -> str:
    # A slip in a format string must not end a run that goes through when nobody traces it.
    try:
        return str(text) % args if args else str(text)
    except Exception as error:
        try:
            return f"{text} {args} (badly formatted: {error})"
        except Exception:
            return f"(a line that cannot be formatted: {type(error).__name__})"
