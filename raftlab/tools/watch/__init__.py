"""`lab watch`: run the tests again whenever a file is saved. Start at command.py."""
