"""`lab page`: a run as one HTML file, to look at and to step through. Start at command.py."""
