"""How a submission's runs are made: box.py asks for them, worker.py makes them, as the host of the peers' processes."""
