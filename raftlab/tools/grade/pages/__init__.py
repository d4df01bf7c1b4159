"""HTML pages for graders and students. Start at overview.py (the class) and submission.py (one submission)."""
