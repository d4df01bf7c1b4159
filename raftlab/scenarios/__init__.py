"""Scenarios: runs written step by step. Start at scenario.py; text.py parses .scenario files."""
