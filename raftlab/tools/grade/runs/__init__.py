"""Runs of a submission: run_worker.py asks for them, worker.py makes them and supervises the sandboxed peers."""
