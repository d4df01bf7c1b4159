"""`lab timeline`: a run as a table. Start reading at command.py; on_failure.py prints one beside a failed test."""
