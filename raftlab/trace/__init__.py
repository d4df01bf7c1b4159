"""What happened in a run: events, decoded messages, and the files that keep traces and choices. Start at events.py."""
