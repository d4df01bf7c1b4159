"""Scenarios: a run written down step by step, on any peer. Start at scenario.py; a file's words are read in text.py."""
