"""`lab zoo`: every wrong Raft of tests/zoo, hunted. Start reading at command.py; mutants.py says what an entry is."""
