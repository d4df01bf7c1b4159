"""The lab in pytest: options, fixtures, output. Start at plugin.py."""
