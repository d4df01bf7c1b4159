"""`lab mutants`: which incorrect peers the lab catches. Start at command.py; mutants.py says what an entry is."""
