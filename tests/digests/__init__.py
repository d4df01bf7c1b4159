"""Digests of many runs of the reference, recorded and compared: regression tests for changes that keep runs equal.

    python -m tests.digests compare              repeats all recorded runs in three modes: two to four minutes
    python -m tests.digests compare --sample 10  repeats those of every tenth test, as make test does
    python -m tests.digests record               after an intended change of runs, explained in its commit message

Promise: equal digests mean equal runs. If two differ, `compare` names the first event that differs. For that it repeats
the recorded run in a git worktree of the commit that recorded it.

A renamed test keeps its digests through renamed.txt. Start at `compare.py`.
"""
