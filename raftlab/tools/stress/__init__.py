"""`lab stress`: tests over thousands of seeds. Start reading at command.py."""
