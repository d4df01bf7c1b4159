"""What graders and students read in a browser. Start at overview.py (the class) and submission.py (one of it)."""
