"""Worker processes that make runs: process.py asks, server.py answers, job_bundle.py is what they work on.

shrinker.py is a process that shrinks.

They speak lines. The first tells the worker what it is for, and it answers `ready`; from then on each line is a
request and gets one line back. A worker that answers `retire` wants a fresh process to have what is left.
"""
