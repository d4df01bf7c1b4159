"""Where a submission runs: box.py asks for runs, walls.py is around them, worker.py makes them, tamper.py looks on."""
