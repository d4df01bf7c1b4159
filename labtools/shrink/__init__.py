"""`lab shrink`: the same failure with as little as possible left. Start at command.py; searching.py is the search."""
