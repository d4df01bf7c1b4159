"""`lab shrink`: the same failure with as little as possible left. Start at command.py; search.py is the search."""
