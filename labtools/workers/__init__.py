"""Processes that make runs for others, and how one talks with them. Start at process.py."""
