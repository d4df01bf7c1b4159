"""`--race`: preempts threads at any line and finds data races.

rewriter.py adds calls to a peer's code when it is loaded. preemption.py preempts threads; detector.py checks accesses
to fields against the happens-before order of labsim/ordered.py; report.py describes a race. Without `--race` none of
this is imported, and no code is rewritten. Start at `RaceInstrumentation`.
"""

from raftlab.races.instrumentation import RaceInstrumentation

__all__ = ["RaceInstrumentation"]
