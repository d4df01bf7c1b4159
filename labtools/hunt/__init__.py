"""The hunt: runs that nobody wrote, until one of them fails. Start at hunting.py; what is drawn is in drawing.py."""
