"""`lab replay`: one run again, exactly. Start reading at command.py."""
