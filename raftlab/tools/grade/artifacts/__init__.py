"""Pages and minimized runs of failed public tests. Start at artifact_worker.py, which asks for them, and worker.py."""
