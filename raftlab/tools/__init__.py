"""What is run around the tests. One command, `lab`; start reading at cli.py."""
