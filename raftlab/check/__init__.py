"""What is wrong with a run: rules (rules/), likely causes (diagnosis/), histories of clients (linearizability/).

A failure is a value, `Failure` in failure.py. What is directly in this folder a sandboxed peer's process may import.
"""
