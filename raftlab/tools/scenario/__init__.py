"""`lab scenario`: a run written down step by step, on any peer. Start at command.py."""
