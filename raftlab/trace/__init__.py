"""What happened in a run: events, decoded messages, and files of traces and choices. Start at events.py."""
