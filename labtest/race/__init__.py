"""Any line may lose its turn, and what two threads touch without order is named: what `--race` adds to a run.

rewriting.py puts calls into a peer's own code when it is loaded. turns.py is what takes a turn away; watching.py looks
at fields, with the order that labsim keeps (labsim/ordered.py); telling.py says what it found. Without `--race` none of
this is imported, and no line is rewritten.

Start at `Race`.
"""

from labtest.race.race import Race

__all__ = ["Race"]
