"""The hunt: runs that nobody wrote, until one of them fails. Start at command.py."""
