"""`lab replay`: replays a run exactly. Start reading at command.py."""
