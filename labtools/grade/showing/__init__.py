"""Failures of public tests, drawn as pages and shrunk. Start at desk.py (who asks) and worker.py (who makes them)."""
