"""log("vote", "granted to %d in term %d", candidate, term): a peer's own lines in the trace.

Promise: a line does not change the run. It takes no virtual time, makes no choice, and is not part of the digest, so
lines can be added to a failing seed without moving the failure. Without a trace, and outside a simulation, a line costs
one function call, and its arguments are not formatted.

Not promised: that the run stays the same if an argument's own __str__ waits or draws random numbers.
"""

from __future__ import annotations

from typing import Any

from labsim.current import run_context
from labsim.trace import LOG, Event, LogLine


def log(topic: str, text: object, *args: Any) -> None:
    """Write a line under a topic, for the timeline. `text % args` as in logging; without args, `text` as it is.

    Formatted now, because the arguments may change later.
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
    # A wrong format string must not end a run that passes without a trace.
    try:
        return str(text) % args if args else str(text)
    except Exception as error:
        try:
            return f"{text} {args} (badly formatted: {error})"
        except Exception:
            return f"(a line that cannot be formatted: {type(error).__name__})"
