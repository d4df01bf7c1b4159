"""Processes that make runs for others: process.py is the side that asks, serving.py the side that answers, kit.py what
they work on, shrinker.py a process that shrinks.

They speak lines. The first tells the worker what it is for, and it answers `ready`; from then on each line is a
request and gets one line back. A worker that answers `retire` wants a fresh process to have what is left.
"""
