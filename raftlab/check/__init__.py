"""Finds what is wrong with a run: rules (rules/), likely causes (diagnosis/), client histories (linearizability/).

A failure is a value: `Failure` in failure.py. The process of a sandboxed peer may import the modules directly in this
folder.
"""
