"""Preempts threads at any line and finds data races: what `--race` adds to a run.

rewriter.py puts calls into a peer's own code when it is loaded. preemption.py preempts threads; detector.py checks
accesses to fields, with the order that labsim keeps (labsim/ordered.py); report.py describes a race. Without `--race`
none of this is imported, and no line is rewritten.

Start at `Race`.
"""

from raftlab.races.instrumentation import RaceInstrumentation

__all__ = ["RaceInstrumentation"]
