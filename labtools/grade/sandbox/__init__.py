"""Where a submission runs: walls.py around it, worker.py within, tamper.py against what it should not do."""
