"""Worker processes that make runs: pool.py asks several, dask.py those of a cluster; process.py is one of them seen
from outside, server.py from inside; in_process.py is the start of those that load a peer; job_bundle.py is what they
work on. shrinker.py is a process that shrinks.

They exchange lines. The first tells the worker what it is for, and it answers `ready`; then each line is a request and
gets one line back. A worker that answers `retire` asks for a new process for the requests that are left.
"""
