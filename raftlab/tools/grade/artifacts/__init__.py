"""Pages and minimized runs of failed public tests. Start at artifact_worker.py; worker.py makes them."""
