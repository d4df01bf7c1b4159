"""Digests of many runs of the reference, recorded and compared: the net under every change that should change nothing.

    python -m tests.digests compare              every recorded run again, in three modes: two to four minutes
    python -m tests.digests compare --sample 10  of every tenth test; make test does this
    python -m tests.digests record               after a change that should change runs, whose commit message says why

Promise: equal digests mean equal runs, and where two differ, `compare` names the first event that does. It makes the
recorded run again for that, in a git worktree of the commit that recorded it.

A test that was renamed keeps its digests through renamed.txt. Start at `compare.py`.
"""
